"""What ``plugind ls`` prints: on terminals of any width, and in a pipe."""

from __future__ import annotations

import io

import attrs
import pytest
from rich.console import Console

from plugind.actors.console import table
from plugind.actors.console.answers import Plugin
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.status import PluginStatus, StateName
from plugind.protocol.status.json import plugin_to_json
from plugind.tests.actors.console import snapshots
from plugind.tests.actors.console.snapshots import UNIX

GOOD = PluginStatus(
    "/r/a.sock", "/r", 1, StateName.REGISTERED, 0.0, None, 1, None, "CSIPlugin", "csi.example.com", "/r/a.sock",
    ("1.0.0",), 0.012, True,
)  # fmt: skip
WAITS = PluginStatus("/r/b.sock", "/r", 2, StateName.WAITING, 9.0, "no answer\x1b[31m[bold]", 3, 12.0)
REFUSES = attrs.evolve(WAITS, reason="RegisterPlugin error -- dial failed at socket /r/b.sock, err: no")
#: A plugin that has all that is long.
LONG = attrs.evolve(
    WAITS,
    socket="/var/lib/kubelet/plugins_registry/example.com-reg.sock",
    type="DevicePlugin",
    name="a-name-of-some-length.devices.example.com/accelerator",
    reason="RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket"
    " /var/lib/kubelet/plugins_registry/example.com-reg.sock, err: UNAVAILABLE: the device is being reset, try again",
)
CAUSE = "UNAVAILABLE: the device is being reset, try again"
DEAD = attrs.evolve(GOOD, serving=False, not_serving="nobody listens on its socket")
ILL = attrs.evolve(GOOD, health=Health.UNHEALTHY, health_reason="no answer within 3s", health_since=3.0)


def shown(*plugins: PluginStatus) -> list[Plugin]:
    return [plugin_to_json(plugin, 10.0, UNIX) for plugin in plugins]


def fitted(width: int, *plugins: PluginStatus, one_line: bool = False) -> list[str]:
    return [line.text for line in table.fitted(shown(*plugins), width, one_line=one_line)]


@pytest.mark.usefixtures("in_berlin")
def test_what_ls_prints() -> None:
    """Faults 22, 39 and 91: what a plugin says is escaped, and who does not serve is shown with the reason."""
    plugins = (GOOD, WAITS, LONG, DEAD, ILL, REFUSES, attrs.evolve(WAITS, cause="nobody listens"))
    counted = shown(WAITS, GOOD, DEAD, attrs.evolve(WAITS, state=StateName.STALE))
    snapshots.check(
        "ls",
        {
            "in a pipe": table.plain(shown(*plugins)),
            "in a pipe, without plugins": table.plain([]),
            **{f"on {width} columns": fitted(width, *plugins) for width in (30, 80, 200)},
            "on 52 columns, with short causes": fitted(52, GOOD, attrs.evolve(WAITS, reason="hm")),
            **{
                f"on {width} columns, with one line each": fitted(width, GOOD, LONG, one_line=True)
                for width in (40, 80)
            },
            "summaries": [
                table.summary(counted),
                table.summary(counted[:1], 4),
                table.summary([], 4),
                table.summary(shown(GOOD)),
                table.summary([]),
            ],
        },
    )


@pytest.mark.parametrize("width", [1, 10, 40, 60, 80, 120, 200])
def test_every_width_shows_the_whole_cause_and_no_line_is_longer(width: int) -> None:
    """Characters of two columns are counted as such."""
    assert "".join(CAUSE.split()) in "".join("".join(fitted(width, GOOD, WAITS, LONG)).split())
    wide = fitted(width, attrs.evolve(LONG, name="名前" * 30, reason="接続できません " * 12))
    console = Console(file=io.StringIO(), width=500)
    assert width < 40 or max(console.measure(line).maximum for line in wide) <= width

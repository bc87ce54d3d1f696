"""What ``plugind ls`` prints: on terminals of any width, and in a pipe."""

from __future__ import annotations

import io
import re

import attrs
import pytest
from rich.console import Console

from plugind.actors.console import table
from plugind.actors.console.answers import Plugin
from plugind.actors.console.description import described
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.status import PluginStatus, StateName
from plugind.protocol.status.json import plugin_to_json

UNIX = 1_700_000_000.0
GOOD = PluginStatus(
    "/r/a.sock", "/r", 1, StateName.REGISTERED, 0.0, None, 1, None, "CSIPlugin", "csi.example.com", "/r/a.sock",
    ("1.0.0",), 0.012, True,
)  # fmt: skip
WAITS = PluginStatus("/r/b.sock", "/r", 2, StateName.WAITING, 9.0, "no answer\x1b[31m[bold]", 3, 12.0)
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


def shown(*plugins: PluginStatus) -> list[Plugin]:
    return [plugin_to_json(plugin, 10.0, UNIX) for plugin in plugins]


def fitted(width: int, *plugins: Plugin) -> list[str]:
    return [line.text for line in table.fitted(plugins, width)]


def test_a_pipe_gets_plain_columns_without_cuts() -> None:
    header, *lines = table.plain(shown(WAITS, GOOD, LONG)).splitlines()
    assert re.split(" {2,}", header) == list(table.PIPED)
    cells = [re.split(" {2,}", line) for line in lines]
    assert [row[:7] for row in cells] == [
        ["registered", "csi.example.com", "CSIPlugin", "10.0s", "-", "-", "1"],
        ["waiting", LONG.name, "DevicePlugin", "1.0s", "-", "2.0s", "3"],
        ["waiting", "-", "-", "1.0s", "-", "2.0s", "3"],
    ]
    assert [row[-2:] for row in cells] == [
        ["/r/a.sock", "-"],
        [LONG.socket, f"failed to get plugin info using RPC GetInfo: {CAUSE}"],
        ["/r/b.sock", "no answer\\x1b[31m[bold]"],
    ]
    assert len({line.index("/") for line in (lines[0], lines[2])}) == 1, "a long cause moves no column"


def test_without_plugins_the_table_has_only_its_header() -> None:
    assert table.plain([]) == "STATE  NAME  TYPE  AGE  HEALTH  NEXT TRY  ATTEMPT  SINCE  SOCKET  CAUSE\n"


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_every_width_shows_state_name_type_and_the_whole_cause(width: int) -> None:
    """Fault 22; the fixed words of a reason, which say nothing new, are not shown."""
    lines = fitted(width, *shown(GOOD, WAITS, LONG))
    assert re.split(" {2,}", lines[0])[:3] == ["STATE", "NAME", "TYPE"]
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert CAUSE in text
    assert "no answer\\x1b[31m[bold]" in text
    assert str(LONG.name) in "".join(text.split()), "in a narrow terminal it takes two lines"
    assert "RegisterPlugin error" not in text
    rows = [line for line in lines[1:] if not line.startswith(" ")]
    assert [line.split()[0] for line in rows] == ["registered", "waiting", "waiting"]
    assert "CSIPlugin" in rows[0]
    assert "DevicePlugin" in rows[1]


def test_at_80_columns_a_long_cause_stands_under_its_row() -> None:
    assert fitted(80, *shown(GOOD, attrs.evolve(WAITS, reason="no answer in time " * 6))) == [
        "STATE       NAME             TYPE       AGE    HEALTH  NEXT TRY  ATTEMPT",
        "registered  csi.example.com  CSIPlugin  10.0s  -       -         1",
        "waiting     b.sock           -          1.0s   -       2.0s      3",
        "    /r/b.sock; no answer in time no answer in time no answer in time no answer",
        "    in time no answer in time no answer in time",
    ]


def test_a_short_cause_has_a_column_beside_the_type() -> None:
    assert fitted(52, *shown(GOOD, attrs.evolve(WAITS, reason="hm"))) == [
        "STATE       NAME             TYPE       CAUSE  AGE",
        "registered  csi.example.com  CSIPlugin  -      10.0s",
        "waiting     b.sock           -          hm     1.0s",
        "    /r/b.sock; attempt 3, next try in 2.0s",
    ]


def test_a_terminal_that_is_wide_enough_shows_everything_in_one_line_each() -> None:
    lines = fitted(200, *shown(GOOD, WAITS))
    assert re.split(" {2,}", lines[0]) == list(table.COLUMNS)
    assert [re.split(" {2,}", line)[-1] for line in lines[1:]] == ["/r/a.sock", "/r/b.sock"]


@pytest.mark.parametrize("width", [1, 10, 30])
def test_a_terminal_too_narrow_for_a_row_loses_columns_and_not_causes(width: int) -> None:
    lines = fitted(width, *shown(LONG))
    assert "".join(CAUSE.split()) in "".join("".join(lines).split())


@pytest.mark.parametrize("width", [40, 80, 120])
def test_characters_of_two_columns_are_counted_as_such(width: int) -> None:
    lines = fitted(width, *shown(attrs.evolve(LONG, name="名前" * 30, reason="接続できません " * 12)))
    console = Console(file=io.StringIO(), width=500)
    assert max(console.measure(line).maximum for line in lines) <= width


def test_the_cause_of_a_state_is_shown_before_its_reason() -> None:
    (plugin,) = shown(attrs.evolve(WAITS, reason="RegisterPlugin error -- dial failed at socket /r/b.sock, err: no"))
    assert table.row(plugin)["CAUSE"] == "dial failed: no"
    assert table.row({**plugin, "cause": "nobody listens"})["CAUSE"] == "nobody listens"


def test_a_registered_plugin_that_does_not_serve_is_shown_with_the_reason() -> None:
    """Fault 39: the state stays ``registered``; the row and the description say that nobody listens."""
    dead = attrs.evolve(GOOD, serving=False, not_serving="nobody listens on its socket")
    good, idle = shown(attrs.evolve(GOOD, serving=True), dead)
    _, line = table.fitted([idle], 120)
    assert line.text.startswith("registered  csi.example.com  CSIPlugin  not serving: nobody listens on its socket  ")
    assert line.colour == "yellow"
    assert "not serving: nobody listens on its socket" in table.plain([idle])
    assert table.summary([good, idle]) == "2 plugins: 2 registered (1 not serving)"
    assert "Serving:    no: nobody listens on its socket\n" in described(idle)
    assert "Serving:    yes: somebody listens on its registration socket\n" in described(good)


def test_a_row_has_the_health_that_a_handler_reports() -> None:
    ill = attrs.evolve(GOOD, health=Health.UNHEALTHY, health_reason="no answer within 3s", health_since=3.0)
    (plugin,) = shown(ill)
    assert (table.row(plugin)["HEALTH"], table.row(plugin)["CAUSE"]) == ("unhealthy", "unhealthy: no answer within 3s")


def test_the_summary_counts_states_the_most_frequent_first() -> None:
    plugins = shown(WAITS, GOOD, GOOD, attrs.evolve(WAITS, state=StateName.STALE))
    assert table.summary(plugins) == "4 plugins: 2 registered, 1 stale, 1 waiting"
    assert table.summary(plugins[:1], 4) == "1 of 4 plugins: 1 waiting"
    assert table.summary([], 4) == "0 of 4 plugins"
    assert table.summary(shown(GOOD)) == "1 plugin: 1 registered"
    assert table.summary([]) == "0 plugins"


def test_texts_of_a_plugin_are_no_markup_and_states_have_colours() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system="standard", no_color=False, width=120)
    console.print(table.rich_lines(table.fitted(shown(WAITS), 120)), soft_wrap=True)
    assert "\x1b[33mwaiting\x1b[0m" in out.getvalue()
    assert "no answer\\x1b[31m[bold]" in out.getvalue()


def test_with_one_line_each_a_cause_is_cut() -> None:
    """The demo's screen must not jump."""
    lines = [line.text for line in table.fitted(shown(GOOD, LONG), 80, one_line=True)]
    assert len(lines) == 3
    assert max(map(len, lines)) <= 80
    assert re.split(" {2,}", lines[0]) == ["STATE", "NAME", "CAUSE", "AGE", "NEXT TRY", "ATTEMPT"]
    assert re.split(" {2,}", lines[2])[2:] == ["failed to get…", "1.0s", "2.0s", "3"]
    narrow = [line.text for line in table.fitted(shown(LONG), 40, one_line=True)]
    assert re.split(" {2,}", narrow[0]) == ["STATE", "NAME", "CAUSE"]
    assert narrow[1].endswith("…")

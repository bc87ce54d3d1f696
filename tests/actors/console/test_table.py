from __future__ import annotations

import io
import re

import attrs
import pytest
from rich.console import Console

from plugind.actors.console import table as console_table
from plugind.actors.console.client import Plugin
from plugind.protocol.status import HistoryEntry, PluginStatus, StateName
from plugind.protocol.status_json import described_to_json, plugin_to_json

GOOD = PluginStatus(
    "/r/a.sock", "/r", 1, StateName.REGISTERED, 0.0, None, 1, None, "CSIPlugin", "csi.example.com", "/r/a.sock",
    ("1.0.0",), 0.012, True, serving=True,
)  # fmt: skip
WAITS = PluginStatus("/r/b.sock", "/r", 2, StateName.WAITING, 9.0, "no answer\x1b[31m[bold]", 3, 12.0)


def shown(*plugins: PluginStatus) -> list[Plugin]:
    return [plugin_to_json(plugin, 10.0) for plugin in plugins]


def test_a_registered_plugin_that_does_not_serve_says_so_and_why() -> None:
    """Fault 39: the state stays ``registered``; the row and the description say that nobody listens."""
    dead = attrs.evolve(GOOD, serving=False, not_serving="nobody listens on its socket")
    assert "registered" in console_table.plain(shown(dead))
    assert console_table.plain(shown(dead)).endswith("not serving: nobody listens on its socket\n")
    assert "Serving:    no: nobody listens on its socket\n" in console_table.described(plugin_to_json(dead, 10.0))


def test_a_pipe_gets_plain_columns_without_cuts() -> None:
    assert console_table.plain(shown(WAITS, GOOD)) == (
        "NAME             TYPE       STATE       SINCE  ATTEMPT  NEXT TRY  SOCKET     REASON\n"
        "csi.example.com  CSIPlugin  registered  10.0s  1        -         /r/a.sock\n"
        "-                -          waiting     1.0s   3        2.0s      /r/b.sock  no answer\\x1b[31m[bold]\n"
    )


def test_without_plugins_the_table_has_only_its_header() -> None:
    assert console_table.plain([]) == "NAME  TYPE  STATE  SINCE  ATTEMPT  NEXT TRY  SOCKET  REASON\n"


def test_on_a_terminal_paths_and_reasons_are_cut_to_its_width() -> None:
    """Fault 22; markup in the texts of a plugin is shown literally."""
    out = io.StringIO()
    long = attrs.evolve(GOOD, socket="/var/lib/kubelet/plugins_registry/" + "x" * 60 + "-reg.sock")
    console = Console(file=out, width=120, highlight=False, color_system=None)
    console.print(console_table.rich_table(shown(WAITS, long), console.width))
    lines = out.getvalue().splitlines()
    assert [len(line.rstrip()) <= 120 for line in lines] == [True] * 3
    assert "csi.example.com  CSIPlugin  registered" in lines[1]
    assert "-reg.sock" in lines[1]
    assert "no answer\\x1b[31m[bold]" in lines[2]


def table_lines(plugins: list[Plugin], width: int) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, color_system=None)
    console.print(console_table.rich_table(plugins, width))
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("width", [50, 60, 80, 100, 120, 200])
def test_states_times_attempts_and_headings_are_whole_at_each_width(width: int) -> None:
    socket = "/var/lib/kubelet/plugins_registry/csi.example.com-reg.sock"
    asks = attrs.evolve(GOOD, socket=socket, state=StateName.ASKING_INFO, since=-7000.0)
    waits = attrs.evolve(WAITS, socket=f"{socket}2", name="n" * 40, type="DRAPlugin", reason="no answer " * 20)
    header, *lines = table_lines(shown(asks, waits), width)
    headings = [heading for heading in console_table.COLUMNS if heading in header]
    assert re.split(" {2,}", header) == headings
    assert {"NAME", "STATE", "SINCE", "ATTEMPT", "NEXT TRY"} <= set(headings)
    assert all(len(line) <= width for line in [header, *lines])
    assert "  asking-info  1h56m  1        -" in lines[0]
    assert "  waiting      1.0s   3        2.0s" in lines[1]


def test_at_80_columns_names_and_reasons_have_priority_over_sockets() -> None:
    long = attrs.evolve(GOOD, socket="/var/lib/kubelet/plugins_registry/csi.example.com-reg.sock")
    waits = attrs.evolve(
        WAITS, socket="/var/lib/kubelet/plugins_registry/nameless.sock", reason="GetInfo: no answer in 1 s"
    )
    assert table_lines(shown(long, waits), 80) == [
        "NAME             TYPE       STATE       SINCE  ATTEMPT  NEXT TRY  REASON",
        "csi.example.com  CSIPlugin  registered  10.0s  1        -",
        "nameless.sock    -          waiting     1.0s   3        2.0s      GetInfo: no a…",
    ]


def test_sockets_and_reasons_that_fit_are_whole() -> None:
    assert table_lines(shown(GOOD, attrs.evolve(WAITS, reason="hm")), 83) == [
        "NAME             TYPE       STATE       SINCE  ATTEMPT  NEXT TRY  SOCKET     REASON",
        "csi.example.com  CSIPlugin  registered  10.0s  1        -         /r/a.sock",
        "-                -          waiting     1.0s   3        2.0s      /r/b.sock  hm",
    ]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "-"), (0, "0s"), (0.0123, "12ms"), (3.44, "3.4s"), (59.9, "59.9s"), (60, "1m00s"), (125.9, "2m05s"),
        (3600, "1h00m"), (15_000, "4h10m"), (90_000, "1d01h"),
    ],
)  # fmt: skip
def test_seconds_are_shown_in_the_unit_that_fits(seconds: float | None, words: str) -> None:
    assert console_table.duration(seconds) == words


def test_a_description_is_complete() -> None:
    history = (HistoryEntry(1.0, StateName.DIALING, None, 1), HistoryEntry(9.0, StateName.WAITING, "no\nanswer", 1))
    plugin = attrs.evolve(GOOD, active=False, warnings=("old",), uid=0, pid=4, history=history)
    assert console_table.described(described_to_json(plugin, 10.0)) == (
        "Socket:     /r/a.sock\n"
        "Root:       /r\n"
        "Name:       csi.example.com\n"
        "Type:       CSIPlugin\n"
        "Endpoint:   /r/a.sock\n"
        "Versions:   1.0.0\n"
        "State:      registered for 10.0s\n"
        "Reason:     -\n"
        "Attempt:    1\n"
        "Next try:   -\n"
        "Registered: in 12ms\n"
        "Role:       standby\n"
        "Serving:    yes\n"
        "Generation: 1\n"
        "Process:    pid 4, uid 0\n"
        "Warning:    old\n"
        "History:\n"
        "      9.0s ago  dialing (attempt 1)\n"
        "      1.0s ago  waiting (attempt 1): no\\nanswer\n"
    )


def test_a_change_is_one_line() -> None:
    line = console_table.change({"time": None, **plugin_to_json(attrs.evolve(WAITS, name="a\nb"), 10.0)})
    assert line == "--:--:--  waiting      a\\nb  -  /r/b.sock  no answer\\x1b[31m[bold]\n"


def test_the_remarks_name_role_and_warnings() -> None:
    (plugin,) = shown(attrs.evolve(GOOD, active=False, reason="why", warnings=("old",)))
    assert console_table.remarks(plugin) == "why; stands by for another instance of its name; old"

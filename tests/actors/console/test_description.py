"""The words of ``plugind describe`` and ``plugind watch``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import attrs
import pytest

from plugind.actors.console.description import change, described
from plugind.actors.console.phrases import age, cause, duration, remarks, state_words, time_of_day
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.status import HistoryEntry, PluginStatus, StateName
from plugind.protocol.status.json import Json, described_to_json, plugin_to_json

#: Half past nine in the morning in Berlin.
UNIX = 1_700_037_000.0
GOOD = PluginStatus(
    "/r/a.sock", "/r", 1, StateName.REGISTERED, 0.0, None, 1, None, "CSIPlugin", "csi.example.com", "/r/a.sock",
    ("1.0.0",), 0.012, True,
)  # fmt: skip
WAITS = PluginStatus("/r/b.sock", "/r", 2, StateName.WAITING, 9.0, "no answer\x1b[31m[bold]", 3, 12.0)


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The clock of a terminal in Berlin."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "CET-1CEST,M3.5.0,M10.5.0/3"
    time.tzset()
    monkeypatch.setattr(time, "time", lambda: UNIX)
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "-"), (0, "0s"), (0.0123, "12ms"), (3.44, "3.4s"), (59.9, "59.9s"), (60, "1m00s"), (125.9, "2m05s"),
        (3600, "1h00m"), (15_000, "4h10m"), (90_000, "1d01h"),
    ],
)  # fmt: skip
def test_seconds_are_shown_in_the_unit_that_fits(seconds: float | None, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.usefixtures("in_berlin")
def test_times_of_day_are_local_with_their_offset_and_their_date_if_it_is_another() -> None:
    assert time_of_day(UNIX, UNIX) == "09:30:00+01:00"
    assert time_of_day(UNIX - 86_400, UNIX) == "2023-11-14 09:30:00+01:00"
    assert time_of_day(UNIX - 120 * 86_400, UNIX) == "2023-07-18 10:30:00+02:00"


def test_a_csi_driver_is_described_by_what_it_has_said() -> None:
    facts = (
        ("node-id", "node-7"), ("csi-version", "1.0.0"), ("max-volumes", "16"), ("vendor-version", "1.2"),
        ("capabilities.node", "STAGE_UNSTAGE_VOLUME, GET_VOLUME_STATS, EXPAND_VOLUME"), ("topology.zone", "z1"),
        ("topology.rack\x1b", "r1"),
    )  # fmt: skip
    shown = described(described_to_json(attrs.evolve(GOOD, facts=facts), 10.0, UNIX)).splitlines()
    for line in (
        "Socket:      /r/a.sock",
        "Node id:     node-7",
        "Max volumes: 16",
        "Topology:    zone=z1, rack\\x1b=r1",
        "Can:         stage, expand, stats",
    ):
        assert line in shown
    assert shown[shown.index("Facts:") :] == ["Facts:", "  csi-version: 1.0.0", "  vendor-version: 1.2"]


def test_a_csi_driver_that_has_said_little_is_described_too() -> None:
    shown = described(
        described_to_json(attrs.evolve(GOOD, facts=(("node-id", "none"), ("csi-version", "1.0.0"))), 10.0, UNIX)
    ).splitlines()
    assert {"Node id:     none", "Max volumes: -", "Topology:    -", "Can:         -"} < set(shown)


@pytest.mark.usefixtures("in_berlin")
@pytest.mark.parametrize("width", [80, 200])
def test_the_lines_for_a_terminal_are_broken_at_spaces_and_stand_below_each_other(width: int) -> None:
    """They were up to a thousand characters long."""
    collision = f"topology: {'driver reported what another one contradicts, ' * 8}see /run/{'x' * 90}/csi.sock"
    history = (HistoryEntry(9.0, StateName.WAITING, "", 3, collision),)
    facts = (
        ("csi-version", "1.0.0"),
        ("capabilities.plugin", "CONTROLLER_SERVICE, " * 20 + "x"),
        *((f"topology.k{number}", "a value") for number in range(20)),
    )
    plugin = described_to_json(attrs.evolve(WAITS, facts=facts, history=history, type="CSIPlugin"), 10.0, UNIX)
    whole, lines = described(plugin).splitlines(), described(plugin, width).splitlines()
    assert described(plugin, 2000).splitlines() == whole
    assert all(len(line) <= width or "/x" in line for line in lines)
    assert max(map(len, lines)) > width - 20
    joined: list[str] = []
    for line in lines:
        if line[:4].isspace():
            joined[-1] += " " + line.strip()
        else:
            joined.append(line)
    assert joined == whole
    assert lines[lines.index("Facts:") + 3].startswith("    CONTROLLER_SERVICE, ")


@pytest.mark.usefixtures("in_berlin")
def test_a_description_is_complete() -> None:
    history = (HistoryEntry(1.0, StateName.DIALING, None, 1), HistoryEntry(9.0, StateName.WAITING, "no\nanswer", 1))
    plugin = attrs.evolve(GOOD, active=False, warnings=("old",), uid=0, pid=4, owner=7, next_try=15.0, history=history)
    assert described(
        {
            **described_to_json(plugin, 10.0, UNIX),
            "serving": False,
            "not_serving": "it ended",
            "not_serving_since": "2023-11-15T08:29:57.000Z",
        }
    ) == (
        "Socket:     /r/a.sock\n"
        "Name:       csi.example.com\n"
        "Type:       CSIPlugin\n"
        "State:      registered for 10.0s, since 09:29:50+01:00\n"
        "Cause:      -\n"
        "Attempt:    1\n"
        "Next try:   in 5.0s, at 09:30:05+01:00\n"
        "Registered: in 12ms\n"
        "Role:       standby\n"
        "Serving:    no, since 09:29:57+01:00: it ended\n"
        "Source:     socket /r/a.sock\n"
        "Root:       /r\n"
        "Endpoint:   /r/a.sock\n"
        "Versions:   1.0.0\n"
        "Reason:     -\n"
        "Generation: 1\n"
        "Process:    was pid 4, uid 0\n"
        "File owner: uid 7\n"
        "Warning:    old\n"
        "History:\n"
        "  09:29:51+01:00      9.0s ago  dialing (attempt 1)\n"
        "  09:29:59+01:00      1.0s ago  waiting (attempt 1): no\\nanswer\n"
    )


@pytest.mark.usefixtures("in_berlin")
def test_a_description_has_the_health_and_the_facts_that_a_handler_reports() -> None:
    """Fault 91: they may be a plugin's words, and are escaped."""
    facts = (("node-id", "n-7"), ("zone", "a\x1b[31m\nb"))
    ill = attrs.evolve(GOOD, health=Health.UNHEALTHY, health_reason="not\nready", health_since=3.0, facts=facts)
    said = described(described_to_json(ill, 10.0, UNIX))
    assert "Health:     unhealthy: not\\nready (since 09:29:53+01:00)\n" in said
    assert said.endswith("Facts:\n  node-id: n-7\n  zone: a\\x1b[31m\\nb\n")
    assert remarks(plugin_to_json(ill, 10.0, UNIX)) == "unhealthy: not\\nready"
    silent = attrs.evolve(ill, health_reason="no answer within 3s", failed_checks=3)
    assert "Health:     unhealthy: no answer within 3s (3 checks, since 09:29:53+01:00)\n" in described(
        described_to_json(silent, 10.0, UNIX)
    )
    well = attrs.evolve(GOOD, health=Health.HEALTHY, health_since=3.0)
    assert "Health:     healthy (since 09:29:53+01:00)\n" in described(described_to_json(well, 10.0, UNIX))
    assert remarks(plugin_to_json(well, 10.0, UNIX)) == ""


@pytest.mark.parametrize(
    ("health", "reason", "said"),
    [
        (None, None, ""),
        (Health.UNKNOWN, None, ""),
        (Health.UNKNOWN, "checks of its type are off", "checks of its type are off"),
        (Health.STARTING, "its first list has not come", "starting: its first list has not come"),
        (Health.DISCONNECTED, None, "disconnected"),
        (Health.HEALTHY, "its list has no devices", "its list has no devices"),
    ],
)
def test_a_list_says_why_a_registered_plugin_is_of_no_use_yet(
    health: Health | None, reason: str | None, said: str
) -> None:
    """The cause of ``ls`` was empty for a device plugin that had listed nothing."""
    plugin = attrs.evolve(GOOD, health=health, health_reason=reason, health_since=3.0)
    assert remarks(plugin_to_json(plugin, 10.0, UNIX)) == said


@pytest.mark.usefixtures("in_berlin")
def test_the_description_of_an_older_daemon_has_ages_and_times_too() -> None:
    """Before ``age`` there was ``since`` in seconds; what an older daemon does not say is a dash."""
    said = described({"socket": "/r/a.sock", "state": "stale", "since": 10.0, "next_try_in": None, "unheard": [1]})
    assert "State:      stale for 10.0s, since 09:29:50+01:00\n" in said
    assert "Serving:    -\n" in said
    assert age({"since": "2023-11-15T08:30:00Z"}) == "2023-11-15T08:30:00Z", "a newer daemon always says the age"


def test_a_description_has_the_cause_and_the_whole_reason() -> None:
    """The row of ``ls`` and the history have the cause alone; the plugin was told the reason, which is shown once."""
    reason = "RegisterPlugin error -- plugin validation failed with err: no"
    history = (
        HistoryEntry(8.0, StateName.WAITING, reason, 1, "no"),
        HistoryEntry(9.0, StateName.WAITING, reason, 2),
    )
    waits = attrs.evolve(WAITS, reason=reason, cause="no", history=history)
    said = described(described_to_json(waits, 10.0, UNIX))
    assert said.index("\nState: ") < said.index("\nCause:      no\n") < said.index("\nAttempt: ")
    assert f"Reason:     {reason}\n" in said
    assert said.count(reason) == 1
    assert said.endswith("waiting (attempt 2): no\n")


def test_a_history_says_a_cause_when_it_comes_and_where_an_attempt_ends() -> None:
    """The states of the next attempt still have it."""
    history = tuple(
        HistoryEntry(1.0, state, why and f"RegisterPlugin error -- {why}", attempt, why)
        for state, attempt, why in (
            (StateName.DIALING, 1, None),
            (StateName.NOTIFYING, 1, "no"),
            (StateName.WAITING, 1, "no"),
            (StateName.DIALING, 2, "no"),
            (StateName.WAITING, 2, "no"),
            (StateName.DIALING, 3, "other"),
        )
    )
    said = described(described_to_json(attrs.evolve(WAITS, history=history), 10.0, UNIX))
    assert [line.partition(" ago  ")[2] for line in said.partition("History:\n")[2].splitlines()] == [
        "dialing (attempt 1)",
        "notifying (attempt 1): no",
        "waiting (attempt 1): no",
        "dialing (attempt 2)",
        "waiting (attempt 2): no",
        "dialing (attempt 3): other",
    ]


@pytest.mark.usefixtures("in_berlin")
def test_a_change_is_one_line() -> None:
    plugin = plugin_to_json(attrs.evolve(WAITS, name="a\nb"), 10.0, UNIX)
    assert change({"time": UNIX, **plugin}) == (
        "09:30:00+01:00  waiting      a\\nb  -  /r/b.sock  no answer\\x1b[31m[bold]\n"
    )
    assert change({"time": "2023-11-15T08:30:00.000Z", **plugin}) == change({"time": UNIX, **plugin})
    assert change({"time": None, **plugin}).startswith("--:--:--  waiting")


def test_the_remarks_name_role_and_warnings() -> None:
    plugin = plugin_to_json(attrs.evolve(GOOD, active=False, reason="why", warnings=("old",)), 10.0, UNIX)
    assert remarks(plugin) == "why; stands by for another instance of its name; old"
    assert remarks({**plugin, "serving": False}) == "why; not serving; stands by for another instance of its name; old"
    assert state_words({**plugin, "serving": False}) == {"registered", "not-serving"}
    assert state_words({**plugin, "serving": True}) == state_words(plugin) == {"registered"}


def test_a_socket_that_waits_after_short_lives_says_when_it_is_tried() -> None:
    """Fault 49."""
    waiting: dict[str, Json] = {"state": "waiting", "cause": "crash loop: 7 short lives", "next_try_in": 7.3}
    assert cause(waiting) == "crash loop: 7 short lives, next try in 8 s"
    assert "Cause:      crash loop: 7 short lives, next try in 8 s\n" in described(waiting)
    named = {**waiting, "name": "red", "type": "Colour"}
    assert "Name:       red\nType:       Colour\n" in described({**named, "last_known": False})
    assert "Name:       red (last known)\nType:       Colour (last known)\n" in described({**named, "last_known": True})
    # Older entries of its history do not wait any more.
    assert cause({"cause": "crash loop: 6 short lives"}) == "crash loop: 6 short lives"


@pytest.mark.usefixtures("in_berlin")
def test_a_dra_driver_has_lines_of_its_own() -> None:
    """Consumers, proposal 8; healthy devices are among the facts."""
    facts = (
        ("service", "v1.DRAPlugin"),
        ("connected", "since 2023-11-15T08:26:50.000Z"),
        ("usable", "yes, by 2 instances"),
        ("device-health", "v1.DRAResourceHealth"),
        ("devices", "1 healthy, 1 unhealthy, 0 unknown"),
        ("device.pool-0/gpu-1", "Unhealthy: ECC (since 2023-11-15T08:29:57.000Z)"),
        ("device.pool-0/gpu-0", "Healthy (since 2023-11-15T08:26:50.000Z)"),
    )
    plugin = attrs.evolve(GOOD, type="DRAPlugin", health=Health.HEALTHY, facts=facts)
    lines = described(described_to_json(plugin, 10.0, UNIX)).splitlines()
    first = lines.index("Service:    v1.DRAPlugin")
    assert lines[first : first + 6] == [
        "Service:    v1.DRAPlugin",
        "Connection: connected 00:03:10",
        "Usable:     yes, by 2 instances",
        "Watched by: v1.DRAResourceHealth",
        "Devices:    1 healthy, 1 unhealthy, 0 unknown",
        "Devices:    pool-0/gpu-1 Unhealthy: ECC (since 2023-11-15T08:29:57.000Z)",
    ]
    assert "  device.pool-0/gpu-0: Healthy (since 2023-11-15T08:26:50.000Z)" in lines
    assert not [line for line in lines if "connected:" in line]
    lost = attrs.evolve(plugin, facts=(("service", "v1.DRAPlugin"), ("connected", "no"), ("usable", "no since x")))
    assert "Connection: none\n" in described(described_to_json(lost, 10.0, UNIX))

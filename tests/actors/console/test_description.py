"""The words of ``plugind describe`` and ``plugind watch``."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from plugind.actors.console.description import change, described
from plugind.actors.console.device_description import described_resource
from plugind.actors.console.device_leases import add_leases_of_plugin
from plugind.actors.console.phrases import cause, duration, remarks, state_words, time_of_day
from plugind.protocol.devices.json import described_to_json as device_plugin_to_json
from plugind.protocol.plugins.devices import Device, DeviceList, ResourceStatus
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.status import HistoryEntry, PluginStatus, StateName
from plugind.protocol.status.json import Json, described_to_json, plugin_to_json
from plugind.tests.actors.console import snapshots
from plugind.tests.actors.console.snapshots import UNIX
from plugind.tests.actors.console.test_allocate import LEASE
from plugind.tests.actors.console.test_devices import AWAITED, LOST, PLUGIN, REFUSED, RESOURCE, shown

GOOD = PluginStatus(
    "/r/a.sock", "/r", 1, StateName.REGISTERED, 0.0, None, 1, None, "CSIPlugin", "csi.example.com", "/r/a.sock",
    ("1.0.0",), 0.012, True,
)  # fmt: skip
WAITS = PluginStatus("/r/b.sock", "/r", 2, StateName.WAITING, 9.0, "no answer\x1b[31m[bold]", 3, 12.0)
#: A socket after short lives (fault 49).
CRASHES: dict[str, Json] = {"state": "waiting", "cause": "crash loop: 7 short lives", "next_try_in": 7.3}
REASON = "RegisterPlugin error -- plugin validation failed with err: no"


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


def of(plugin: PluginStatus, **changed: Any) -> str:
    return described(described_to_json(attrs.evolve(plugin, **changed), 10.0, UNIX))


def tried(*entries: tuple[StateName, int, str | None]) -> str:
    """Describe a plugin with this history; each entry may have a cause."""
    history = tuple(
        HistoryEntry(1.0, state, why and f"RegisterPlugin error -- {why}", attempt, why)
        for state, attempt, why in entries
    )
    return of(WAITS, reason=REASON, cause="no", history=history)


def csi_driver() -> str:
    facts = (
        ("node-id", "node-7"), ("csi-version", "1.0.0"), ("max-volumes", "16"), ("vendor-version", "1.2"),
        ("capabilities.node", "STAGE_UNSTAGE_VOLUME, GET_VOLUME_STATS, EXPAND_VOLUME"), ("topology.zone", "z1"),
        ("topology.rack\x1b", "r1"),
    )  # fmt: skip
    return of(GOOD, facts=facts, health=Health.HEALTHY, health_since=3.0)


def standby() -> str:
    history = (HistoryEntry(1.0, StateName.DIALING, None, 1), HistoryEntry(9.0, StateName.WAITING, "no\nanswer", 1))
    plugin = attrs.evolve(GOOD, active=False, warnings=("old",), uid=0, pid=4, owner=7, next_try=15.0, history=history)
    gone: dict[str, Json] = {
        "serving": False,
        "not_serving": "it ended",
        "not_serving_since": "2023-11-15T08:29:57.000Z",
    }
    return described(described_to_json(plugin, 10.0, UNIX) | gone)


def dra_driver(**facts: str) -> str:
    return of(GOOD, type="DRAPlugin", health=Health.HEALTHY, facts=tuple(facts.items()))


def device_plugin(resource: ResourceStatus, socket: str = "/d/gpu.sock", *, leases: bool = False) -> str:
    found: Any = device_plugin_to_json(resource, socket, 3, 100.0, UNIX)
    plugin: Any = described_to_json(attrs.evolve(GOOD, type="DevicePlugin"), 10.0, UNIX) | {"device_plugin": found}
    if leases:
        many = [attrs.evolve(LEASE, id=f"l{number}", created=UNIX - 729) for number in range(9)]
        add_leases_of_plugin(plugin, [*many, attrs.evolve(LEASE, devices={"vendor.com/nic": ("n0",)})])
    return described(plugin)


@pytest.mark.usefixtures("in_berlin")
def test_what_describe_prints() -> None:
    """Faults 39, 49 and 91: what a plugin says is escaped."""
    states = StateName
    odd = attrs.evolve(RESOURCE, listed=DeviceList([Device("a ", "Sick")]), changed={"a ": 40.0})
    lost = attrs.evolve(PLUGIN, lost_since=95.0, reason="the stream ended", healthy=0)
    snapshots.check(
        "describe",
        {
            "a CSI driver": csi_driver(),
            "a CSI driver that has said little": of(GOOD, facts=(("node-id", "none"), ("csi-version", "1.0.0"))),
            "a standby that does not serve": standby(),
            "an unhealthy plugin": of(
                GOOD,
                health=Health.UNHEALTHY,
                health_reason="not\nready",
                health_since=3.0,
                failed_checks=3,
                facts=(("node-id", "n-7"), ("zone", "a\x1b[31m\nb")),
            ),
            "an older daemon": described(
                {"socket": "/r/a.sock", "state": "stale", "since": 10.0, "next_try_in": None, "unheard": [1]}
            ),
            "a refused plugin: a history has each cause once, and where an attempt ends": tried(
                (states.DIALING, 1, None),
                (states.NOTIFYING, 1, "no"),
                (states.WAITING, 1, "no"),
                (states.DIALING, 2, "no"),
                (states.WAITING, 2, "no"),
                (states.DIALING, 3, "other"),
            ),
            "a plugin that crashes": described(CRASHES | {"name": "red", "type": "Colour", "last_known": True}),
            "a DRA driver": dra_driver(
                **{
                    "service": "v1.DRAPlugin",
                    "connected": "since 2023-11-15T08:26:50.000Z",
                    "usable": "yes, by 2 instances",
                    "device-health": "v1.DRAResourceHealth",
                    "devices": "1 healthy, 1 unhealthy, 0 unknown",
                    "device.pool-0/gpu-1": "Unhealthy: ECC (since 2023-11-15T08:29:57.000Z)",
                    "device.pool-0/gpu-0": "Healthy (since 2023-11-15T08:26:50.000Z)",
                }
            ),
            "a DRA driver without a connection": dra_driver(
                service="v1.DRAPlugin", connected="no", usable="no since x"
            ),
            "a device plugin": device_plugin(RESOURCE, leases=True),
            "a device plugin with a warning and an odd device": device_plugin(
                attrs.evolve(odd, instances=(attrs.evolve(PLUGIN, warning="it differs\x1b"),))
            ),
            "a device plugin that stands by": device_plugin(RESOURCE, "/d/b"),
            "a device plugin that is lost": device_plugin(attrs.evolve(LOST, instances=(lost,))),
            "a resource without a plugin": described_resource(shown(attrs.evolve(AWAITED, last_capacity=4)), REFUSED),
        },
    )


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
def test_what_watch_prints() -> None:
    """The cause of ``ls`` and of each line: what a reader needs to know of a plugin in this state."""
    plugin = plugin_to_json(attrs.evolve(WAITS, name="a\nb"), 10.0, UNIX)
    standby = plugin_to_json(attrs.evolve(GOOD, active=False, reason="why", warnings=("old",)), 10.0, UNIX)
    ill = attrs.evolve(GOOD, health_since=3.0)
    healths = [
        (None, None),
        (Health.UNKNOWN, None),
        (Health.UNKNOWN, "checks of its type are off"),
        (Health.STARTING, "its first list has not come"),
        (Health.DISCONNECTED, None),
        (Health.HEALTHY, None),
        (Health.HEALTHY, "its list has no devices"),
        (Health.UNHEALTHY, "not\nready"),
    ]
    snapshots.check(
        "watch",
        {
            "changes": [
                change({"time": UNIX, **plugin}).rstrip(),
                change({"time": "2023-11-15T08:30:00.000Z", **plugin}).rstrip(),
                change({"time": None, **plugin}).rstrip(),
            ],
            "remarks": [remarks(standby), remarks({**standby, "serving": False})],
            "healths": [
                f"{health and health.value}, {reason!r}: "
                + remarks(plugin_to_json(attrs.evolve(ill, health=health, health_reason=reason), 10.0, UNIX))
                for health, reason in healths
            ],
            "a crash loop, and an older entry of its history": [
                cause(CRASHES),
                cause({"cause": "crash loop: 6 short lives"}),
            ],
        },
    )
    assert state_words({**standby, "serving": False}) == {"registered", "not-serving"}
    assert state_words({**standby, "serving": True}) == state_words(standby) == {"registered"}

"""Which instances of DRA drivers are used, and when a driver is gone: timelines as tables."""

from __future__ import annotations

import math

import attrs
import pytest

from plugind.protocol.errors import ConfigError
from plugind.protocol.handlers.dra import DRAConfig, DriverGone, Drivers, WatchedHealth
from plugind.protocol.plugins.info import Plugin

NAME = "gpu.example.com"


def instance(letter: str, generation: int = 1, *, name: str = NAME, privileged: bool = True) -> Plugin:
    plugin = Plugin("DRAPlugin", name, f"/run/{letter}.sock", ("v1.DRAPlugin",), f"/reg/{letter}.sock", generation)
    return attrs.evolve(plugin, privileged=privileged)


A, B = instance("a"), instance("b", 2)

#: What happens, as ``time what instance`` in a line.
Script = str


def played(script: Script) -> tuple[Drivers, list[tuple[float, str, int]]]:
    """Play a script to its end; return the drivers, and when each was found to be gone, since when, by its socket."""
    drivers, found = Drivers(), []
    for line in script.strip().splitlines():
        at, what, *which = line.split()
        now = float(at)
        while drivers.next_due <= now:
            due = drivers.next_due
            found += [(due, gone.plugin.socket[-6], gone.instances) for gone in drivers.take_gone(due)]
        plugin = {"a": A, "b": B}.get("".join(which), A)
        match what:
            case "add":
                drivers.add(plugin, now)
            case "remove":
                drivers.remove(plugin, now)
            case "connect":
                drivers.connected(plugin, now)
            case "disconnect":
                drivers.disconnected(plugin, now)
            case "end":
                pass
            case _:
                raise AssertionError(line)
    return drivers, found


@pytest.mark.parametrize(
    ("script", "found"),
    [
        pytest.param("0 add a\n 1 connect a\n 900 end", [], id="connected"),
        pytest.param("0 add a\n 29.9 end", [], id="never connected, not yet"),
        pytest.param("0 add a\n 900 end", [(30, "a", 1)], id="never connected"),
        pytest.param(
            "0 add a\n 1 connect a\n 100 disconnect a\n 900 end", [(130, "a", 1)], id="the connection is lost"
        ),
        pytest.param(
            "0 add a\n 1 connect a\n 100 disconnect a\n 105 connect a\n 900 end", [], id="connected again within 30 s"
        ),
        pytest.param(
            "0 add a\n 1 connect a\n 100 remove a\n 105 add a\n 106 connect a\n 900 end", [], id="a restart of 5 s"
        ),
        pytest.param("0 add a\n 1 connect a\n 100 remove a\n 900 end", [(130, "a", 0)], id="deregistered"),
        pytest.param(
            "0 add a\n 1 connect a\n 50 add b\n 51 connect b\n 60 remove a\n 900 end", [], id="a rolling update"
        ),
        pytest.param(
            "0 add a\n 1 connect a\n 50 add b\n 60 disconnect a\n 61 remove a\n 900 end",
            [(90, "b", 1)],
            id="a rolling update whose new instance never listens",
        ),
        pytest.param(
            "0 add a\n 1 connect a\n 100 disconnect a\n 110 add b\n 900 end",
            [(130, "b", 2)],
            id="another instance that is not connected starts no time anew",
        ),
        pytest.param(
            "0 add a\n 100 connect a\n 200 disconnect a\n 900 end", [(30, "a", 1), (230, "a", 1)], id="gone twice"
        ),
        pytest.param(
            "0 add a\n 40 add b\n 50 remove a\n 900 end", [(30, "a", 1)], id="gone once, whatever else is not connected"
        ),
        pytest.param(
            "0 add a\n 40 remove a\n 50 add a\n 900 end", [(30, "a", 1), (80, "a", 1)], id="gone, and registered anew"
        ),
    ],
)
def test_a_driver_is_gone_once_no_instance_was_connected_for_30_s(
    script: Script, found: list[tuple[float, str, int]]
) -> None:
    """TestConnectionHandling; consumers C.3: the first timer stays, a reconnect cancels it (consumers F.3)."""
    assert played(script)[1] == found


@pytest.mark.parametrize(
    ("script", "active", "usable_by", "unusable"),
    [
        pytest.param("0 add a\n 1 end", "a", 0, 0.0, id="one, not connected"),
        pytest.param("0 add a\n 0 add b", "b", 0, 0.0, id="two, not connected: the newest"),
        pytest.param("0 add a\n 1 connect a\n 2 add b", "a", 1, None, id="the newest connected one"),
        pytest.param("0 add a\n 1 connect a\n 2 add b\n 3 connect b", "b", 2, None, id="both connected: the newest"),
        pytest.param(
            "0 add a\n 1 connect a\n 2 add b\n 3 connect b\n 4 disconnect b", "a", 1, None, id="the newest is lost"
        ),
        pytest.param(
            "0 add a\n 1 connect a\n 2 add b\n 3 disconnect a", "b", 0, 3.0, id="none is connected any more: the newest"
        ),
        pytest.param("0 add a\n 1 connect a\n 2 add b\n 3 connect b\n 4 remove b", "a", 1, None, id="TestDelete"),
        pytest.param("0 add a\n 0 remove a\n 0 remove a", None, 0, 0.0, id="removed twice"),
    ],
)
def test_the_newest_connected_instance_is_used_or_else_the_newest(
    script: Script, active: str | None, usable_by: int, unusable: float | None
) -> None:
    """TestAddSameName, TestDelete, TestConnectionHandling (consumers C.2)."""
    drivers, _ = played(script)
    used = drivers.active(NAME)
    assert (None if used is None else used.socket[-6]) == active
    assert (drivers.usable_by(NAME), drivers.unusable_since(NAME)) == (usable_by, unusable)


def test_an_instance_of_root_is_used_before_one_of_another_user() -> None:
    """Fault 80, and as the world decides on roles."""
    drivers = Drivers()
    guest = instance("b", 2, privileged=False)
    drivers.add(A, 0.0)
    drivers.add(guest, 1.0)
    drivers.connected(guest, 2.0)
    assert drivers.active(NAME) == A
    assert drivers.usable_by(NAME) == 1


def test_a_driver_that_is_gone_and_has_no_instance_is_forgotten() -> None:
    """Names come and go for years: what is kept of them has a bound."""
    drivers = Drivers()
    for number in range(100):
        plugin = instance("a", number, name=f"{number}.example.com")
        drivers.add(plugin, float(number))
        drivers.remove(plugin, number + 0.5)
    assert len(drivers) == 100
    found = drivers.take_gone(1000.0)
    assert found[0] == DriverGone(instance("a", 0, name="0.example.com"), 0.0, 0)
    assert (len(found), len(drivers), drivers.next_due) == (100, 0, math.inf)


def test_the_time_after_which_a_driver_is_gone_is_an_option() -> None:
    drivers = Drivers(DRAConfig(gone_after=5.0).gone_after)
    drivers.add(A, 1.0)
    assert drivers.next_due == 6.0
    assert drivers.take_gone(6.0) == [DriverGone(A, 1.0, 1)]


@pytest.mark.parametrize(
    ("versions", "health", "services"),
    [
        (("v1.DRAPlugin",), "advertised", ()),
        (("v1.DRAPlugin", "v1alpha1.DRAResourceHealth"), "advertised", ("v1alpha1.DRAResourceHealth",)),
        (
            ("v1alpha1.DRAResourceHealth", "v1.DRAResourceHealth"),
            "advertised",
            ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"),
        ),
        (("v1.DRAPlugin",), "try", ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")),
        (("v1alpha1.DRAResourceHealth",), "try", ("v1alpha1.DRAResourceHealth",)),
    ],
)
def test_the_health_of_devices_is_asked_of_whom_announces_it(
    versions: tuple[str, ...], health: WatchedHealth, services: tuple[str, ...]
) -> None:
    """Kubernetes 1.37: v1 is preferred, v1alpha1 accepted (consumers C.5)."""
    assert DRAConfig(health=health).health_services(versions) == services


def test_a_word_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"DRAConfig.health is 'always': it must be 'advertised' or 'try'"):
        DRAConfig(health="always")  # type: ignore[arg-type] # the error of an operator
    with pytest.raises(ConfigError, match="gone_after"):
        DRAConfig(gone_after=0)

"""CSI drivers of one name of which some are not there: whole timelines of who is registered when."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from plugind.actors.simulation.csi_drivers import CSICall, FakeCSIDriver
from plugind.testing import DEFAULT_CONFIG, FakePlugin, PluggedIn, SimulatedNode

from ...registration.timelines import at, registered_at

NAME = "csi.example.com"
#: What a registrar is told before the reason.
FAILED = "RegisterPlugin error -- plugin registration failed with err: "
WAITS = "(another socket of the name waits, so this was not tried for longer)"


def registrar(node: SimulatedNode, of: str, version: str = "1.0.0", *, socket: str = "") -> PluggedIn:
    """Plug in the registrar of the driver ``of``, which it does not serve itself."""
    return node.plug(socket or f"{of}-reg.sock", FakePlugin("CSIPlugin", NAME, (version,), endpoint(of), serves=()))


def driver(node: SimulatedNode, of: str) -> FakeCSIDriver:
    """Start the driver ``of``."""
    fake = FakeCSIDriver(NAME)
    node.plug(f"{of}.csi", [fake])
    return fake


def endpoint(of: str) -> str:
    return f"/plugins/{of}.csi"


def notified(plugin: PluggedIn) -> list[tuple[float, str]]:
    """Return what a registrar was told, and when."""
    return [(call.time, call.error.removeprefix(FAILED)) for call in plugin.calls if call.registered is not None]


def given_way(of: str, problem: str = "No such file or directory") -> str:
    return f'failed to connect to driver "{NAME}": no connection to the endpoint {endpoint(of)}: {problem} {WAITS}'


@pytest.mark.parametrize("left", ["nothing", "a socket on which nobody listens"])
async def test_a_driver_that_is_there_is_not_held_up_by_those_of_its_name_that_are_not(
    left: str, autojump_clock: MockClock
) -> None:
    """Each of these waited 30 seconds for its endpoint, one after the other, before the driver had its turn."""
    problem = "No such file or directory" if left == "nothing" else "Connection refused"
    async with SimulatedNode(DEFAULT_CONFIG) as node:
        absent = ["0", "1", "2", "3"]
        for of in absent if left != "nothing" else ():
            node.plug(f"{of}.csi", [FakeCSIDriver(NAME)], listening=False)
        gone = [registrar(node, of) for of in absent]
        await trio.sleep(10)
        # The one that asked last waits for its endpoint.
        assert sorted(str(node.state(f"{of}-reg.sock")) for of in absent) == ["registering", *["waiting"] * 3]
        driver(node, "good")
        good = registrar(node, "good")
        await trio.sleep(1)
        assert node.timeline("good-reg.sock") == [*at(10.1, "registered")]
        assert notified(good) == [(10.1, "")]
        for of, plugin in zip(absent, gone, strict=True):
            assert {error for time, error in notified(plugin) if time <= 10.1} == {given_way(of, problem)}


async def test_a_driver_that_waits_for_its_endpoint_is_tried_for_as_long_as_no_other_of_the_name_waits(
    autojump_clock: MockClock,
) -> None:
    async with SimulatedNode(DEFAULT_CONFIG) as node:
        first = registrar(node, "first")
        await trio.sleep(20.05)
        second = registrar(node, "second")
        await trio.sleep(0.3)
        assert node.timeline("first-reg.sock") == [
            *at(0.2, "registering"),
            *at(20.1, "notifying", "leaving", "waiting"),
        ]
        assert node.timeline("second-reg.sock") == [*at(20.25, "registering")]
        assert (notified(first), notified(second)) == ([(20.1, given_way("first"))], [])


async def test_a_registered_driver_is_back_at_once_while_another_of_its_name_waits_for_its_endpoint(
    autojump_clock: MockClock,
) -> None:
    """Its Deregister waited for the other's Register, for up to 30 seconds."""
    async with SimulatedNode(DEFAULT_CONFIG) as node:
        driver(node, "good")
        good = registrar(node, "good")
        await trio.sleep_until(10)
        absent = registrar(node, "absent", "1.1.0")
        await trio.sleep_until(20.05)
        assert node.state("absent-reg.sock") == "registering"
        before = len(node.timeline("good-reg.sock"))
        good.restart()
        await trio.sleep_until(20.2)
        assert node.timeline("good-reg.sock")[before:] == [(20.05, "leaving"), *registered_at(20.1)]
        assert [error for _, error in notified(absent)] == [given_way("absent")]


async def test_a_driver_that_answers_keeps_its_turn_while_another_of_its_name_waits(autojump_clock: MockClock) -> None:
    """Only the wait for the endpoint is cut short. NodeGetInfo may take two minutes."""
    async with SimulatedNode(DEFAULT_CONFIG) as node:
        slow = driver(node, "slow")
        slow.delays[CSICall.NODE_INFO] = 100.0
        first = registrar(node, "slow")
        await trio.sleep(1)
        driver(node, "other")
        second = registrar(node, "other", "1.1.0")
        await trio.sleep(110)
        assert [notified(plugin) for plugin in (first, second)] == [[(100.0, "")]] * 2
        assert slow.called(CSICall.NODE_INFO) == 1

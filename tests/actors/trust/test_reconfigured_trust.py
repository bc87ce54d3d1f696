"""Other users are trusted while a node runs: their plugins are registered, and those of others are deregistered."""

from __future__ import annotations

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.protocol.errors import ConfigError
from plugind.protocol.plugins.status import StateName
from plugind.protocol.settings.config import Config, DevicePluginDirectory
from plugind.protocol.trust.users import Trust, TrustedUser
from plugind.testing import DEFAULT_CONFIG, FakeCSIDriver, FakeHandler, FakePlugin, SimulatedNode, Takes
from plugind.tests.actors.registration.timelines import STEPS, at, registered_at, shown, steps_at

#: Users of the machine.
ANN, BOB = 1001, 1002


def trusting(*uids: TrustedUser) -> Config:
    return attrs.evolve(DEFAULT_CONFIG, trust=Trust(uids))


def red(name: str = "red", *, delay: float = 0.0) -> FakePlugin:
    return FakePlugin("Colour", name, delay=delay)


async def test_a_plugin_that_was_parked_for_its_user_is_registered_once_that_user_is_trusted(
    autojump_clock: MockClock,
) -> None:
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        node.plug("a.sock", red(), uid=ANN)
        node.plug("b.sock", red("blue"), uid=BOB)
        await trio.sleep(5.0)
        await node.reconfigure(trusting(ANN))
        await trio.sleep(3600.0)
        assert node.timeline("a.sock") == [*at(0.0, "parked"), *steps_at(5.0)]
        assert node.timeline("b.sock") == at(0.0, "parked")
        # One that is plugged in afterwards is judged by the same.
        node.plug("c.sock", red("green"), uid=ANN)
        node.plug("d.sock", red("brown"), uid=BOB)
        await trio.sleep(1.0)
        assert (node.state("c.sock"), node.state("d.sock")) == ("registered", "parked")


async def test_a_registered_plugin_whose_user_is_not_trusted_any_more_is_deregistered_and_parked(
    autojump_clock: MockClock,
) -> None:
    handler = FakeHandler()
    async with SimulatedNode(trusting(ANN, BOB), handlers={"Colour": handler}) as node:
        node.plug("a.sock", red(), uid=ANN)
        node.plug("b.sock", red("blue"), uid=BOB)
        node.plug("c.sock", red("green"), uid=0)
        await trio.sleep(5.0)
        await node.reconfigure(trusting(BOB))
        await trio.sleep(60.0)
        assert node.timeline("a.sock") == [*registered_at(0.0), *at(5.0, "leaving", "dialing", "parked")]
        assert handler.asked("red") == ["validate", "register", "deregister"]
        assert (node.timeline("b.sock"), node.timeline("c.sock")) == (registered_at(0.0), registered_at(0.0))
        status = shown(node)
        assert status.cause == Trust((BOB,)).refusal(ANN, status.pid or 0, node.users)
        # It is trusted again.
        await node.reconfigure(trusting(ANN, BOB))
        await trio.sleep(1.0)
        assert node.timeline("a.sock")[-6:] == steps_at(65.0)


@pytest.mark.parametrize("after", [0.25, 0.75, 1.75])
async def test_a_plugin_that_loses_trust_amid_its_registration_leaves_as_soon_as_it_is_registered(
    after: float, autojump_clock: MockClock
) -> None:
    """While it is asked for its info, while its handler registers it, and while it is notified."""
    handler = FakeHandler().script("register", Takes(1.0))
    async with SimulatedNode(trusting(ANN), handlers={"Colour": handler}) as node:
        node.plug("a.sock", red(delay=0.5), uid=ANN)
        await trio.sleep(after)
        await node.reconfigure(trusting())
        await trio.sleep(60.0)
        assert node.timeline("a.sock") == [
            *at(0.2, "asking-info"),
            *at(0.5, "validating", "registering"),
            *at(1.5, "notifying"),
            *at(2.0, "registered", "leaving", "dialing", "parked"),
        ]
        assert handler.asked() == ["validate", "register", "deregister"]


async def test_a_plugin_that_gains_trust_while_it_is_dialed_is_tried_again(autojump_clock: MockClock) -> None:
    """It is judged by the policy with which the dial began, and parked; then by the other one."""
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        plugin = node.plug("a.sock", red(), uid=ANN, listening=False)
        await trio.sleep(0.25)  # It is dialed again and again for a second.
        await node.reconfigure(trusting(ANN))
        plugin.listen()
        await trio.sleep(5.0)
        timeline = node.timeline("a.sock")
        assert [state for _, state in timeline] == ["dialing", "parked", *STEPS]
        assert len({time for time, _ in timeline[1:]}) == 1


async def test_sockets_are_found_in_the_directories_of_a_user_only_while_that_user_is_trusted(
    autojump_clock: MockClock,
) -> None:
    """What was found there before stays known, and is judged by its own process."""
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        node.directory.mkdir("/plugins/ann")
        node.directory.chown("/plugins/ann", ANN)
        node.plug("ann/a.sock", red(), uid=ANN)
        await trio.sleep(15.0)
        assert node.state("ann/a.sock") is None
        await node.reconfigure(trusting(ANN))
        await trio.sleep(1.0)
        assert node.timeline("ann/a.sock") == registered_at(15.0)
        # A watcher that is started again goes by the same.
        node.crash("watcher")
        await node.supervisor.rescan()
        await trio.sleep(1.0)
        node.plug("ann/c.sock", red("green"), uid=ANN)
        await trio.sleep(20.0)
        assert (node.state("ann/a.sock"), node.state("ann/c.sock")) == ("registered", "registered")
        await node.reconfigure(trusting())
        await trio.sleep(1.0)
        node.plug("ann/b.sock", red("blue"), uid=0)
        await trio.sleep(60.0)
        assert (node.state("ann/a.sock"), node.state("ann/b.sock")) == ("parked", None)


async def test_an_endpoint_of_a_user_is_connected_to_once_that_user_is_trusted(autojump_clock: MockClock) -> None:
    """The registrar is root's, and the driver that serves the endpoint is not."""
    config = attrs.evolve(DEFAULT_CONFIG, endpoint_directories=("/run",))
    async with SimulatedNode(config) as node:
        node.plug("/run/driver.sock", [FakeCSIDriver("a.example.com")], uid=ANN)
        node.plug("a.sock", FakePlugin("CSIPlugin", "a.example.com", endpoint="/run/driver.sock"))
        await trio.sleep(5.0)
        status = shown(node)
        assert status.state is StateName.WAITING
        assert f"of user {ANN} listens there, which is not trusted" in str(status.cause)
        await node.reconfigure(attrs.evolve(config, trust=Trust((ANN,))))
        await node.settled()
        assert node.state("a.sock") == "registered"


async def test_where_device_plugins_call_other_trust_needs_another_node(autojump_clock: MockClock) -> None:
    """The mode of kubelet.sock follows from who is trusted."""
    config = attrs.evolve(DEFAULT_CONFIG, device_plugins=DevicePluginDirectory("/device-plugins"))
    async with SimulatedNode(config) as node:
        with pytest.raises(ConfigError, match=r"Config\.trust: start another node"):
            await node.reconfigure(attrs.evolve(config, trust=Trust((ANN,))))
        assert node.supervisor.config == config

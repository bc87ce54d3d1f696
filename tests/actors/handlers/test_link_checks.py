"""A handler of any type has its plugins checked by the rule for all, through ``link.check``."""

from __future__ import annotations

import attrs
import trio
from trio.testing import MockClock

from plugind.actors.grpc.client.channel import Channel
from plugind.actors.handlers.link import Link
from plugind.protocol.errors import NoConnectionError, PluginError
from plugind.protocol.health.checks import Checked
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.info import InstancePolicy, Plugin
from plugind.protocol.proto.pluginregistration_grpc import RegistrationStub
from plugind.protocol.proto.pluginregistration_pb2 import InfoRequest
from plugind.testing import FakePlugin, SimulatedNode


@attrs.define
class Checking:
    """A handler whose ``follow`` is the one of ``docs/handlers.md``."""

    instances = InstancePolicy.NEWEST
    problem: str | None = None
    connects: bool = True
    notes: list[Checked] | None = None
    followed: list[float] = attrs.Factory(list)
    errors: list[str] = attrs.Factory(list)

    async def validate(self, plugin: Plugin) -> None:
        pass

    async def register(self, plugin: Plugin) -> None:
        pass

    async def follow(self, plugin: Plugin, link: Link) -> None:
        self.followed.append(trio.current_time())
        if self.connects:
            await link.connect()
        try:
            await link.check(self.ask, None if self.notes is None else self.notes.append)
        except NoConnectionError as error:
            self.errors.append(str(error))
            raise

    async def deregister(self, plugin: Plugin) -> None:
        pass

    async def ask(self, channel: Channel) -> None:
        if self.problem is not None:
            raise PluginError(self.problem)
        await channel.stub(RegistrationStub).GetInfo(InfoRequest())


def red() -> FakePlugin:
    return FakePlugin("Colour", "red.example.com")


async def test_a_handler_has_its_plugins_checked_and_reports_what_is_found(autojump_clock: MockClock) -> None:
    handler = Checking()
    async with SimulatedNode(handlers={"Colour": handler}) as node:

        def shown() -> tuple[Health | None, str | None, int]:
            status = node.status("red.sock")
            assert status is not None
            return status.health, status.health_reason, status.failed_checks

        plugin = node.plug("red.sock", red())
        await node.settled()
        await trio.sleep(40)
        assert shown() == (Health.HEALTHY, None, 0)
        handler.problem = "out of paint"
        await trio.sleep(50)
        assert shown() == (Health.UNHEALTHY, "out of paint", 3)
        await trio.sleep(60)
        assert shown()[2] == 3, "one more is no change"
        assert (await node.snapshot()).plugins[0].failed_checks > 3
        handler.problem = None
        await trio.sleep(40)
        assert shown() == (Health.HEALTHY, None, 0)
        broken = trio.current_time()
        plugin.reset()
        await trio.sleep(0.5)
        health, reason, _ = shown()
        assert health is Health.DISCONNECTED
        assert reason is not None
        assert reason.startswith("no connection to the endpoint /plugins/red.sock: ")
        await trio.sleep(40)
        assert shown() == (Health.HEALTHY, None, 0)
        assert handler.followed[1:] == [broken + 1]
        assert node.timeline("red.sock")[-1][1] == "registered"


async def test_a_handler_that_knows_more_reports_itself(autojump_clock: MockClock) -> None:
    handler = Checking(notes=[])
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        node.plug("red.sock", red())
        await trio.sleep(100)
        status = node.status("red.sock")
        assert status is not None
        assert status.health is Health.UNKNOWN
    assert handler.notes
    assert {note.health for note in handler.notes} == {Health.HEALTHY}


async def test_a_channel_that_is_closed_as_its_check_begins_ends_the_checks_in_order(autojump_clock: MockClock) -> None:
    """A connection may end in the instant in which a check is due: that is no fault of the handler."""

    class Closing(Checking):
        async def follow(self, plugin: Plugin, link: Link) -> None:
            await link.connect()
            await link.check(self.ask)
            self.followed.append(trio.current_time())
            await trio.sleep_forever()

        async def ask(self, channel: Channel) -> None:
            channel.close()
            await super().ask(channel)

    handler = Closing()
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        node.plug("red.sock", red())
        await trio.sleep(60)
        status = node.status("red.sock")
        assert status is not None
        assert (len(handler.followed), status.health) == (1, Health.DISCONNECTED)
        assert status.health_reason == "no connection to the endpoint /plugins/red.sock: it was closed"

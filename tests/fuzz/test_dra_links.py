"""The oracles of DRA drivers are told of each connection, and of its end before the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import attrs
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.protocol.plugins.info import Plugin
from plugind.tests.fuzz.device_health_oracle import DeviceHealthOracle
from plugind.tests.fuzz.dra_links import WatchedLink
from plugind.tests.fuzz.dra_oracle import DRAOracle
from plugind.tests.fuzz.health_oracle import Key

if TYPE_CHECKING:
    from plugind.actors.grpc.client.channel import Channel
    from plugind.actors.handlers.link import Link

PLUGIN = Plugin("DRAPlugin", "gpu.lab.com", "/claims/a.sock", ("v1.DRAPlugin",), "/registry/a.sock", 1)
SECONDS = 3.0


@attrs.define(eq=False)
class Connection:
    """A channel that ends when the test says so."""

    ended: trio.Event = attrs.field(factory=trio.Event)

    async def wait_closed(self) -> None:
        await self.ended.wait()


@attrs.define(eq=False)
class Scripted:
    """A link with the connection that the test gives it."""

    connection: Connection = attrs.field(factory=Connection)

    async def connect(self, *, timeout: float, gives_way: bool) -> Channel:
        assert (timeout, gives_way) == (SECONDS, False)
        return cast("Channel", self.connection)


@attrs.define
class Noting:
    """An oracle that notes what it is told."""

    words: list[str] = attrs.field(factory=list)

    def connected(self, key: Key) -> None:
        self.words.append(f"connected {key}")

    def disconnected(self, key: Key) -> None:
        self.words.append(f"disconnected {key}")


CONNECTED, DISCONNECTED = (f"{word} {(PLUGIN.socket, 1)}" for word in ("connected", "disconnected"))


async def test_each_connection_has_one_end_and_that_of_a_replaced_one_comes_before_the_next_one(
    autojump_clock: MockClock,
) -> None:
    link, roles, devices = Scripted(), Noting(), Noting()
    async with trio.open_nursery() as nursery:
        oracles = cast("DRAOracle", roles), cast("DeviceHealthOracle", devices)
        watched = WatchedLink(cast("Link", link), PLUGIN, *oracles, nursery)
        await watched.connect(timeout=SECONDS)
        await watched.connect(timeout=SECONDS)
        assert devices.words == [CONNECTED]
        await wait_all_tasks_blocked()
        # A call connects anew before the task has noticed the end.
        link.connection.ended.set()
        link.connection = Connection()
        await watched.connect(timeout=SECONDS)
        assert devices.words == [CONNECTED, DISCONNECTED, CONNECTED]
        await wait_all_tasks_blocked()
        assert len(devices.words) == 3
        link.connection.ended.set()
    assert devices.words == [CONNECTED, DISCONNECTED, CONNECTED, DISCONNECTED]
    assert roles.words == devices.words

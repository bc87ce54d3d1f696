"""A server says that it goes away: the calls under way go on, and the next one has another connection."""

from __future__ import annotations

from contextlib import suppress

import attrs
import trio
from grpclib.const import Cardinality
from trio.testing import MockClock

from plugind.actors.handlers.link import Link
from plugind.actors.simulation.streams import ServerEnd
from plugind.protocol.plugins.info import Plugin
from plugind.protocol.proto.deviceplugin_v1beta1_pb2 import Empty, ListAndWatchResponse
from plugind.testing import DEFAULT_CONFIG, FakePlugin, SimulatedNode
from plugind.tests.actors.handlers.calling import AcceptsAll
from plugind.tests.actors.handlers.raw_endpoints import ENDPOINT, LIST_AND_WATCH, Endpoint
from plugind.tests.wire.hostile import data, goaway, headers, message


async def goes_away_and_lists(peer: ServerEnd, stream: int) -> None:
    """Take no other calls, as a server on grpc-go does at the greatest age of a connection, and go on with this one."""
    await peer.send_all(goaway(stream, 0) + headers(stream))
    while True:
        await trio.sleep(10)
        await peer.send_all(data(stream, message(b"")))


@attrs.define
class Connecting(AcceptsAll):
    """A handler that opens one stream on each of three connections, and counts what comes on each."""

    counts: list[int] = attrs.Factory(list)

    async def follow(self, plugin: Plugin, link: Link) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(3):
                await trio.sleep(100)
                self.counts.append(0)
                nursery.start_soon(self.count, link, number)

    async def count(self, link: Link, number: int) -> None:
        channel = await link.connect()
        with suppress(trio.ClosedResourceError):
            async with channel.request(LIST_AND_WATCH, Cardinality.UNARY_STREAM, Empty, ListAndWatchResponse) as stream:
                await stream.send_message(Empty(), end=True)
                async for _ in stream:
                    self.counts[number] += 1


async def test_a_channel_that_goes_away_is_left_to_its_calls_and_there_are_two_at_most(
    autojump_clock: MockClock,
) -> None:
    """Fault 60: a server that says so at each connection, and closes none, keeps no more than two."""
    handler, endpoint = Connecting(), Endpoint(list_and_watch=goes_away_and_lists)
    config = attrs.evolve(DEFAULT_CONFIG, hung_after=None)
    async with SimulatedNode(config, handlers={"Colour": handler}) as node, trio.open_nursery() as nursery:
        listener = endpoint.listen(node)
        nursery.start_soon(listener.run)
        plugin = node.plug("red.sock", FakePlugin("Colour", "red.example.com", endpoint=ENDPOINT))
        await trio.sleep(355)
        assert handler.counts == [19, 15, 5], "the first one was closed when the third one was made"
        assert (listener.accepted, len(listener.connections)) == (3, 2)
        plugin.unlink()
        await node.settled()
        assert listener.connections == []
        nursery.cancel_scope.cancel()

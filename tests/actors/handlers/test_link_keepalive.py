"""The channel of a link is read all the time: keep-alive is answered, and plugind sends no PING of its own."""

from __future__ import annotations

import struct
from contextlib import suppress

import attrs
import trio
from trio.testing import MockClock

from plugind.actors.handlers.link import Link
from plugind.actors.io.unix_socket import Credentials
from plugind.actors.simulation.network import Listener
from plugind.actors.simulation.streams import ServerEnd
from plugind.protocol.plugins.info import Plugin
from plugind.protocol.wire.limits import PREFACE
from plugind.testing import DEFAULT_CONFIG, FakePlugin, SimulatedNode
from plugind.tests.actors.handlers.calling import AcceptsAll

PING, SETTINGS, ACK = 0x6, 0x4, 0x1
ENDPOINT = "/plugins/.service.sock"


class Holding(AcceptsAll):
    """A handler that keeps a connection to each plugin, and makes no call on it."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    async def follow(self, plugin: Plugin, link: Link) -> None:
        self.ended.append((await (await link.connect()).wait_closed()).problem.value)
        await trio.sleep_forever()


class KeepAlive:
    """A server that does with an idle client as grpc-go does: a PING each two hours, to be answered in 20 s."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, int]] = []
        self.answered = 0
        self.gone = trio.Event()

    async def serve(self, stream: ServerEnd) -> None:
        with suppress(trio.BrokenResourceError):  # The node has looked whether anybody listens.
            await self.keep(stream)

    async def keep(self, stream: ServerEnd) -> None:
        await stream.send_all(struct.pack(">HBBBI", 0, 0, SETTINGS, 0, 0))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.read, stream, nursery.cancel_scope)
            while True:
                await trio.sleep(7200)
                before = self.answered
                await stream.send_all(struct.pack(">HBBBI8s", 0, 8, PING, 0, 0, b"are you "))
                await trio.sleep(20)
                if self.answered == before:
                    break
            nursery.cancel_scope.cancel()

    async def read(self, stream: ServerEnd, scope: trio.CancelScope) -> None:
        kept = bytearray()
        while data := await stream.receive_some():
            kept += data
            if not self.frames and kept.startswith(PREFACE):
                del kept[: len(PREFACE)]
            while len(kept) >= 9 and len(kept) >= 9 + (length := int.from_bytes(kept[:3])):
                self.frames.append((kept[3], kept[4]))
                self.answered += (kept[3], kept[4]) == (PING, ACK)
                del kept[: 9 + length]
        scope.cancel()
        self.gone.set()


async def test_keep_alive_is_answered_for_a_day_and_no_ping_is_sent(autojump_clock: MockClock) -> None:
    """A server on grpc-go closes a connection whose PINGs are not answered, and one whose client sends its own."""
    handler, server = Holding(), KeepAlive()
    config = attrs.evolve(DEFAULT_CONFIG, rescan=3600.0, hung_after=None)
    async with SimulatedNode(config, handlers={"Colour": handler}) as node, trio.open_nursery() as nursery:
        node.directory.bind(ENDPOINT)
        listener = Listener(lambda: server.serve, node.network.start(Credentials(77, 0, 0)))
        node.network.listen(ENDPOINT, listener)
        nursery.start_soon(listener.run)
        plugin = node.plug("red.sock", FakePlugin("Colour", "red.example.com", endpoint=ENDPOINT))
        await trio.sleep(24 * 3600)
        assert server.answered == 11  # Each one took 20 s.
        assert [flags for kind, flags in server.frames if kind == PING and flags != ACK] == []
        assert handler.ended == []
        plugin.unlink()
        await server.gone.wait()
        nursery.cancel_scope.cancel()

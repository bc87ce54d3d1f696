"""A plugin's endpoint of which a test says each byte, for simulated nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import attrs
import hpack
import trio

from plugind.actors.io.unix_socket import Credentials
from plugind.actors.simulation.network import Listener
from plugind.actors.simulation.streams import ServerEnd
from plugind.protocol.proto import deviceplugin_v1beta1_pb2 as api
from plugind.protocol.wire.frames import HEADERS, MAX_FRAME
from plugind.protocol.wire.limits import PREFACE
from plugind.testing import SimulatedNode
from plugind.tests.wire.hostile import HELLO, answer, data, headers, message

ENDPOINT = "/plugins/.endpoint.sock"
LIST_AND_WATCH = "/v1beta1.DevicePlugin/ListAndWatch"

#: Answers a call, whose stream has this number.
Answer = Callable[[ServerEnd, int], Awaitable[None]]


def sends(*parts: Callable[[int], bytes]) -> Answer:
    async def play(peer: ServerEnd, stream: int) -> None:
        for part in parts:
            await peer.send_all(part(stream))

    return play


def lists(*devices: api.Device) -> Answer:
    body = message(api.ListAndWatchResponse(devices=devices).SerializeToString())
    pieces = [body[start : start + MAX_FRAME] for start in range(0, len(body), MAX_FRAME)]
    return sends(headers, lambda stream: b"".join(data(stream, piece) for piece in pieces))


async def says_nothing(peer: ServerEnd, stream: int) -> None:
    """Do not answer."""
    await trio.sleep_forever()


OPTIONS = sends(lambda stream: answer(stream, api.DevicePluginOptions().SerializeToString()))


@attrs.define
class Endpoint:
    """A process that answers the calls of a service, that of device plugins if a test names no other.

    Each connection has its own streams.
    """

    options: Answer = OPTIONS
    list_and_watch: Answer = says_nothing
    calls: list[str] = attrs.Factory(list)
    #: The path of the call that is answered by ``list_and_watch``; all others are by ``options``.
    watch: str = LIST_AND_WATCH

    def listen(self, node: SimulatedNode) -> Listener:
        """Return a listener on :data:`ENDPOINT`, which has to be run."""
        node.directory.bind(ENDPOINT)
        listener = Listener(lambda: self.serve, node.network.start(Credentials(77, 0, 0)))
        node.network.listen(ENDPOINT, listener)
        return listener

    async def serve(self, peer: ServerEnd) -> None:
        async with trio.open_nursery() as nursery:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await peer.send_all(HELLO)
                async for stream, path in _requests(peer):
                    self.calls.append(path)
                    play = self.list_and_watch if path == self.watch else self.options
                    nursery.start_soon(self._play, play, peer, stream)
            nursery.cancel_scope.cancel()

    async def _play(self, play: Answer, peer: ServerEnd, stream: int) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await play(peer, stream)


async def _requests(peer: ServerEnd) -> AsyncIterator[tuple[int, str]]:
    """Yield the stream and the path of each request."""
    kept, decoder, begun = bytearray(), hpack.Decoder(), False
    while received := await peer.receive_some():
        kept += received
        if not begun and len(kept) >= len(PREFACE):
            begun = True
            del kept[: len(PREFACE)]
        while begun and len(kept) >= 9 and len(kept) >= 9 + (length := int.from_bytes(kept[:3])):
            if kept[3] == HEADERS:
                said: dict[Any, Any] = dict(decoder.decode(bytes(kept[9 : 9 + length])))
                yield int.from_bytes(kept[5:9]), said[":path"]
            del kept[: 9 + length]

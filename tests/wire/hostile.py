"""Peers that send exactly the bytes of a script, on a real unix socket."""

import math
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import hpack
import pytest
import trio
from grpclib.exceptions import GRPCError

from plugind.actors.grpc.client.channel import Channel
from plugind.actors.grpc.client.dial import dial, dial_registration
from plugind.actors.grpc.client.driver import TIMED_OUT
from plugind.actors.grpc.client.registration_channel import RegistrationChannel
from plugind.actors.io.unix_socket import listen
from plugind.protocol.proto.pluginregistration_grpc import RegistrationStub
from plugind.protocol.proto.pluginregistration_pb2 import InfoRequest, PluginInfo
from plugind.protocol.wire.budgets import SETTINGS_ENTRIES
from plugind.protocol.wire.errors import WireError, WireProblem
from plugind.protocol.wire.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    SETTINGS,
    frame,
)
from plugind.protocol.wire.learning import KnownConversations
from plugind.protocol.wire.limits import DEFAULT_LIMITS, REGISTRATION_LIMITS, WireLimits

GET_INFO = "/pluginregistration.Registration/GetInfo"
Script = Callable[[trio.SocketStream], Awaitable[None]]

HELLO = frame(SETTINGS, 0, 0)
INFO = PluginInfo(type="CSIPlugin", name="a.example.com", supported_versions=["1.0.0"])


def fields(*pairs: tuple[str, str]) -> bytes:
    """Return a header block that uses no dynamic table, so that blocks may be sent in any order."""
    return bytes(hpack.Encoder().encode([hpack.NeverIndexedHeaderTuple(*pair) for pair in pairs]))


RESPONSE = fields((":status", "200"), ("content-type", "application/grpc"))
OK = fields(("grpc-status", "0"))


def headers(stream: int, block: bytes = RESPONSE, *, end: bool = False) -> bytes:
    return frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, block)


def continued(stream: int, blocks: list[bytes]) -> bytes:
    """Return a header block in several frames."""
    rest = b"".join(frame(CONTINUATION, END_HEADERS if part is blocks[-1] else 0, stream, part) for part in blocks[1:])
    return frame(HEADERS, 0, stream, blocks[0]) + rest


def message(data: bytes, *, compressed: int = 0) -> bytes:
    return struct.pack(">BI", compressed, len(data)) + data


def data(stream: int, body: bytes, *, end: bool = False) -> bytes:
    return frame(DATA, END_STREAM if end else 0, stream, body)


def trailers(stream: int, block: bytes = OK) -> bytes:
    return headers(stream, block, end=True)


def answer(stream: int, body: bytes | None = None) -> bytes:
    """Return a complete, valid response."""
    return (
        headers(stream) + data(stream, message(INFO.SerializeToString() if body is None else body)) + trailers(stream)
    )


def goaway(last: int, code: int, said: bytes = b"") -> bytes:
    return frame(GOAWAY, 0, 0, struct.pack(">II", last, code) + said)


def sends(*parts: bytes) -> Script:
    """Return a peer that reads the request, sends the parts and waits for us to close."""

    async def play(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        try:
            for part in parts:
                await stream.send_all(part)
            while await stream.receive_some():
                pass
        except trio.BrokenResourceError:
            return

    return play


def sends_and_closes(*parts: bytes) -> Script:
    async def play(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        for part in parts:
            await stream.send_all(part)

    return play


def sends_forever(first: bytes, again: bytes) -> Script:
    async def play(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        try:
            await stream.send_all(first)
            while True:
                await stream.send_all(again)
        except trio.BrokenResourceError:
            return

    return play


@asynccontextmanager
async def served(path: Path, script: Script) -> AsyncIterator[str]:
    """Run ``script`` on every connection to a socket, within a minute; the value is the socket's path."""
    with trio.fail_after(60), listen(str(path / "peer.sock")) as listener:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, script, [trio.SocketListener(listener.socket)])
            yield listener.path
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def connected(path: Path, script: Script, limits: WireLimits = DEFAULT_LIMITS) -> AsyncIterator[Channel]:
    async with served(path, script) as name, await dial(name, timeout=60, limits=limits) as channel:
        yield channel


#: Whether ``asking`` makes calls by their bytes, as registrations are made, or by the machine alone.
BY_BYTES = False


@pytest.fixture(params=[False, True], ids=["machine", "bytes"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test in both ways."""
    monkeypatch.setattr(f"{__name__}.BY_BYTES", request.param)


def warm(limits: WireLimits = REGISTRATION_LIMITS) -> KnownConversations:
    """Return a table that knows what a good peer says."""
    conversations = KnownConversations(limits)
    conversations.learn([(GET_INFO, b""), HELLO + answer(1), (GET_INFO, b""), answer(3)])
    return conversations


@asynccontextmanager
async def asking(
    path: Path, script: Script, limits: WireLimits = DEFAULT_LIMITS
) -> AsyncIterator[Channel | RegistrationChannel]:
    """Connect for calls of GetInfo, in the way that was chosen."""
    if not BY_BYTES:
        async with connected(path, script, limits) as channel:
            yield channel
        return
    async with served(path, script) as name:
        dialed = await dial_registration(name, timeout=60, conversations=warm(limits))
        try:
            yield dialed
        finally:
            dialed.close()


def budgets_used(channel: Channel) -> list[float]:
    """Return which part of each budget of a registration call its last call took: frames, headers, bytes, SETTINGS."""
    budgets, limits = channel.connection.budgets, REGISTRATION_LIMITS
    left = (budgets.frames_left, budgets.header_bytes_left, budgets.bytes_left)
    parts = [1 - rest / whole for rest, whole in zip(left, limits.call_budgets, strict=True)]
    return [*parts, budgets.spent[SETTINGS_ENTRIES] / limits.settings_entries]


async def get_info(channel: Channel | RegistrationChannel, timeout: float | None = 60) -> PluginInfo:
    if isinstance(channel, Channel):
        return await channel.stub(RegistrationStub).GetInfo(InfoRequest(), timeout=timeout)
    # Who registers plugins has deadlines of its own.
    with trio.move_on_after(math.inf if timeout is None else timeout):
        return await channel.unary(GET_INFO, InfoRequest(), PluginInfo)
    raise GRPCError(TIMED_OUT.status, TIMED_OUT.message)


async def refused(
    path: Path, script: Script, *, limits: WireLimits = DEFAULT_LIMITS, timeout: float | None = 60
) -> tuple[str, WireProblem | None, str | None]:
    """Call GetInfo, which must fail; return its status, problem and reason."""
    async with asking(path, script, limits) as channel:
        with pytest.raises(GRPCError) as caught:
            await get_info(channel, timeout)
    cause = caught.value.__cause__
    return caught.value.status.name, cause.problem if isinstance(cause, WireError) else None, caught.value.message

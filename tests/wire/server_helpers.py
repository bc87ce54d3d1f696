"""Helpers for tests of the server: a service with every kind of method, and a client that can also send raw bytes."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import h2.config
import h2.connection
import h2.events
import trio
import trio.testing
from google.protobuf.wrappers_pb2 import BytesValue, Int32Value
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError

from plugind.actors.grpc.server.serve import (
    ConnectionEnded,
    ConnectionEnding,
    HandlerFailed,
    Peer,
    ServerLimits,
    ServerStream,
    serve_stream,
    serve_unix,
)

Bytes = ServerStream[BytesValue, BytesValue]


@attrs.define
class Echo:
    """A service that is written by hand in the form of generated ones."""

    cancelled: trio.Event = attrs.field(factory=trio.Event)
    hanging: trio.Event = attrs.field(factory=trio.Event)
    deadlines: list[float | None] = attrs.field(factory=list)
    peers: list[Peer] = attrs.field(factory=list)

    async def unary(self, stream: Bytes) -> None:
        self.deadlines.append(stream.deadline)
        self.peers.append(stream.peer)
        message = await stream.recv_message()
        assert message is not None
        await stream.send_message(message)

    async def size(self, stream: ServerStream[BytesValue, Int32Value]) -> None:
        message = await stream.recv_message()
        assert message is not None
        await stream.send_message(Int32Value(value=len(message.value)))

    async def make(self, stream: ServerStream[Int32Value, BytesValue]) -> None:
        message = await stream.recv_message()
        assert message is not None
        await stream.send_message(BytesValue(value=b"m" * message.value))

    async def count(self, stream: ServerStream[Int32Value, Int32Value]) -> None:
        message = await stream.recv_message()
        assert message is not None
        for number in range(message.value):
            await stream.send_message(Int32Value(value=number))

    async def total(self, stream: ServerStream[BytesValue, Int32Value]) -> None:
        await stream.send_message(Int32Value(value=sum([len(message.value) async for message in stream])))

    async def both(self, stream: Bytes) -> None:
        async for message in stream:
            await stream.send_message(message)

    async def status(self, stream: ServerStream[Int32Value, Int32Value]) -> None:
        message = await stream.recv_message()
        assert message is not None
        raise GRPCError(Status(message.value), f"100 % \u2713 of {message.value}\n")

    async def metadata(self, stream: Bytes) -> None:
        await stream.recv_message()
        await stream.send_initial_metadata(metadata=[("first", "1"), ("first-bin", b"\x00\xff")])
        await stream.send_message(BytesValue(value=repr(sorted(stream.metadata.items())).encode()))
        await stream.send_trailing_metadata(metadata=[("last", "2"), ("last-bin", b"\xff\x00\x01")])

    async def hang(self, stream: Bytes) -> None:
        self.hanging.set()
        try:
            await trio.sleep_forever()
        finally:
            self.cancelled.set()

    async def broken(self, stream: Bytes) -> None:
        raise RuntimeError("a secret that clients need not know")

    async def silent(self, stream: Bytes) -> None:
        await stream.recv_message()

    def __mapping__(self) -> Mapping[str, Handler]:
        unary, streaming = Cardinality.UNARY_UNARY, Cardinality.UNARY_STREAM
        rows = [
            (self.unary, unary, BytesValue, BytesValue),
            (self.size, unary, BytesValue, Int32Value),
            (self.make, unary, Int32Value, BytesValue),
            (self.count, streaming, Int32Value, Int32Value),
            (self.total, Cardinality.STREAM_UNARY, BytesValue, Int32Value),
            (self.both, Cardinality.STREAM_STREAM, BytesValue, BytesValue),
            (self.status, unary, Int32Value, Int32Value),
            (self.metadata, unary, BytesValue, BytesValue),
            (self.hang, unary, BytesValue, BytesValue),
            (self.broken, unary, BytesValue, BytesValue),
            (self.silent, unary, BytesValue, BytesValue),
        ]
        return {f"/test.Echo/{row[0].__name__}": Handler(*row) for row in rows}


@attrs.define
class Reports:
    """Collect the reports of a server."""

    failures: list[HandlerFailed] = attrs.field(factory=list)
    endings: list[ConnectionEnding] = attrs.field(factory=list)

    def __call__(self, what: HandlerFailed | ConnectionEnded) -> None:
        match what:
            case HandlerFailed():
                self.failures.append(what)
            case ConnectionEnded():
                self.endings.append(what.ending)


@attrs.frozen
class Served:
    """A server that is running on a socket."""

    path: str
    echo: Echo
    reports: Reports
    stopping: trio.Event


@asynccontextmanager
async def served(path: Path, limits: ServerLimits | None = None) -> AsyncIterator[Served]:
    """Run an Echo server on ``path``; stop it at exit."""
    echo, reports, stopping = Echo(), Reports(), trio.Event()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(
                functools.partial(
                    serve_unix,
                    [echo],
                    str(path),
                    limits=limits or ServerLimits(),
                    report=reports,
                    stopping=stopping,
                )
            )
            yield Served(str(path), echo, reports, stopping)
            nursery.cancel_scope.cancel()


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    """Return an HTTP/2 frame, valid or not."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HELLO = PREFACE + frame(4)


def message(value: bytes) -> bytes:
    """Return a BytesValue with its gRPC prefix."""
    payload = BytesValue(value=value).SerializeToString()
    return b"\0" + len(payload).to_bytes(4, "big") + payload


class ByteClient:
    """A client on one stream. It uses h2, and sends raw bytes where h2 would refuse to."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self.events: list[h2.events.Event] = []
        self.closed = False

    async def hello(self) -> None:
        self.h2.initiate_connection()
        await self.flush()

    async def flush(self) -> None:
        await self.stream.send_all(self.h2.data_to_send())

    def exceed_the_stream_limit(self) -> None:
        """Let h2 open more streams than the server allows."""
        self.h2.remote_settings.max_concurrent_streams = 1000
        self.h2.remote_settings.acknowledge()

    def open_call(self, method: str, *, body: bytes | None = None, end: bool = True, **extra: str) -> int:
        """Queue the HEADERS of a call, and its body if there is one; returns the id of the stream."""
        stream_id = self.h2.get_next_available_stream_id()
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", f"/test.Echo/{method}"),
            (":authority", "x"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            *[(name.replace("_", "-"), value) for name, value in extra.items()],
        ]
        self.h2.send_headers(stream_id, headers, end_stream=body is None and end)
        if body is not None:
            self.h2.send_data(stream_id, body, end_stream=end)
        return stream_id

    async def read_until(self, kind: type[h2.events.Event]) -> None:
        """Read until an event of ``kind`` has come, or the server has closed."""
        while not self.closed and not any(isinstance(event, kind) for event in self.events):
            data = await self.stream.receive_some(65536)
            if not data:
                self.closed = True
            else:
                self.events += self.h2.receive_data(bytes(data))
                await self.flush()

    def trailers(self, stream_id: int) -> dict[str, str]:
        """The last header block of a stream."""
        found: dict[str, str] = {}
        for event in self.events:
            if isinstance(event, (h2.events.ResponseReceived, h2.events.TrailersReceived)):  # noqa: SIM102 -- mypy narrows
                if event.stream_id == stream_id:
                    found = {str(name): str(value) for name, value in event.headers}
        return found

    async def call(self, method: str, body: bytes, **extra: str) -> dict[str, str]:
        """Make one unary call and return its trailers."""
        stream_id = self.open_call(method, body=body, end=True, **extra)
        await self.flush()
        await self.read_until(h2.events.StreamEnded)
        return self.trailers(stream_id)


@attrs.frozen
class InMemory:
    """A server on one end of a memory stream, and a client on the other."""

    client: ByteClient
    echo: Echo
    reports: Reports
    stopping: trio.Event
    ended: trio.Event

    async def ending(self) -> ConnectionEnding:
        """Wait for the connection to end, and return how it ended."""
        await self.ended.wait()
        (ending,) = self.reports.endings
        return ending


@asynccontextmanager
async def in_memory(limits: ServerLimits | None = None) -> AsyncIterator[InMemory]:
    """An Echo server on a memory stream; tests that wait for it use MockClock."""
    near, far = trio.testing.memory_stream_pair()
    pair = InMemory(ByteClient(near), Echo(), Reports(), trio.Event(), trio.Event())

    async def serve() -> None:
        await serve_stream(
            [pair.echo], far, limits=limits or ServerLimits(), report=pair.reports, stopping=pair.stopping
        )
        pair.ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        yield pair
        nursery.cancel_scope.cancel()

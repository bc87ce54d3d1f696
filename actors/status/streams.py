"""The shared parts of the endless answers of the status socket: JSON lines, with heartbeats on request."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import attrs
import trio

from ...protocol.messages.status import Lagged
from ...protocol.status.json import Json
from ...protocol.text import encodable
from ..http.limits import HttpLimits
from ..http.server import HttpRequest, HttpResponse, Send, problem

T = TypeVar("T")

#: How many rows are written, or changes sent, before other tasks run: about a millisecond of work.
PIECE = 50
#: The most bytes of a piece, apart from its last row.
PIECE_BYTES = 65_536
JSON_LINES = "application/jsonl"
#: How many changes can wait for a reader before it is dropped.
LAG = 4096
#: The header of a watch that sends an empty line after each period of so many seconds without a change.
HEARTBEAT = "Heartbeat"
LEAST_HEARTBEAT = 0.02
MOST_HEARTBEAT = 3600.0


def pause_of(request: HttpRequest, *also: str) -> float | HttpResponse | None:
    """Return the seconds between heartbeats that a watch asks for, None for no heartbeats, or an error.

    ``also`` are the other parameters that it may have.
    """
    unknown = request.query.keys() - {"heartbeat", *also}
    if unknown:
        known = " and ".join(("heartbeat", *also))
        return problem(400, f"there is no parameter {encodable(min(unknown))}; {request.path} takes {known}")
    asked = request.query.get("heartbeat")
    if asked is None:
        return None
    pause = _heartbeat(asked)
    if pause is None:
        allowed = f"it must be seconds from {LEAST_HEARTBEAT:g} to {MOST_HEARTBEAT:g}"
        return problem(400, f"heartbeat is {encodable(asked)!r}: {allowed}")
    return pause


def _heartbeat(asked: str) -> float | None:
    try:
        pause = float(asked)
    except ValueError:
        return None
    return pause if LEAST_HEARTBEAT <= pause <= MOST_HEARTBEAT else None


def heartbeat_headers(pause: float | None) -> tuple[tuple[str, str], ...]:
    """Return the header with the seconds between heartbeats."""
    return () if pause is None else ((HEARTBEAT, f"{pause:g}"),)


@attrs.define(eq=False)
class Unsent:
    """Counts the bytes that all streamed answers hold because their clients have not read them.

    If they are more than ``most``, the stream that holds most is ended, as if its client did not read at all.
    """

    most: int = HttpLimits().unsent
    total: int = 0
    _streams: set[AnswerStream] = attrs.field(factory=set)

    def counted(self, write: Callable[[AnswerStream], Awaitable[None]]) -> Callable[[Send], Awaitable[None]]:
        """Return ``write`` with the bytes that it holds counted."""

        async def write_counted(send: Send) -> None:
            stream = AnswerStream(self, send)
            self._streams.add(stream)
            try:
                with stream.scope:
                    await write(stream)
            finally:
                self._leave(stream)
            if stream.scope.cancelled_caught:
                raise trio.BrokenResourceError("the client reads too slowly for what all streams may hold together")

        return write_counted

    def hold(self, stream: AnswerStream, count: int) -> None:
        """Add ``count``, which can be negative, to the bytes that a stream holds."""
        stream.held += count
        if stream in self._streams:
            self.total += count
        while self.total > self.most:
            most = max(self._streams, key=lambda other: other.held)
            self._leave(most)
            most.scope.cancel()

    def _leave(self, stream: AnswerStream) -> None:
        if stream in self._streams:
            self._streams.remove(stream)
            self.total -= stream.held


@attrs.frozen
class Watched(Generic[T]):
    """What a watch shows."""

    #: The type of a change, and its line.
    change: type[object]
    line: Callable[[Any], bytes]
    #: Writes what is there when the watch begins; returns whether changes follow.
    write_first: Callable[[Reader[T], AnswerStream], Awaitable[bool]]
    #: Subscribe to the changes, and end that.
    subscribe: Callable[[Backlog[T]], object]
    unsubscribe: Callable[[Backlog[T]], object]


@attrs.define(eq=False)
class OpenWatches:
    """The watches of one subject that are under way."""

    _unsent: Unsent
    _writers: set[Backlog[Any]] = attrs.field(factory=set)

    def end(self) -> None:
        """End the streams of changes."""
        for writer in self._writers:
            writer.close()

    def answer(self, request: HttpRequest, watched: Watched[T]) -> HttpResponse:
        """Stream changes; with ``?heartbeat=S``, an empty line follows the first list and each pause of S seconds.

        The header ``Heartbeat`` tells the client about the empty lines. They show when the first list is complete, and
        when a daemon has stopped.
        """
        pause = pause_of(request)
        if isinstance(pause, HttpResponse):
            return pause
        write = self._unsent.counted(partial(self._write, watched, pause))
        return HttpResponse(200, JSON_LINES, write=write, endless=True, headers=heartbeat_headers(pause))

    async def _write(self, watched: Watched[T], pause: float | None, send: AnswerStream) -> None:
        writer, reader = send.backlog(LAG, watched.change, watched.line)
        watched.subscribe(writer)
        self._writers.add(writer)
        heartbeat = b"" if pause is None else b"\n"
        try:
            if not await watched.write_first(reader, send):
                return
            await send_pieces([heartbeat], send)
            while messages := await next_messages(reader, pause):
                lines = [message for message in messages if isinstance(message, bytes)]
                await send_pieces(lines if any(lines) else [heartbeat], send)
                send.sent(messages)
                if any(isinstance(message, Lagged) for message in messages):
                    await send(b'{"error": "too slow: changes were lost; watch again"}\n')
                    return
        except trio.EndOfChannel:
            return  # The actor ends.
        finally:
            reader.close()
            self._writers.discard(writer)
            watched.unsubscribe(writer)


async def first_message(reader: Reader[T], send: Send, seconds: float, problem: str) -> bytes | T | None:
    """Return the first message of an actor; None if the client was sent the ``problem``, since none came in time."""
    with trio.move_on_after(seconds):
        return await reader.receive()
    await send(json.dumps({"error": problem}).encode() + b"\n")
    return None


@attrs.define(eq=False)
class AnswerStream:
    """Sends the pieces of one answer, and counts the unsent bytes."""

    _all: Unsent
    _send: Send
    held: int = 0
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    async def __call__(self, piece: bytes) -> None:
        """Send a piece."""
        self._all.hold(self, len(piece))
        try:
            await self._send(piece)
        finally:
            self._all.hold(self, -len(piece))

    def backlog(self, lag: int, change: type[object], line: Callable[[T], bytes]) -> tuple[Backlog[T], Reader[T]]:
        """Return a channel for at most ``lag`` messages, and its reader; each ``change`` is stored as its ``line``."""
        writer, reader = trio.open_memory_channel[bytes | T](lag)
        return Backlog(self, writer, change, line), reader

    def hold(self, count: int) -> None:
        """Add ``count`` to the waiting bytes."""
        self._all.hold(self, count)

    def sent(self, messages: Sequence[object]) -> None:
        """Subtract the lines of these messages from the waiting bytes."""
        self.hold(-sum(len(message) for message in messages if isinstance(message, bytes)))


@attrs.define(eq=False)
class Backlog(Generic[T]):
    """Receives an actor's messages for a stream. A change is stored as its line, since its values can be far larger."""

    _stream: AnswerStream
    _writer: trio.MemorySendChannel[bytes | T]
    _change: type[object]
    _line: Callable[[T], bytes]

    def send_nowait(self, message: T, /) -> None:
        """Store a message.

        Raises:
          trio.WouldBlock: if too many messages wait.
          trio.BrokenResourceError: if the stream has ended; or trio.ClosedResourceError.
        """
        line = self._line(message) if isinstance(message, self._change) else None
        self._writer.send_nowait(message if line is None else line)
        self._stream.hold(0 if line is None else len(line))

    def close(self) -> None:
        """End the stream."""
        self._writer.close()


Reader = trio.MemoryReceiveChannel[bytes | T]


async def send_pieces(rows: Iterable[bytes], send: Send) -> None:
    """Send rows, a bounded number of rows and bytes at once."""
    piece, count = bytearray(), 0
    for row in rows:
        piece += row
        count += 1
        if len(piece) >= PIECE_BYTES or count >= PIECE:
            await send(bytes(piece))
            await trio.lowlevel.checkpoint()
            piece, count = bytearray(), 0
    if piece:
        await send(bytes(piece))


def listed(values: Iterable[Json], head: str = "[", tail: str = "]\n") -> Iterator[bytes]:
    """Yield a list of JSON in rows for :func:`send_pieces`; the ``head`` and the ``tail`` have its brackets."""
    before = head
    for each in values:
        yield f"{before}{json.dumps(each)}".encode()
        before = ",\n"
    yield (head + tail if before is head else tail).encode()


async def next_messages(reader: trio.MemoryReceiveChannel[T], pause: float | None) -> list[T | None]:
    """Return the next messages: None alone after a ``pause`` without any, an empty list at the end."""
    messages: list[T | None] = []
    with trio.move_on_after(math.inf if pause is None else pause) as scope:
        try:
            messages.append(await reader.receive())
            while len(messages) < PIECE:
                messages.append(reader.receive_nowait())
        except (trio.WouldBlock, trio.EndOfChannel):
            pass
    return [None] if scope.cancelled_caught else messages

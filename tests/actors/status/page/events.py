"""The stream of the page as a browser reads it, for the tests of that stream."""

from __future__ import annotations

import json
from typing import Any

import attrs
import trio


@attrs.define
class Browser:
    """It does with the events what the program of the page does."""

    tables: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    #: How many batches have ended.
    batches: int = 0
    #: How many values have come.
    values: int = 0
    comments: int = 0
    _rest: str = ""

    def take(self, piece: bytes) -> None:
        """Take a piece of the stream."""
        *events, self._rest = (self._rest + piece.decode()).split("\n\n")
        for event in events:
            if event.startswith(":"):
                self.comments += 1
                continue
            name, data = (line.partition(": ")[2] for line in event.split("\n"))
            self._take(name, json.loads(data))

    def _take(self, name: str, content: Any) -> None:
        match name:
            case "anew":
                self.tables[content] = {}
            case "end":
                self.batches += 1
            case "changes":
                for table, entries in content.items():
                    for key, entry in entries.items():
                        self._set(table, key, entry)
            case _:
                raise AssertionError(name)

    def _set(self, table: str, key: str, entry: Any) -> None:
        self.values += 1
        if entry is None:
            self.tables[table].pop(key, None)
        else:
            self.tables[table][key] = entry


@attrs.define
class Chunks:
    """The body of an answer that comes in chunks."""

    stream: trio.SocketStream
    _received: bytes = b""

    async def _until(self, mark: bytes) -> bytes:
        while mark not in self._received:
            await self._receive()
        found, _, self._received = self._received.partition(mark)
        return found + mark

    async def _receive(self) -> None:
        with trio.fail_after(60):
            piece = await self.stream.receive_some(65536)
        assert piece, self._received
        self._received += bytes(piece)

    async def head(self) -> bytes:
        return await self._until(b"\r\n\r\n")

    async def next(self) -> bytes:
        size = int(await self._until(b"\r\n"), 16)
        while len(self._received) < size + 2:
            await self._receive()
        found, self._received = self._received[:size], self._received[size + 2 :]
        return found

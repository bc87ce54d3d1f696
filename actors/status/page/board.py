"""The state of the node as the page shows it, and its stream to each browser (server-sent events).

A browser gets the newest state of each socket, resource and lease, at most four times a second. A slow one gets fewer
batches: only its position in each table is kept.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import attrs
import trio

from ....protocol.status.json import Json
from ....protocol.status.newest import ChangeTable
from ...http.server import Send

#: The tables of the board.
PLUGINS: Final = "plugins"
RESOURCES: Final = "resources"
LEASES: Final = "leases"
#: The least seconds between the starts of two batches for one browser.
BATCH_EVERY: Final = 0.25
#: Seconds without a batch after which a comment shows the browser that the connection works. The page's program treats
#: a silence of four times that as a broken connection (``SILENCE``).
COMMENT_EVERY: Final = 2.5
#: The most keys in one event. A batch has as many events as it needs.
PIECE: Final = 250


@attrs.define(eq=False)
class Board:
    """The tables, and short texts about the daemon and its health. Each change wakes the browsers' streams."""

    #: Returns the wall clock, in seconds since the epoch.
    _wall: Callable[[], float] = time.time
    tables: Mapping[str, ChangeTable] = attrs.field(
        init=False, factory=lambda: {name: ChangeTable() for name in (PLUGINS, RESOURCES, LEASES)}
    )
    #: The last text about each topic of the node.
    _words: ChangeTable = attrs.field(init=False, factory=ChangeTable)
    _waiting: trio.lowlevel.ParkingLot = attrs.field(init=False, factory=trio.lowlevel.ParkingLot)

    def put(self, table: str, key: str, value: Json) -> None:
        """Set the newest value of a key of a table."""
        self.tables[table].put(key, json.dumps(value))
        self._waiting.unpark_all()

    def remove(self, table: str, key: str) -> None:
        """Remove a key from a table."""
        self.tables[table].remove(key)
        self._waiting.unpark_all()

    def keep_only(self, table: str, keys: set[str]) -> None:
        """Remove all keys but ``keys`` from a table."""
        self.tables[table].keep_only(keys)
        self._waiting.unpark_all()

    def tell(self, topic: str, words: Json) -> None:
        """Set the text about a topic of the node."""
        said = json.dumps(words)
        if self._words.get(topic) != said:
            self._words.put(topic, said)
            self._waiting.unpark_all()

    async def stream(self, send: Send) -> None:
        """Send batches to one browser for as long as it stays."""
        reader = _BrowserPosition({**self.tables, "node": self._words})
        while True:
            begun = trio.current_time()
            sent = False
            for event in reader.batch():
                await send(event)
                sent = True
            if sent:
                await send(_event("end", {"time": self._wall()}))
                await trio.sleep_until(begun + BATCH_EVERY)
                continue
            with trio.move_on_after(COMMENT_EVERY) as scope:
                await self._waiting.park()
            if scope.cancelled_caught:
                await send(b": nothing has changed\n\n")


@attrs.define
class _BrowserPosition:
    """The position of one browser in each table."""

    _tables: Mapping[str, ChangeTable]
    _read: dict[str, int] = attrs.field(init=False, factory=dict)

    def batch(self) -> Iterator[bytes]:
        """Yield events with all changes since the last batch, each with the newest values."""
        for name, table in self._tables.items():
            due = table.after(self._read.get(name))
            self._read[name] = due.revision
            if due.anew:
                yield _event("anew", name)
            for keys in _pieces(due.keys):
                yield _changes(name, table, keys)


def _pieces(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    return (keys[start : start + PIECE] for start in range(0, len(keys), PIECE))


def _changes(name: str, table: ChangeTable, keys: Sequence[str]) -> bytes:
    """Return the event with the newest values of ``keys``; null for keys that are gone."""
    entries = ", ".join(f"{json.dumps(key)}: {table.get(key) or 'null'}" for key in keys)
    return f"event: changes\ndata: {{{json.dumps(name)}: {{{entries}}}}}\n\n".encode()


def _event(name: str, content: Json) -> bytes:
    return f"event: {name}\ndata: {json.dumps(content)}\n\n".encode()

"""A store of the history for tests: a database in a file, without a thread, which fails as a script says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import attrs
import trio

from plugind.actors.io.history_database import HistoryDatabase
from plugind.protocol.errors import StateError
from plugind.protocol.leases.config import LeaseHistoryConfig
from plugind.protocol.leases.history import HistoryQuery, HistoryRow

T = TypeVar("T")


@attrs.define(eq=False)
class FileHistory:
    """A :class:`~plugind.actors.leases.history.HistoryStore`."""

    path: Path
    boot: str = "a boot"
    #: Why each access fails now; None if it does not.
    problem: str | None = None
    #: Virtual seconds that each access takes.
    takes: float = 0.0
    set_aside: int = 0
    #: How many accesses there were.
    calls: int = 0
    #: How many are under way, and how many were at most.
    under_way: int = 0
    most_under_way: int = 0
    _database: HistoryDatabase | None = None

    async def call(self, do: Callable[[HistoryDatabase], T]) -> T:
        self.calls += 1
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await trio.sleep(self.takes)
        finally:
            self.under_way -= 1
        if self.problem is not None:
            raise StateError(self.problem)
        if self._database is None:
            self._database = HistoryDatabase(str(self.path), LeaseHistoryConfig(), self.boot)
        return do(self._database)

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    async def rows(self, query: HistoryQuery | None = None) -> list[HistoryRow]:
        """Return all rows, the first grant first."""
        rows, _ = await self.call(lambda database: database.rows(query or HistoryQuery(), None, 1000, 5.0))
        return [*reversed(rows)]

"""The file with the history of leases, beside the state. Whatever becomes of it, no lease is touched.

A worker thread makes each access, one at a time. A file that is damaged, or was written by a newer version of plugind,
is set aside, and a new one begins.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from ...protocol.errors import StateError
from ...protocol.leases.config import LeaseHistoryConfig
from ...protocol.logs.lines import Level, Logger
from . import state_database
from .history_database import HistoryDatabase
from .process_identity import known_boot_id
from .worker_thread import WorkerThread

T = TypeVar("T")

FILE_NAME = "history.db"


class HistoryFile:
    """``history.db`` in the directory of the state, which makes it."""

    def __init__(self, directory: str, config: LeaseHistoryConfig, log: Logger) -> None:
        """Keep the history in a file of ``directory``."""
        self.path = os.path.join(directory, FILE_NAME)
        self._config = config
        self._log = log
        self._boot = known_boot_id()
        self.set_aside = 0
        self._database: HistoryDatabase | None = None
        #: Which file is open.
        self._file: tuple[int, int] | None = None
        self._thread = WorkerThread("plugind history")
        self._closed = False
        #: Written to the log outside of the thread.
        self._set_aside_because: list[str] = []

    async def call(self, do: Callable[[HistoryDatabase], T]) -> T:
        """Return what ``do`` returns for the database, in the thread. A call that has begun goes on when cancelled.

        Raises:
          StateError: if the file cannot be used now.
        """
        try:
            return await self._thread.run(partial(self._translated, do))
        finally:
            while self._set_aside_because:
                why = self._set_aside_because.pop()
                self._log.event(Level.ERROR, "the history was set aside", path=f"{self.path}.bad", reason=why)

    def close(self) -> None:
        """Close the file, or let the end of a call that was given up close it."""
        self._closed = True
        self._thread.close()
        if not self._thread.is_at_work:
            self._let_go()

    # --- in a thread --------------------------------------------------------------------------------------------------

    def _translated(self, do: Callable[[HistoryDatabase], T]) -> T:
        try:
            return do(self._open())
        except sqlite3.Error as error:
            if state_database.is_damaged(error):
                self._let_go()
                self._set_aside(f"it is damaged: {error}")
            raise StateError(f"{self.path} cannot be used: {state_database.cause_of(error, self.path)}") from error
        except OSError as error:
            raise StateError(f"{self.path} cannot be used: {error.strerror}; repair it, or use --state") from error
        except (ValueError, OverflowError) as error:  # Nothing in a file of the history may end the node.
            raise StateError(f"{self.path} cannot be understood: {error}; remove it, and a new one begins") from error
        finally:
            if self._closed:
                self._let_go()

    def _open(self) -> HistoryDatabase:
        if self._database is not None and self._file == state_database.identity(self.path):
            return self._database
        self._let_go()  # It was removed or replaced, so that what is written there would be lost.
        state_database.make_file(self.path)
        try:
            self._database = self._opened()
        except state_database.NotUsableError as error:
            self._set_aside(str(error))
            state_database.make_file(self.path)
            self._database = self._opened()
        if self._set_aside_because:
            self._database.before = f"the file was set aside: {self._set_aside_because[-1]}"
        self._file = state_database.identity(self.path)
        return self._database

    def _opened(self) -> HistoryDatabase:
        return HistoryDatabase(self.path, self._config, self._boot)

    def _set_aside(self, why: str) -> None:
        state_database.set_aside(self.path)
        self.set_aside += 1
        self._set_aside_because.append(why)

    def _let_go(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()

"""The file that keeps what must outlive a restart: one SQLite database in the state directory.

Each access is made in a worker thread, one at a time. The database is locked for as long as it is open, so that a
second daemon finds out at once that the directory is not its own. A file that cannot be understood is set aside, and
never deleted: it is damaged, or a newer version of plugind has written it.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from ...protocol.errors import ConfigError, StateError
from ...protocol.logs import Level, Logger
from ...protocol.resources import Forget, Remember

T = TypeVar("T")

FILE_NAME = "state.db"
#: Tells the file from those of other programs: "plgd".
APPLICATION_ID = 0x706C6764
#: The version of the tables.
VERSION = 1
_TABLES = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE resource(name TEXT PRIMARY KEY, capacity INTEGER NOT NULL, last_seen REAL NOT NULL) STRICT;
"""
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
#: What SQLite says of a file that is no database, or a damaged one.
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class _NotUsableError(Exception):
    """The file cannot be understood; the text says why."""


class StateFile:
    """The names of resources in ``state.db`` of a directory, which is made if there is none."""

    def __init__(self, directory: str, log: Logger, *, wall: Callable[[], float] = time.time) -> None:
        self.path = os.path.join(directory, FILE_NAME)
        self._directory = directory
        self._log = log
        self._wall = wall
        self._database: sqlite3.Connection | None = None
        # A thread that is left behind keeps its token until it ends, so that no two use the database at once.
        self._one_at_a_time = trio.CapacityLimiter(1)
        self._closed = False
        #: For the log, which threads do not write.
        self._set_aside_because: list[str] = []

    async def read(self) -> Sequence[str]:
        """Open the file, making it if there is none, and return the names of the resources in it.

        Raises:
          StateError: if it cannot be read now.
          ConfigError: if another daemon uses it, or others may write to the directory.
        """
        return await self._in_thread(self._read)

    async def write(self, changes: Sequence[Remember | Forget]) -> None:
        """Make ``changes`` in one transaction.

        Raises:
          StateError: if they could not be made.
          ConfigError: if another daemon uses the file, or others may write to the directory.
        """
        await self._in_thread(partial(self._write, changes))

    def close(self) -> None:
        """Close the file, unless a thread that was left behind uses it; then the end of the process does."""
        self._closed = True
        if self._one_at_a_time.borrowed_tokens == 0:
            self._let_go()

    async def _in_thread(self, call: Callable[[], T]) -> T:
        result = await trio.to_thread.run_sync(
            partial(self._translated, call), abandon_on_cancel=True, limiter=self._one_at_a_time
        )
        while self._set_aside_because:
            why = self._set_aside_because.pop()
            self._log.event(Level.ERROR, "the state was set aside", path=f"{self.path}.bad", reason=why)
        return result

    # --- in a thread --------------------------------------------------------------------------------------------------

    def _translated(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except sqlite3.Error as error:
            if _code(error) in _DAMAGED:
                self._let_go()  # It is set aside when it is opened again.
            if _code(error) in _LOCKED:
                raise ConfigError(
                    f"another plugind uses {self.path}: give this one another directory with --state"
                ) from error
            raise StateError(f"{self.path} cannot be used: {error}; free space, or repair its directory") from error
        except OSError as error:
            raise StateError(
                f"{self._directory} cannot be used: {error.strerror}; repair it, or use --state"
            ) from error
        finally:
            if self._closed:
                self._let_go()

    def _read(self) -> list[str]:
        return [name for (name,) in self._open().execute("SELECT name FROM resource ORDER BY last_seen, name")]

    def _write(self, changes: Sequence[Remember | Forget]) -> None:
        now = self._wall()
        database = self._open()
        with database:
            database.execute("BEGIN IMMEDIATE")
            for change in changes:
                if isinstance(change, Remember):
                    row = change.name, change.capacity, now
                    database.execute("INSERT OR REPLACE INTO resource VALUES(?, ?, ?)", row)
                else:
                    database.execute("DELETE FROM resource WHERE name = ?", (change.name,))

    def _open(self) -> sqlite3.Connection:
        if self._database is None:
            self._make_directory()
            try:
                self._database = self._opened()
            except _NotUsableError as error:
                self._set_aside(str(error))
                self._database = self._opened()
        return self._database

    def _make_directory(self) -> None:
        os.makedirs(self._directory, 0o700, exist_ok=True)
        found = os.stat(self._directory)
        if found.st_uid not in (0, os.geteuid()) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ConfigError(
                f"others may write to the state directory {self._directory}: take that right from them with chmod go-w"
                f" and chown, or name another directory with --state"
            )

    def _opened(self) -> sqlite3.Connection:
        """Open the file.

        Raises:
          _NotUsableError: if it cannot be understood.
          sqlite3.Error: if it cannot be opened now.
        """
        self._make_file()
        database = sqlite3.connect(self.path, timeout=0.0, isolation_level=None, check_same_thread=False)
        try:
            # Before the journal's mode is set: then there is no file of shared memory, and the lock is kept.
            database.execute("PRAGMA locking_mode = EXCLUSIVE")
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            self._check(database)
            self._note_start(database)
        except sqlite3.DatabaseError as error:
            database.close()
            if _code(error) in _DAMAGED:
                raise _NotUsableError(f"it is damaged: {error}") from error
            raise
        except BaseException:
            database.close()
            raise
        return database

    def _make_file(self) -> None:
        """Make the file with the right mode. One that is there is not opened: to close it would end SQLite's lock."""
        try:
            if not stat.S_ISREG(os.lstat(self.path).st_mode):
                raise StateError(f"{self.path} is not a file: move it away, or name another directory with --state")
        except FileNotFoundError:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def _check(self, database: sqlite3.Connection) -> None:
        application, version = _pragma(database, "application_id"), _pragma(database, "user_version")
        tables = database.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        if not tables and not application and not version:
            with database:
                database.execute("BEGIN EXCLUSIVE")
                for statement in _TABLES.strip().splitlines():
                    database.execute(statement)
                database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                database.execute(f"PRAGMA user_version = {VERSION}")
            return
        if application != APPLICATION_ID:
            raise _NotUsableError("it is another program's")
        if version > VERSION:
            raise _NotUsableError(
                f"a newer plugind has written it: its version is {version}, and this one has {VERSION}"
            )
        problems = [text for (text,) in database.execute("PRAGMA quick_check(1)")]
        if problems != ["ok"]:
            raise _NotUsableError(f"it is damaged: {problems[0]}")

    def _note_start(self, database: sqlite3.Connection) -> None:
        with database:
            database.execute("BEGIN EXCLUSIVE")  # Takes the lock that is kept, even of a file that is only read.
            database.execute("INSERT OR IGNORE INTO meta VALUES('instance', ?)", (secrets.token_hex(16),))
            database.execute("INSERT OR REPLACE INTO meta VALUES('boot', ?)", (_boot_id(),))

    def _set_aside(self, why: str) -> None:
        """Rename the file, with its journal: that of another database would be taken for the new one's."""
        for suffix in ("-wal", "-shm", ""):
            with suppress(FileNotFoundError):
                os.replace(self.path + suffix, f"{self.path}.bad{suffix}")
        self._set_aside_because.append(why)

    def _let_go(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()


def _code(error: sqlite3.Error) -> int:
    """Return the primary code of an error; its upper bits say more."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _pragma(database: sqlite3.Connection, name: str) -> int:
    found: int = database.execute(f"PRAGMA {name}").fetchone()[0]
    return found


def _boot_id() -> str:
    with suppress(OSError):
        return Path(_BOOT_ID).read_text().strip()
    return ""

"""The database of the state: how it is opened, how it is judged, and what is in it.

One that can be written is locked for as long as it is open. One that cannot, since its disk is read-only for example,
is still read.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

from ...protocol.devices import KnownResource
from ...protocol.resources import Forget, Remember

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


class NotUsableError(Exception):
    """The database cannot be understood; the text says why."""


class OtherDirectoryError(Exception):
    """The resources in the database are those of the device plugins in another directory, which the text names."""


def is_damaged(error: sqlite3.Error) -> bool:
    """Return whether the file is no database, or a damaged one."""
    return _code(error) in _DAMAGED


def is_locked(error: sqlite3.Error) -> bool:
    """Return whether another process uses the database."""
    return _code(error) in _LOCKED


def _code(error: sqlite3.Error) -> int:
    """Return the primary code of an error; its upper bits say more."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


# --- open -------------------------------------------------------------------------------------------------------------


def open_to_write(path: str) -> sqlite3.Connection:
    """Open and lock the database at ``path``, where there is a file. One that has tables is only read for that.

    Raises:
      NotUsableError: if it cannot be understood.
      sqlite3.Error: if it cannot be opened now.
    """

    def lock(database: sqlite3.Connection) -> None:
        # Before the journal's mode is set: then there is no file of shared memory, and the lock is kept.
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")

    return _opened(path, "", lock)


def open_to_read(path: str) -> sqlite3.Connection:
    """Open the database at ``path``, which need not be in a place where anything can be written.

    A daemon that was killed has left a journal. It is read into memory, without locks, since to lock takes the right to
    write. A database without a journal is complete.

    Raises:
      NotUsableError: if it cannot be understood.
      sqlite3.Error: if it cannot be opened now.
    """
    with suppress(FileNotFoundError):
        if os.stat(path + "-wal").st_size:
            return _opened(path, "?mode=ro&vfs=unix-none", _keep_in_memory)
    return _opened(path, "?immutable=1", _keep_in_memory)


def _keep_in_memory(database: sqlite3.Connection) -> None:
    database.execute("PRAGMA locking_mode = EXCLUSIVE")


def _opened(path: str, options: str, prepare: Callable[[sqlite3.Connection], None]) -> sqlite3.Connection:
    uri = f"file:{quote(os.fsencode(path))}{options}"
    database = sqlite3.connect(uri, uri=True, timeout=0.0, isolation_level=None, check_same_thread=False)
    try:
        prepare(database)
        _check(database)
    except sqlite3.DatabaseError as error:
        database.close()
        if is_damaged(error):
            raise NotUsableError(f"it is damaged: {error}") from error
        raise
    except BaseException:
        database.close()
        raise
    return database


def _check(database: sqlite3.Connection) -> None:
    application, version = _pragma(database, "application_id"), _pragma(database, "user_version")
    if not application and not version and not _has_tables(database):
        return  # It is new.
    if application != APPLICATION_ID:
        raise NotUsableError("it is another program's")
    if version > VERSION:
        raise NotUsableError(f"a newer plugind has written it: its version is {version}, and this one has {VERSION}")
    problems = [text for (text,) in database.execute("PRAGMA quick_check(1)")]
    if problems != ["ok"]:
        raise NotUsableError(f"it is damaged: {problems[0]}")


def _pragma(database: sqlite3.Connection, name: str) -> int:
    found: int = database.execute(f"PRAGMA {name}").fetchone()[0]
    return found


def _has_tables(database: sqlite3.Connection) -> bool:
    return bool(database.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0])


# --- read and write ---------------------------------------------------------------------------------------------------


def resources(database: sqlite3.Connection, serves: str) -> list[KnownResource]:
    """Return the resources that are kept for the directory ``serves``, the one that was seen last at the end.

    Raises:
      OtherDirectoryError: if they are those of another directory.
    """
    if not _has_tables(database):
        return []
    rows = database.execute("SELECT name, capacity FROM resource ORDER BY last_seen, name")
    found = [KnownResource(name, capacity) for name, capacity in rows]
    served = database.execute("SELECT value FROM meta WHERE key = 'serves'").fetchone()
    if found and served is not None and served[0] != serves:
        raise OtherDirectoryError(served[0])
    return found


def read_only(path: str, serves: str) -> list[KnownResource]:
    """Return the resources that are kept at ``path``, where nothing can be written.

    Raises:
      OtherDirectoryError: if they are those of another directory than ``serves``.
      NotUsableError: if the database cannot be understood.
      sqlite3.Error: if it cannot be opened now.
    """
    with closing(open_to_read(path)) as database:
        return resources(database, serves)


def begin(database: sqlite3.Connection, serves: str) -> None:
    """Note that a daemon has started, and which directory it ``serves``; make the tables, if the database is new."""
    with database:
        database.execute("BEGIN EXCLUSIVE")
        if not _has_tables(database):
            for statement in _TABLES.strip().splitlines():
                database.execute(statement)
            database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            database.execute(f"PRAGMA user_version = {VERSION}")
        database.execute("INSERT OR IGNORE INTO meta VALUES('instance', ?)", (secrets.token_hex(16),))
        database.execute("INSERT OR REPLACE INTO meta VALUES('boot', ?)", (_boot_id(),))
        database.execute("INSERT OR REPLACE INTO meta VALUES('serves', ?)", (serves,))


def change(database: sqlite3.Connection, changes: Sequence[Remember | Forget], now: float) -> None:
    """Make ``changes`` in one transaction; ``now`` is a Unix time."""
    with database:
        database.execute("BEGIN IMMEDIATE")
        for it in changes:
            if isinstance(it, Remember):
                database.execute("INSERT OR REPLACE INTO resource VALUES(?, ?, ?)", (it.name, it.capacity, now))
            else:
                database.execute("DELETE FROM resource WHERE name = ?", (it.name,))


def _boot_id() -> str:
    with suppress(OSError):
        return Path(_BOOT_ID).read_text().strip()
    return ""

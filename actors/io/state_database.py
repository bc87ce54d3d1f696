"""The database of the state: how it is opened, how it is judged, and what is in it.

One that can be written is locked for as long as it is open. One that cannot, since its disk is read-only for example,
is still read.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from typing import TypeVar
from urllib.parse import quote

from ...protocol.devices.resources import Forget, Remember
from ...protocol.leases import effects as leases_effects
from ...protocol.leases.messages import Kept
from ...protocol.plugins.devices import KnownResource
from . import lease_tables

T = TypeVar("T")
S = TypeVar("S", bound=Sequence[object])

#: What is written: of the resources, and of the leases.
Change = Remember | Forget | leases_effects.Change
#: Changes of which all are made or none.
Group = Sequence[Change]

#: Tells the file from those of other programs: "plgd".
APPLICATION_ID = 0x706C6764
#: The version of the tables.
VERSION = 2
#: What each version has made anew; a file of an earlier one gets what it lacks.
_TABLES: Mapping[int, Sequence[str]] = {
    1: (
        "CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT",
        "CREATE TABLE resource(name TEXT PRIMARY KEY, capacity INTEGER NOT NULL, last_seen REAL NOT NULL) STRICT",
    ),
    2: lease_tables.TABLES,
}
#: What SQLite says of a file that is no database, or a damaged one.
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
#: Bytes of a page of a new file. It has a dozen pages even if it is empty, and they are in its journal, too, at first.
_PAGE = 1024
#: How many pages a lease writes, about.
_LEASE_PAGES = 13
#: How many pages the journal has until they are moved into the file, for which the disk is waited for three times. It
#: must stay small, since what is moved may need space that the journal takes.
_JOURNAL_PAGES = 64
#: Likewise where there are less than so many free bytes.
_JOURNAL_PAGES_IF_SCARCE = 16
_SCARCE = 1 << 20


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
        # Both before the journal's mode is set: then there is no file of shared memory, and the lock is kept.
        database.execute(f"PRAGMA page_size = {_PAGE}")
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute(f"PRAGMA wal_autocheckpoint = {_journal_pages(path)}")
        _wait_for_disk(database, wait=False)
        database.execute("PRAGMA foreign_keys = ON")

    database = _opened(path, "", lock)
    _empty_journal(database)
    return database


def _wait_for_disk(database: sqlite3.Connection, *, wait: bool) -> None:
    """Say whether each commit from now on waits until the disk has it, and all before it.

    Commits of leases do not. They survive the end of this process, whatever ends it. The last ones are lost if the
    kernel stops, but with the boot all leases end anyway. What is in the file is whole in any case: the journal is
    synchronized before it is moved there, and where it is not whole it is not read.
    """
    database.execute(f"PRAGMA synchronous = {'FULL' if wait else 'NORMAL'}")


@contextmanager
def _lasting(database: sqlite3.Connection) -> Iterator[None]:
    """Let what is committed in the block survive the end of the kernel, too."""
    _wait_for_disk(database, wait=True)
    try:
        yield
    finally:
        _wait_for_disk(database, wait=False)


def _journal_pages(path: str) -> int:
    disk = os.statvfs(path)
    return _JOURNAL_PAGES_IF_SCARCE if disk.f_bavail * disk.f_frsize < _SCARCE else _JOURNAL_PAGES


def _empty_journal(database: sqlite3.Connection) -> None:
    """Move what is in the journal into the file, and give the space of the journal back, as far as that is possible.

    What is in the journal is not lost if that fails, for want of space. Then the next write fails, too, and says so.
    """
    with suppress(sqlite3.OperationalError):
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


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
    if not application and not version and not has_tables(database):
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


def has_tables(database: sqlite3.Connection) -> bool:
    """Return whether anything was ever written to it."""
    return bool(database.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0])


def _meta(database: sqlite3.Connection, key: str) -> str | None:
    found = database.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return None if found is None else str(found[0])


# --- read -------------------------------------------------------------------------------------------------------------


def resources(database: sqlite3.Connection, serves: str) -> list[KnownResource]:
    """Return the resources that are kept for the directory ``serves``, the one that was seen last at the end.

    A daemon without a directory of device plugins, whose ``serves`` is empty, takes those of any.

    Raises:
      OtherDirectoryError: if they are those of another directory.
    """
    if not has_tables(database):
        return []
    rows = database.execute("SELECT name, capacity FROM resource ORDER BY last_seen, name")
    return _of_directory(database, serves, [KnownResource(name, capacity) for name, capacity in rows])


def leases(database: sqlite3.Connection, serves: str, boot: str) -> Kept:
    """Return the leases that are kept for the directory ``serves``, and were written in this ``boot``.

    Raises:
      OtherDirectoryError: if they are those of another directory.
      RowError: if one of them cannot be understood.
    """
    if not has_tables(database):
        return Kept()
    withheld = _meta(database, "withheld") if _meta(database, "boot") == boot else None
    return Kept(_of_directory(database, serves, lease_tables.read(database, boot)), withheld)


def instance(database: sqlite3.Connection) -> str | None:
    """Return the id of whoever writes this database; None if nothing was written yet."""
    return _meta(database, "instance") if has_tables(database) else None


def serial(database: sqlite3.Connection) -> int:
    """Return how many times leases were saved in this database; an earlier version did not count them."""
    return int(_meta(database, "serial") or 0) if has_tables(database) else 0


def is_withheld(database: sqlite3.Connection) -> bool:
    """Return whether leases were lost, and nobody has said since that no device is in use."""
    return _meta(database, "withheld") is not None


def _of_directory(database: sqlite3.Connection, serves: str, found: S) -> S:
    """Return ``found``, unless it is of another directory than ``serves``."""
    served = _meta(database, "serves")
    if found and served and serves and served != serves:
        raise OtherDirectoryError(served)
    return found


def read_only(path: str, read: Callable[[sqlite3.Connection], T]) -> T:
    """Return what ``read`` returns for the database at ``path``, where nothing can be written.

    Raises:
      OtherDirectoryError: if it is of another directory than that which is served.
      NotUsableError: if the database cannot be understood.
      sqlite3.Error: if it cannot be opened now.
    """
    with closing(open_to_read(path)) as database:
        return read(database)


# --- write ------------------------------------------------------------------------------------------------------------


def begin(database: sqlite3.Connection, serves: str, boot: str, withheld: str | None, seen: int = 0) -> None:
    """Note that a daemon has started in this ``boot``, which directory it ``serves``, and what is ``withheld`` now.

    From now on at least as many saves of leases count as were ``seen``. The tables are made that are not there. What
    another boot has left of leases is removed.
    """
    with _lasting(database), database:
        database.execute("BEGIN EXCLUSIVE")
        _make_tables(database)
        if _meta(database, "boot") != boot:
            database.execute("DELETE FROM meta WHERE key = 'withheld'")
        lease_tables.end_other_boots(database, boot)
        database.execute("INSERT OR IGNORE INTO meta VALUES('instance', ?)", (os.urandom(16).hex(),))
        noted = {"boot": boot, "serves": serves or _meta(database, "serves") or "", "withheld": withheld}
        noted["serial"] = str(max(serial(database), seen))
        rows = [(key, text) for key, text in noted.items() if text is not None]
        database.executemany("INSERT OR REPLACE INTO meta VALUES(?, ?)", rows)


def _make_tables(database: sqlite3.Connection) -> None:
    found = _pragma(database, "user_version")
    for version, statements in _TABLES.items():
        if version > found:
            for statement in statements:
                database.execute(statement)
    if found != VERSION:
        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        database.execute(f"PRAGMA user_version = {VERSION}")


def write(database: sqlite3.Connection, groups: Sequence[Group], now: float, boot: str) -> list[str | None]:
    """Make the changes in one transaction, those of each group all or none; ``now`` is a Unix time.

    Returns, for each group, why it contradicts what is written; None if it is made.
    """
    resources = any(isinstance(change, Remember | Forget) for group in groups for change in group)
    try:
        with _lasting(database) if resources else nullcontext():
            conflicts = iter(_write_all(database, [group for group in groups if group], now, boot))
    except sqlite3.OperationalError:
        _empty_journal(database)  # So that the next try has its space.
        raise
    return [next(conflicts) if group else None for group in groups]


def size_of(groups: Sequence[Group]) -> int:
    """Return how many bytes the texts of the largest lease have that is to be written."""
    saved = (change.lease for group in groups for change in group if isinstance(change, leases_effects.SaveLease))
    return max(map(lease_tables.size_of, saved), default=0)


def try_room(database: sqlite3.Connection, size: int) -> None:
    """Write as much as a lease with texts of ``size`` bytes takes, and remove it.

    Raises:
      sqlite3.Error: if that is not possible now.
    """
    try:
        text = os.urandom((_LEASE_PAGES * _PAGE + size) // 2).hex()
        database.execute("INSERT OR REPLACE INTO meta VALUES('room', ?)", (text,))
        database.execute("DELETE FROM meta WHERE key = 'room'")
    except sqlite3.OperationalError:
        _empty_journal(database)  # As above.
        raise


def _write_all(database: sqlite3.Connection, groups: Sequence[Group], now: float, boot: str) -> list[str | None]:
    if len(groups) == 1:
        return [_write_only(database, groups[0], now, boot)]
    with database:
        database.execute("BEGIN IMMEDIATE")
        return [_write_group(database, group, now, boot) for group in groups]


def _write_only(database: sqlite3.Connection, group: Group, now: float, boot: str) -> str | None:
    """Make the changes of the only group, in a transaction; savepoints would be half as many statements more."""
    try:
        with database:
            database.execute("BEGIN IMMEDIATE")
            for change in group:
                _write_change(database, change, now, boot)
    except lease_tables.ConflictError as error:
        return str(error)
    return None


def _write_group(database: sqlite3.Connection, group: Group, now: float, boot: str) -> str | None:
    conflict = None
    database.execute("SAVEPOINT one")
    try:
        for change in group:
            _write_change(database, change, now, boot)
    except lease_tables.ConflictError as error:
        database.execute("ROLLBACK TO one")
        conflict = str(error)
    database.execute("RELEASE one")
    return conflict


def _write_change(database: sqlite3.Connection, change: Change, now: float, boot: str) -> None:
    match change:
        case Remember():
            database.execute("INSERT OR REPLACE INTO resource VALUES(?, ?, ?)", (change.name, change.capacity, now))
        case Forget():
            database.execute("DELETE FROM resource WHERE name = ?", (change.name,))
        case _:
            lease_tables.write_change(database, change, boot)


def keeps_no_lease(database: sqlite3.Connection) -> bool:
    """Return whether no lease is written."""
    return bool(database.execute("SELECT NOT EXISTS(SELECT 1 FROM lease)").fetchone()[0])

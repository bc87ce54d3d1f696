"""The state's database: how it is opened and checked, and its content.

A writable database is locked while it is open. One that cannot be written, for example on a read-only disk, is still
read.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from typing import TypeVar
from urllib.parse import quote

import attrs

from ...protocol.devices.resources import Forget, Remember
from ...protocol.errors import StateError
from ...protocol.leases import effects as leases_effects
from ...protocol.leases.messages import Kept
from ...protocol.plugins.devices import KnownResource
from ...protocol.text import escaped
from . import lease_tables

T = TypeVar("T")
S = TypeVar("S", bound=Sequence[object])

Change = Remember | Forget | leases_effects.Change
#: Changes that are made together, or not at all.
Group = Sequence[Change]

#: Identifies our files: "plgd".
APPLICATION_ID = 0x706C6764
VERSION = 2
#: The new tables of each version. An older file gets those that it lacks.
_TABLES: Mapping[int, Sequence[str]] = {
    1: (
        "CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT",
        "CREATE TABLE resource(name TEXT PRIMARY KEY, capacity INTEGER NOT NULL, last_seen REAL NOT NULL) STRICT",
    ),
    2: lease_tables.TABLES,
}
#: SQLite's errors for a file that is no database, or is damaged.
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
#: Bytes of a page. A new file has a dozen pages, which are in its journal at first, too.
_PAGE = 1024
_LEASE_PAGES = 13
#: The number of pages in the journal before they are moved into the file, for which the disk is synchronized three
#: times. It must stay small: the pages that are moved may need the space that the journal takes.
_JOURNAL_PAGES = 64
#: The same with less than ``_SCARCE`` free bytes, and after a failed write.
_JOURNAL_PAGES_IF_SCARCE = 16
_SCARCE = 1 << 20


class NotUsableError(Exception):
    """The database cannot be understood; the text says why."""


class OtherDirectoryError(Exception):
    """The database belongs to the device plugins of another directory, which the text names."""


def is_damaged(error: sqlite3.Error) -> bool:
    """Return whether the file is no database, or is damaged."""
    return _code(error) in _DAMAGED


def is_locked(error: sqlite3.Error) -> bool:
    """Return whether another process uses the database."""
    return _code(error) in _LOCKED


def _code(error: sqlite3.Error) -> int:
    """Return the primary code of an error, without the details in its upper bits."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def set_aside(path: str) -> None:
    """Rename a database to ``.bad``, with its journal, which must not be used for the new one."""
    for suffix in ("-wal", "-shm", ""):
        with suppress(FileNotFoundError):
            os.replace(path + suffix, f"{path}.bad{suffix}")


def identity(path: str) -> tuple[int, int] | None:
    """Return which file is at ``path``; None if there is none."""
    with suppress(FileNotFoundError):
        found = os.stat(path)
        return found.st_dev, found.st_ino
    return None


def make_file(path: str) -> None:
    """Make the file with the right mode. Do not open an existing one, since closing it would end SQLite's lock.

    Raises:
      StateError: if there is something else than a file.
      OSError: if it cannot be made.
    """
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise StateError(f"{path} is not a file: move it away, or name another directory with --state")
    except FileNotFoundError:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def cause_of(error: sqlite3.Error, path: str) -> str:
    """Return the problem and what to do. SQLite says ``disk I/O error`` if nothing may be written."""
    directory = os.path.dirname(path)
    with suppress(OSError):
        if os.statvfs(directory).f_flag & os.ST_RDONLY:
            return "its file system is read-only; mount it with rw, or use --state"
    for place in (directory, path):
        with suppress(OSError):
            found = os.stat(place)
            if not os.access(place, os.W_OK):
                owner = f"uid {found.st_uid} with the mode {stat.S_IMODE(found.st_mode):04o}"
                return (
                    f"uid {os.geteuid()} may not write to {escaped(place)}, which belongs to {owner}; give it the right"
                    " to, or use --state"
                )
    return f"{error}; free space, or repair its directory"


# --- open -------------------------------------------------------------------------------------------------------------


def open_to_write(path: str) -> sqlite3.Connection:
    """Open and lock the database at ``path``, where a file must exist. If it has tables, this writes nothing.

    Raises:
      NotUsableError: if it cannot be understood.
      sqlite3.Error: if it cannot be opened now.
    """

    def lock(database: sqlite3.Connection) -> None:
        # Set before the journal's mode, so that no shared memory is used and the lock is kept.
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
    """Set whether each commit from now on waits until it, and all before it, are on the disk.

    Commits of leases do not wait. They survive any end of this process. The last ones are lost if the kernel stops, but
    all leases end with the boot anyway. The file stays consistent: the journal is synchronized before it is moved
    there, and an incomplete part of it is not read.
    """
    database.execute(f"PRAGMA synchronous = {'FULL' if wait else 'NORMAL'}")


@contextmanager
def _lasting(database: sqlite3.Connection) -> Iterator[None]:
    """Let commits in this block survive the end of the kernel, too."""
    _wait_for_disk(database, wait=True)
    try:
        yield
    finally:
        _wait_for_disk(database, wait=False)


def _journal_pages(path: str) -> int:
    disk = os.statvfs(path)
    return _JOURNAL_PAGES_IF_SCARCE if disk.f_bavail * disk.f_frsize < _SCARCE else _JOURNAL_PAGES


def _empty_journal(database: sqlite3.Connection) -> None:
    """Move the content of the journal into the file and free its space, as far as possible.

    If that fails for lack of space, nothing is lost, and the next write fails and reports it.
    """
    with suppress(sqlite3.OperationalError):
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _give_up_journal(database: sqlite3.Connection) -> None:
    """Give the space of the journal to the next try, and keep it small from now on."""
    database.execute(f"PRAGMA wal_autocheckpoint = {_JOURNAL_PAGES_IF_SCARCE}")
    _empty_journal(database)


def open_to_read(path: str) -> sqlite3.Connection:
    """Open the database at ``path``, which may be in a place where nothing can be written.

    The journal that a killed daemon left is read into memory, without locks, which would need write access. A database
    without a journal is complete.

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
    with closed_on_error(connected(path, options)) as database:
        prepare(database)
        check(database, APPLICATION_ID, VERSION)
    return database


def connected(path: str, options: str = "") -> sqlite3.Connection:
    """Connect to the database at ``path``. Statements that are not in a transaction are one each; nothing waits."""
    uri = f"file:{quote(os.fsencode(path))}{options}"
    return sqlite3.connect(uri, uri=True, timeout=0.0, isolation_level=None, check_same_thread=False)


@contextmanager
def closed_on_error(database: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Close a database whose preparation fails, or is interrupted.

    Raises:
      NotUsableError: if it is damaged.
    """
    try:
        yield database
    except sqlite3.DatabaseError as error:
        database.close()
        if is_damaged(error):
            raise NotUsableError(f"it is damaged: {error}") from error
        raise
    except BaseException:
        database.close()
        raise


def check(database: sqlite3.Connection, ours: int, known: int) -> None:
    """Check that a database has ``ours`` as its application, at most the version ``known``, and no damage.

    Raises:
      NotUsableError: if not.
    """
    application, version = pragma(database, "application_id"), pragma(database, "user_version")
    if not application and not version and not has_tables(database):
        return  # A new file.
    if application != ours:
        raise NotUsableError("it is another program's")
    if version > known:
        raise NotUsableError(f"a newer plugind has written it: its version is {version}, and this one has {known}")
    problems = [text for (text,) in database.execute("PRAGMA quick_check(1)")]
    if problems != ["ok"]:
        raise NotUsableError(f"it is damaged: {problems[0]}")


def pragma(database: sqlite3.Connection, name: str) -> int:
    """Return the number that a pragma has."""
    found: int = database.execute(f"PRAGMA {name}").fetchone()[0]
    return found


def has_tables(database: sqlite3.Connection) -> bool:
    """Return whether anything was written to the database."""
    return bool(database.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0])


def _meta(database: sqlite3.Connection, key: str) -> str | None:
    found = database.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return None if found is None else str(found[0])


# --- read -------------------------------------------------------------------------------------------------------------


def resources(database: sqlite3.Connection, serves: str) -> list[KnownResource]:
    """Return the resources of the directory ``serves``, ordered by when they were last seen.

    With an empty ``serves``, for a daemon without device plugins, return those of any directory.

    Raises:
      OtherDirectoryError: if they belong to another directory.
    """
    if not has_tables(database):
        return []
    rows = database.execute("SELECT name, capacity FROM resource ORDER BY last_seen, name")
    return _of_directory(database, serves, [KnownResource(name, capacity) for name, capacity in rows])


def leases(database: sqlite3.Connection, serves: str, boot: str) -> Kept:
    """Return the leases of the directory ``serves`` and this ``boot``, and those that ended with another boot.

    Raises:
      OtherDirectoryError: if they belong to another directory.
      RowError: if a lease cannot be understood.
    """
    if not has_tables(database):
        return Kept()
    withheld = _meta(database, "withheld") if _meta(database, "boot") == boot else None
    found = lease_tables.read(database, boot)
    _of_directory(database, serves, found.leases)
    return attrs.evolve(found, withheld=withheld)


def instance(database: sqlite3.Connection) -> str | None:
    """Return the id of this database; None if nothing was written yet."""
    return _meta(database, "instance") if has_tables(database) else None


def serial(database: sqlite3.Connection) -> int:
    """Return how often leases were saved in this database; an earlier version did not count that."""
    return int(_meta(database, "serial") or 0) if has_tables(database) else 0


def is_withheld(database: sqlite3.Connection) -> bool:
    """Return whether leases were lost, and the operator has not said since that no device is in use."""
    return _meta(database, "withheld") is not None


def _of_directory(database: sqlite3.Connection, serves: str, found: S) -> S:
    """Return ``found``, unless it belongs to another directory than ``serves``."""
    served = _meta(database, "serves")
    if found and served and serves and served != serves:
        raise OtherDirectoryError(served)
    return found


def read_only(path: str, read: Callable[[sqlite3.Connection], T]) -> T:
    """Return what ``read`` returns for the database at ``path``, in a place where nothing can be written.

    Raises:
      OtherDirectoryError: if it belongs to another directory than the one that is served.
      NotUsableError: if it cannot be understood.
      sqlite3.Error: if it cannot be opened now.
    """
    with closing(open_to_read(path)) as database:
        return read(database)


# --- write ------------------------------------------------------------------------------------------------------------


def begin(database: sqlite3.Connection, serves: str, boot: str, withheld: str | None, seen: int = 0) -> Kept:
    """Note that a daemon has started in this ``boot``, which directory it ``serves``, and what is ``withheld``.

    The number of saves is at least ``seen`` from now on. Missing tables are made, and leases that ended with another
    boot removed. Return what became of the leases of other boots.
    """
    with _lasting(database), database:
        database.execute("BEGIN EXCLUSIVE")
        _make_tables(database)
        if _meta(database, "boot") != boot:
            database.execute("DELETE FROM meta WHERE key = 'withheld'")
        of_other_boots = lease_tables.end_other_boots(database, boot)
        database.execute("INSERT OR IGNORE INTO meta VALUES('instance', ?)", (os.urandom(16).hex(),))
        noted = {"boot": boot, "serves": serves or _meta(database, "serves") or "", "withheld": withheld}
        noted["serial"] = str(max(serial(database), seen))
        rows = [(key, text) for key, text in noted.items() if text is not None]
        database.executemany("INSERT OR REPLACE INTO meta VALUES(?, ?)", rows)
    return of_other_boots


def _make_tables(database: sqlite3.Connection) -> None:
    found = pragma(database, "user_version")
    for version, statements in _TABLES.items():
        if version > found:
            for statement in statements:
                database.execute(statement)
    if found != VERSION:
        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        database.execute(f"PRAGMA user_version = {VERSION}")


def write(database: sqlite3.Connection, groups: Sequence[Group], now: float, boot: str) -> list[str | None]:
    """Make the changes in one transaction, all or none of each group; ``now`` is a Unix time.

    Return for each group why it contradicts what is written; None if it was written.
    """
    resources = any(isinstance(change, Remember | Forget) for group in groups for change in group)
    try:
        with _lasting(database) if resources else nullcontext():
            conflicts = iter(_write_all(database, [group for group in groups if group], now, boot))
    except sqlite3.OperationalError:
        _give_up_journal(database)
        raise
    return [next(conflicts) if group else None for group in groups]


def size_of(groups: Sequence[Group]) -> int:
    """Return the size of the texts of the largest lease that is to be written."""
    saved = (change.lease for group in groups for change in group if isinstance(change, leases_effects.SaveLease))
    return max(map(lease_tables.size_of, saved), default=0)


def try_room(database: sqlite3.Connection, size: int) -> None:
    """Write and remove as much as a lease with texts of ``size`` takes, and free that space for the lease.

    Raises:
      sqlite3.Error: if that is not possible now.
    """
    try:
        text = os.urandom((_LEASE_PAGES * _PAGE + size) // 2).hex()
        database.execute("INSERT OR REPLACE INTO meta VALUES('room', ?)", (text,))
        database.execute("DELETE FROM meta WHERE key = 'room'")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.OperationalError:
        _give_up_journal(database)
        raise


def _write_all(database: sqlite3.Connection, groups: Sequence[Group], now: float, boot: str) -> list[str | None]:
    if len(groups) == 1:
        return [_write_only(database, groups[0], now, boot)]
    with database:
        database.execute("BEGIN IMMEDIATE")
        return [_write_group(database, group, now, boot) for group in groups]


def _write_only(database: sqlite3.Connection, group: Group, now: float, boot: str) -> str | None:
    """Make the changes of the only group in a transaction. Savepoints would add half as many statements again."""
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
    """Return whether the database has no lease."""
    return bool(database.execute("SELECT NOT EXISTS(SELECT 1 FROM lease)").fetchone()[0])

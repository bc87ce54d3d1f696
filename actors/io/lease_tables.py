"""The tables of leases in the state's database: how they are made, read and written.

The key of ``lease_device`` is the device, so that a device cannot be written for two leases.
"""

from __future__ import annotations

import sqlite3
from operator import attrgetter

import attrs

from ...protocol.leases.effects import Change, DeleteLease, EndWithholding, SaveDrain, SaveLease
from ...protocol.leases.messages import REBOOTED, Kept
from ...protocol.leases.rows import COLUMNS, DeviceRows, LeaseRow, RowError, device_rows_of, lease_of, row_of
from ...protocol.leases.values import Lease, LeaseState, NoOwner, Request
from .owner_processes import runs_since

TABLES = (
    "CREATE TABLE lease(id TEXT PRIMARY KEY, cdi_name TEXT, uid INTEGER NOT NULL, pool TEXT,"
    " label TEXT NOT NULL, request TEXT NOT NULL,"
    " state TEXT NOT NULL CHECK (state IN ('pending', 'held', 'uncertain')),"
    " owner_kind TEXT NOT NULL CHECK (owner_kind IN ('process', 'container', 'connection', 'time', 'none')),"
    " pid INTEGER, start_ticks INTEGER, boot_id TEXT NOT NULL, token_hash TEXT, expires_boottime_ns INTEGER,"
    " created_unix REAL NOT NULL, answer TEXT, reason TEXT) STRICT",
    "CREATE TABLE lease_device(resource TEXT NOT NULL, device TEXT NOT NULL,"
    " lease TEXT NOT NULL REFERENCES lease ON DELETE CASCADE, PRIMARY KEY(resource, device)) STRICT",
    # Without it SQLite searches the whole table for the devices of each deleted lease.
    "CREATE INDEX lease_device_lease ON lease_device(lease)",
    # Only for the few leases with such a name.
    "CREATE UNIQUE INDEX lease_cdi_name ON lease(cdi_name) WHERE cdi_name IS NOT NULL",
)
_SAVE = (
    f"INSERT INTO lease({', '.join(COLUMNS)}) VALUES({', '.join('?' * len(COLUMNS))}) ON CONFLICT(id) DO UPDATE SET "
    + ", ".join(f"{column} = excluded.{column}" for column in COLUMNS[1:])
)

_columns_of = attrgetter(*COLUMNS)


class ConflictError(Exception):
    """A change contradicts what is written; the text says how."""


def exist(database: sqlite3.Connection) -> bool:
    """Return whether the tables exist; a file of version 1 has none."""
    return bool(database.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'lease_device'").fetchone()[0])


def read(database: sqlite3.Connection, boot_id: str) -> Kept:
    """Return the leases of the boot ``boot_id`` and those that ended with another one, each ordered by id.

    A lease of another boot whose owner runs is of this boot. The boot id that plugind sees can change without a reboot,
    for example with a setting of the service in a container, and the owner still uses the devices. After a reboot, the
    pid and the start of another process can hardly be the same; then devices are held until that process ends.

    Raises:
      RowError: if a lease of this boot cannot be understood.
    """
    if not exist(database):
        return Kept()
    kept = [lease_of(row, devices) for row, devices in _rows(database, "boot_id = ?", boot_id)]
    moved, ended = _other_boots(database, boot_id)
    kept += [lease_of(attrs.evolve(row, boot_id=boot_id), devices) for row, devices in moved]
    return Kept(tuple(sorted(kept, key=lambda lease: lease.id)), ended=ended, moved=len(moved))


def _rows(database: sqlite3.Connection, where: str, boot_id: str) -> list[tuple[LeaseRow, DeviceRows]]:
    """Return the rows of leases with their devices, ordered by id."""
    devices: dict[str, list[tuple[str, str]]] = {}
    for resource, device, lease in database.execute("SELECT resource, device, lease FROM lease_device ORDER BY rowid"):
        devices.setdefault(lease, []).append((resource, device))
    found = database.execute(f"SELECT {', '.join(COLUMNS)} FROM lease WHERE {where} ORDER BY id", (boot_id,))
    return [(row, tuple(devices.get(row.id, ()))) for row in (LeaseRow(*columns) for columns in found)]


def _other_boots(
    database: sqlite3.Connection, boot_id: str
) -> tuple[list[tuple[LeaseRow, DeviceRows]], tuple[Lease, ...]]:
    """Return the leases of other boots whose owners run, and those that have ended."""
    runs, ended = [], []
    for row, devices in _rows(database, "boot_id <> ?", boot_id):
        if row.pid is not None and row.start_ticks is not None and runs_since(row.pid, row.start_ticks):
            runs.append((row, devices))
        else:
            ended.append(_ended(row, devices))
    return runs, tuple(ended)


def _ended(row: LeaseRow, devices: DeviceRows) -> Lease:
    """Return a lease that has ended, for the log."""
    try:
        lease = lease_of(row, devices)
    except RowError:  # It holds nothing any more, so it is no reason to set the file aside.
        of_lease: dict[str, tuple[str, ...]] = {}
        for resource, device in devices:
            of_lease[resource] = (*of_lease.get(resource, ()), device)
        lease = Lease(row.id, row.uid, Request(()), NoOwner(), LeaseState.HELD, row.created_unix, of_lease)
    return attrs.evolve(lease, reason=REBOOTED)


def end_other_boots(database: sqlite3.Connection, boot_id: str) -> Kept:
    """Remove the leases of other boots, except for those whose owners run, which are of this boot from now on.

    Return which have ended, and how many are of this boot now.
    """
    moved, ended = _other_boots(database, boot_id)
    database.executemany("UPDATE lease SET boot_id = ? WHERE id = ?", [(boot_id, row.id) for row, _ in moved])
    database.execute("DELETE FROM lease WHERE boot_id <> ?", (boot_id,))
    return Kept(ended=ended, moved=len(moved))


def write_change(database: sqlite3.Connection, change: Change, boot_id: str) -> None:
    """Make one change within a transaction.

    Raises:
      ConflictError: if a device is in another lease, or SQLite cannot keep a value.
    """
    match change:
        case SaveLease():
            try:
                _save(database, change.lease, boot_id)
            except (sqlite3.IntegrityError, sqlite3.DataError, UnicodeError, OverflowError) as error:
                raise ConflictError(_why(database, change.lease, error)) from error
        case DeleteLease():
            database.execute("DELETE FROM lease WHERE id = ?", (change.id,))
        case EndWithholding():
            database.execute("DELETE FROM meta WHERE key = 'withheld'")
        case SaveDrain():
            pass  # Files of their own have the drains, which outlive a loss of the database.


def _save(database: sqlite3.Connection, lease: Lease, boot_id: str) -> None:
    database.execute(_SAVE, _columns_of(row_of(lease, boot_id)))
    database.execute("UPDATE meta SET value = value + 1 WHERE key = 'serial'")
    rows = device_rows_of(lease)
    # They are written once, with the pending lease: writing them again takes three more pages of the journal.
    written = _devices_of(database, lease.id)
    if written != rows:
        if written:
            database.execute("DELETE FROM lease_device WHERE lease = ?", (lease.id,))
        database.executemany("INSERT INTO lease_device VALUES(?, ?, ?)", [(*row, lease.id) for row in rows])


def size_of(lease: Lease) -> int:
    """Return the approximate size of the texts of a lease, in bytes."""
    texts = [*_columns_of(row_of(lease, "")), *(text for row in device_rows_of(lease) for text in row)]
    return sum(len(text.encode()) for text in texts if isinstance(text, str))


def _devices_of(database: sqlite3.Connection, lease: str) -> DeviceRows:
    query = "SELECT resource, device FROM lease_device WHERE lease = ? ORDER BY rowid"
    return tuple(database.execute(query, (lease,)))


def _why(database: sqlite3.Connection, lease: Lease, error: Exception) -> str:
    if isinstance(error, sqlite3.IntegrityError):
        for resource, device in device_rows_of(lease):
            query = "SELECT lease FROM lease_device WHERE resource = ? AND device = ? AND lease <> ?"
            holder = database.execute(query, (resource, device, lease.id)).fetchone()
            if holder is not None:
                return f"{device} of {resource} is in the lease {holder[0]}"
    return f"the lease {lease.id!a} cannot be written: {error}"

"""The database with the history of leases: its tables, what is written to it, and what is read.

It never grows beyond its limit. Before it is full, and when rows are too old, the oldest are deleted.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from ...protocol.errors import StateError
from ...protocol.leases.config import LeaseHistoryConfig
from ...protocol.leases.history import (
    COLUMNS,
    LABEL,
    RESOURCE,
    USER,
    Gap,
    Granted,
    HistoryQuery,
    HistoryRow,
    Usage,
    columns_of,
)
from . import state_database

#: Identifies our files: "plgh".
_APPLICATION_ID: Final = 0x706C6768
_VERSION: Final = 1
_TABLES: Final = (
    "CREATE TABLE meta(key TEXT PRIMARY KEY, value ANY) STRICT",
    # The numbers order the rows by when they were written.
    "CREATE TABLE held(number INTEGER PRIMARY KEY, lease TEXT NOT NULL, created REAL NOT NULL, resource TEXT NOT NULL,"
    " device TEXT NOT NULL, uid INTEGER NOT NULL, pool TEXT, labels TEXT NOT NULL, owner TEXT NOT NULL, pid INTEGER,"
    " granted REAL NOT NULL, ended REAL, seen REAL, reason TEXT, UNIQUE(lease, created, resource, device)) STRICT",
    "CREATE TABLE gap(number INTEGER PRIMARY KEY, since REAL, until REAL NOT NULL, leases INTEGER, reason TEXT NOT NULL"
    ") STRICT",
)
_PAGE: Final = 4096
#: The number of pages in the journal before they are moved into the file, and the bytes of it that stay.
_JOURNAL_PAGES: Final = 256
#: The part of the limit from which rows are deleted, and the part of all rows that is deleted then.
_NEARLY_FULL: Final = 0.9
_DELETED: Final = 16
#: Seconds between two deletions of what is too old.
_TRIM: Final = 3600.0
_DAY: Final = 86_400.0
#: Bytes of the disk that are not used.
_LEFT_FREE: Final = 4 << 20
_MOST_GAPS: Final = 1000
#: The number of the gap of deleted rows; those of others begin with 1.
_NO_ROOM_GAP: Final = 0
#: The instructions of SQLite after which the deadline of a read is looked at: some milliseconds.
_INSTRUCTIONS: Final = 50_000

BEGINS: Final = "the history begins then"
NO_ROOM: Final = "they were deleted, since the file may not become larger"
REBOOTED: Final = "the machine was started again"
UNSEEN: Final = "plugind did not see the end"
#: A row is written once more with its end; a grant that is written again changes nothing.
_SAVE: Final = (
    f"INSERT INTO held({', '.join(COLUMNS)}) VALUES({', '.join('?' * len(COLUMNS))})"
    " ON CONFLICT(lease, created, resource, device) DO UPDATE SET"
    " ended = excluded.ended, seen = NULL, reason = excluded.reason, pid = coalesce(excluded.pid, pid)"
    " WHERE excluded.ended IS NOT NULL"
)
#: Whether a row is between two times in part.
_WHERE: Final = (
    "(:device IS NULL OR device = :device OR substr(device, 1, length(:device) + 2) = :device || '::')"
    " AND (:resource IS NULL OR resource = :resource) AND (:uid IS NULL OR uid = :uid)"
    " AND (:until IS NULL OR granted <= :until) AND (:since IS NULL OR ended IS NULL OR ended > :since)"
)
_ROWS: Final = (
    f"SELECT number, {', '.join(COLUMNS)} FROM held WHERE {_WHERE} AND (:before IS NULL OR number < :before)"
    " ORDER BY number DESC LIMIT :most"
)
_KEYS: Final = {
    USER: ("uid", ""),
    RESOURCE: ("resource", ""),
    LABEL: ("label.key || '=' || label.value", " JOIN json_each(held.labels) AS label"),
}
_OF_LABEL: Final = ("label.value", " LEFT JOIN json_each(held.labels) AS label ON label.key = :label")


class HistoryDatabase:
    """An open database. Whoever has another one, or this one for the first time, is to :meth:`begin`."""

    def __init__(self, path: str, config: LeaseHistoryConfig, boot_id: str) -> None:
        """Open the database at ``path``, where a file must exist, and make its tables; ``:memory:`` is in memory.

        Raises:
          NotUsableError: if it cannot be understood.
          StateError: if there is no room for it.
          sqlite3.Error: if it cannot be opened now.
        """
        #: What is said of the time before an empty database begins.
        self.before = BEGINS
        self._boot = boot_id
        self._config = config
        self._has_begun = False
        self._trimmed = -_TRIM
        self._path = None if path == ":memory:" else path
        self._database = state_database.connected(path)
        with state_database.closed_on_error(self._database):
            self._prepare()

    def _check_room(self) -> None:
        """Check that there is more room than the state may need, which comes first.

        Raises:
          StateError: if there is not.
        """
        if self._path is None:
            return
        disk = os.statvfs(self._path)
        if disk.f_bavail * disk.f_frsize < _LEFT_FREE:
            raise StateError(f"less than {_LEFT_FREE >> 20} MiB are free at {self._path}, which are left to the state")

    def _prepare(self) -> None:
        run, most = self._database.execute, self._config.max_bytes // _PAGE
        for name, value in (
            ("page_size", _PAGE),
            ("auto_vacuum", "INCREMENTAL"),
            ("locking_mode", "EXCLUSIVE"),  # Before the journal's mode, so that no shared memory is used.
            ("journal_mode", "WAL"),
            ("journal_size_limit", _JOURNAL_PAGES * _PAGE),
            ("wal_autocheckpoint", _JOURNAL_PAGES),
            # A commit survives any end of this process; the last ones are lost if the kernel stops.
            ("synchronous", "NORMAL"),
            ("max_page_count", most),
        ):
            run(f"PRAGMA {name} = {value}")
        if not state_database.has_tables(self._database):
            self._check_room()
            with self._database:
                run("BEGIN EXCLUSIVE")
                for statement in _TABLES:
                    run(statement)
                run(f"PRAGMA application_id = {_APPLICATION_ID}")
                run(f"PRAGMA user_version = {_VERSION}")
            return
        state_database.check(self._database, _APPLICATION_ID, _VERSION)

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    # --- write --------------------------------------------------------------------------------------------------------

    def begin(self, held: Iterable[Granted], entries: Iterable[Granted], gap: Gap | None, now: float) -> None:
        """Write what is held now and these ``entries``; all other leases without an end have ended.

        Until when these were held is not known: at least until the last write.

        Raises:
          StateError: if there is no room.
          sqlite3.Error: if it cannot be written now.
        """
        self._check_room()
        with self._transaction():
            boot, seen = self._meta("boot"), self._meta("seen")
            if boot is None:
                self._note_gap(Gap(None, now, None, self.before))
            known = {entry.key: entry for entry in (*held, *entries)}
            unknown = set(self._database.execute("SELECT lease, created FROM held WHERE ended IS NULL")) - known.keys()
            self._database.executemany(
                "UPDATE held SET seen = max(granted, min(?1, ?2)), ended = max(granted, ?2), reason = ?3"
                " WHERE lease = ?4 AND created = ?5 AND ended IS NULL",
                [
                    (now if seen is None else seen, now, UNSEEN if boot == self._boot else REBOOTED, *key)
                    for key in unknown
                ],
            )
            self._save(sorted(known.values(), key=lambda entry: entry.granted))
            if gap is not None:
                self._note_gap(gap)
            self._note(now)
        self._has_begun = True

    def _note_gap(self, gap: Gap, number: int | None = None) -> None:
        """Write that something is missing; one with a number takes the place of the one before."""
        run = self._database.execute
        row = (number, gap.since, gap.until, gap.leases, gap.reason)
        run("INSERT OR REPLACE INTO gap VALUES(?, ?, ?, ?, ?)", row)
        run("DELETE FROM gap WHERE number BETWEEN 1 AND (SELECT max(number) FROM gap) - ?", (_MOST_GAPS,))

    def write(self, entries: Iterable[Granted], now: float) -> bool:
        """Write these; return False, and write nothing, if what is held must be written first.

        Raises:
          StateError: if there is no room.
          sqlite3.Error: if it cannot be written now.
        """
        if not self._has_begun:
            return False
        self._check_room()
        self._trim(now)
        with self._transaction():
            self._save(entries)
            self._note(now)
        return True

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            yield

    def _save(self, entries: Iterable[Granted]) -> None:
        self._database.executemany(_SAVE, (columns for entry in entries for columns in columns_of(entry)))

    def _note(self, now: float) -> None:
        rows = (("boot", self._boot), ("seen", now))
        self._database.executemany("INSERT OR REPLACE INTO meta VALUES(?, ?)", rows)

    def _meta(self, key: str) -> str | float | None:
        found: tuple[str | float | None] | None
        found = self._database.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if found is None else found[0]

    # --- delete -------------------------------------------------------------------------------------------------------

    def _trim(self, now: float) -> None:
        """Delete what is too old, from time to time, and what there is no room for."""
        if not 0.0 <= now - self._trimmed < _TRIM:
            self._trimmed = now
            oldest = now - (self._config.days or 0) * _DAY
            with self._transaction():
                self._database.execute("DELETE FROM held WHERE ended < ?", (oldest,))
                self._database.execute("DELETE FROM gap WHERE until < ?", (oldest,))
        most = self._config.max_bytes // _PAGE
        pages = partial(state_database.pragma, self._database)
        while pages("page_count") - pages("freelist_count") > _NEARLY_FULL * most and self._delete_some():
            pass
        if pages("page_count") > most:  # The limit was lower at this start.
            # Each step frees a page, and execute() makes one step, since there are no columns.
            self._database.executescript("PRAGMA incremental_vacuum")

    def _delete_some(self) -> bool:
        """Delete the oldest rows of the user who has most, so that nobody displaces the rows of others.

        Return whether there were some.
        """
        with self._transaction():
            (count,) = self._database.execute("SELECT count(*) FROM held WHERE ended IS NOT NULL").fetchone()
            found = self._database.execute(
                "SELECT number, ended FROM held WHERE ended IS NOT NULL AND uid = ("
                "SELECT uid FROM held WHERE ended IS NOT NULL GROUP BY uid ORDER BY count(*) DESC LIMIT 1)"
                " ORDER BY number LIMIT ?",
                (count // _DELETED + 1,),
            ).fetchall()
            if found:
                self._database.executemany("DELETE FROM held WHERE number = ?", [(number,) for number, _ in found])
                self._note_gap(Gap(None, max(ended for _, ended in found), None, NO_ROOM), _NO_ROOM_GAP)
        return bool(found)

    # --- read ---------------------------------------------------------------------------------------------------------

    def rows(
        self, query: HistoryQuery, before: int | None, most: int, seconds: float
    ) -> tuple[Sequence[HistoryRow], int | None]:
        """Return the last rows ``before`` a number, at most so many, and the number of the first of these.

        Raises:
          sqlite3.OperationalError: if that takes longer than ``seconds``.
        """
        with self._within(seconds):
            found = self._database.execute(_ROWS, {**_asked(query), "before": before, "most": most}).fetchall()
        return [_row_of(row[1:]) for row in found], found[-1][0] if found else None

    def gaps(self, query: HistoryQuery) -> Sequence[Gap]:
        """Return what is missing between the times of a query."""
        found = self._database.execute(
            "SELECT since, until, leases, reason FROM gap WHERE (:until IS NULL OR since IS NULL OR since <= :until)"
            " AND (:since IS NULL OR until >= :since) ORDER BY number",
            _asked(query),
        )
        return [Gap(*gap) for gap in found]

    def usage(self, by: str, query: HistoryQuery, now: float, most: int, seconds: float) -> Sequence[Usage]:
        """Return how long devices were held between the times of a query, at most so many sums, the largest first.

        What is held is counted until ``now``.

        Raises:
          sqlite3.OperationalError: if that takes longer than ``seconds``.
        """
        key, join = _KEYS.get(by, _OF_LABEL)
        text = (
            f"SELECT {key} AS name, sum(max(0.0, min(coalesce(seen, ended, :now), :last) - max(granted, :first))) AS"
            f" held, count(DISTINCT lease || ' ' || created) FROM held{join} WHERE {_WHERE}"
            " GROUP BY name ORDER BY held DESC, name LIMIT :most"
        )
        first = 0.0 if query.since is None else query.since
        asked = {**_asked(query), "now": now, "first": first, "last": now if query.until is None else query.until}
        with self._within(seconds):
            found = self._database.execute(text, {**asked, "label": by.partition(":")[2], "most": most}).fetchall()
        return [Usage(*row) for row in found]

    @contextmanager
    def _within(self, seconds: float) -> Iterator[None]:
        end = time.monotonic() + seconds
        self._database.set_progress_handler(lambda: time.monotonic() > end, _INSTRUCTIONS)
        try:
            yield
        finally:
            self._database.set_progress_handler(None, 0)


def _row_of(columns: Sequence[Any]) -> HistoryRow:
    row = dict(zip(COLUMNS, columns, strict=True))
    return HistoryRow(**{**row, "labels": json.loads(row["labels"])})


def _asked(query: HistoryQuery) -> dict[str, str | float | None]:
    return {
        "device": query.device,
        "resource": query.resource,
        "uid": query.uid,
        "since": query.since,
        "until": query.until,
    }

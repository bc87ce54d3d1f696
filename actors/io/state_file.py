"""The file that keeps what must outlive a restart: one SQLite database in the state directory.

A worker thread makes each access, one at a time. The database is locked while it is open, so that a second daemon
notices that the directory is in use. A file that is damaged, or was written by a newer version of plugind, is set aside
and never deleted.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

import attrs
import trio

from ...protocol.devices.resources import Forget, Remember
from ...protocol.errors import ConfigError, StateError
from ...protocol.leases.drains import Drain, DrainTarget
from ...protocol.leases.effects import Change, DeleteLease, EndWithholding, SaveDrain, SaveLease
from ...protocol.leases.messages import Kept
from ...protocol.leases.rows import RowError
from ...protocol.logs.lines import Level, Logger
from ...protocol.plugins.devices import KnownResource
from . import state_database
from .drain_files import DrainFiles
from .lease_marker import LeaseMarker
from .process_identity import known_boot_id
from .worker_thread import WorkerThread

T = TypeVar("T")

FILE_NAME = "state.db"
_RECOVER = (
    "so it is not known which devices are in use: when none is, free them with"
    " 'plugind leases recover --none-held', or reboot"
)


@attrs.define(eq=False)
class _Submission:
    """Groups of changes to write."""

    groups: Sequence[state_database.Group]
    #: For each group, the conflict with what is written, if any; None until the groups are written.
    conflicts: Sequence[str | None] | None = None
    error: Exception | None = None


class StateFile:
    """The resources and leases in ``state.db`` of a directory, which is made if it is missing.

    The devices actor and the lease actor share this store: what both request in one turn of the loop is one
    transaction.
    """

    def __init__(
        self,
        directory: str,
        log: Logger,
        *,
        serves: str = "",
        directories: Sequence[str] = ("/",),
        markers: str | None = None,
        cdi: str | None = None,
        boot_id: str | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Keep the state in a file of ``directory``.

        ``serves`` is the directory of device plugins, empty if there is none. All sockets of plugins are in
        ``directories``: plugins of any type may register by their sockets in a root. A marker in the directory
        ``markers``, and files for container engines in the directory ``cdi``, show that leases are held. ``boot_id`` is
        the system's by default.
        """
        self.path = os.path.join(directory, FILE_NAME)
        self._directory = directory
        self._log = log
        self._serves = serves
        self._boot = known_boot_id() if boot_id is None else boot_id
        self._marker = LeaseMarker(markers, cdi, self._boot, tuple(directories))
        self._drain_files = DrainFiles(directory, markers)
        #: What is drained; None before that is read.
        self._drains: dict[DrainTarget, Drain] | None = None
        #: Whether it was checked for leases that are not in the file.
        self._has_looked = False
        #: The id of this state; empty before :meth:`begin`.
        self._instance = ""
        self._wall = wall
        #: Whether the store outlives the program.
        self.lasting = True
        self.replaced = 0
        #: Waits for a thread, which takes all of it.
        self._waiting: deque[_Submission] = deque()
        #: Why the held leases are not known; to be written to the database.
        self._withheld: str | None = None
        self._database: sqlite3.Connection | None = None
        #: Whether the start is noted in the open database, and which file that is.
        self._has_begun = False
        self._file: tuple[int, int] | None = None
        #: The size of the largest lease that could not be written since there was last room; None if there is room.
        self._failed: int | None = 0
        # An access that was given up goes on, and all others wait for it: no two may use the database at once.
        self._thread = WorkerThread("plugind state")
        self._closed = False
        #: Written to the log outside of the thread.
        self._set_aside_because: list[str] = []

    async def read(self) -> Sequence[KnownResource]:
        """Open and lock the file, making it if it is missing, and return the resources in it.

        A file that cannot be written is only read: then :meth:`begin` fails.

        Raises:
          StateError: if it cannot be read now.
          ConfigError: if another daemon uses it, or others may write to the directory.
        """
        return await self._in_thread(self._read_resources)

    async def read_leases(self) -> Kept:
        """Open and lock the file as :meth:`read` does, and return the leases of this boot.

        Raises:
          StateError: if they cannot be read now.
          ConfigError: if another daemon uses the file, or others may write to the directory.
        """
        return await self._in_thread(self._read_leases)

    async def instance(self) -> str | None:
        """Return the id of this file's daemon; None before :meth:`begin` has made it.

        Raises:
          StateError: if it cannot be read now.
          ConfigError: if another daemon uses the file, or others may write to the directory.
        """
        return await self._in_thread(lambda: self._read(state_database.instance, None))

    def serve(self, directories: Sequence[str]) -> None:
        """Note that all sockets of plugins are in ``directories`` from now on.

        Raises:
          ConfigError: if another state may hold leases of devices in a new directory.
        """
        self._marker.serve(tuple(directories))

    async def begin(self) -> None:
        """Note the start in the file, once, which proves that it can be written.

        Later, and after a failed write, find out whether there is room for a lease.

        Raises:
          StateError: if the start could not be noted, or there is no room.
          ConfigError: if another daemon uses the file, or others may write to the directory.
        """
        await self._in_thread(self._begin_with_room)

    async def write(self, changes: Sequence[Remember | Forget]) -> None:
        """Make ``changes`` in one transaction, with all others that are requested in this turn of the loop.

        Raises:
          StateError: if they could not be made.
          ConfigError: if another daemon uses the file, or others may write to the directory.
        """
        await self._write_groups([changes])

    async def write_leases(self, groups: Sequence[Sequence[Change]]) -> Sequence[str | None]:
        """Make the changes of each group, all or none of it, in one transaction as :meth:`write` does.

        Return for each group why it contradicts what is written; None if it was written.

        Raises:
          StateError: if nothing could be written.
          ConfigError: if another daemon uses the file, or others may write to the directory.
        """
        return await self._write_groups(groups)

    async def _write_groups(self, groups: Sequence[state_database.Group]) -> Sequence[str | None]:
        submission = _Submission(groups)
        self._waiting.append(submission)
        try:
            # The thread may begin at once and take all that waits, so wait until everything in this turn is requested.
            await trio.lowlevel.checkpoint()
            await self._in_thread(partial(self._write, submission))
        except BaseException:
            with suppress(ValueError):
                self._waiting.remove(submission)  # The caller has left, and no thread has begun.
            raise
        assert submission.conflicts is not None
        return submission.conflicts

    def close(self) -> None:
        """Close the file, or let the end of an access that was given up close it."""
        self._closed = True
        self._thread.close()
        if not self._thread.is_at_work:
            self._let_go()

    async def _in_thread(self, call: Callable[[], T]) -> T:
        result = await self._thread.run(partial(self._translated, call))
        while self._set_aside_because:
            why = self._set_aside_because.pop()
            self._log.event(Level.ERROR, "the state was set aside", path=f"{self.path}.bad", reason=why)
        return result

    # --- in a thread --------------------------------------------------------------------------------------------------

    def _translated(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except sqlite3.Error as error:
            if state_database.is_damaged(error):
                self._let_go()  # The next opening sets it aside.
            if state_database.is_locked(error):
                raise ConfigError(
                    f"another plugind uses {self.path}: give this one another directory with --state DIR"
                ) from error
            raise StateError(f"{self.path} cannot be used: {state_database.cause_of(error, self.path)}") from error
        except state_database.OtherDirectoryError as error:
            raise ConfigError(
                f"{self.path} keeps the resources of the device plugins in {error}: give this plugind another"
                f" directory with --state DIR, or remove that file if none serves {error} any more"
            ) from error
        except (state_database.NotUsableError, RowError) as error:
            raise StateError(f"{self.path} cannot be used, and not be set aside: {error}") from error
        except OSError as error:
            raise StateError(
                f"{self._directory} cannot be used: {error.strerror}; repair it, or use --state"
            ) from error
        finally:
            if self._closed:
                self._let_go()

    def _read_resources(self) -> list[KnownResource]:
        nothing: list[KnownResource] = []
        return self._read(lambda database: state_database.resources(database, self._serves), nothing)

    def _read(self, read: Callable[[sqlite3.Connection], T], nothing: T) -> T:
        try:
            return read(self._open())
        except (sqlite3.OperationalError, OSError) as error:
            if isinstance(error, sqlite3.Error) and state_database.is_locked(error):
                raise
            return self._read_only(error, read, nothing)

    def _read_only(self, error: Exception, read: Callable[[sqlite3.Connection], T], nothing: T) -> T:
        """Read although nothing can be written, which failed with ``error``."""
        try:
            os.lstat(self.path)
        except FileNotFoundError:
            self._look_for_others(None)
            return nothing
        except OSError:
            raise error from None

        def look_and_read(database: sqlite3.Connection) -> T:
            self._look_for_others(database)
            return read(database)

        return state_database.read_only(self.path, look_and_read)

    def _read_leases(self) -> Kept:
        def read(database: sqlite3.Connection) -> Kept:
            return state_database.leases(database, self._serves, self._boot)

        try:
            found = self._read(read, Kept())
        except RowError as error:
            if self._database is None:
                raise  # Nothing can be written.
            self._let_go()
            self._set_aside(str(error))
            found = self._read(read, Kept())
        withheld, drains = self._withheld or found.withheld, {**self._known_drains()}
        return attrs.evolve(found, withheld=withheld, drains=drains, problem=self._drain_files.problem)

    def _known_drains(self) -> dict[DrainTarget, Drain]:
        """Return what is drained, once the database is locked."""
        if self._drains is None:
            self._drains = self._drain_files.read()
        return self._drains

    def _begin(self) -> sqlite3.Connection:
        database = self._open()
        if not self._has_begun:
            seen = self._marker.serial(state_database.instance(database))
            state_database.begin(database, self._serves, self._boot, self._withheld, seen)
            self._withheld = None
            self._instance = state_database.instance(database) or ""
            self._mark(database)
            self._drain_files.write(self._known_drains())  # One of them may be missing, or older.
            self._file = state_database.identity(self.path)
            self._has_begun = True
        elif self._file != state_database.identity(self.path):
            # What is written to a file that was removed is lost with this process.
            raise StateError(
                f"{self.path} was removed or replaced while plugind ran: start plugind again, and if no device is in"
                " use, say so with 'plugind leases recover --none-held'"
            )
        return database

    def _begin_with_room(self) -> None:
        is_start = not self._has_begun
        database = self._begin()
        if self._failed is not None and not is_start:
            state_database.try_room(database, self._failed)
            self._failed = None

    def _write(self, submission: _Submission) -> None:
        """Write all that waits in one transaction, unless another thread has written it."""
        if submission.error is not None:
            raise submission.error
        if submission.conflicts is None:
            together = self._take_waiting()
            try:
                self._write_all(together)
            except Exception as error:
                size = max(state_database.size_of(each.groups) for each in together)
                self._failed = max(self._failed or 0, size)
                for each in together:
                    each.error = error
                raise

    def _take_waiting(self) -> list[_Submission]:
        taken = []
        with suppress(IndexError):
            while True:
                taken.append(self._waiting.popleft())
        return taken

    def _write_all(self, together: Sequence[_Submission]) -> None:
        database = self._begin()
        groups = [group for each in together for group in each.groups]
        changes = [change for group in groups for change in group]
        if drained := [change for change in changes if isinstance(change, SaveDrain)]:
            self._save_drains(drained)
        if saves := any(isinstance(change, SaveLease) for change in changes):
            self._marker.put(self._instance)
        if any(isinstance(change, EndWithholding) for change in changes):
            self._marker.remove_others(self._instance)
        conflicts = state_database.write(database, groups, self._wall(), self._boot)
        if saves:
            self._marker.note(self._instance, state_database.serial(database))
        if any(isinstance(change, DeleteLease | EndWithholding) for change in changes):
            self._mark(database)
        for each in together:
            each.conflicts, conflicts = conflicts[: len(each.groups)], conflicts[len(each.groups) :]

    def _save_drains(self, changes: Sequence[SaveDrain]) -> None:
        drains = {**self._known_drains()}
        for change in changes:
            change.put_into(drains)
        self._drain_files.write(drains)
        self._drains = drains

    def _mark(self, database: sqlite3.Connection) -> None:
        if state_database.keeps_no_lease(database):
            if not state_database.is_withheld(database):  # Otherwise the marker may stand for leases not in the file.
                self._marker.remove(self._instance)
        elif not self._has_begun:
            with suppress(StateError):  # The next lease fails then. The end of a lease must be written anyway.
                self._marker.put(self._instance)

    def _open(self) -> sqlite3.Connection:
        if self._database is None:
            self._make_directory()
            state_database.make_file(self.path)
            if not self._has_looked:
                self._withheld = None
            try:
                self._database = state_database.open_to_write(self.path)
            except state_database.NotUsableError as error:
                self._set_aside(str(error))
                state_database.make_file(self.path)
                self._database = state_database.open_to_write(self.path)
            if not self._has_looked:
                self._look_for_others(self._database)
                self._has_looked = True
        return self._database

    def _look_for_others(self, database: sqlite3.Connection | None) -> None:
        """At the start, withhold all devices if leases were held that are not in the file; None if there is no file.

        If nothing can be written yet, this is done again later, when another file may be there.
        """
        instance = None if database is None else state_database.instance(database)
        others = self._marker.look(instance, self._directory)
        if database is not None and self._marker.serial(instance) > state_database.serial(database):
            self._withheld = (
                f"{self.path} is older than leases that were held since this machine was started: an earlier copy of it"
                f" has taken its place; {_RECOVER}"
            )
        if others and self._withheld is None:
            more = f", and {len(others) - 1} more files" if len(others) > 1 else ""
            self._withheld = (
                f"leases were held that are not in {self.path}, as {others[0]} shows{more}: the state was lost, or"
                f" another --state was used; {_RECOVER}"
            )

    def _make_directory(self) -> None:
        try:
            os.makedirs(self._directory, 0o700, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            if os.path.islink(self._directory) and not os.path.exists(self._directory):
                raise  # The target of the link may be mounted later.
            raise ConfigError(
                f"the state directory {self._directory} is not a directory: move it away, or name another with"
                " --state DIR"
            ) from error
        found = os.stat(self._directory)
        if found.st_uid not in (0, os.geteuid()) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ConfigError(
                f"others may write to the state directory {self._directory}: take that right from them with chmod go-w"
                f" and chown, or name another directory with --state"
            )

    def _set_aside(self, why: str) -> None:
        """Rename the file and its journal, which must not be used for the new database."""
        self._withheld = f"{self.path} was set aside: {why}; {_RECOVER}"
        self.replaced += 1
        state_database.set_aside(self.path)
        self._set_aside_because.append(why)

    def _let_go(self) -> None:
        database, self._database, self._has_begun = self._database, None, False
        if database is not None:
            database.close()
        if self._closed:
            self._marker.close()

"""The resources that a restarted daemon waits for, kept in a store.

:class:`StateStore` is the port. :class:`MemoryStore` is for nodes without a file, and for tests; the file is
``plugind.actors.io.state_file``. A :class:`ResourceWriter` writes to the store and retries.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

import attrs
import trio

from ...protocol.devices.resources import Forget, Remember
from ...protocol.errors import ConfigError, StateError
from ...protocol.logs.lines import Logger
from ...protocol.plugins.devices import KnownResource
from ...protocol.values import record
from ..io.store_report import PAUSES, StoreReport

#: Seconds after which a read or a write of the store is reported as late.
DEADLINE = 5.0


class StateStore(Protocol):
    """Keeps the resources over restarts."""

    async def read(self) -> Sequence[KnownResource]:
        """Open the store and return its resources, even if it cannot be written now.

        Raises:
          StateError: if it cannot be read now.
          ConfigError: if it is another daemon's.
        """

    async def begin(self) -> None:
        """Note in the store that a daemon has started. The store must have been read; the call can be repeated.

        Raises:
          StateError: if it cannot be written now.
          ConfigError: if it is another daemon's.
        """

    async def write(self, changes: Sequence[Remember | Forget]) -> None:
        """Make ``changes``, all or none.

        Raises:
          StateError: if it cannot be written now.
          ConfigError: if it is another daemon's.
        """

    def close(self) -> None:
        """Close the store."""


@record
class MemoryStore:
    """A store that ends with the program."""

    resources: dict[str, int] = attrs.field(factory=dict)

    async def read(self) -> Sequence[KnownResource]:
        """See :class:`StateStore`."""
        return [KnownResource(name, capacity) for name, capacity in self.resources.items()]

    async def begin(self) -> None:
        """See :class:`StateStore`."""

    async def write(self, changes: Sequence[Remember | Forget]) -> None:
        """See :class:`StateStore`."""
        for change in changes:
            if isinstance(change, Remember):
                self.resources[change.name] = change.capacity
            else:
                self.resources.pop(change.name, None)

    def close(self) -> None:
        """See :class:`StateStore`."""


class ResourceWriter:
    """Writes changes to a store. Of each resource only the newest change waits."""

    def __init__(self, store: StateStore, log: Logger) -> None:
        self._store = store
        self._is_read = False
        self._has_begun = False
        self._unwritten: dict[str, Remember | Forget] = {}
        #: Set while there is something to write or read.
        self._wake = trio.Event()
        #: How many attempts have failed in a row.
        self._failed_tries = 0
        self._report = StoreReport(log, "the state cannot be kept", "the state is kept again")

    @property
    def problem(self) -> str | None:
        """The problem with the store; None if it works."""
        return self._report.problem

    @property
    def failures(self) -> int:
        """How many reads and writes have failed or were late, in all."""
        return self._report.failures

    def keep(self, change: Remember | Forget) -> None:
        """Write ``change`` as soon as possible."""
        self._unwritten.pop(change.name, None)
        self._unwritten[change.name] = change
        self._wake.set()

    async def open(self) -> Sequence[KnownResource]:
        """Return the resources in the store. Failures and delays are reported, and :meth:`run` retries.

        Raises:
          ConfigError: if the store is another daemon's.
        """
        resources: Sequence[KnownResource] = ()
        try:
            with trio.fail_after(DEADLINE):
                resources = await self._read()
                await self._begin()
        except StateError as error:
            self._fail(str(error))
        except trio.TooSlowError:
            self._fail(self._late)
        return resources

    async def run(self, found: Callable[[Sequence[KnownResource]], None]) -> None:
        """Write until cancelled, with one access at a time.

        If the store was not read at the start, pass its resources to ``found`` when they are known.
        """
        while True:
            await self._wake.wait()
            if self._failed_tries:
                await trio.sleep(PAUSES.delay(self._failed_tries))
            failure = await self._watched(partial(self._catch_up, found))
            if failure is not None:
                self._fail(str(failure))

    async def _watched(self, access: Callable[[], Awaitable[None]]) -> StateError | ConfigError | None:
        """Await ``access``, and report if it is late; return its error, if any."""
        failure = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._report_late)
            try:
                await access()
            except (StateError, ConfigError) as error:
                failure = error
            nursery.cancel_scope.cancel()
        return failure

    async def _catch_up(self, found: Callable[[Sequence[KnownResource]], None]) -> None:
        """Do all accesses that are due."""
        if not self._is_read:
            resources = await self._read()
            found([resource for resource in resources if resource.name not in self._unwritten])
        await self._begin()
        changes = tuple(self._unwritten.values())
        if changes:
            await self._store.write(changes)
        self._settle(changes)

    async def _read(self) -> Sequence[KnownResource]:
        resources = await self._store.read()
        self._is_read = True
        return resources

    async def _begin(self) -> None:
        if not self._has_begun:
            await self._store.begin()
            self._has_begun = True

    @property
    def _late(self) -> str:
        return f"the state was not {'written' if self._is_read else 'read'} within {DEADLINE:g} s"

    async def _report_late(self) -> None:
        await trio.sleep(DEADLINE)
        self._report.fail(self._late)

    def _settle(self, changes: Sequence[Remember | Forget]) -> None:
        self._failed_tries = 0
        for change in changes:
            if self._unwritten.get(change.name) is change:
                del self._unwritten[change.name]
        if not self._unwritten:
            self._wake = trio.Event()
        self._report.recover()

    def _fail(self, problem: str) -> None:
        """Report a failed attempt, and have :meth:`run` retry."""
        self._failed_tries += 1
        self._wake.set()
        self._report.fail(problem)

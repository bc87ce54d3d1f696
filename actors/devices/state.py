"""What must outlive a restart: which resources are to be awaited.

:class:`StateStore` is the port. The one in memory is for nodes without a file, and for tests; the file is
``plugind.actors.io.state_file``. A :class:`Writer` writes to the store what is to be kept, and goes on trying.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs
import trio

from ...protocol.backoff import Backoff
from ...protocol.errors import StateError
from ...protocol.logs import Level, Logger
from ...protocol.resources import Forget, Remember

#: Seconds that a read or a write of the store may take before that is reported.
DEADLINE = 5.0
#: After a failure it is tried again after these pauses.
_PAUSES = Backoff(initial=1.0, factor=2.0, cap=30.0, jitter=0.0)


class StateStore(Protocol):
    """Keeps the names of resources over restarts."""

    async def read(self) -> Sequence[str]:
        """Open the store and return the names in it.

        Raises:
          StateError: if it cannot be read now.
          ConfigError: if it is another daemon's.
        """

    async def write(self, changes: Sequence[Remember | Forget]) -> None:
        """Make ``changes``, all or none.

        Raises:
          StateError: if it cannot be written now.
        """

    def close(self) -> None:
        """Let go of the store."""


@attrs.define
class MemoryStore:
    """A store that ends with the program."""

    #: The capacities, by name.
    resources: dict[str, int] = attrs.field(factory=dict)

    async def read(self) -> Sequence[str]:
        """See :class:`StateStore`."""
        return list(self.resources)

    async def write(self, changes: Sequence[Remember | Forget]) -> None:
        """See :class:`StateStore`."""
        for change in changes:
            if isinstance(change, Remember):
                self.resources[change.name] = change.capacity
            else:
                self.resources.pop(change.name, None)

    def close(self) -> None:
        """See :class:`StateStore`."""


class Writer:
    """Writes to a store what is to be kept. Of each resource only the newest change waits."""

    def __init__(self, store: StateStore, log: Logger) -> None:
        self._store = store
        self._log = log
        self._unwritten: dict[str, Remember | Forget] = {}
        self._wake = trio.Event()
        #: What is wrong with the store; None if it works.
        self.problem: str | None = None

    def keep(self, change: Remember | Forget) -> None:
        """Write ``change`` as soon as that is possible."""
        self._unwritten.pop(change.name, None)
        self._unwritten[change.name] = change
        self._wake.set()

    async def read(self) -> Sequence[str]:
        """Return the names in the store; none if it cannot be read, which is reported.

        Raises:
          ConfigError: if it is another daemon's.
        """
        names: Sequence[str] = ()
        try:
            with trio.fail_after(DEADLINE):
                names = await self._store.read()
        except StateError as error:
            self._report(str(error))
        except trio.TooSlowError:
            self._report(f"the state was not read within {DEADLINE:g} s")
        return names

    async def run(self) -> None:
        """Write until cancelled. There is one write at a time, however long it takes."""
        failures = 0
        while True:
            await self._wake.wait()
            changes = tuple(self._unwritten.values())
            if not changes:
                self._wake = trio.Event()
                continue
            error = await self._write(changes)
            if error is None:
                failures = 0
                self._settle(changes)
            else:
                failures += 1
                self._report(str(error))
                await trio.sleep(_PAUSES.delay(failures))

    async def _write(self, changes: Sequence[Remember | Forget]) -> StateError | None:
        failure = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._report_late)
            try:
                await self._store.write(changes)
            except StateError as error:
                failure = error
            nursery.cancel_scope.cancel()
        return failure

    async def _report_late(self) -> None:
        await trio.sleep(DEADLINE)
        self._report(f"the state was not written within {DEADLINE:g} s")

    def _settle(self, changes: Sequence[Remember | Forget]) -> None:
        for change in changes:
            if self._unwritten.get(change.name) is change:
                del self._unwritten[change.name]
        if self.problem is not None:
            self.problem = None
            self._log.event(Level.INFO, "the state is kept again")

    def _report(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            self._log.event(Level.WARNING, "the state cannot be kept", reason=problem)

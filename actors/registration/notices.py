"""Keeps which plugins were told that they are registered, so that a restart of plugind does not tell them again.

With ``Config.renotify`` false, a registration has all of its steps after a restart, but leaves out the notification of
a plugin whose :class:`~plugind.protocol.registration.notices.Notice` equals the one that was kept. In doubt it notifies
the plugin: an unnecessary notification is harmless; a plugin that is never notified is not. So:

- A notice is kept once the plugin has answered, and dropped when the plugin is deregistered.
- A plugin is told that it is *not* registered only once nothing that is written says the opposite.
- If the notices cannot be written, they are removed, which needs no room on the disk.
"""

from __future__ import annotations

from typing import Final, Protocol

import attrs
import trio

from ...protocol.errors import StateError
from ...protocol.logs.lines import Logger
from ...protocol.registration.notices import Notice, NoticesByPath
from ..io.store_report import PAUSES, StoreReport

#: Seconds for an access at the start or at a stop.
DEADLINE: Final = 2.0
#: Seconds from a change until it is written, with all others of that time.
_PAUSE: Final = 0.2
#: Seconds after the start for which notices of before are kept. Those of plugins that have gone are dropped then.
_EARLIER: Final = 600.0


class NoticeStore(Protocol):
    """Keeps the notices over a restart."""

    async def read(self) -> NoticesByPath:
        """Return the notices of this boot; none if they cannot be understood.

        Raises:
          StateError: if they cannot be read now.
        """

    async def write(self, kept: NoticesByPath) -> None:
        """Replace all notices; without any the file is removed.

        Raises:
          StateError: if they cannot be written now. Those of before are there, or these.
        """

    def close(self) -> None:
        """Let go of the store."""


@attrs.define(eq=False)
class MemoryNoticeStore:
    """A store that ends with the program."""

    notices: NoticesByPath = attrs.field(factory=dict)

    async def read(self) -> NoticesByPath:
        """See :class:`NoticeStore`."""
        return self.notices

    async def write(self, kept: NoticesByPath) -> None:
        """See :class:`NoticeStore`."""
        self.notices = kept

    def close(self) -> None:
        """See :class:`NoticeStore`."""


class Notices:
    """The notices of all plugins of a node, by the paths of their sockets. None are kept with ``renotify``."""

    def __init__(self, store: NoticeStore, log: Logger, *, renotify: bool) -> None:
        self._store = store
        self._keeps = not renotify
        self._report = StoreReport(log, "the notifications of plugins cannot be kept", "they are kept again")
        #: The notices of before the start that no registration has used, and those of this daemon.
        self._earlier: dict[str, Notice] = {}
        self._kept: dict[str, Notice] = {}
        #: The paths of which a notice may be in the store; None for all paths.
        self._stored: set[str] | None = None
        #: Set when there is something to write, and when all is written.
        self._changed = trio.Event()
        self._written = trio.lowlevel.ParkingLot()

    async def open(self) -> None:
        """Read the notices, or remove them if none are to be used. What fails costs only notices."""
        with trio.move_on_after(DEADLINE) as scope:
            try:
                if self._keeps:
                    self._earlier = dict(await self._store.read())
                    self._stored = set(self._earlier)
                else:
                    # A plugin may be refused now. A later start must not take it for one that was told otherwise.
                    await self._store.write({})
            except StateError as error:
                self._report.fail(str(error))
        if scope.cancelled_caught:
            self._report.fail(f"an access takes more than {DEADLINE:g} s")

    def has(self, path: str, notice: Notice) -> bool:
        """Whether an earlier plugind has told exactly this to the plugin at ``path``; then it is kept, else dropped."""
        if self._earlier.get(path) != notice:
            self.drop(path)
            return False
        self._kept[path] = self._earlier.pop(path)
        return True

    def keep(self, path: str, notice: Notice) -> None:
        """Keep that the plugin was told, and has answered."""
        if self._keeps:
            self._kept[path] = notice
            self._changed.set()

    def drop(self, path: str) -> None:
        """Drop what was told to the plugin at ``path``, which is not registered any more."""
        earlier, kept = self._earlier.pop(path, None), self._kept.pop(path, None)
        if earlier is not None or kept is not None:
            self._changed.set()

    async def retract(self, path: str) -> None:
        """Return once nothing that is written says that the plugin at ``path`` was told that it is registered."""
        self.drop(path)
        while self._keeps and (self._stored is None or path in self._stored):
            self._changed.set()
            await self._written.park()

    async def serve(self) -> None:
        """Write what changes, until cancelled."""
        failures = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._drop_earlier)
            while True:
                await self._changed.wait()
                await trio.sleep(_PAUSE if not failures else PAUSES.delay(failures))
                self._changed = trio.Event()
                failures = 0 if await self._write() else failures + 1
                if failures:
                    self._changed.set()

    async def _drop_earlier(self) -> None:
        await trio.sleep(_EARLIER)
        for path in tuple(self._earlier):
            self.drop(path)

    async def _write(self) -> bool:
        """Write all notices, or else remove those that are written; return whether all are written."""
        notices = {**self._earlier, **self._kept}
        if self._stored is not None:
            self._stored |= notices.keys()
        try:
            await self._store.write(notices)
        except StateError as error:
            self._report.fail(str(error))
            try:
                await self._store.write({})
            except StateError:
                return False
            self._stored = set()
            self._written.unpark_all()
            return False
        self._stored = set(notices)
        self._report.recover()
        self._written.unpark_all()
        return True

    async def settle(self) -> None:
        """Wait until all is written, for a moment."""
        with trio.move_on_after(DEADLINE):
            while self._changed.is_set():
                await self._written.park()

    def close(self) -> None:
        """Let go of the store."""
        self._store.close()

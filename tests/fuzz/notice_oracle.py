"""Where a restart leaves out notifications: nobody is notified of what is written already, and nobody is forgotten."""

from __future__ import annotations

from collections.abc import Callable, Collection

import attrs
import trio

from plugind.actors.registration.notices import MemoryNoticeStore
from plugind.actors.simulation.lease_owners import BOOT
from plugind.actors.simulation.network import MemoryNetwork, Process
from plugind.protocol.errors import StateError
from plugind.protocol.identity import Identity
from plugind.protocol.plugins.info import Plugin
from plugind.protocol.plugins.status import PluginStatus, StateName
from plugind.protocol.registration.notices import Notice, NoticesByPath

#: Seconds after the start for which the notices of before may be used.
KEPT = 600.0


@attrs.define(eq=False)
class NoticeDisk(MemoryNoticeStore):
    """A store of notices whose disk can be full, during one life of the daemon."""

    full: bool = False

    async def read(self) -> NoticesByPath:
        """See :class:`MemoryNoticeStore`."""
        await trio.lowlevel.checkpoint()
        return await super().read()

    async def write(self, kept: NoticesByPath) -> None:
        """See :class:`MemoryNoticeStore`. A file can be removed from a full disk."""
        await trio.lowlevel.checkpoint()
        if kept and self.full:
            raise StateError("no space left on device")
        await super().write(kept)


@attrs.define(eq=False)
class NoticeOracle:
    """Compares what plugins at these ``paths`` are told with what is written, and with what they were told before."""

    _violated: Callable[[str, str], None]
    _paths: Collection[str]
    _network: MemoryNetwork
    _disk: NoticeDisk
    #: What was written when the daemon started, of the plugins to which nothing has happened since.
    _before: dict[str, Notice] = attrs.field(init=False, factory=dict)
    _until: float = attrs.field(init=False, default=0.0)
    #: Whom each plugin's process was last told whether it is registered; None if another process may have read that.
    _last: dict[str, tuple[Process, bool] | None] = attrs.field(init=False, factory=dict)
    #: The plugins that a handler has registered since they were last told so.
    _untold: dict[str, Plugin] = attrs.field(init=False, factory=dict)

    def restarted(self) -> None:
        """The daemon is about to start."""
        self._before, self._untold = dict(self._disk.notices), {}
        self._until = trio.current_time() + KEPT

    def disturbed(self, path: str) -> None:
        """The plugin at ``path`` is deregistered, or was not registered."""
        self._before.pop(path, None)

    def registered(self, plugin: Plugin) -> None:
        """A handler has registered the plugin."""
        if plugin.socket in self._paths:
            self._untold[plugin.socket] = plugin

    def told(self, path: str, file: Identity | None, *, registered: bool, late: bool) -> None:
        """The plugin at ``path``, whose socket is ``file`` now, is told whether it is registered."""
        if path not in self._paths:
            return
        process = self._network.met.get(path)
        plugin, notice = self._untold.pop(path, None) if registered else None, self._before.pop(path, None)
        if late or process is None:
            self._last[path] = None
            return
        self._last[path] = process, registered
        if not registered and path in self._disk.notices:
            self._violated("notices", f"{path} is told that it is refused, and the opposite is written")
        if registered and notice is not None and plugin is not None and trio.current_time() < self._until:
            found = self._network.owners.find(process.credentials.pid)
            if file is not None and found is not None and notice == _notice(plugin, file, found.pid, found.start_ticks):
                self._violated("notices", f"{path} is told again what was written at the start")

    def shown(self, status: PluginStatus) -> None:
        """A state is shown."""
        if status.state is not StateName.REGISTERED:
            self.disturbed(status.socket)
            return
        plugin = self._untold.get(status.socket)
        if plugin is None or plugin.generation != status.generation:
            return
        del self._untold[status.socket]
        last, process = self._last.get(status.socket, ()), self._network.met.get(status.socket)
        if last is not None and last != (process, True):
            self._violated("notices", f"{status.socket} is registered, and its process was not told so")


def _notice(plugin: Plugin, file: Identity, pid: int, start_ticks: int) -> Notice:
    versions = tuple(map(str, plugin.versions))
    kind, name, endpoint = plugin.type, plugin.name, plugin.endpoint
    socket = file.device, file.inode, file.changed_ns
    return Notice(kind, name, endpoint, versions, plugin.uid, *socket, pid, start_ticks, BOOT)

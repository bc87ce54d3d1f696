"""What is kept of a plugin that was told that it is registered, so that a restart of plugind need not tell it again."""

from __future__ import annotations

from collections.abc import Mapping

from ..identity import Identity
from ..plugins.info import PluginInfo
from ..values import value


@value
class Notice:
    """The info of a plugin that was told that it is registered, and its socket and listener at that time.

    If all of this is equal later, the same process has the same socket and says the same, so it knows already.
    """

    type: str
    name: str
    endpoint: str
    versions: tuple[str, ...]
    uid: int | None
    device: int
    inode: int
    changed_ns: int
    #: The process that listens: its id, its start in clock ticks after the boot, and the boot.
    pid: int
    start_ticks: int
    boot_id: str


#: Notices by the paths of the sockets.
NoticesByPath = Mapping[str, Notice]


def notice_of(info: PluginInfo, socket: Identity, pid: int, start_ticks: int, boot_id: str) -> Notice:
    """Return the notice for a plugin with this info at this socket, on which that process listens."""
    return Notice(
        info.type,
        info.name,
        info.endpoint,
        tuple(map(str, info.versions)),
        info.uid,
        socket.device,
        socket.inode,
        socket.changed_ns,
        pid,
        start_ticks,
        boot_id,
    )

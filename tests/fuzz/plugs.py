"""The plugins that a script has started."""

from __future__ import annotations

from typing import Protocol

import attrs

from plugind.actors.simulation.directory import MemoryDirectory
from plugind.actors.simulation.plugins import Call, PluggedIn


class Received(Protocol):
    """Gets each call that a plugin receives, at once."""

    def __call__(self, path: str, plugin: PluggedIn, call: Call, /, *, well: bool) -> None:
        """``well`` says that the plugin at ``path`` never misbehaved, and had no fault of its connections."""


class _Calls(list[Call]):
    """The calls that a plugin received; each is reported as it comes."""

    def __init__(self, plugged: PluggedIn, plugs: Plugs) -> None:
        super().__init__(plugged.calls)
        self._path = plugged.path
        self._plugged = plugged
        self._plugs = plugs

    def append(self, call: Call) -> None:
        """Report one more call."""
        super().append(call)
        self._plugs.received(self._path, self._plugged, call, well=self._path not in self._plugs.faulty)


@attrs.frozen(eq=False)
class Plugs:
    """The plugins of a script by path, without the sentinels, and which of them are faulty."""

    received: Received
    by_path: dict[str, PluggedIn] = attrs.field(init=False, factory=dict)
    #: The paths whose plugin ever misbehaved or had a fault of its connections.
    faulty: set[str] = attrs.field(init=False, factory=set)
    #: What listens on endpoints outside of the root, by path.
    drivers: dict[str, PluggedIn] = attrs.field(init=False, factory=dict)
    #: The plugins that ever changed their users.
    changed_users: set[PluggedIn] = attrs.field(init=False, factory=set)

    def adopt(self, path: str, plugged: PluggedIn) -> None:
        """Add a plugin, which is at ``path`` from now on."""
        plugged.path = path
        # Calls on connections that are open are reported with the path by which these were made.
        plugged.calls = _Calls(plugged, self)
        self.by_path[path] = plugged


def has_stayed(plugged: PluggedIn, directory: MemoryDirectory, path: str, since: float) -> bool:
    """Whether the process of a plugin and the file at its path have been there, unchanged, since then."""
    process = plugged.process
    return (
        plugged.alive
        and process is not None
        and process.started < since
        and directory.exists(path)
        and directory.inode(path).changed_ns < since * 1e9
    )

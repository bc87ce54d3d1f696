"""The plugins that a handler has registered: all instances of each name, in the order of registration."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import TypeVar

from ...protocol.plugins.info import Plugin

K = TypeVar("K", bound=Hashable)
#: Plugins by their sockets. Most groups have one plugin, for which a dictionary would waste 180 bytes.
_Group = Plugin | dict[str, Plugin]


def _members(group: _Group | None) -> Iterable[Plugin]:
    if group is None:
        return ()
    return (group,) if isinstance(group, Plugin) else group.values()


def _member(group: _Group | None, socket: str) -> Plugin | None:
    if isinstance(group, Plugin):
        return group if group.socket == socket else None
    return None if group is None else group.get(socket)


def _add(groups: dict[K, _Group], key: K, plugin: Plugin) -> None:
    group = groups.get(key)
    if group is None:
        groups[key] = plugin
    elif isinstance(group, Plugin):
        groups[key] = {group.socket: group, plugin.socket: plugin}
    else:
        group[plugin.socket] = plugin


def _remove(groups: dict[K, _Group], key: K, socket: str) -> None:
    """Remove the plugin at ``socket``, which must be in the group."""
    group = groups[key]
    if isinstance(group, Plugin):
        del groups[key]
        return
    del group[socket]
    if len(group) == 1:
        (groups[key],) = group.values()


class Instances:
    """The instances of one plugin type, by name, registration socket and endpoint (behaviour 37)."""

    def __init__(self) -> None:
        self._by_name: dict[str, _Group] = {}
        self._by_endpoint: dict[tuple[str, str], _Group] = {}

    def add(self, plugin: Plugin) -> None:
        """Add ``plugin`` as the newest of its name."""
        self.remove(plugin)
        _add(self._by_name, plugin.name, plugin)
        _add(self._by_endpoint, (plugin.name, plugin.endpoint), plugin)

    def remove(self, plugin: Plugin) -> None:
        """Remove the instance at the socket of ``plugin``; the others of its name stay."""
        kept = _member(self._by_name.get(plugin.name), plugin.socket)
        if kept is not None:
            _remove(self._by_name, kept.name, kept.socket)
            _remove(self._by_endpoint, (kept.name, kept.endpoint), kept.socket)

    def named(self, name: str) -> tuple[Plugin, ...]:
        """Return the instances of ``name``, the newest last."""
        return tuple(_members(self._by_name.get(name)))

    def instance(self, name: str, socket: str) -> Plugin:
        """Return the instance of ``name`` at ``socket``.

        Raises:
          KeyError: if there is none.
        """
        found = _member(self._by_name.get(name), socket)
        if found is None:
            raise KeyError(name, socket)
        return found

    def others(self, plugin: Plugin) -> tuple[Plugin, ...]:
        """Return the instances of the same name on other sockets."""
        return tuple(other for other in self.named(plugin.name) if other.socket != plugin.socket)

    def other_at_endpoint(self, plugin: Plugin) -> Plugin | None:
        """Return an instance of the same name and endpoint on another socket; None if there is none.

        A privileged plugin is compared with privileged ones only, since it may replace all others (fault 80).
        """
        instances = _members(self._by_endpoint.get((plugin.name, plugin.endpoint)))
        return next((other for other in instances if other.socket != plugin.socket and _counts(other, plugin)), None)

    def __iter__(self) -> Iterator[Plugin]:
        for group in self._by_name.values():
            yield from _members(group)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _counts(other: Plugin, plugin: Plugin) -> bool:
    return other.privileged or not plugin.privileged

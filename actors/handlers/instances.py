"""The plugins that a handler has registered: for each name all instances, in the order of registration.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterator

from ...protocol.plugins import Plugin


class Instances:
    """The instances of one plugin type, by name and by registration socket (behaviour 37)."""

    def __init__(self) -> None:
        self._by_name: dict[str, dict[str, Plugin]] = {}

    def add(self, plugin: Plugin) -> None:
        """Keep ``plugin``, as the newest of its name."""
        instances = self._by_name.setdefault(plugin.name, {})
        instances.pop(plugin.socket, None)
        instances[plugin.socket] = plugin

    def remove(self, plugin: Plugin) -> None:
        """Forget ``plugin``; the others of its name stay. Nothing happens if it is not kept."""
        instances = self._by_name.get(plugin.name, {})
        instances.pop(plugin.socket, None)
        if not instances:
            self._by_name.pop(plugin.name, None)

    def of(self, name: str) -> tuple[Plugin, ...]:
        """Return the instances of ``name``, the newest last; empty if there is none."""
        return tuple(self._by_name.get(name, {}).values())

    def others(self, plugin: Plugin) -> tuple[Plugin, ...]:
        """Return the instances of the same name on other sockets."""
        return tuple(other for other in self.of(plugin.name) if other.socket != plugin.socket)

    def __iter__(self) -> Iterator[Plugin]:
        for instances in self._by_name.values():
            yield from instances.values()

    def __len__(self) -> int:
        return sum(len(instances) for instances in self._by_name.values())

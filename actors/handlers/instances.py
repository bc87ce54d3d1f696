"""The plugins that a handler has registered: for each name all instances, in the order of registration.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterator

from ...protocol.plugins import Plugin


class Instances:
    """The instances of one plugin type, by name, registration socket and endpoint (behaviour 37)."""

    def __init__(self) -> None:
        self._by_name: dict[str, dict[str, Plugin]] = {}
        self._by_endpoint: dict[tuple[str, str], dict[str, Plugin]] = {}

    def add(self, plugin: Plugin) -> None:
        """Keep ``plugin``, as the newest of its name."""
        self.remove(plugin)
        self._by_name.setdefault(plugin.name, {})[plugin.socket] = plugin
        self._by_endpoint.setdefault((plugin.name, plugin.endpoint), {})[plugin.socket] = plugin

    def remove(self, plugin: Plugin) -> None:
        """Forget the instance at the socket of ``plugin``; the others of its name stay."""
        instances = self._by_name.get(plugin.name, {})
        kept = instances.pop(plugin.socket, None)
        if kept is None:
            return
        if not instances:
            del self._by_name[plugin.name]
        at_endpoint = self._by_endpoint[plugin.name, kept.endpoint]
        del at_endpoint[plugin.socket]
        if not at_endpoint:
            del self._by_endpoint[plugin.name, kept.endpoint]

    def of(self, name: str) -> tuple[Plugin, ...]:
        """Return the instances of ``name``, the newest last; empty if there is none."""
        return tuple(self._by_name.get(name, {}).values())

    def at(self, name: str, socket: str) -> Plugin:
        """Return the instance of ``name`` at ``socket``, which must be kept."""
        return self._by_name[name][socket]

    def others(self, plugin: Plugin) -> tuple[Plugin, ...]:
        """Return the instances of the same name on other sockets."""
        return tuple(other for other in self.of(plugin.name) if other.socket != plugin.socket)

    def other_at_endpoint(self, plugin: Plugin) -> Plugin | None:
        """Return an instance of the same name and endpoint on another socket; None if there is none.

        For a privileged plugin only privileged ones count, since it may succeed all others (fault 80).
        """
        instances = self._by_endpoint.get((plugin.name, plugin.endpoint), {}).values()
        return next((other for other in instances if other.socket != plugin.socket and _counts(other, plugin)), None)

    def __iter__(self) -> Iterator[Plugin]:
        for instances in self._by_name.values():
            yield from instances.values()

    def __len__(self) -> int:
        return sum(len(instances) for instances in self._by_name.values())


def _counts(other: Plugin, plugin: Plugin) -> bool:
    return other.privileged or not plugin.privileged

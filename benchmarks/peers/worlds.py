"""The desired and the actual world: two maps, each behind a lock that every thread takes."""

from __future__ import annotations

import threading
import uuid

import attrs


@attrs.frozen
class Registered:
    """A plugin of the actual world."""

    identity: uuid.UUID
    type: str
    name: str
    endpoint: str


class DesiredWorld:
    """The sockets that were seen. Each sighting gets a new identity, so a re-created socket is registered again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: dict[str, uuid.UUID] = {}

    def add(self, path: str) -> None:
        """Record a sighting of the socket."""
        with self._lock:
            self._sockets[path] = uuid.uuid4()

    def remove(self, path: str) -> None:
        """Forget the socket."""
        with self._lock:
            self._sockets.pop(path, None)

    def all(self) -> dict[str, uuid.UUID]:
        """Return a copy, since other threads write meanwhile."""
        with self._lock:
            return dict(self._sockets)

    def has(self, path: str, identity: uuid.UUID) -> bool:
        """Return whether this sighting is the latest one."""
        with self._lock:
            return self._sockets.get(path) == identity


class ActualWorld:
    """The registered plugins."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plugins: dict[str, Registered] = {}

    def add(self, path: str, plugin: Registered) -> None:
        """Record a registered plugin."""
        with self._lock:
            self._plugins[path] = plugin

    def remove(self, path: str) -> None:
        """Forget the plugin."""
        with self._lock:
            self._plugins.pop(path, None)

    def all(self) -> dict[str, Registered]:
        """Return a copy, since other threads write meanwhile."""
        with self._lock:
            return dict(self._plugins)

    def has(self, path: str, identity: uuid.UUID) -> bool:
        """Return whether this sighting is registered."""
        with self._lock:
            plugin = self._plugins.get(path)
            return plugin is not None and plugin.identity == identity

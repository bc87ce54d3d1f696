"""What there should be and what there is: two maps, each behind a lock that every thread takes."""

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
    """The sockets that were seen. Each sighting is a new identity, so that a socket made anew is registered anew."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: dict[str, uuid.UUID] = {}

    def add(self, path: str) -> None:
        """A socket was seen."""
        with self._lock:
            self._sockets[path] = uuid.uuid4()

    def remove(self, path: str) -> None:
        """It went."""
        with self._lock:
            self._sockets.pop(path, None)

    def all(self) -> dict[str, uuid.UUID]:
        """A copy, since others write meanwhile."""
        with self._lock:
            return dict(self._sockets)

    def has(self, path: str, identity: uuid.UUID) -> bool:
        """Whether this sighting of it is the latest."""
        with self._lock:
            return self._sockets.get(path) == identity


class ActualWorld:
    """The plugins that are registered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plugins: dict[str, Registered] = {}

    def add(self, path: str, plugin: Registered) -> None:
        """It is registered."""
        with self._lock:
            self._plugins[path] = plugin

    def remove(self, path: str) -> None:
        """It is not any more."""
        with self._lock:
            self._plugins.pop(path, None)

    def all(self) -> dict[str, Registered]:
        """A copy, since others write meanwhile."""
        with self._lock:
            return dict(self._plugins)

    def has(self, path: str, identity: uuid.UUID) -> bool:
        """Whether this sighting of it is registered."""
        with self._lock:
            plugin = self._plugins.get(path)
            return plugin is not None and plugin.identity == identity

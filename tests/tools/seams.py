"""Seams at which a bug can be put into plugind: public functions, ports and messages, but no private methods.

Each seam is a context manager that patches one public function or method while it is entered. A bug that uses a seam
still works when the code behind the seam is rewritten. Only bugs of a registration's own code patch its private methods
(``plugind.tests.tools.registration_bugs``), since the place in that code is its state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from plugind.actors.simulation.inotify import MemoryEvents
from plugind.protocol.discovery.watches import Notice
from plugind.protocol.messages.reconciler import ReconcilerMessage
from plugind.protocol.messages.status import StateChanged
from plugind.protocol.status.view import View
from plugind.protocol.world.effects import Effect
from plugind.protocol.world.worlds import World

Handle = Callable[[World, ReconcilerMessage, float], list[Effect]]


@contextmanager
def reconciler_effects(change: Callable[[ReconcilerMessage, list[Effect]], list[Effect]]) -> Iterator[None]:
    """Replace the effects of each message to the reconciler with ``change(message, effects)``."""
    handle = World.handle

    def changed(self: World, message: ReconcilerMessage, now: float) -> list[Effect]:
        return change(message, handle(self, message, now))

    with patch.object(World, "handle", changed):
        yield


@contextmanager
def reconciler_messages(is_lost: Callable[[ReconcilerMessage], bool]) -> Iterator[None]:
    """Make the reconciler ignore the messages for which ``is_lost`` returns true."""
    handle = World.handle

    def without_lost(self: World, message: ReconcilerMessage, now: float) -> list[Effect]:
        return [] if is_lost(message) else handle(self, message, now)

    with patch.object(World, "handle", without_lost):
        yield


@contextmanager
def shown_states(is_lost: Callable[[StateChanged], bool]) -> Iterator[None]:
    """Make the status view ignore the changes for which ``is_lost`` returns true."""
    apply = View.apply

    def without_lost(self: View, change: StateChanged) -> object:
        return (None, None) if is_lost(change) else apply(self, change)

    with patch.object(View, "apply", without_lost):
        yield


@contextmanager
def inotify_events(is_lost: Callable[[Notice], bool]) -> Iterator[None]:
    """Hide the events from watchers for which ``is_lost`` returns true."""
    read = MemoryEvents.read

    def without_lost(self: MemoryEvents) -> list[Notice]:
        return [notice for notice in read(self) if not is_lost(notice)]

    with patch.object(MemoryEvents, "read", without_lost):
        yield

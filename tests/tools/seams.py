"""Seams at which a bug can be put into plugind: public functions, ports and messages, but no private methods.

Each seam is a context manager that patches one public function or method while it is entered. A bug that uses a seam
still works when the code behind the seam is rewritten.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import attrs
import trio

from plugind.actors.handlers import actor as handler_actor
from plugind.actors.handlers.actor import HandlerInbox, Lanes
from plugind.actors.handlers.calls import Calls
from plugind.actors.handlers.handler import Handler
from plugind.actors.handlers.link import LinkPort
from plugind.actors.simulation.inotify import MemoryEvents
from plugind.protocol import lifecycle, states
from plugind.protocol import messages as m
from plugind.protocol.effects import Effect
from plugind.protocol.plugins import Plugin
from plugind.protocol.view import View
from plugind.protocol.watches import Notice
from plugind.protocol.world import World

Step = Callable[[states.State, states.Event], states.Step]
Handle = Callable[[World, m.ReconcilerMessage, float], list[Effect]]


@contextmanager
def lifecycle_steps(wrap: Callable[[Step, states.State, states.Event], states.Step]) -> Iterator[None]:
    """Make ``wrap(step, state, event)`` decide each step of each registration."""
    step = lifecycle.step
    with patch.object(lifecycle, "step", lambda state, event: wrap(step, state, event)):
        yield


@contextmanager
def reconciler_effects(change: Callable[[m.ReconcilerMessage, list[Effect]], list[Effect]]) -> Iterator[None]:
    """Replace the effects of each message to the reconciler with ``change(message, effects)``."""
    handle = World.handle

    def changed(self: World, message: m.ReconcilerMessage, now: float) -> list[Effect]:
        return change(message, handle(self, message, now))

    with patch.object(World, "handle", changed):
        yield


@contextmanager
def reconciler_messages(is_lost: Callable[[m.ReconcilerMessage], bool]) -> Iterator[None]:
    """Make the reconciler ignore the messages for which ``is_lost`` returns true."""
    handle = World.handle

    def without_lost(self: World, message: m.ReconcilerMessage, now: float) -> list[Effect]:
        return [] if is_lost(message) else handle(self, message, now)

    with patch.object(World, "handle", without_lost):
        yield


@contextmanager
def shown_states(is_lost: Callable[[m.StateChanged], bool]) -> Iterator[None]:
    """Make the status view ignore the changes for which ``is_lost`` returns true."""
    apply = View.apply

    def without_lost(self: View, change: m.StateChanged) -> object:
        return (None, None) if is_lost(change) else apply(self, change)

    with patch.object(View, "apply", without_lost):
        yield


@contextmanager
def handler_asks(is_lost: Callable[[m.HandlerMessage], bool]) -> Iterator[None]:
    """Drop the messages to handler actors for which ``is_lost`` returns true. The sender's task calls ``is_lost``."""
    send = HandlerInbox.send_nowait

    def without_lost(self: HandlerInbox, message: m.HandlerMessage, /) -> None:
        if not is_lost(message):
            send(self, message)

    with patch.object(HandlerInbox, "send_nowait", without_lost):
        yield


@contextmanager
def handler_actors(
    *, handler: Callable[[Handler], Handler] | None = None, lanes: Callable[[Lanes], Lanes] | None = None
) -> Iterator[None]:
    """Replace the handler or the lanes of each handler actor with what these functions return."""
    run = handler_actor.run

    async def changed(
        theirs: Calls, inbox: HandlerInbox, kept: Lanes | None = None, links: LinkPort | None = None
    ) -> None:
        kept = {} if kept is None else kept
        calls = attrs.evolve(theirs, handler=handler(theirs.handler)) if handler else theirs
        await run(calls, inbox, lanes(kept) if lanes else kept, links)

    with patch.object(handler_actor, "run", changed):
        yield


async def _awaited(call: Awaitable[None] | None) -> None:
    if call is not None:
        await call


class OneAtATime:
    """A handler that makes one call at a time."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._turn = trio.StrictFIFOLock()

    async def validate(self, plugin: Plugin) -> None:
        async with self._turn:
            await _awaited(self._handler.validate(plugin))

    async def register(self, plugin: Plugin) -> None:
        async with self._turn:
            await _awaited(self._handler.register(plugin))

    async def deregister(self, plugin: Plugin) -> None:
        async with self._turn:
            await _awaited(self._handler.deregister(plugin))


@contextmanager
def inotify_events(is_lost: Callable[[Notice], bool]) -> Iterator[None]:
    """Hide the events from watchers for which ``is_lost`` returns true."""
    read = MemoryEvents.read

    def without_lost(self: MemoryEvents) -> list[Notice]:
        return [notice for notice in read(self) if not is_lost(notice)]

    with patch.object(MemoryEvents, "read", without_lost):
        yield

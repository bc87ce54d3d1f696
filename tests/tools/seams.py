"""Seams at which a bug is put into plugind: public functions, ports and messages, never a private method.

Each is a context manager that wraps one public thing for as long as it is entered. A bug that is put in here stays in
when the code behind the seam is rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import trio

from plugind.actors.handlers import actor as handler_actor
from plugind.actors.handlers.actor import Handler, HandlerInbox, Lanes
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
    """Each step of each registration is ``wrap(step, state, event)``."""
    step = lifecycle.step
    with patch.object(lifecycle, "step", lambda state, event: wrap(step, state, event)):
        yield


@contextmanager
def reconciler_effects(change: Callable[[m.ReconcilerMessage, list[Effect]], list[Effect]]) -> Iterator[None]:
    """What the reconciler does about each message is ``change(message, effects)``."""
    handle = World.handle

    def changed(self: World, message: m.ReconcilerMessage, now: float) -> list[Effect]:
        return change(message, handle(self, message, now))

    with patch.object(World, "handle", changed):
        yield


@contextmanager
def reconciler_messages(is_lost: Callable[[m.ReconcilerMessage], bool]) -> Iterator[None]:
    """The reconciler loses the messages for which ``is_lost`` holds."""
    handle = World.handle

    def losing(self: World, message: m.ReconcilerMessage, now: float) -> list[Effect]:
        return [] if is_lost(message) else handle(self, message, now)

    with patch.object(World, "handle", losing):
        yield


@contextmanager
def shown_states(is_lost: Callable[[m.StateChanged], bool]) -> Iterator[None]:
    """The status view loses the changes for which ``is_lost`` holds."""
    apply = View.apply

    def losing(self: View, change: m.StateChanged) -> object:
        return (None, None) if is_lost(change) else apply(self, change)

    with patch.object(View, "apply", losing):
        yield


@contextmanager
def handler_asks(is_lost: Callable[[m.HandlerMessage], bool]) -> Iterator[None]:
    """Handler actors lose the messages for which ``is_lost`` holds; it runs in the task of the sender."""
    send = HandlerInbox.send_nowait

    def losing(self: HandlerInbox, message: m.HandlerMessage, /) -> None:
        if not is_lost(message):
            send(self, message)

    with patch.object(HandlerInbox, "send_nowait", losing):
        yield


@contextmanager
def handler_actors(
    *, handler: Callable[[Handler], Handler] | None = None, lanes: Callable[[Lanes], Lanes] | None = None
) -> Iterator[None]:
    """Each run of a handler actor gets another handler, or other lanes, than it would."""
    run = handler_actor.run

    async def changed(theirs: Handler, inbox: HandlerInbox, timeout: float, kept: Lanes | None = None) -> None:
        kept = {} if kept is None else kept
        await run(handler(theirs) if handler else theirs, inbox, timeout, lanes(kept) if lanes else kept)

    with patch.object(handler_actor, "run", changed):
        yield


class OneAtATime:
    """A handler whose calls wait for each other."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._turn = trio.StrictFIFOLock()

    async def validate(self, plugin: Plugin) -> None:
        async with self._turn:
            await self._handler.validate(plugin)

    async def register(self, plugin: Plugin) -> None:
        async with self._turn:
            await self._handler.register(plugin)

    async def deregister(self, plugin: Plugin) -> None:
        async with self._turn:
            await self._handler.deregister(plugin)


@contextmanager
def inotify_events(is_lost: Callable[[Notice], bool]) -> Iterator[None]:
    """Watchers do not read the events for which ``is_lost`` holds."""
    read = MemoryEvents.read

    def losing(self: MemoryEvents) -> list[Notice]:
        return [notice for notice in read(self) if not is_lost(notice)]

    with patch.object(MemoryEvents, "read", losing):
        yield

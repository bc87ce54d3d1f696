"""What a script does to the daemon: it asks for retries, changes its handlers, crashes its actors, and restarts it."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from typing import Final, Protocol

import attrs
import trio

from plugind.actors.handlers.handler import Handler
from plugind.actors.simulation.faults import ACTORS, Actor
from plugind.actors.simulation.handlers import Ask, Behaviour, Fails, Hangs, Takes
from plugind.protocol.errors import PluginError
from plugind.protocol.messages.reconciler import RetryAnswer
from plugind.protocol.plugins.status import PluginStatus, StateName
from plugind.protocol.registration.crashes import INTERNAL
from plugind.supervisor import NodeEndedError
from plugind.tests.fuzz.backoff_oracle import BackoffOracle
from plugind.tests.fuzz.crash_oracle import CrashOracle
from plugind.tests.fuzz.generation_oracle import GenerationOracle
from plugind.tests.fuzz.handler_oracle import HandlerOracle, WatchedHandler
from plugind.tests.fuzz.script import NAMES, SOCKETS, TYPE
from plugind.tests.fuzz.sentinels import Sentinels
from plugind.tests.fuzz.trace import Trace
from plugind.tests.fuzz.watched_node import WatchedNode

ASKS: Final[tuple[Ask, ...]] = ("validate", "register", "deregister")
#: Seconds for a retry to be answered, and for a handler to be removed: every plugin that it has may take its deadline
#: to be registered, and again to be deregistered, one after the other; and the answers to its asks may be lost.
RETRY_BOUND: Final = 60.0
REMOVAL_BOUND: Final = 2000.0
#: Seconds for a daemon to stop: the grace, and what ends after it.
STOP_BOUND: Final = 15.0


#: Answers to a retry.
_TRIED: Final = "tried now"
_REGISTERED: Final = "registered already, nothing to retry"
#: The states in which a socket is not tried.
_RESTING: Final = (StateName.WAITING, StateName.STALE, StateName.PARKED)


def _was_registered(plugin: PluginStatus, time: float) -> bool:
    """Whether ``plugin`` was shown as registered at ``time``, or from then on."""
    after = [entry.state for entry in plugin.history if entry.time >= time]
    before = [entry.state for entry in plugin.history if entry.time < time]
    return StateName.REGISTERED in {*after, *before[-1:]}


class Consumed(Protocol):
    """Plugins of a script that have another type and a handler of their own."""

    @property
    def plugin_type(self) -> str:
        """Their type."""

    @property
    def handler(self) -> Handler:
        """The handler of the daemon that runs, or starts next."""

    def before_start(self) -> None:
        """The daemon has ended, and is about to start."""


@attrs.define(eq=False)
class DaemonActs:
    """What a script does to the daemon; requests to it go on in the ``background`` while the script does."""

    _node: WatchedNode
    _trace: Trace
    _sentinels: Sentinels
    _backoff: BackoffOracle
    _crashes: CrashOracle
    _generations: GenerationOracle
    _oracle: HandlerOracle
    #: The handler that the daemon has now; None while it has none.
    handler: WatchedHandler | None
    _background: trio.Nursery
    #: The plugins of the script whose handlers begin anew with each daemon.
    _consumed: Collection[Consumed]
    #: The requests that run in the background.
    _requests: dict[trio.CancelScope, None] = attrs.field(init=False, factory=dict)
    #: Set when the daemon that runs begins to stop; each daemon has its own.
    _stopping: trio.Event = attrs.field(init=False, factory=trio.Event)
    #: Set when the removal of a handler has ended; None if no removal is under way.
    _removal: trio.Event | None = attrs.field(init=False, default=None)

    def _start(self, request: Callable[[], Awaitable[None]]) -> None:
        """Run a request to the daemon in the background; it ends with the daemon at the latest."""

        async def within() -> None:
            with trio.CancelScope() as scope:
                self._requests[scope] = None
                try:
                    with suppress(NodeEndedError):
                        await request()
                finally:
                    del self._requests[scope]

        self._background.start_soon(within)

    def retry(self, chance: random.Random) -> None:
        """Ask for a retry of a name or of a path."""
        target = chance.choice((*NAMES, *map(self._node.path, SOCKETS)))

        path = target if target.startswith("/") else None

        async def retry() -> None:
            asked = trio.current_time()
            self._crashes.retry_begins(path)
            with trio.move_on_after(RETRY_BOUND) as scope:
                try:
                    answers = await self._node.retry(target, path)
                finally:
                    self._crashes.retry_ended(path)
                    if trio.current_time() > asked:
                        self._backoff.retriggered(path)  # The daemon had crashed, and has handled it just now.
                await self._check_answers(answers, asked)
            if scope.cancelled_caught:
                self._trace.violated("answers", f"the retry of {target} was not answered in {RETRY_BOUND:g} s")

        # Which plugins have a name is looked up when the daemon handles the request, which is later.
        self._backoff.retriggered(path)
        self._start(retry)

    async def _check_answers(self, answers: Iterable[RetryAnswer], asked: float) -> None:
        """An answer is true: what it says of a socket is shown of it, or done, from when it was asked for.

        A socket that is tried and waits for a dial slot is shown as before.
        """
        queued = (await self._node.supervisor.internals.counts()).queued
        shown = {plugin.socket: plugin for plugin in (await self._node.snapshot()).plugins}
        dialed = {path for time, path in self._node.network.dials if time >= asked}
        for answer in answers:
            plugin = shown.get(answer.socket)
            if plugin is None:
                continue
            rests = plugin.state in _RESTING and plugin.since < asked and answer.socket not in dialed and not queued
            if (answer.why == _TRIED and rests) or (answer.why == _REGISTERED and not _was_registered(plugin, asked)):
                self._trace.violated("answers", f"{answer.socket}: {answer.why}, and it is {plugin.state}")

    # --- handlers -----------------------------------------------------------------------------------------------------

    def script_handler(self, chance: random.Random) -> None:
        """Let the next calls of the handler fail, hang, or take their time."""
        ask, name = chance.choice(ASKS), chance.choice(NAMES)
        behaviours: tuple[Behaviour, ...] = (
            Fails(PluginError("no")),
            Fails(SystemExit(3)),
            Fails(BaseExceptionGroup("many", [ValueError("no")])),
            Hangs(),
            Takes(0.1),
            Takes(3.0),
            Takes(50.0),
        )
        if self.handler is not None:
            planned = self.handler.script.setdefault((ask, name), deque())
            planned.extend([chance.choice(behaviours)] * chance.choice((1, 1, 2)))

    async def toggle_handler(self) -> None:
        """Remove the handler, or add another once its removal has ended."""
        if self.handler is None:
            if self._removal is None:
                await self._add_handler()
            return
        self.handler, self._removal = None, trio.Event()
        self._sentinels.grant_grace(1.0)
        self._backoff.retriggered()
        self._start(self._remove_handler)

    async def _remove_handler(self) -> None:
        with trio.move_on_after(REMOVAL_BOUND) as scope:
            stopping = self._stopping
            await self._node.supervisor.remove_handler(TYPE)
            if stopping.is_set():
                return  # A stop deregisters nothing (behaviour 42).
        if scope.cancelled_caught:
            self._trace.violated("answers", f"a handler was not removed in {REMOVAL_BOUND:g} s")
        elif left := [
            path
            for path, registration in self._oracle.registrations.items()
            if registration.succeeded and not registration.orphan
        ]:
            self._trace.violated("view", f"a handler was removed with {left}")
        if self._removal is not None:
            self._removal.set()
            self._removal = None

    async def _add_handler(self) -> None:
        self._backoff.retriggered()
        self._sentinels.grant_grace(1.0)
        await self._node.supervisor.add_handler(TYPE, self._new_handler())

    def _new_handler(self) -> WatchedHandler:
        self.handler = self._oracle.new_handler()
        return self.handler

    # --- the daemon ---------------------------------------------------------------------------------------------------

    def crash(self, chance: random.Random) -> None:
        """Crash an actor."""
        actor: Actor = chance.choice([actor for actor in ACTORS if actor not in ("liveness", "devices", "leases")])
        if actor == "status" and chance.random() < 0.5:
            # Drawn apart from the others, so that the other events of all seeds stay what they were without it.
            actor = "liveness"
        path = self._node.path(chance.choice(SOCKETS))
        if actor == "registration" and chance.random() < 0.3:
            self._node.network.crashes += 1
            return
        if not self._node.crash(actor, path):
            return
        if actor == "reconciler":
            self._oracle.orphan()

    def crash_both(self, chance: random.Random) -> None:
        """Crash the reconciler and a registration in the same instant, in either order."""
        path = self._node.path(chance.choice(SOCKETS))
        actors: list[Actor] = ["reconciler", "registration"]
        for actor in chance.sample(actors, 2):
            self._node.crash(actor, path)
        self._oracle.orphan()

    async def restart(self, chance: random.Random, ended: Callable[[], None], *, kill: bool = False) -> None:
        """Stop or kill the daemon, call ``ended``, and start it again with another handler."""
        began = trio.current_time()
        if kill or chance.random() < 0.5:
            await self._node.kill()
        else:
            self._stopping.set()
            await self._node.stop()
        self._stopping = trio.Event()
        if trio.current_time() - began > STOP_BOUND:
            self._trace.violated("answers", f"the daemon took {trio.current_time() - began:g} s to end")
        for scope in tuple(self._requests):
            scope.cancel()
        self._removal = None
        if self._oracle.under_way:
            self._trace.violated("leak", f"the daemon ended during {self._oracle.under_way}")
        self._oracle.forget()
        self._backoff.forget()
        self._generations.forget()
        self._sentinels.give_up()
        self._sentinels.grant_grace(1.0)
        ended()
        # Of some lives nothing is written.
        self._node.notice_store.full = chance.random() < 0.2
        handlers: dict[str, Handler] = {TYPE: self._new_handler()}
        for plugins in self._consumed:
            plugins.before_start()
            handlers[plugins.plugin_type] = plugins.handler
        await self._node.start(handlers=handlers)

    async def calm_down(self) -> None:
        """End the faults of handlers: the daemon has one, which does what it is asked at once."""
        if self.handler is not None:
            self.handler.script.clear()
        if self._removal is not None:
            await self._removal.wait()
        if self.handler is None:
            await self._add_handler()
        for path, plugin in tuple(self._node.statuses.items()):
            if plugin.state is StateName.PARKED and (plugin.reason or "").startswith(INTERNAL):
                self._backoff.retriggered(path)
                self._crashes.forget(path)
                await self._node.supervisor.retry(path)

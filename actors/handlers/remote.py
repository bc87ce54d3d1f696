"""Handlers in other processes, which get what they are asked over the status socket (``docs/remote-handlers.md``).

:class:`RemoteHandler` is the handler of one type, as registrations call it. Its methods ask the process that serves the
type now, over a :class:`Session`. While there is none, it takes no plugins, and those that it has stay registered.

A handler says at the begin of its session which instances it holds. The difference to those that are registered is made
up by asks: Deregister for what it should not hold, and Register, by ``follow``, for what it lacks. So an ask whose
answer was lost with its session is not asked again under its number.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Protocol

import attrs
import trio
from trio_util import wait_any

from ...protocol.errors import HandlerAwayError, PluginError
from ...protocol.handlers.remote import (
    MISSED,
    MOST_LISTS,
    PING_EVERY,
    Ask,
    AskKind,
    AskResult,
    Asks,
    Event,
    HandlerRefusedError,
    Instance,
    RoleTold,
    Synced,
    Withdrawn,
)
from ...protocol.logs.lines import SILENT, Level, Logger
from ...protocol.messages.reconciler import HandlerAdded, HandlerRemoved, ReconcilerMessage
from ...protocol.plugins.health import Health
from ...protocol.plugins.info import InfoLimits, Plugin, check_type
from ..messaging.timed_queue import TimedQueue
from .by_type import Handlers
from .errors import log_failed_deregister
from .link import Link

#: Seconds between two heartbeats of a session.
HEARTBEAT = 15.0
#: Seconds that a handler has to answer that it follows an instance no more.
_UNFOLLOW = 3.0


class Reported(Protocol):
    """What takes the reports about a followed instance: see :class:`Link`."""

    def report(
        self, health: Health, reason: str = "", facts: Mapping[str, str] | None = None, *, warnings: Iterable[str] = ()
    ) -> None:
        """Take its health."""

    def role(self, *, usable: bool) -> None:
        """Take whether it can be used."""

    def gone(self, reason: str) -> None:
        """Take that it has left."""


def _nobody(_: AskResult) -> None:
    """Take the answer to an ask for which nobody waits."""


class Session:
    """The connection of the process that serves a type: what it was asked, and what it holds."""

    def __init__(self, handler: RemoteHandler, token: str, uid: int, pid: int) -> None:
        self.handler = handler
        self.token = token
        self.uid = uid
        self.pid = pid
        self.asks = Asks()
        #: The instances that it said it holds, until it has named all, and in how many lists.
        self._named: dict[str, Instance] = {}
        self._lists = 0
        self.synced = False
        #: The ids of the registered instances that it holds.
        self.holds: set[str] = set()
        #: The instances that it was not asked to deregister, because it hangs.
        self.owed: list[Instance] = []
        #: The last ask before ``synced`` is sent; None once it was sent.
        self._synced_after: int | None = None
        self._events: deque[Withdrawn | RoleTold] = deque()
        self._missed = 0
        #: When it was found to hang, and the ask that it has to answer; None if it answers.
        self.hangs_since: float | None = None
        self._ping: Ask | None = None
        self._pinged_at = -math.inf
        self._woken = trio.Event()
        #: Set at its end.
        self.over = trio.Event()
        self.since = trio.current_time()

    def __str__(self) -> str:
        return f"pid {self.pid} of uid {self.uid}"

    # --- what is sent ---

    def wake(self) -> None:
        """Have what is new sent."""
        self._woken.set()

    async def next(self) -> list[Event]:
        """Wait for what is to be sent, and return it; an empty list is a heartbeat."""
        events = self._due()
        if not events and not self.over.is_set():
            self._woken = trio.Event()
            with trio.move_on_after(HEARTBEAT):
                await self._woken.wait()
            events = self._due()
        return events

    def _due(self) -> list[Event]:
        now = trio.current_time()
        if self.hangs_since is not None and self._pinged_at + PING_EVERY <= now:
            if self._ping is not None:
                self.asks.withdraw(self._ping)
            self._pinged_at, self._ping = now, self.asks.put(AskKind.PING, None, math.inf, _nobody)
        events: list[Event] = [*self._events]
        self._events.clear()
        for ask in self.asks.to_send():
            events.append(ask)
            if ask.number == self._synced_after:
                self._synced_after = 0
        if self._synced_after == 0:
            events.append(Synced())
            self._synced_after = None
        return events

    def tell_role(self, instance: str, *, active: bool) -> None:
        """Tell the handler whether an instance is the active one of its name."""
        self._events.append(RoleTold(instance, active))
        self.wake()

    async def ask(self, kind: AskKind, instance: Instance | None) -> AskResult:
        """Ask, and wait for the verdict. If the caller is cancelled before there is one, the ask is taken back."""
        answered, verdicts = trio.Event(), list[AskResult]()

        def note(verdict: AskResult) -> None:
            verdicts.append(verdict)
            answered.set()

        ask = self.asks.put(kind, instance, trio.current_effective_deadline(), note)
        self.wake()
        try:
            await answered.wait()
        except trio.Cancelled:
            # The deadlines of asks that began together end together, and the first ones show that the handler hangs.
            if not verdicts:
                self.withdraw(ask)
                raise
        return verdicts[0]

    # --- what is answered ---

    def hold(self, instances: Iterable[Instance], *, more: bool) -> None:
        """Note instances that the handler holds; after the last ones, ask for the difference and begin.

        Raises:
          HandlerRefusedError: if it has named all before, or in too many lists.
        """
        if self.synced:
            raise HandlerRefusedError("what it holds was said: that is said once, before the line synced")
        if self._lists == MOST_LISTS:
            raise HandlerRefusedError(f"what it holds was said in {MOST_LISTS} lists: fill each, or hold less")
        self._lists += 1
        self._named |= {instance.id: instance for instance in instances}
        if not more:
            self.synced = True
            self._synced_after = self.handler.sync(self, self._named)
            self._named = {}
            self.wake()

    def answer(self, number: int, verdict: AskResult) -> bool:
        """Take an answer; return False if nothing was asked under this number, or nobody waits for it any more."""
        ask = self.asks.take(number)
        if ask is None:
            return False
        self._missed = 0
        ask.answer(verdict)
        if self.hangs_since is not None:
            self.hangs_since = self._ping = None
            self.handler.recovered(self)
        self.wake()
        return True

    def withdraw(self, ask: Ask) -> None:
        """Take back an ask for whose answer nobody waits; after some missed deadlines in a row the handler hangs."""
        if not self.asks.withdraw(ask):
            return
        self._events.append(Withdrawn(ask.number))
        self._missed += trio.current_time() >= ask.deadline
        if self._missed >= MISSED and self.hangs_since is None and not self.over.is_set():
            self.hangs_since = self._pinged_at = trio.current_time()
            self.handler.pause(self)
        self.wake()

    def give_up(self, why: str) -> None:
        """End all asks, because the handler is gone or hangs."""
        for ask in self.asks.clear():
            ask.answer(AskResult(why, away=True))


class RemoteHandler:
    """The handler of one plugin type, in whichever process serves it."""

    def __init__(
        self, plugin_type: str, epoch: str, changed: Callable[[RemoteHandler], None], log: Logger = SILENT
    ) -> None:
        """Call ``changed`` when the handler begins or stops to take plugins; ``epoch`` is that of this run."""
        self.plugin_type = plugin_type
        self.epoch = epoch
        self._changed = changed
        self._log = log
        self.session: Session | None = None
        #: Set while a process serves the type.
        self._is_back = trio.Event()
        #: The instances for which Register has begun, and Deregister has not.
        self.registered: dict[str, Instance] = {}
        self.links: dict[str, Reported] = {}

    @property
    def why_away(self) -> str | None:
        """Why no plugin can be registered now; None if it can."""
        session = self.session
        if session is None:
            return f"the handler for {self.plugin_type} is away: no process serves it now"
        if not session.synced:
            return f"the handler for {self.plugin_type}, {session}, has not said yet what it holds"
        if session.hangs_since is not None:
            return f"the handler for {self.plugin_type}, {session}, hangs: it missed {MISSED} deadlines in a row"
        return None

    def _instance(self, plugin: Plugin) -> Instance:
        return Instance(f"{self.epoch}-{plugin.generation}", plugin.name, plugin.socket, plugin)

    # --- a handler's methods ---

    async def validate(self, plugin: Plugin) -> None:
        """Ask whether the handler accepts the plugin."""
        await self._ask(AskKind.VALIDATE, self._instance(plugin))

    async def register(self, plugin: Plugin, link: Link) -> None:  # noqa: ARG002 - it names the links that follow
        """Have the handler register the plugin."""
        instance = self._instance(plugin)
        self.registered[instance.id] = instance
        await self._register(instance)

    async def deregister(self, plugin: Plugin) -> None:
        """Have the handler deregister the plugin. One that is away is asked when it is back, if it has the plugin."""
        instance = self._instance(plugin)
        self.registered.pop(instance.id, None)
        if self.session is not None:
            self.session.holds.discard(instance.id)
        try:
            await self._ask(AskKind.DEREGISTER, instance)
        except HandlerAwayError:
            # What a handler has that comes back is compared with what is registered.
            if self.session is not None and self.session.synced:
                self.session.owed.append(instance)

    async def follow(self, plugin: Plugin, link: Link) -> None:
        """Have each process that serves the type register and follow the plugin, and tell it the role."""
        instance = self._instance(plugin)
        self.links[instance.id] = link
        try:
            while True:
                if (why := self.why_away) is not None:
                    link.report(Health.UNKNOWN, why)
                    await self._is_back.wait()
                try:
                    await self._follow(instance, link)
                except HandlerAwayError:
                    continue
        finally:
            del self.links[instance.id]

    async def _follow(self, instance: Instance, link: Link) -> None:
        session = self.session
        if session is not None and instance.id not in session.holds:
            await self._register(instance)
        active = link.active
        await self._ask(AskKind.FOLLOW, instance)
        try:
            while session is not None and not session.over.is_set():
                session.tell_role(instance.id, active=active)
                await wait_any(session.over.wait, link.role_changed)
                active = link.active
        finally:
            if session is self.session:
                with trio.move_on_after(_UNFOLLOW, shield=True), suppress(PluginError):
                    await self._ask(AskKind.UNFOLLOW, instance)

    async def _register(self, instance: Instance) -> None:
        session = self.session
        await self._ask(AskKind.REGISTER, instance)
        if session is not None:
            session.holds.add(instance.id)

    async def _ask(self, kind: AskKind, instance: Instance) -> None:
        """Ask, and wait for the answer.

        Raises:
          HandlerAwayError: if the handler is away, or ends before it has answered.
          PluginError: if the answer is an error.
        """
        session, why = self.session, self.why_away
        if session is None or why is not None:
            raise HandlerAwayError(why)
        verdict = await session.ask(kind, instance)
        if verdict.away:
            raise HandlerAwayError(verdict.error)
        if verdict.error is not None:
            raise PluginError(verdict.error, cause=verdict.cause)

    # --- sessions ---

    def sync(self, session: Session, held: Mapping[str, Instance]) -> int:
        """Take what a handler holds; ask it to deregister the rest, and return the number of the last such ask."""
        session.holds = held.keys() & self.registered.keys()
        last = self._deregister(session, [each for each in held.values() if each.id not in self.registered])
        self._begin()
        return last

    def recovered(self, session: Session) -> None:
        """Go on with a handler that hung."""
        owed, session.owed = session.owed, []
        self._deregister(session, owed)
        self._begin()

    def _deregister(self, session: Session, instances: Iterable[Instance]) -> int:
        last = 0
        for instance in instances:
            note = partial(self._note_refusal, instance)
            last = session.asks.put(AskKind.DEREGISTER, instance, math.inf, note).number
        return last

    def _note_refusal(self, instance: Instance, verdict: AskResult) -> None:
        if verdict.error is not None and not verdict.away:
            log_failed_deregister(self._log, self.plugin_type, instance.name, instance.socket, verdict.error)

    def end(self, session: Session) -> None:
        """End the session."""
        session.over.set()
        session.wake()
        if self.session is session:
            self.session = None
            self.pause(session)

    def _begin(self) -> None:
        self._is_back.set()
        self._changed(self)

    def pause(self, session: Session) -> None:
        """Ask the handler nothing more until it answers, or another process serves the type."""
        if self._is_back.is_set():
            self._is_back = trio.Event()
        why = self.why_away
        assert why is not None, "its session has ended, or hangs"
        session.give_up(why)
        self._changed(self)


@attrs.define(eq=False)
class RemoteHandlers:
    """All types that other processes serve. It outlives crashes of :meth:`serve`."""

    handlers: Handlers
    reconciler: trio.MemorySendChannel[ReconcilerMessage]
    #: What tells the instances of this run from those of others.
    epoch: str
    #: The users who may serve a type, besides those who may serve all.
    uids: Mapping[str, frozenset[int]]
    #: Seconds after which the plugins of a type are deregistered while no process serves it.
    grace: Mapping[str, float]
    #: Whether the node only observes plugins, and has no handlers.
    observes: bool = False
    log: Logger = SILENT
    by_type: dict[str, RemoteHandler] = attrs.field(factory=dict)
    _sessions: dict[str, Session] = attrs.field(factory=dict)
    #: The handlers whose change was not sent yet, and those whose grace ends.
    _changes: dict[RemoteHandler, None] = attrs.field(factory=dict)
    _graces: TimedQueue[tuple[RemoteHandler, float]] = attrs.field(factory=TimedQueue)
    #: Since when the handlers are away that are.
    _away_since: dict[RemoteHandler, float] = attrs.field(factory=dict)

    def add_all(self) -> None:
        """Add the configured types, which no process serves yet."""
        for plugin_type in self.uids.keys() | self.grace.keys():
            self._add(plugin_type)

    def _add(self, plugin_type: str) -> RemoteHandler:
        handler = self.by_type[plugin_type] = RemoteHandler(plugin_type, self.epoch, self._note, self.log)
        self._offer(handler)
        self._note(handler)
        return handler

    def _offer(self, handler: RemoteHandler) -> HandlerAdded:
        self.handlers.add(handler.plugin_type, handler, lambda: handler.why_away)
        return self.handlers.set_away(handler.plugin_type, handler.why_away)

    def open(self, plugin_type: str, token: str, uid: int, pid: int) -> Session:
        """Begin a session for a process that serves a type.

        Raises:
          HandlerRefusedError: if the type has a handler.
          ValidationError: if there can be no such type.
        """
        if self.observes:
            raise HandlerRefusedError("this plugind only observes plugins: it has no handlers")
        handler = self.by_type.get(plugin_type)
        if handler is None:
            check_type(plugin_type, InfoLimits())
            if plugin_type in self.handlers:
                raise HandlerRefusedError(
                    f"plugind has a handler for {plugin_type} itself: to replace it, name the type in handler_uids"
                )
            handler = self._add(plugin_type)
        if handler.session is not None:
            raise HandlerRefusedError(f"{handler.session} serves {plugin_type}: a type has one handler")
        session = handler.session = self._sessions[token] = Session(handler, token, uid, pid)
        return session

    def close(self, session: Session) -> None:
        """End a session, because its stream has ended."""
        self._sessions.pop(session.token, None)
        session.handler.end(session)

    def end(self) -> None:
        """End all sessions, because the node stops."""
        for session in tuple(self._sessions.values()):
            self.close(session)

    def find(self, plugin_type: str, token: str, uid: int) -> Session | None:
        """Return the session with this token, if it is of the type and the user."""
        session = self._sessions.get(token)
        found = session is not None and session.uid == uid and session.handler.plugin_type == plugin_type
        return session if found else None

    # --- the reconciler ---

    def _note(self, handler: RemoteHandler) -> None:
        self._changes[handler] = None
        self._graces.wake()

    async def serve(self) -> None:
        """Tell the reconciler which handlers take plugins, until cancelled."""
        while True:
            while self._changes:
                handler = next(iter(self._changes))
                await self._tell(handler)
            for handler, since in await self._graces.due():
                if self._away_since.get(handler) == since:
                    await self._withdraw(handler)

    async def _tell(self, handler: RemoteHandler) -> None:
        plugin_type, why = handler.plugin_type, handler.why_away
        session = handler.session
        process = {} if session is None else {"pid": session.pid, "uid": session.uid}
        if why is None:
            self._away_since.pop(handler, None)
            self.log.event(Level.INFO, "handler serves", type=plugin_type, **process)
        elif handler not in self._away_since:
            now = self._away_since[handler] = trio.current_time()
            if (grace := self.grace.get(plugin_type)) is not None:
                self._graces.put(now + grace, (handler, now))
            self.log.event(Level.WARNING, "handler is away", type=plugin_type, reason=why, **process)
        if self._is_stray(handler):
            # Otherwise each misspelt type would stay, and be away.
            del self.by_type[plugin_type], self._away_since[handler]
            self.handlers.remove(plugin_type)
            await self.reconciler.send(HandlerRemoved(plugin_type))
        elif plugin_type in self.handlers:
            await self.reconciler.send(self.handlers.set_away(plugin_type, why))
        if handler.why_away == why:
            del self._changes[handler]

    def _is_stray(self, handler: RemoteHandler) -> bool:
        """Whether nobody serves a type that the configuration does not name, and that has no plugin."""
        named = self.uids.keys() | self.grace.keys()
        return handler.session is None and handler.plugin_type not in named and not handler.registered

    async def _withdraw(self, handler: RemoteHandler) -> None:
        """Deregister the plugins of a handler that was away for too long."""
        plugin_type = handler.plugin_type
        self.log.event(Level.WARNING, "plugins of an absent handler are deregistered", type=plugin_type)
        self.handlers.remove(plugin_type)
        await self.reconciler.send(HandlerRemoved(plugin_type))
        await self.reconciler.send(self._offer(handler))

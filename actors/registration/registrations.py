"""The tasks of the registration actors, and the order of successive actors of one path.

There may be thousands of registration actors, so they are not children with a specification
(``plugind.actors.node.supervision``): :class:`Registrations` owns them, outside of the node's nursery. They outlive a
reconciler that crashes, because they still have to deregister what they registered.

An actor is *current* while the present reconciler has its address; each path has at most one. When the reconciler
crashes, the supervisor calls :meth:`Registrations.let_go` and waits for the actors to end. Those whose handler hangs
become *detached*: they continue, and their end is not reported. A new actor of such a path begins only when the
detached one has ended, so that a plugin is deregistered before another takes its path (behaviour 20).

The reconciler starts the successor of an actor that crashed, and the successor deregisters what is pending. If the
reconciler has crashed too, :class:`Registrations` starts a successor that only deregisters (fault 85).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Set

import attrs
import trio

from ...protocol.backoff import Backoff
from ...protocol.health.progress import Reading
from ...protocol.messages.addresses import Address
from ...protocol.messages.config import SettingsChanged
from ...protocol.messages.discovery import SocketAppeared, SocketVanished
from ...protocol.messages.reconciler import (
    ReconcilerMessage,
    RegistrationEnded,
    RetryAnswer,
    RetryAnswered,
    StopAsked,
    StopForced,
)
from ...protocol.messages.registration import RegistrationMessage, TryNow
from ...protocol.registration.crashes import MOST_CRASHES, Crash, in_one_line
from ...protocol.values import value
from ...protocol.world.effects import RegistrationCrashedError, StartRegistration
from ..messaging.mailbox import report, send_answer
from .inbox import RegistrationInbox, Rule

Run = Callable[[StartRegistration, RegistrationInbox], Awaitable[None]]


_WAITS = "the plugin before it is being deregistered, and it is tried right after that"
_ENDED = "it has left: plugind stops, or its socket was removed"
_CRASHED = "its actor has crashed, and is started again"
#: Messages that are sent to actors before other tasks have their turn.
BATCH = 64
#: What the actors are told when their reconciler has crashed.
_DEREGISTER = StopAsked(deregister=True, anew=True)


def _answering(path: str, *, tried: bool, why: str) -> Rule:
    """Return a rule that answers retries of ``path`` while no actor reads the inbox."""

    def rule(message: RegistrationMessage) -> bool:
        if isinstance(message, TryNow) and message.reply is not None:
            send_answer(message.reply, RetryAnswered((RetryAnswer(path, tried, why),)))
        return False

    return rule


_ENDS_A_PAUSE = (SocketAppeared, SocketVanished, TryNow, StopAsked, StopForced)


async def _pause_after(crash: Crash, inbox: RegistrationInbox) -> None:
    """Pause before an actor whose predecessors crashed even while they were parked (fault 85)."""
    if crash.settles or inbox.waiting:
        return
    with trio.move_on_after(Backoff().delay(crash.count - MOST_CRASHES)) as scope:

        def rule(message: RegistrationMessage) -> bool:
            if isinstance(message, _ENDS_A_PAUSE):
                scope.cancel()
            return False

        inbox.rule = rule
        await trio.sleep_forever()
    inbox.rule = None


@value
class _ActorEnd:
    """How an actor ended."""

    #: The error of a crash, in one line; None if the actor did not crash.
    error: str | None = None
    #: Starts a successor that deregisters what the crash left behind; None if nothing is left.
    to_settle: StartRegistration | None = None

    @property
    def may_settle(self) -> bool:
        """Whether to start such a successor. After too many crashes in a row none is started."""
        return self.to_settle is not None and self.to_settle.crash is not None and self.to_settle.crash.settles


class Registrations:
    """All registration actors of one supervisor."""

    def __init__(
        self,
        run: Run,
        reconciler: trio.MemorySendChannel[ReconcilerMessage],
        crashed: Callable[[str, Exception], object],
    ) -> None:
        """Report the end of each current actor to ``reconciler``, and the crash of any actor to ``crashed``."""
        self._run = run
        self._reconciler = reconciler
        self._crashed = crashed
        self._nursery: trio.Nursery
        self._started = trio.Event()
        #: The daemon was cancelled, so nothing can be started any more, even if a crashing reconciler requests it.
        self._has_ended = False
        #: The inbox of the current actor of each path. The actor may still wait for the detached actor of that path.
        self._current: dict[str, RegistrationInbox] = {}
        #: An event for each detached actor, set at its end. An actor that waits for one is never detached itself.
        self._detached: dict[str, trio.Event] = {}
        #: What crashed actors left to deregister, by path, until the reconciler has handled their ends.
        self._unsettled: dict[str, StartRegistration] = {}
        #: Whether the reconciler has crashed, and the current actors are about to end.
        self._letting_go = False
        self._when_none_is_detached: list[Callable[[], None]] = []
        #: How many actors were started, and how many of those have begun to run.
        self._asked = 0
        self._begun = 0

    async def serve(self) -> None:
        """Run the actors that are started, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            self._started.set()
            try:
                await trio.sleep_forever()
            finally:
                self._has_ended = True

    async def wait_started(self) -> None:
        """Return once actors can be started."""
        await self._started.wait()

    def current(self, path: str) -> RegistrationInbox | None:
        """Return the inbox of the current actor of ``path``, if there is one."""
        return self._current.get(path)

    @property
    def any_current(self) -> bool:
        """Whether there is a current actor."""
        return bool(self._current)

    @property
    def detached(self) -> Set[str]:
        """The paths that have a detached actor."""
        return self._detached.keys()

    @property
    def paths(self) -> Set[str]:
        """The paths that have an actor, current or detached."""
        return self._current.keys() | self._detached.keys()

    def read(self) -> Reading:
        """Return how many actors were started and have not begun to run, and how many have."""
        return Reading(self._asked - self._begun, self._begun)

    def start(self, start: StartRegistration) -> Address[RegistrationMessage]:
        """Start an actor and return its address; it begins once no detached actor has its path."""
        path = start.appeared.path
        inbox = self._current[path] = RegistrationInbox()
        self._unsettled.pop(path, None)
        if path in self._detached:
            # Set now, since a retry may come before the task runs.
            inbox.rule = _answering(path, tried=True, why=_WAITS)
        if not self._has_ended:
            self._asked += 1
            self._nursery.start_soon(self._run_one, start, inbox, name="registration")
        return inbox

    async def reconfigure(self, changed: SettingsChanged) -> None:
        """Send ``changed`` to the current actors. Detached actors only deregister, which needs no settings."""
        for number, inbox in enumerate(tuple(self._current.values()), 1):
            inbox.send_nowait(changed)
            if number % BATCH == 0:
                await trio.lowlevel.checkpoint()

    def end_to_wait_for(self, path: str) -> trio.Event | None:
        """Return the event that the detached actor of ``path`` sets at its end; None if there is no detached actor."""
        return self._detached.get(path)

    def let_go(self) -> None:
        """Ask the current actors to deregister what they registered and to end.

        Actors that wait for a detached actor have registered nothing: they are dropped and never begin. Successors
        deregister for crashed actors whose ends no reconciler has handled.
        """
        self._letting_go = True
        for path, inbox in tuple(self._current.items()):
            if path in self._detached:
                del self._current[path]
            else:
                inbox.send_nowait(_DEREGISTER)
        unsettled, self._unsettled = self._unsettled, {}
        for start in unsettled.values():
            self.start(start).send_nowait(_DEREGISTER)

    def end_handled(self, path: str) -> None:
        """Note that the reconciler has handled the end of the actor of ``path``, and now owns what is pending."""
        self._unsettled.pop(path, None)

    def detach(self) -> None:
        """Make all current actors detached, after :meth:`let_go`."""
        self._detached.update((path, trio.Event()) for path in self._current)
        self._current, self._letting_go = {}, False

    def when_none_is_detached(self, actions: Iterable[Callable[[], None]]) -> None:
        """Call each of ``actions`` once no actor is detached: now, or when the last one ends."""
        self._when_none_is_detached += actions
        self._settle()

    def _settle(self) -> None:
        if not self._detached:
            actions, self._when_none_is_detached = self._when_none_is_detached, []
            for action in actions:
                action()

    async def _run_one(self, start: StartRegistration, inbox: RegistrationInbox) -> None:
        """Run an actor to its end, and the deregistering successors of a crash that no reconciler handles."""
        self._begun += 1
        path = start.appeared.path
        if (start.crash is not None or path in self._detached) and not await self._may_begin(start, inbox):
            return
        while True:
            error: Exception | None = None
            try:
                # A coroutine of its own would keep a frame for each registered plugin.
                await self._run(start, inbox)
            except Exception as crash:  # noqa: BLE001 - reported, counted, and repaired by the successor
                error = crash
            end = self._end_of(start, inbox, error)
            if end.to_settle is None or not (self._is_let_go(path, inbox) and end.may_settle):
                break
            start, inbox = end.to_settle, self._next_inbox(path, inbox)
        if self._current.get(path) is inbox:
            del self._current[path]
            if end.to_settle is not None:
                self._unsettled[path] = end.to_settle
            owed = end.to_settle is not None
            await report(self._reconciler, RegistrationEnded(path, end.error is not None, end.error or "", owed))
        else:
            self._detached.pop(path).set()
            self._settle()

    async def _may_begin(self, start: StartRegistration, inbox: RegistrationInbox) -> bool:
        """Wait until the actor may begin; return False if it was dropped before that."""
        path = start.appeared.path
        if (detached := self.end_to_wait_for(path)) is not None:
            await detached.wait()
            inbox.rule = None
            if self._current.get(path) is not inbox:
                return False
        if start.crash is not None:
            await _pause_after(start.crash, inbox)
        return True

    def _end_of(self, start: StartRegistration, inbox: RegistrationInbox, error: Exception | None) -> _ActorEnd:
        """Return how an actor ended. Answer the retries that it left unread, and report a crash."""
        path, pending = start.appeared.path, None
        cause: BaseException | None = error
        if isinstance(error, RegistrationCrashedError):
            cause, pending = error.__cause__, error.pending
        answer = _answering(path, tried=cause is not None, why=_ENDED if cause is None else _CRASHED)
        inbox.rule = answer
        while inbox.waiting:
            answer(inbox.receive_nowait())
        if not isinstance(cause, Exception):
            return _ActorEnd()
        self._crashed(f"registration {path}", cause)
        said, crashes = in_one_line(cause), 0 if start.crash is None else start.crash.count
        if pending is None:
            return _ActorEnd(said)
        return _ActorEnd(said, attrs.evolve(start, to_deregister=pending, crash=Crash(crashes + 1, said)))

    def _is_let_go(self, path: str, inbox: RegistrationInbox) -> bool:
        """Whether no reconciler will start a successor for this actor."""
        return self._letting_go or self._current.get(path) is not inbox

    def _next_inbox(self, path: str, inbox: RegistrationInbox) -> RegistrationInbox:
        """Return the inbox of a successor that only deregisters."""
        successor = RegistrationInbox()
        successor.send_nowait(_DEREGISTER)
        if self._current.get(path) is inbox:
            self._current[path] = successor
        return successor

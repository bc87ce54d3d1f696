"""The tasks of the registration actors: the actor of each path, and the time at which its successor may begin.

There may be thousands of registration actors, one for each socket, and the reconciler requests each of them and the
successor of one that crashed. So they are not children with a specification (``plugind.actors.supervision``):
:class:`Registrations` owns them all, outside of the node's nursery. They outlive a reconciler that crashes, because
they still have to deregister what they registered.

An actor is *current* while the present reconciler has its address; there is at most one for each path. When the
reconciler crashes, the supervisor calls :meth:`Registrations.let_go` and waits for the actors to end. Those that did
not end in time, because a handler hangs, become *detached*: they continue, and their end is not reported. A new actor
of such a path does not begin before the detached one has ended, so that a plugin is unregistered before another takes
its path (behaviour 20).

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Set

import trio

from ..protocol import messages as m
from ..protocol.backoff import Backoff
from ..protocol.crashes import MOST_CRASHES, Crash, in_one_line
from ..protocol.effects import StartRegistration
from ..protocol.health import Reading
from .mailbox import RegistrationInbox, Rule, report, send_answer

#: Runs one registration actor until it has ended.
Run = Callable[[StartRegistration, RegistrationInbox], Awaitable[None]]


#: The answers to a retry of a path whose actor does not run.
_WAITS = "the plugin before it is being deregistered, and it is tried right after that"
_ENDED = "it has left: plugind stops, or its socket was removed"
_CRASHED = "its actor has crashed, and is started again"


def _answering(path: str, *, tried: bool, why: str) -> Rule:
    """Return a rule that answers each retry of ``path`` at once, while no actor reads its inbox."""

    def rule(message: m.RegistrationMessage) -> bool:
        if isinstance(message, m.TryNow) and message.reply is not None:
            send_answer(message.reply, m.RetryAnswered((m.RetryAnswer(path, tried, why),)))
        return False

    return rule


def _ends_a_pause(message: m.RegistrationMessage) -> bool:
    return isinstance(message, m.SocketAppeared | m.SocketVanished | m.TryNow | m.StopAsked | m.StopForced)


async def _pause_after(crash: Crash, inbox: RegistrationInbox) -> None:
    """Wait before an actor begins whose predecessors crashed even while they were parked (fault 85)."""
    if crash.settles or inbox.waiting:
        return
    with trio.move_on_after(Backoff().delay(crash.count - MOST_CRASHES)) as scope:
        inbox.interrupt_on(_ends_a_pause, scope)
        await trio.sleep_forever()
    inbox.interrupt_off()


class Registrations:
    """All registration actors of one supervisor."""

    def __init__(
        self,
        run: Run,
        reconciler: trio.MemorySendChannel[m.ReconcilerMessage],
        crashed: Callable[[str, Exception], object],
    ) -> None:
        """Report the end of each current actor to ``reconciler``, and the crash of any actor to ``crashed``."""
        self._run = run
        self._reconciler = reconciler
        self._crashed = crashed
        self._nursery: trio.Nursery
        self._started = trio.Event()
        #: The inbox of the current actor of each path; it may still wait for the detached actor of that path.
        self._current: dict[str, RegistrationInbox] = {}
        #: The end of the detached actor of each path. An actor that waits for it is never detached itself.
        self._detached: dict[str, trio.Event] = {}
        self._when_none_is_detached: list[Callable[[], None]] = []
        #: How many actors were started, and how many of them have begun to run.
        self._asked = 0
        self._begun = 0

    async def serve(self) -> None:
        """Run the actors that are started, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            self._started.set()
            await trio.sleep_forever()

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

    def start(self, start: StartRegistration) -> m.Address[m.RegistrationMessage]:
        """Start an actor and return its address; it begins once no detached actor has its path."""
        inbox = self._current[start.appeared.path] = RegistrationInbox()
        self._asked += 1
        self._nursery.start_soon(self._run_one, start, inbox)
        return inbox

    def end_to_wait_for(self, path: str) -> trio.Event | None:
        """Return the end of the detached actor of ``path``, before which no other may begin; None if there is none."""
        return self._detached.get(path)

    def let_go(self) -> None:
        """Ask the current actors to deregister what they registered and to end.

        Those that wait for a detached actor have nothing to deregister: they are forgotten at once and never begin.
        """
        for path, inbox in tuple(self._current.items()):
            if path in self._detached:
                del self._current[path]
            else:
                inbox.send_nowait(m.StopAsked(deregister=True, anew=True))

    def detach(self) -> None:
        """Make all current actors detached, after :meth:`let_go`."""
        self._detached.update((path, trio.Event()) for path in self._current)
        self._current = {}

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
        self._begun += 1
        path = start.appeared.path
        if (end := self.end_to_wait_for(path)) is not None:
            inbox.interrupt_on(_answering(path, tried=True, why=_WAITS), trio.CancelScope())
            await end.wait()
            inbox.interrupt_off()
            if self._current.get(path) is not inbox:
                return
        if start.crash is not None:
            await _pause_after(start.crash, inbox)
        crashed, said = False, ""
        try:
            await self._run(start, inbox)
        except Exception as error:  # noqa: BLE001 - reported, counted, and repaired by the successor
            crashed, said = True, in_one_line(error)
            self._crashed(f"registration {path}", error)
        answer = _answering(path, tried=crashed, why=_CRASHED if crashed else _ENDED)
        inbox.interrupt_on(answer, trio.CancelScope())
        while inbox.waiting:
            answer(inbox.receive_nowait())
        if self._current.get(path) is inbox:
            del self._current[path]
            await report(self._reconciler, m.RegistrationEnded(path, crashed, said))
        else:
            self._detached.pop(path).set()
            self._settle()

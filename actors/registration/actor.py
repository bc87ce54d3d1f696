"""The registration actor: one per socket path.

The actor is one coroutine, and its place in the code is its state. It tries to register the socket at its path
(:meth:`.Tries._register_socket`), pauses or rests, and tries again. What it does next is a value of
``plugind.protocol.registration.following``.

The *phase*, what is *owed* to the handler, the *newest* socket and what was *shown* last are data, because code outside
of the coroutine's frames needs them.

A message that ends the present phase (``plugind.protocol.registration.phases``) cancels the scope of the try, in the
sender's task. Then the actor undoes what the try began: it closes the connection, calls Deregister exactly once for
each Register that has begun, and releases the name. A stop leaves a registered plugin registered, unless it asks for a
deregistration. After a crash the actor's successor deregisters the plugin, maybe a second time (fault 85).

"What happens when a registered plugin's socket is replaced" in ``docs/design.md`` is an example.
"""

from __future__ import annotations

import math
from collections.abc import Coroutine
from typing import Any, NoReturn

import attrs
import trio

from ...protocol.backoff import chance_of
from ...protocol.messages.discovery import SocketAppeared
from ...protocol.messages.liveness import UnwatchLiveness
from ...protocol.messages.registration import ListenerFound, TryNow
from ...protocol.messages.status import Deregistered
from ...protocol.registration import following
from ...protocol.registration.crashes import Crash
from ...protocol.registration.failures import kept
from ...protocol.registration.following import AskAgain, End, Next, NotifyAgain, Observe, Pause, Rest, Try
from ...protocol.registration.phases import Phase, phase_of
from ...protocol.world.effects import PendingDeregistration, RegistrationCrashedError
from ..messaging.mailbox import report
from .called import CalledConversation
from .config import RegistrationConfig
from .inbox import RegistrationInbox
from .tries import Tries

_TRIES = (Try, NotifyAgain, AskAgain)
#: An observed plugin is asked again up to this part of the period earlier or later.
_JITTER = 0.2


def run(
    config: RegistrationConfig,
    inbox: RegistrationInbox,
    appeared: SocketAppeared,
    owed: PendingDeregistration | None = None,
    crash: Crash | None = None,
) -> Coroutine[Any, Any, None]:
    """Register the socket that ``appeared``, and run until it is gone and its plugin is deregistered, or plugind stops.

    This returns the coroutine itself, because one more suspended coroutine would take 250 bytes for each plugin.

    ``crash`` is the crash of the actor's predecessor, and ``owed`` the plugin that the predecessor may have registered.
    The actor first deregisters that plugin and then waits (fault 85).

    Raises:
      RegistrationCrashedError: if the actor crashed and the handler may have registered its plugin.
    """
    return _Registration(config, inbox, appeared, owed, crash).run()


class _Registration(Tries):
    """The main loop of a registration."""

    __slots__ = ()

    async def run(self) -> None:
        """Try, pause and rest, until the end. Most actors rest, so they rest in this frame and without a scope."""
        then = self._then
        self._inbox.rule, self._inbox.look = self._serve, self._look
        try:
            if self._owed is not None:
                then = await self._leave(then)
            self._begin(then)
            while not isinstance(then, End):
                before = then
                if isinstance(then, _TRIES):
                    then = await self._try(then)
                elif self._pending or self._inbox.waiting:
                    then = self._disturbed(then)
                elif self._until == math.inf:
                    await self._inbox.arrival()
                else:
                    with trio.move_on_at(self._until) as scope:
                        await self._inbox.arrival()
                    if scope.cancelled_caught:
                        then = self._elapsed(then)
                if then is not before:
                    if self._owed is not None and not following.stays_registered(then):
                        then = await self._leave(then)
                    self._begin(then)
                if self._unsent:
                    await self._send_rest()
        except Exception as error:  # noqa: BLE001 - it is raised
            try:
                await self._clean_up()
            except Exception as another:  # noqa: BLE001 - it is raised, and the first one is its context
                self._crash(another)
            self._crash(error)
        finally:
            self._inbox.rule = self._inbox.look = None
            self.conversation.hang_up()

    def _begin(self, then: Next) -> None:
        """Begin a pause, a rest or the end. A try begins with its first step instead."""
        if self._observed is not None and not isinstance(then, Observe | AskAgain):
            self._stop_observing()
        if isinstance(then, Try | Pause) and self._newest.generation != self._socket.generation:
            self._go_to_newest()
        match then:
            case Try() | AskAgain():
                self._until = math.inf
            case NotifyAgain():
                self._until, self._cause = math.inf, kept(self._cause)
            case Pause():
                self._attempt, self._cause = then.attempt, then.cause
                self._pause(then, phase_of(then))
            case Rest():
                self._cause = None
                self._enter(Phase.REGISTERED, then.reason)
            case Observe():
                self._cause = None
                self._until = self._when_to_ask_again()
                self._enter(Phase.OBSERVED, then.before)
            case End():
                self._end(then)

    def _end(self, end: End) -> None:
        # A plugin that stays registered while plugind stops is still shown in its last state.
        was_leaving = self._phase is Phase.LEAVE
        self._until, self._stopping = math.inf, end.stopped
        if end.stopped and not was_leaving:
            self._phase = Phase.GONE
            return
        self._attempt, self._cause = 0, None
        self._enter(Phase.GONE, "plugind stops" if end.stopped else "the socket was removed")

    def _pause(self, pause: Pause, phase: Phase) -> None:
        """Begin a pause: start its timer, and show it."""
        now = trio.current_time()
        self._until = now + self._seconds_of(pause, now) if pause.has_timer else math.inf
        self._enter(phase, pause.reason)

    def _seconds_of(self, pause: Pause, now: float) -> float:
        delay, chance = self._settings.backoff.delay, self._chance(pause.failures)
        if pause.not_before is None:
            return delay(pause.failures, chance)
        # The jitter keeps plugins that crash together from being dialed together for ever.
        return max(0.0, pause.not_before - now) + delay(pause.failures, chance) - delay(pause.failures)

    def _elapsed(self, then: Next) -> Next:
        """Return what follows when a pause is over, or when an observed plugin is due to be asked again."""
        self._hurried = False
        if isinstance(then, Observe):
            return AskAgain(then)
        assert isinstance(then, Pause), "only a pause has a timer"
        return following.after_timer(then)

    def _disturbed(self, then: Next) -> Next:
        """Read the next message; return what follows, or ``then`` itself if the message changes nothing."""
        message = self._next_message()
        if self._ends(message):
            return self._after(message) or then
        if isinstance(message, ListenerFound):
            self._watched = False  # The liveness actor has found what it looked for.
        if isinstance(then, Observe):
            return AskAgain(then) if isinstance(message, TryNow) else then
        return self._brought_forward(then, message)

    async def _leave(self, then: Next) -> Next:
        """Have the handler deregister the plugin; return what follows, in view of the messages that came meanwhile.

        A failed Deregister counts as done (fault 84). The wait for its turn has no deadline, since the name is busy
        until Deregister has run; the handler's call has one. A handler that does not let itself be cancelled keeps the
        actor here (fault 82).
        """
        owed = self._owed
        assert owed is not None, "a Register has begun"
        if self._phase is Phase.REGISTERED:
            self._ended = Deregistered(owed.generation, owed.info, self._why)
        self._cause = then.cause if isinstance(then, Pause) else None
        self._attempt, self._then, self._until = 0, then, math.inf
        self._enter(Phase.LEAVE, self._why)
        while self._pending or self._inbox.waiting:
            # The rule of the inbox serves later messages.
            self._then = self._after_leaving(self._next_message(), self._then)
        if self._unsent:
            await self._send_rest()
        ending = await owed.handler.deregister(self._plugin(owed.info, owed.generation))
        self._now = trio.current_time()
        self._finish(ending.outcome)
        self._owed, self._why = None, ""
        if self._config.notices is not None:
            self._config.notices.drop(self._newest.path)
        self._release()
        return self._then

    def _crash(self, error: Exception) -> NoReturn:
        """Raise ``error``, and tell the successor what it has to deregister, if anything."""
        if self._owed is None:
            raise error
        registered = self._phase is Phase.REGISTERED or self._ended is not None
        raise RegistrationCrashedError(attrs.evolve(self._owed, registered=registered)) from error

    async def _clean_up(self) -> None:
        """After a crash, withdraw what others would wait for, and report what was not reported."""
        if self._silent_until is not None:
            self._show()
        self._stop_observing()
        if isinstance(self.conversation, CalledConversation):
            self.conversation.leave()
        await self._send_rest()
        await report(self._config.liveness, UnwatchLiveness(self._newest.path))

    def _when_to_ask_again(self) -> float:
        again = self._config.observe_again
        if again is None:
            return math.inf
        # The jitter differs between sockets, and stays the same for one generation.
        return trio.current_time() + again * (1 + _JITTER * (2 * self._chance(0) - 1))

    def _chance(self, attempt: int) -> float:
        return chance_of(self._config.seed, self._socket.path, self._socket.generation, attempt)

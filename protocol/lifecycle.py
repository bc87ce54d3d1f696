"""The lifecycle of one socket's registration, as a pure state machine.

Rules of this file
  Everything that decides a transition is here and in three modules that this one imports. ``command_outcomes`` says
  what the outcome of a command does in the state that waits for it, ``retriggers`` what brings the next try forward,
  and ``moves`` is what several transitions share. The values that they use (states, events, commands) are in
  ``plugind.protocol.states`` and ``plugind.protocol.messages``. Nothing here waits, logs or reads a clock.

Theory of operation
  A registration actor (``plugind.actors.registration``) holds one *state*. Each thing that happens to it is an *event*:
  a message from its inbox, or the outcome of a command that it performed. :func:`step` takes the state and the event
  and returns the next state and the *commands* to perform, in order. At most the last command is a
  :data:`~plugind.protocol.states.WaitingCommand`, which has an outcome. The next event is that outcome, or a message
  from the inbox. While a call to the plugin is under way, only a message that :func:`interrupts` it comes before its
  outcome.

  A plugin without faults takes this path::

      Dialing ─Dialed→ AskingInfo ─InfoReceived→ Claiming ─Admitted→ Validating
          ─HandlerAccepted→ Registering ─HandlerAccepted→ Notifying ─Notified→ Registered

  It leaves the path in these ways:

  - This process cannot dial because it has no descriptors left: Dialing again, which waits for some (fault 46).
  - A dial or GetInfo fails: Waiting, Stale or Parked. The plugin cannot be notified.
  - The dial finds another socket at the path: Waiting for the watcher, which is asked to look there and reports that
    the socket appeared, or vanished. The try does not count. If no report comes, a timer ends the wait (fault 41).
  - The info is bad, the claim is refused, or Validate fails: Refusing, then Waiting; Parked if the type has no handler.
    If the claim is not answered in time: Waiting at once.
  - Register fails: Refusing, then Leaving (Register was attempted, so Deregister follows), then Waiting.
  - The notification of success fails: Dialing only to notify (behaviour 33), the second try at once and the others
    after Waiting by backoff. After the last try: Leaving, then Waiting. If no try can succeed: Leaving, then Parked.
  - In observe mode the path ends after GetInfo, in Observed: another consumer registers the plugin. It is asked again
    from time to time; if it does not answer any more: Waiting, Stale or Parked. A plugin with bad info is not notified
    of that: Waiting (``observing.py``).
  - The socket is removed: Gone. If Register was asked, Leaving comes first.
  - Another socket replaces it: Dialing, with a fresh backoff. If Register was asked, Leaving comes first. If the last
    lives at the path were short: Waiting comes before Dialing (fault 49).
  - The handler is removed: Dialing, after Leaving if Register was asked. The next claim then finds no handler.
  - Nobody listens on the socket of a registered plugin, and the configuration says to deregister it then: Leaving, then
    Dialing, which leads to Stale.
  - A plugin that announced itself by a call of Register is refused, or nobody listens on its socket: Parked, where the
    paths above have Waiting. Its next call is another socket's appearance, with a new generation.
  - Somebody listens on a stale socket again: Dialing, with a fresh backoff.
  - The socket is touched, or its name is free: a wait ends, once in each step of the backoff (``pace.py``).
  - The actor crashes, by a bug in plugind: its successor leaves, if Register was asked, and then waits out a backoff of
    its own. After five crashes in a row: Parked. Only a retry that is requested, or another socket, ends such a wait
    sooner (fault 85).
  - plugind stops: Gone. A registered plugin stays registered, unless the stop deregisters. A Register or a notification
    under way may finish, unless the stop deregisters or is forced (behaviour 42, fault 87).

  Two invariants hold. Each Register that was asked is followed by exactly one Deregister before the next Register
  (behaviour 36), except that each successor of an actor that crashed may ask for one more Deregister. After a stop
  request no new attempt starts (behaviour 42).

  A deregistration is *pending* from the moment Register is asked until Deregister is: in Registering, Notifying and
  Registered, in Dialing and Waiting to notify, and in Refusing after a Register that failed. It is not pending in
  Leaving, where it is in progress. :func:`~plugind.protocol.states.pending_deregistration` returns its plugin, and
  decides whether a way out of a state leads through Leaving.

Order of this file
  The entry points; what messages do that end what is under way. ``command_outcomes`` has the order of the path above.

docs/design.md has the whole table of transitions, and describes what happens when a registered plugin's socket is
replaced.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from typing import assert_never

import attrs

from .command_outcomes import CALL_AGAIN, after_outcome
from .crashes import Crash
from .errors import IllegalStepError
from .messages import (
    HandlerAvailable,
    HandlerWithdrawn,
    ListenerFound,
    ListenerLost,
    NameFreed,
    RegistrationMessage,
    RetryAnswer,
    SocketAppeared,
    SocketTouched,
    SocketVanished,
    StopAsked,
    StopForced,
    TryNow,
)
from .moves import abandon, enter, kept
from .observing import ask_again
from .pace import paced
from .plugins import PluginInfo
from .retriggers import retrigger
from .states import (
    COMMAND_OUTCOMES,
    AskDeregister,
    AskingInfo,
    Claiming,
    Dialing,
    Event,
    Gone,
    Leaving,
    Notifying,
    Observed,
    Parked,
    Refusing,
    Registered,
    Registering,
    Stale,
    State,
    Step,
    Then,
    ThenDial,
    ThenEnd,
    ThenPark,
    ThenWait,
    Validating,
    Waiting,
    cause_of,
    name_of,
    pending_deregistration,
)
from .text import quoted

# --- entry points -----------------------------------------------------------------------------------------------------


def start(message: SocketAppeared, crash: Crash | None = None) -> Step:
    """Return the first step of a new actor for the socket that appeared; its predecessor may have ended in a crash."""
    return enter(_first(message, crash), message.generation, None)


def resume(message: SocketAppeared, info: PluginInfo, generation: int, crash: Crash) -> Step:
    """Return the first step of an actor whose predecessor crashed with a deregistration pending (fault 85)."""
    # A socket that has appeared since has nothing to do with the crash.
    then = _first(message, crash if message.generation == generation else None)
    return Leaving(generation, info, "its actor crashed", then), (AskDeregister(info, generation),)


def _why_replaced(state: State, event: SocketAppeared) -> str:
    """Return why a generation ends: its socket is another one, or is now named for another resource."""
    before, call = pending_deregistration(state), event.call
    if before is None or call is None or call.info.name == before.name:
        return "a newer socket is in its place"
    return f"another call of Register (pid {call.pid}) has named its socket for {quoted(call.info.name)}"


def _first(message: SocketAppeared, crash: Crash | None) -> Then:
    if crash is None:
        return ThenDial(message.generation, 1, not_before=message.not_before, short_lives=message.short_lives)
    if crash.parks:
        return ThenPark(crash.reason, crash.count, firm=True)
    return ThenWait(crash.reason, crash.count, firm=True)


def step(state: State, event: Event) -> Step:
    """Return the state that follows ``state`` upon ``event``, and the commands to perform on the way.

    No commands and an equal state mean that the event changes nothing: the operation under way goes on.

    Raises:
      IllegalStepError: if the event cannot happen in that state.
    """
    # Most events are outcomes of commands.
    after, commands = after_outcome(state, event) if isinstance(event, COMMAND_OUTCOMES) else _step(state, event)
    return paced(state, event, after), commands


def _step(state: State, event: Event) -> Step:
    if isinstance(state, Gone):
        raise IllegalStepError(f"nothing follows {state}")
    match event:
        case SocketAppeared():
            return abandon(state, _first(event, None), _why_replaced(state, event))
        case SocketVanished():
            return abandon(state, ThenEnd(), event.reason)
        case StopAsked() | StopForced():
            return _stop(state, event)
        case HandlerWithdrawn():
            return _lose_handler(state, event.type)
        case ListenerLost():
            return _lose_listener(state, event)
        case TryNow() if isinstance(state, Observed):
            return ask_again(state)
        case SocketTouched() | NameFreed() | TryNow() | HandlerAvailable() | ListenerFound():
            return retrigger(state, event)
        case _:
            return after_outcome(state, event)


def interrupts(state: State, message: RegistrationMessage) -> bool:
    """Return whether ``message`` ends the call to the plugin that is under way in ``state``.

    Any other message waits in the inbox until the call is over.
    """
    match message:
        case SocketAppeared() | SocketVanished() | StopForced():
            return True
        case StopAsked():
            return message.deregister or not isinstance(state, Notifying)
        case HandlerWithdrawn():
            pending = pending_deregistration(state)
            return pending is not None and pending.type == message.type and not isinstance(state, Refusing)
        case _:
            return False


def answer_to_retry(socket: str, state: State) -> RetryAnswer:
    """Return what a caller is told who asks for a retry of ``socket`` in ``state``: what :func:`step` makes of it."""
    tried, why = True, f"an attempt is under way: {name_of(state)}"
    match state:
        case Waiting() | Stale() | Parked():
            why = "tried now"
        case Registered():
            tried, why = False, "registered already, nothing to retry"
        case Observed(asking=False):
            why = "tried now"
        case Gone() | Refusing(then=ThenEnd()) | Leaving(then=ThenEnd()):
            tried, why = False, "it is leaving: plugind stops, or its socket was removed"
        case Leaving():
            why = "it is being deregistered, and tried right after that"
        case Refusing():
            why = "it is being notified of a failed attempt, and tried right after that"
        case Dialing() | AskingInfo() | Claiming() | Validating() | Registering() | Notifying() | Observed():
            pass
        case _:
            assert_never(state)
    return RetryAnswer(socket, tried, why)


# --- messages ---------------------------------------------------------------------------------------------------------


def _stop(state: State, event: StopAsked | StopForced) -> Step:
    """Let a Register or a notification finish; a registered plugin stays registered (behaviour 42).

    A stop that deregisters, and one that is forced (fault 87), let nothing finish.
    """
    deregister = isinstance(event, StopAsked) and event.deregister
    if isinstance(state, Registered) and not deregister:
        return Gone(state.generation, stopped=True), ()
    if isinstance(state, Registering | Notifying) and event == StopAsked():
        return attrs.evolve(state, stopping=True), ()
    anew = isinstance(event, StopAsked) and event.anew
    return abandon(state, ThenEnd(stopped=True), "plugind starts anew" if anew else "plugind stops")


def _lose_handler(state: State, plugin_type: str) -> Step:
    """Deregister a plugin that the removed handler has, and start over with one that was on its way to it.

    The plugin is dialed again at once. Its claim then finds no handler, and it is parked.
    """
    info = state.info if isinstance(state, Claiming | Validating) else pending_deregistration(state)
    if info is None or info.type != plugin_type or isinstance(state, Refusing):
        return state, ()
    then = ThenDial(state.generation, 1, kept(cause_of(state)))
    return abandon(state, then, f"the handler for {plugin_type} was removed")


def _lose_listener(state: State, event: ListenerLost) -> Step:
    """Deregister a plugin on whose socket nobody listens, and dial it: it is stale then, until somebody listens."""
    if not isinstance(state, Registered | Observed) or event.generation != state.generation:
        return state, ()
    if state.info.called:  # Without a call there is nothing that a dial could find out.
        return abandon(state, ThenPark(f"{event.reason}: {CALL_AGAIN}", state.attempt), event.reason)
    return abandon(state, ThenDial(state.generation, attempt=1), event.reason)

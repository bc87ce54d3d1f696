"""The states of one lease: which follows an event, and what is to be done. All decisions about a transition are here.

Users see fewer states (:attr:`LeasePhase.shown`): a lease is ``pending`` from the choice of its devices until its owner
has them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from ..errors import IllegalStepError
from .values import LeaseState


class LeasePhase(enum.Enum):
    """The states of a lease."""

    __hash__ = object.__hash__  # Members are compared by identity, and the hash of ``Enum`` is a function of Python.

    #: It waits in line for devices.
    QUEUED = "queued"
    #: Devices are reserved for it, and plugins are asked which ones they prefer.
    CHOOSING = "choosing"
    #: Its devices are fixed, and are being written down before any plugin is asked to prepare them.
    COMMITTING = "committing"
    #: The plugins of its devices prepare them, one after the other.
    PREPARING = "preparing"
    #: The file is being written from which a container engine reads what the plugins have answered.
    FILING = "filing"
    #: It is being written down that the owner has the devices, before the owner is told.
    CONFIRMING = "confirming"
    #: Nobody wants it any more, but a plugin is still preparing its devices.
    ABANDONED = "abandoned"
    #: Its owner has the devices.
    HELD = "held"
    #: Whether a plugin has prepared its devices is not known: nobody gets them.
    UNCERTAIN = "uncertain"
    #: It has ended.
    GONE = "gone"

    @property
    def shown(self) -> LeaseState:
        """The state that users see."""
        return _SHOWN.get(self, LeaseState.PENDING)


_SHOWN = {
    LeasePhase.QUEUED: LeaseState.QUEUED,
    LeasePhase.CHOOSING: LeaseState.CHOOSING,
    LeasePhase.HELD: LeaseState.HELD,
    LeasePhase.UNCERTAIN: LeaseState.UNCERTAIN,
    LeasePhase.GONE: LeaseState.GONE,
}


class Event(enum.Enum):
    """What can happen to a lease."""

    __hash__ = object.__hash__

    #: It is its turn, and there are devices for it.
    GRANTED = "its turn has come"
    #: Its devices are fixed.
    CHOSEN = "devices are chosen"
    #: Devices that were reserved for it are not there any more.
    SHORT = "devices have gone"
    #: What was to be written down is written.
    SAVED = "written"
    #: It could not be written.
    NOT_SAVED = "not written"
    #: All plugins have prepared their devices.
    PREPARED = "prepared"
    #: A plugin has refused, or its answer is of no use.
    REFUSED = "refused"
    #: A call has timed out or was lost, while its plugin may still prepare devices.
    LOST = "lost"
    #: The file for container engines is there, or is not needed.
    FILED = "file written"
    #: It could not be written.
    NOT_FILED = "file not written"
    #: It has waited for too long.
    TIMED_OUT = "waited too long"
    #: Nobody waits for the answer any more; the lease has no name that somebody could ask for again.
    LEFT = "unnamed asker left"
    #: Nobody waits for the answer any more; but the caller gave the lease a name, by which it may ask again.
    NAMED_LEFT = "named asker left"
    #: Its caller or root ends it.
    RELEASED = "released"
    #: Its owner has ended, or its time is over.
    OWNER_ENDED = "owner ended"
    #: The plugin's process has ended, or has had time enough to come to an end with the call.
    SETTLED = "settled"


class Action(enum.Enum):
    """What is to be done."""

    #: Reserve devices, and ask the plugins that have a preference.
    CHOOSE = "choose"
    #: Put it back into the line, in its old place; without a wait it fails.
    REQUEUE = "back into line"
    #: Write it down with its devices.
    COMMIT = "write pending"
    #: Ask the plugins to prepare the devices.
    PREPARE = "Allocate"
    #: Write the file for container engines, if one is to use it.
    FILE = "write file"
    #: Write down that it is held.
    CONFIRM = "write held"
    #: Answer the askers with the lease.
    TELL = "reply lease"
    #: Answer the askers with the reason why there is none.
    FAIL = "reply failure"
    #: Have the plugins not asked that were not asked yet.
    WITHDRAW = "withdraw calls"
    #: Keep its devices from all for some time.
    WITHHOLD = "withhold"
    #: Free its devices, and remove all that was written.
    END = "free"


Outcome = tuple[LeasePhase, tuple[Action, ...]]

_ENDED: Outcome = LeasePhase.GONE, (Action.END,)
_FAILED: Outcome = LeasePhase.GONE, (Action.FAIL, Action.END)
_STOPS = (Event.LEFT, Event.RELEASED, Event.OWNER_ENDED)

#: Each transition; in a phase without the event, it is listed in _UNCHANGED or cannot happen.
STEPS: Mapping[LeasePhase, Mapping[Event, Outcome]] = {
    LeasePhase.QUEUED: {
        Event.GRANTED: (LeasePhase.CHOOSING, (Action.CHOOSE,)),
        Event.TIMED_OUT: _FAILED,
        Event.NAMED_LEFT: _FAILED,
        **dict.fromkeys(_STOPS, _FAILED),
    },
    LeasePhase.CHOOSING: {
        Event.CHOSEN: (LeasePhase.COMMITTING, (Action.COMMIT,)),
        Event.SHORT: (LeasePhase.QUEUED, (Action.REQUEUE,)),
        **dict.fromkeys((Event.NAMED_LEFT, *_STOPS), (LeasePhase.GONE, (Action.FAIL, Action.WITHDRAW, Action.END))),
    },
    LeasePhase.COMMITTING: {
        Event.SAVED: (LeasePhase.PREPARING, (Action.PREPARE,)),
        Event.NOT_SAVED: _FAILED,
        **dict.fromkeys(_STOPS, _FAILED),
    },
    LeasePhase.PREPARING: {
        Event.PREPARED: (LeasePhase.FILING, (Action.FILE,)),
        Event.REFUSED: _FAILED,
        Event.LOST: (LeasePhase.UNCERTAIN, (Action.FAIL, Action.WITHHOLD)),
        # A plugin that is preparing devices cannot be stopped: they are free when it has answered.
        **dict.fromkeys(_STOPS, (LeasePhase.ABANDONED, (Action.FAIL, Action.WITHDRAW))),
    },
    LeasePhase.FILING: {
        Event.FILED: (LeasePhase.CONFIRMING, (Action.CONFIRM,)),
        Event.NOT_FILED: _FAILED,
        **dict.fromkeys(_STOPS, _FAILED),
    },
    LeasePhase.CONFIRMING: {
        Event.SAVED: (LeasePhase.HELD, (Action.TELL,)),
        Event.NOT_SAVED: _FAILED,
        **dict.fromkeys(_STOPS, _FAILED),
    },
    LeasePhase.ABANDONED: {
        Event.PREPARED: _ENDED,
        Event.REFUSED: _ENDED,
        Event.LOST: (LeasePhase.UNCERTAIN, (Action.WITHHOLD,)),
    },
    LeasePhase.HELD: dict.fromkeys(_STOPS, _ENDED),
    LeasePhase.UNCERTAIN: {Event.SETTLED: _ENDED},
    LeasePhase.GONE: {},
}
#: Events that change nothing.
_UNCHANGED: Mapping[LeasePhase, frozenset[Event]] = {
    LeasePhase.COMMITTING: frozenset({Event.NAMED_LEFT}),
    LeasePhase.PREPARING: frozenset({Event.NAMED_LEFT}),
    LeasePhase.FILING: frozenset({Event.NAMED_LEFT}),
    LeasePhase.CONFIRMING: frozenset({Event.NAMED_LEFT}),
    LeasePhase.ABANDONED: frozenset({Event.NAMED_LEFT, *_STOPS}),
    LeasePhase.HELD: frozenset({Event.NAMED_LEFT}),
    LeasePhase.UNCERTAIN: frozenset({Event.NAMED_LEFT, *_STOPS}),
}


def step(phase: LeasePhase, event: Event) -> Outcome:
    """Return the phase that follows, and what is to be done, in order.

    Raises:
        IllegalStepError: The event cannot happen in this phase: a bug in plugind.
    """
    outcome = STEPS[phase].get(event)
    if outcome is not None:
        return outcome
    if event in _UNCHANGED.get(phase, ()):
        return phase, ()
    raise IllegalStepError(f"{event.name} in {phase.name}")

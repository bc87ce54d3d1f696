"""The asks to a handler in another process, and which of them it is sent when.

A handler gets the asks of one name in order, one at a time, and at most :data:`MOST_OPEN` at once. An ask that is
answered, or withdrawn because its caller no longer waits, makes room for the next one.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable

from ..plugins.info import Plugin
from ..values import record, value

#: How many asks a handler can have at once that it has not answered.
MOST_OPEN = 64
#: In how many lists, each of one body, a handler can say what it holds.
MOST_LISTS = 256
#: After so many missed deadlines in a row the handler hangs.
MISSED = 3
#: Seconds between two asks to a handler that hangs.
PING_EVERY = 30.0


class AskKind(enum.StrEnum):
    """What a handler is asked to do."""

    VALIDATE = "validate"
    REGISTER = "register"
    DEREGISTER = "deregister"
    FOLLOW = "follow"
    UNFOLLOW = "unfollow"
    #: Only to answer.
    PING = "ping"


@value
class Instance:
    """One instance of a plugin, as a handler names it. It can be of an earlier run of plugind."""

    #: The epoch of the run and the generation, as ``EPOCH-GENERATION``.
    id: str
    name: str
    socket: str
    #: None if it is of an earlier run, or has left.
    plugin: Plugin | None = None


@value
class AskResult:
    """How an ask ended: the handler's answer, or that there is no handler any more."""

    error: str | None = None
    #: The error in few words, if the handler gave them.
    cause: str | None = None
    #: Whether the handler is gone, or hangs; ``error`` says so.
    away: bool = False


@record(eq=False)
class Ask:
    """One ask."""

    number: int
    kind: AskKind
    #: None for a ping.
    instance: Instance | None
    #: ``trio.current_time()`` at which the caller stops waiting.
    deadline: float
    #: Called with the verdict, once; not called if the ask is withdrawn.
    answer: Callable[[AskResult], None]

    @property
    def name(self) -> str:
        """The name of the plugin; empty for a ping."""
        return "" if self.instance is None else self.instance.name


@value
class Withdrawn:
    """Nobody waits for the answer to this ask any more."""

    number: int


@value
class RoleTold:
    """Whether a followed instance is the active one of its name."""

    instance: str
    active: bool


@value
class Synced:
    """The handler was asked to deregister all that it holds and should not hold; from now on it gets plugins."""


#: What a handler is sent.
Event = Ask | Withdrawn | RoleTold | Synced


class HandlerRefusedError(Exception):
    """A process cannot serve a type, or say something now; the text says why."""


class Asks:
    """The asks to one handler that are not answered."""

    def __init__(self) -> None:
        self._numbers = 0
        #: The asks of each name, oldest first. Only the first can be open.
        self._names: dict[str, deque[Ask]] = {}
        #: The first asks of their names that were not sent, in the order in which they became the first.
        self._ready: dict[int, Ask] = {}
        self._open: dict[int, Ask] = {}

    def __len__(self) -> int:
        return sum(map(len, self._names.values()))

    @property
    def can_send(self) -> bool:
        """Whether an ask can be sent now."""
        return bool(self._ready) and len(self._open) < MOST_OPEN

    def put(
        self, kind: AskKind, instance: Instance | None, deadline: float, answer: Callable[[AskResult], None]
    ) -> Ask:
        """Add an ask."""
        self._numbers += 1
        ask = Ask(self._numbers, kind, instance, deadline, answer)
        line = self._names.setdefault(ask.name, deque())
        line.append(ask)
        if len(line) == 1:
            self._ready[ask.number] = ask
        return ask

    def to_send(self) -> list[Ask]:
        """Return the asks that are sent now, and are open from now on."""
        sent = []
        while self.can_send:
            ask = self._ready.pop(next(iter(self._ready)))
            self._open[ask.number] = ask
            sent.append(ask)
        return sent

    def take(self, number: int) -> Ask | None:
        """Remove and return the open ask with this number, because it is answered; None if there is none."""
        ask = self._open.pop(number, None)
        if ask is not None:
            self._leave(ask)
        return ask

    def withdraw(self, ask: Ask) -> bool:
        """Remove an ask, because nobody waits for its answer; return whether it was sent."""
        if self._open.pop(ask.number, None) is not None:
            self._leave(ask)
            return True
        if ask in self._names.get(ask.name, ()):
            self._ready.pop(ask.number, None)
            self._leave(ask)
        return False

    def clear(self) -> list[Ask]:
        """Remove and return all asks, oldest first."""
        left = sorted((ask for line in self._names.values() for ask in line), key=lambda ask: ask.number)
        self._names, self._ready, self._open = {}, {}, {}
        return left

    def _leave(self, ask: Ask) -> None:
        """Let the next ask of a name be sent."""
        line = self._names[ask.name]
        was_first = line[0] is ask
        line.remove(ask)
        if not line:
            del self._names[ask.name]
        elif was_first:
            self._ready[line[0].number] = line[0]

"""Learning of conversations: the machine repeats them frame by frame.

The memory is bounded by a maximum number of steps in all. When it is reached, nothing is learnt for a while, and then
everything is dropped. So peers that send something new each time cost neither more time nor more memory.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Final

import attrs

from .conversation import (
    COMPARED,
    HEAD_BYTES,
    MAX_MESSAGE,
    PING_HEAD,
    PING_PAYLOAD,
    CallResponse,
    KnownConversation,
    Request,
    Said,
    State,
    begin,
    bytes_heard,
    open_key,
)
from .frames import DATA, HEADERS
from .grpc import ClientCall
from .http2 import ClientConnection
from .limits import REGISTRATION_LIMITS, WireLimits
from .outcomes import SUCCESS

#: The most calls, bytes of the peer, frames that cost a budget, and work (as ``ClientConnection.receive`` counts it) of
#: a conversation that is stored.
MAX_CALLS: Final = 2
MAX_BYTES: Final = 4096
MAX_COUNTED: Final = 8
MAX_WORK: Final = 128
#: How many steps are stored: about forty conversations without common parts.
MAX_STEPS: Final = 512
#: How many unknown conversations pass before a full table is emptied.
MOST_MISSED: Final = 1024


class KnownConversations:
    """The conversations seen so far, all with the same limits. The connections of a node share them."""

    __slots__ = ("_max_message", "_missed", "_start", "_steps", "authority", "limits")

    def __init__(self, limits: WireLimits = REGISTRATION_LIMITS, authority: str = "localhost") -> None:
        self.limits = limits
        self.authority = authority
        #: The state of a new connection.
        self._start = State(ended=False)
        #: The largest message in a recognized conversation; negative if there can be none.
        self._max_message = _max_message(limits)
        self._steps = 0
        #: How many conversations were not stored since the table is full.
        self._missed = 0

    def __len__(self) -> int:
        return self._steps

    def begin(self) -> KnownConversation:
        """Return a new conversation."""
        return KnownConversation(self._start, self._max_message)

    def know_next(self, conversation: KnownConversation, request: Request) -> None:
        """Learn that a conversation can continue with ``request``, unless it is too long or there are too many steps.

        A request does not depend on what the peer sends after it. So the first of many concurrent conversations makes
        its call known to the others before it has ended.
        """
        if self._steps < MAX_STEPS and request not in conversation.state.steps:
            steps = _Lesson(self.limits, self.authority, self._max_message).steps_to((*conversation.log, request))
            if steps:
                conversation.state.steps[request] = State(ended=False), steps[-1].always_added
                self._steps += 1

    def learn(self, log: Sequence[Said]) -> None:
        """Store a conversation, given in order, whose calls have succeeded.

        The bytes of the peer can be split anywhere. A long conversation, or one with unusual frames, is not stored.
        """
        if self._steps >= MAX_STEPS:
            self._missed += 1
            if self._missed < MOST_MISSED:
                return
            self._start, self._steps, self._missed = State(ended=False), 0, 0
        path, state = list[tuple[_Step, State]](), self._start
        for step in _Lesson(self.limits, self.authority, self._max_message).steps_of(log):
            if step.key not in state.steps:
                state.steps[step.key] = State(ended=step.ended), step.always_added
                self._steps += 1
            state = state.steps[step.key][0]
            path.append((step, state))
        for begins, response in _responses(path):
            begins.remember(response)


def _max_message(limits: WireLimits) -> int:
    """Return the largest length of a message that concerns no limit, whatever else is in the conversation."""
    total = MAX_BYTES + MAX_CALLS * MAX_MESSAGE
    enough = all(limit is None or limit >= total for limit in (limits.call_bytes, limits.total_bytes))
    return min(MAX_MESSAGE, limits.message_bytes) if enough and limits.small_data is None else -1


@attrs.frozen
class _Step:
    """A step to store."""

    key: Said
    #: The frame itself; empty for a request.
    frame: bytes
    #: The bytes that the machine sends.
    added: bytes
    #: Whether the call has succeeded with this step.
    ended: bool

    @property
    def always_added(self) -> bytes:
        """The part of ``added`` that does not depend on the variable part of the frame."""
        return self.added[:-PING_PAYLOAD] if self.key == PING_HEAD else self.added


class _Lesson:
    """A conversation that the machine repeats."""

    def __init__(self, limits: WireLimits, authority: str, max_message: int) -> None:
        self._connection = ClientConnection(limits)
        self._authority = authority
        self._max_message = max_message
        self._call: ClientCall | None = None
        #: How many bytes the steps so far have added. The connection's preamble belongs to the first step.
        self._added = 0
        self._calls = 0
        self._work = 0
        self._ended = False

    def steps_of(self, log: Sequence[Said]) -> Sequence[_Step]:
        """Return the steps of a conversation whose calls have ended; none if it must not be stored."""
        steps = self.steps_to(log)
        return steps if self._ended else ()

    def steps_to(self, log: Sequence[Said]) -> Sequence[_Step]:
        """Return the steps of a conversation so far; none if it must not be stored."""
        if bytes_heard(log) > MAX_BYTES:
            return ()
        steps = list[_Step]()
        for said in _requests_and_frames(log):
            step = self._step(said)
            if step is None:
                return ()
            steps.append(step)
        counted = self._connection.budgets.counted
        may_learn = self._calls <= MAX_CALLS and self._work <= MAX_WORK and counted <= MAX_COUNTED
        return steps if may_learn else ()

    def _step(self, said: Said) -> _Step | None:
        connection = self._connection
        key, frame = (self._hear(said), said) if isinstance(said, bytes) else (self._say(said), b"")
        call = self._call
        if not key or call is None or connection.failure is not None or call.outcome not in (None, SUCCESS):
            return None
        self._ended = call.outcome is SUCCESS
        added = bytes(connection.outgoing[self._added :])
        self._added += len(added)
        return _Step(key, frame, added, self._ended)

    def _say(self, request: Request) -> Request:
        # An earlier call that has not ended was given up, which the log does not contain.
        may_say = self._ended or not self._calls
        self._call = begin(self._connection, request, self._authority) if may_say else None
        self._calls += 1
        return request

    def _hear(self, frame: bytes) -> bytes:
        """Pass a frame to the machine, and return its key; empty if it must not be stored."""
        if not frame or (frame[3] == DATA and not self._is_answer(frame)):
            return b""
        self._work += self._connection.header_cost(len(frame) - HEAD_BYTES) if frame[3] == HEADERS else 1
        self._connection.receive(frame)
        return frame if frame[3] in COMPARED else open_key(frame, 0, len(frame), self._max_message)

    def _is_answer(self, data: bytes) -> bool:
        """Whether a DATA frame belongs to the call under way; the machine drops late frames."""
        return self._call is not None and not self._ended and data[5:HEAD_BYTES] == self._call.id.to_bytes(4, "big")


def _responses(path: Sequence[tuple[_Step, State]]) -> Iterator[tuple[State, CallResponse]]:
    """Yield the responses on a path, each with the state in which it begins."""
    requests = [index for index, (step, _) in enumerate(path) if not step.frame]
    for first, last in pairwise((*requests, len(path))):
        steps = [step for step, _ in path[first + 1 : last]]
        at = next(index for index, step in enumerate(steps) if step.frame[3] == DATA)
        head, data, tail = _join(steps[:at]), steps[at].frame, _join(steps[at + 1 :])
        added = b"".join(step.added for step in steps)
        yield (
            path[first][1],
            CallResponse(head, tail, int.from_bytes(data[5:HEAD_BYTES], "big"), path[last - 1][1], added),
        )


def _join(steps: Iterable[_Step]) -> bytes:
    return b"".join(step.frame for step in steps)


def _requests_and_frames(log: Iterable[Said]) -> Iterator[Said]:
    """Yield the requests and the frames in order, and an empty value for an incomplete frame."""
    for heard, parts in groupby(log, lambda said: isinstance(said, bytes)):
        if heard:
            yield from _frames(b"".join(part for part in parts if isinstance(part, bytes)))
        else:
            yield from parts


def _frames(data: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(data):
        end = position + HEAD_BYTES + int.from_bytes(data[position : position + 3], "big")
        yield data[position:end] if end <= len(data) else b""
        position = end

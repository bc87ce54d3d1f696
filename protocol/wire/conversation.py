"""Conversations that are known by their bytes.

What a client of gRPC sends is a function of what it is asked to call and of what it receives. The servers of one gRPC
library answer the same method with the same bytes, except for the message and the payload of a PING. So once the
machine, ``ClientConnection``, has led a conversation, the next one of the same form takes a few look-ups, and needs no
machine.

``KnownConversations`` of the module ``learning`` remembers conversations as paths that begin at its first ``State``. A
step of a path is a request or a frame of the peer, and has the bytes that the machine then adds to what it sends. This
is exact. To be in a state means that the same was said in the same order as in a conversation that the machine led
without an error, except for what does not matter to the machine: the payload of a PING is only sent back, and a message
is so small that it concerns no limit and no window. It does not matter either where the peer cuts what it sends, as
long as that is between two frames.

As soon as anything else is said, the machine takes over: :func:`replay` brings it to the same state. What was sent
until then is what the machine would have sent.
"""

import struct
from collections.abc import Iterable
from typing import Final

import attrs

from .frames import DATA, HEADERS, PING, SETTINGS, WINDOW_UPDATE, frame
from .grpc import ClientCall, frame_message, request_head
from .http2 import ClientConnection
from .responses import PREFIX_BYTES

#: The largest message that is taken by its bytes.
MAX_MESSAGE: Final = 4096
#: How many whole responses a state remembers: each costs a look for one that is of none of these forms.
MAX_RESPONSES: Final = 4

HEAD_BYTES: Final = 9
PING_PAYLOAD: Final = 8
PING_HEAD: Final = frame(PING, 0, 0, bytes(PING_PAYLOAD))[:HEAD_BYTES]
#: The kinds of frames that are compared as they are.
COMPARED: Final = frozenset({HEADERS, SETTINGS, WINDOW_UPDATE})

#: The head of a DATA frame with a whole message, and gRPC's own five bytes.
_MESSAGE_HEAD: Final = struct.Struct(">HBHIBI")
_MESSAGE_START: Final = _MESSAGE_HEAD.size

#: A call: the path of its method, and its message.
Request = tuple[str, bytes]
#: A request, or bytes of the peer.
Said = Request | bytes


class State:
    """Where a path has led to. It stands for one state of the machine."""

    __slots__ = ("ended", "responses", "steps")

    def __init__(self, *, ended: bool) -> None:
        #: Whether the call under way has ended well.
        self.ended = ended
        #: By what may be said here: the next state, and what the machine adds to what it sends. Where that answers a
        #: PING, it is without the payload.
        self.steps: dict[Said, tuple[State, bytes]] = {}
        #: Responses that begin here, the newest first: a shortcut for one that comes at once.
        self.responses: tuple[CallResponse, ...] = ()

    def remember(self, response: "CallResponse") -> None:
        """Take the shortcut from now on, instead of the oldest one if there are too many."""
        if response not in self.responses:
            self.responses = (response, *self.responses[: MAX_RESPONSES - 1])


@attrs.frozen
class CallResponse:
    """A response to a call: frames that are the same each time, a message, and such frames again."""

    head: bytes
    tail: bytes
    stream: int
    #: What they lead to, and what the machine adds to what it sends.
    state: State
    added: bytes
    #: Where the message begins.
    start: int = attrs.field(init=False)

    @start.default
    def _find_start(self) -> int:
        return len(self.head) + _MESSAGE_START


class KnownConversation:
    """One conversation, as long as it is known."""

    __slots__ = ("_max_message", "log", "message", "sent", "state", "unsent")

    def __init__(self, start: State, max_message: int) -> None:
        #: Where it has come to.
        self.state = start
        self._max_message = max_message
        #: What was said so far, in order.
        self.log: list[Said] = []
        #: What is to be sent; see :meth:`note_sent`.
        self.unsent = b""
        #: How many bytes were sent.
        self.sent = 0
        #: The message that answers the last call, once it has come.
        self.message: bytes | None = None

    def say(self, request: Request) -> bool:
        """Make a call. Return False, with nothing changed, if the machine has to take over."""
        step = self.state.steps.get(request)
        if step is None:
            return False
        self.state, added = step
        self.message = None
        self.unsent += added
        self.log.append(request)
        return True

    def note_sent(self, size: int) -> bool:
        """Note that so much of ``unsent`` was sent. Return whether that is all of it."""
        self.sent += size
        if size != len(self.unsent):
            return False
        self.unsent = b""
        return True

    def hear(self, data: bytes) -> bool:
        """Take the next bytes of the peer. Return False, with nothing changed, if the machine has to take over."""
        if not (self._hear_response(data) or self._hear_frames(data)):
            return False
        self.log.append(data)
        return True

    def _hear_response(self, data: bytes) -> bool:
        for response in self.state.responses:
            if data.startswith(response.head) and data.endswith(response.tail):
                start, end = response.start, len(data) - len(response.tail)
                size = end - start
                # A message head follows the head, as the size of the message says.
                if 0 <= size <= self._max_message and data.startswith(
                    _message_head(response.stream, size), start - _MESSAGE_START
                ):
                    self.state, self.message = response.state, data[start:end]
                    self.unsent += response.added
                    return True
        return False

    def _hear_frames(self, data: bytes) -> bool:
        state, message, unsent = self.state, self.message, self.unsent
        position, size = 0, len(data)
        while position < size:
            if size - position < HEAD_BYTES:
                return False
            kind = data[position + 3]
            end = position + HEAD_BYTES + (data[position + 1] << 8 | data[position + 2])
            key = data[position:end] if kind in COMPARED else open_key(data, position, end, self._max_message)
            step = state.steps.get(key)
            if step is None:
                return False
            state, added = step
            unsent += added
            if kind == DATA:
                message = data[position + _MESSAGE_START : end]
            elif kind == PING:
                unsent += data[end - PING_PAYLOAD : end]
            position = end
        self.state, self.message, self.unsent = state, message, unsent
        return True


def open_key(data: bytes, start: int, end: int, max_message: int) -> bytes:
    """Return what stands for a frame of which a part may differ, a PING or a whole message; empty if it is neither."""
    if end > len(data):
        return b""
    head = data[start : start + HEAD_BYTES]
    if head == PING_HEAD:
        return head
    size, stream = end - start - _MESSAGE_START, head[5:]
    if 0 <= size <= max_message and data.startswith(_message_head(int.from_bytes(stream, "big"), size), start):
        return stream
    return b""


def _message_head(stream: int, size: int) -> bytes:
    """Return all that comes before a message of ``size`` bytes that is neither compressed nor cut."""
    length = size + PREFIX_BYTES
    return _MESSAGE_HEAD.pack(length >> 8, length & 0xFF, DATA << 8, stream, 0, size)


def bytes_heard(log: Iterable[Said]) -> int:
    """Return how many bytes of the peer there are."""
    return sum(len(said) for said in log if isinstance(said, bytes))


def begin(connection: ClientConnection, request: Request, authority: str) -> ClientCall | None:
    """Make a call at once; None if that is impossible."""
    path, message = request
    call = ClientCall(connection.sender, unary=True)
    head, data = request_head(path, authority), frame_message(message)
    return call if connection.sender.can_open and connection.sender.request(call, head, data) else None


def replay(connection: ClientConnection, log: Iterable[Said], authority: str) -> ClientCall | None:
    """Have a new connection say and hear what was said so far. Return the call under way."""
    call: ClientCall | None = None
    for said in log:
        if isinstance(said, bytes):
            connection.receive(said)
        else:
            call = begin(connection, said, authority)
    connection.touched.clear()
    return call

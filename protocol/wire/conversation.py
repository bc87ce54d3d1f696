"""Conversations that are recognized by their bytes.

The bytes that a gRPC client sends are a function of its calls and of the bytes that it receives. The servers of one
gRPC library answer a method with the same bytes, except for the message and the payload of a PING. So once the machine,
``ClientConnection``, has held a conversation, the next one of the same form takes a few look-ups, and needs no machine.

``KnownConversations`` of the module ``learning`` stores conversations as paths that begin at its first ``State``. A
step of a path is a request or a frame of the peer, and has the bytes that the machine then sends. This is exact: a
state is reached by the same steps in the same order as in a conversation that the machine held without an error, except
for what does not matter to the machine. The payload of a PING is only sent back, and a message is so small that it
concerns no limit and no window. The peer can split its bytes between any two frames.

At the first unknown step the machine takes over: :func:`replay` brings it to the same state. The bytes sent until then
are those that the machine would have sent.
"""

import struct
from collections.abc import Iterable
from typing import Final

import attrs

from .frames import DATA, HEADERS, PING, SETTINGS, WINDOW_UPDATE, frame
from .grpc import ClientCall, frame_message, request_head
from .http2 import ClientConnection
from .responses import PREFIX_BYTES

#: The largest message in a recognized conversation.
MAX_MESSAGE: Final = 4096
#: How many whole responses a state keeps: each costs a look for a response of another form.
MAX_RESPONSES: Final = 4

HEAD_BYTES: Final = 9
PING_PAYLOAD: Final = 8
PING_HEAD: Final = frame(PING, 0, 0, bytes(PING_PAYLOAD))[:HEAD_BYTES]
#: The kinds of frames that are compared byte by byte.
COMPARED: Final = frozenset({HEADERS, SETTINGS, WINDOW_UPDATE})

#: The head of a DATA frame with a whole message, and gRPC's five bytes.
_MESSAGE_HEAD: Final = struct.Struct(">HBHIBI")
_MESSAGE_START: Final = _MESSAGE_HEAD.size

#: A call: the path of its method, and its message.
Request = tuple[str, bytes]
#: A request, or bytes of the peer.
Said = Request | bytes


class State:
    """The end of a path. It stands for one state of the machine."""

    __slots__ = ("ended", "responses", "steps")

    def __init__(self, *, ended: bool) -> None:
        #: Whether the call under way has succeeded.
        self.ended = ended
        #: By each possible next step: the next state, and the bytes that the machine sends. If they answer a PING, they
        #: lack its payload.
        self.steps: dict[Said, tuple[State, bytes]] = {}
        #: Responses that begin here, the newest first: a shortcut for a response that comes in one read.
        self.responses: tuple[CallResponse, ...] = ()

    def remember(self, response: "CallResponse") -> None:
        """Add a shortcut, in place of the oldest one if there are too many."""
        if response not in self.responses:
            self.responses = (response, *self.responses[: MAX_RESPONSES - 1])


@attrs.frozen
class CallResponse:
    """A response to a call: constant frames, a message, and constant frames again."""

    head: bytes
    tail: bytes
    stream: int
    #: The state after them, and the bytes that the machine sends.
    state: State
    added: bytes
    #: The position of the message.
    start: int = attrs.field(init=False)

    @start.default
    def _find_start(self) -> int:
        return len(self.head) + _MESSAGE_START


class KnownConversation:
    """One conversation, as long as it is recognized."""

    __slots__ = ("_max_message", "log", "message", "sent", "state", "unsent")

    def __init__(self, start: State, max_message: int) -> None:
        self.state = start
        self._max_message = max_message
        #: The steps so far, in order.
        self.log: list[Said] = []
        #: The bytes to send; see :meth:`note_sent`.
        self.unsent = b""
        #: How many bytes were sent.
        self.sent = 0
        #: The message that answers the last call, once it has come.
        self.message: bytes | None = None

    def say(self, request: Request) -> bool:
        """Make a call. Return False, with nothing changed, if the machine must take over."""
        step = self.state.steps.get(request)
        if step is None:
            return False
        self.state, added = step
        self.message = None
        self.unsent += added
        self.log.append(request)
        return True

    def note_sent(self, size: int) -> bool:
        """Note that ``size`` bytes of ``unsent`` were sent. Return whether that is all of them."""
        self.sent += size
        if size != len(self.unsent):
            return False
        self.unsent = b""
        return True

    def hear(self, data: bytes) -> bool:
        """Process the next bytes of the peer. Return False, with nothing changed, if the machine must take over."""
        if not (self._hear_response(data) or self._hear_frames(data)):
            return False
        self.log.append(data)
        return True

    def _hear_response(self, data: bytes) -> bool:
        for response in self.state.responses:
            if data.startswith(response.head) and data.endswith(response.tail):
                start, end = response.start, len(data) - len(response.tail)
                size = end - start
                # The message's own head must match the size of the message.
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
    """Return the key of a frame with a variable part, a PING or a whole message; empty for other frames."""
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
    """Return all bytes before an uncompressed, whole message of ``size`` bytes."""
    length = size + PREFIX_BYTES
    return _MESSAGE_HEAD.pack(length >> 8, length & 0xFF, DATA << 8, stream, 0, size)


def bytes_heard(log: Iterable[Said]) -> int:
    """Return how many bytes of the peer there are."""
    return sum(len(said) for said in log if isinstance(said, bytes))


def begin(connection: ClientConnection, request: Request, authority: str) -> ClientCall | None:
    """Make a call at once; return None if that is impossible."""
    path, message = request
    call = ClientCall(connection.sender, unary=True)
    head, data = request_head(path, authority), frame_message(message)
    return call if connection.sender.can_open and connection.sender.request(call, head, data) else None


def replay(connection: ClientConnection, log: Iterable[Said], authority: str) -> ClientCall | None:
    """Repeat the conversation so far on a new connection. Return the call under way."""
    call: ClientCall | None = None
    for said in log:
        if isinstance(said, bytes):
            connection.receive(said)
        else:
            call = begin(connection, said, authority)
    connection.touched.clear()
    return call

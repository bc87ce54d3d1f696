"""Registration conversations as real servers lead them, and a comparison of two clients: by bytes, and by the machine.

The fuzzer ``tests.tools.fuzz_wire`` and the tests of ``plugind.protocol.wire.conversation`` both use this.
"""

import random
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import attrs

from plugind.protocol.proto.pluginregistration_pb2 import RegistrationStatus
from plugind.protocol.wire.conversation import KnownConversation, Request, Said, begin, replay
from plugind.protocol.wire.frames import ACK, DATA, HEADERS, PING, PRIORITY, SETTINGS, WINDOW_UPDATE, frame
from plugind.protocol.wire.grpc import ClientCall
from plugind.protocol.wire.hpack_cache import HeaderCache
from plugind.protocol.wire.http2 import ClientConnection
from plugind.protocol.wire.learning import KnownConversations
from plugind.protocol.wire.limits import DEFAULT_LIMITS, REGISTRATION_LIMITS, WireLimits
from plugind.protocol.wire.outcomes import SUCCESS
from plugind.tests.tools.wire_streams import plain_response

AUTHORITY: Final = "localhost"
GET_INFO: Final = ("/pluginregistration.Registration/GetInfo", b"")
NOTIFY: Final = (
    "/pluginregistration.Registration/NotifyRegistrationStatus",
    RegistrationStatus(plugin_registered=True).SerializeToString(),
)
REFUSED: Final = (NOTIFY[0], RegistrationStatus(error="no such type").SerializeToString())

#: The frames of the two answers of a server.
Answers = tuple[list[bytes], list[bytes]]


def _settings(*pairs: tuple[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))


def _window(more: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", more))


def _data(stream: int, message: bytes) -> bytes:
    return frame(DATA, 0, stream, struct.pack(">BI", 0, len(message)) + message)


def _block(stream: int, block: str, *, end: bool = False) -> bytes:
    return frame(HEADERS, 5 if end else 4, stream, bytes.fromhex(block))


_SETTINGS_ACK: Final = frame(SETTINGS, ACK, 0)


def grpc_go(chance: random.Random, message: bytes) -> Answers:
    """Answer as grpc-go does; its PING is always the same."""
    del chance
    ping = frame(PING, 0, 0, bytes.fromhex("02041010090e0707"))
    trailers = "40889acac8b21234da8f013040899acac8b5254207317f00"
    greeting = [_settings((5, 16384)), _SETTINGS_ACK, _window(5), ping]
    first = [_block(1, "885f8b1d75d0620d263d4c4d6564"), _data(1, message), _block(1, trailers, end=True)]
    second = [_window(7), ping, _block(3, "88c0"), _data(3, b""), _block(3, "bfbe", end=True)]
    return greeting + first, second


def grpcio(chance: random.Random, message: bytes) -> Answers:
    """Answer as grpcio does, with a PING of its own each time, and something after the end."""
    settings = _settings((4, 4 << 20), (5, 4 << 20), (6, 16384), (0xFE03, 1))
    kind = "88400c636f6e74656e742d74797065106170706c69636174696f6e2f67727063"
    encodings = "4014677270632d6163636570742d656e636f64696e67176964656e746974792c206465666c6174652c20677a6970"
    text = "000c677270632d6d65737361676500"
    greeting = [settings, _window(0x3F0001), _SETTINGS_ACK, _window(5), frame(PING, 0, 0, chance.randbytes(8))]
    trailers = _block(1, "400b677270632d7374617475730130" + text, end=True)
    second = [_block(3, "88c0bf"), _data(3, b""), _block(3, "be" + text, end=True), _window(7)]
    return [*greeting, _block(1, kind + encodings), _data(1, message), trailers], second


def grpclib(chance: random.Random, message: bytes) -> Answers:
    """Answer as grpclib does, which sends its SETTINGS twice."""
    del chance
    settings = _settings((1, 4096), (2, 0), (4, 65535), (5, 16384), (8, 0), (3, 100), (6, 65536))
    head = _block(1, "885f901d75d0620d263d4c4d6564ff75d8749f")
    trailers = _block(1, "40889acac8b21234da8f8107", end=True)
    greeting = [settings, _window(0x3F0001), _settings((4, 4 << 20)), _SETTINGS_ACK]
    second = [_block(3, "88bf"), _data(3, b""), _block(3, "be", end=True)]
    return [*greeting, head, _data(1, message), trailers], second


def grpc_js(chance: random.Random, message: bytes) -> Answers:
    """Answer as grpc-js does, with the time of day in its headers."""
    kind = "885f901d75d0620d263d4c4d6564ff75d8749f"
    encodings = "408e9acac8b0c842d6958b510f21aa9b903485a9264fafa90b2d03497ea6f66aff"
    more = "408a9acac8b16a21e435537f863485a9264faf6196dd6d5f4a084a693f75040138a08171b72e"
    date = chance.choice(("36e298b46f", "36ca98b46f"))
    trailers = _block(1, "40889acac8b21234da8f013040899acac8b5254207317f024f4b", end=True)
    second = [_block(3, "88c3c2c1c0"), _data(3, b""), _block(3, "bfbe", end=True)]
    return [_settings(), _SETTINGS_ACK, _block(1, kind + encodings + more + date), _data(1, message), trailers], second


def plain(chance: random.Random, message: bytes) -> Answers:
    """Answer as some simple server might, with a status that may be an error."""
    del message
    return [plain_response(chance, 1, greeting=True)], [plain_response(chance, 3, greeting=False)]


FORMS: Final[tuple[Callable[[random.Random, bytes], Answers], ...]] = (grpc_go, grpcio, grpclib, grpc_js, plain)


def answers(chance: random.Random) -> Answers:
    """Return the frames of two answers in one of the forms, some of them with frames in between."""
    message = chance.randbytes(chance.choice((0, 1, 40, 41, 100, 4000, 4096, 4097)))
    both = chance.choice(FORMS)(chance, message)
    for frames in both if chance.random() < 0.1 else ():
        for _ in range(chance.choice((1, 1, 2, 10))):
            frames.insert(chance.randint(0, len(frames)), _noise(chance))
    return both


def _noise(chance: random.Random) -> bytes:
    """Return a frame that a server may send at most times."""
    return chance.choice(
        (
            frame(PING, 0, 0, chance.randbytes(8)),
            frame(PING, ACK, 0, bytes(8)),
            _window(chance.choice((1, 5, 1 << 30))),
            _settings((4, chance.choice((0, 10, 65535, 1 << 20)))),
            _settings((3, chance.choice((0, 1, 100)))),
            frame(WINDOW_UPDATE, 0, chance.choice((1, 3)), struct.pack(">I", 5)),
            frame(PRIORITY, 0, 1, bytes(5)),
            frame(0xF0, 0, 0, b"x"),
            _data(1, b"late"),
            frame(7, 0, 0, struct.pack(">II", 1, 0)),
        )
    )


def cut(frames: Sequence[bytes], chance: random.Random) -> Iterator[bytes]:
    """Yield the bytes of frames at once, one by one, or in pieces that may begin anywhere."""
    how = chance.random()
    if how < 0.5:
        yield b"".join(frames)
    elif how < 0.9:
        rest = list(frames)
        while rest:
            count = chance.randint(1, len(rest))
            yield b"".join(rest[:count])
            del rest[:count]
    else:
        data = b"".join(frames)
        while data:
            size = chance.choice((1, 9, 17, 100))
            yield data[:size]
            data = data[size:]


class ByMachine:
    """Leads a conversation with the machine alone."""

    def __init__(self, limits: WireLimits) -> None:
        self.connection = ClientConnection(limits, HeaderCache())
        self.call: ClientCall | None = None
        self.sent = bytearray()

    def say(self, request: Request) -> bool:
        """Make a call. Return False if the peer takes none now."""
        self.call = begin(self.connection, request, AUTHORITY)
        self.flush()
        return self.call is not None

    def hear(self, data: bytes) -> None:
        """Take bytes of the peer."""
        self.connection.receive(data)
        self.connection.touched.clear()

    def flush(self) -> None:
        """Send what is to be sent."""
        self.sent += self.connection.outgoing
        self.connection.outgoing.clear()

    @property
    def has_ended(self) -> bool:
        """Whether the call has an outcome."""
        return self.call is not None and self.call.outcome is not None


class ByBytes:
    """Leads a conversation by its bytes as long as it is known, and then with the machine, as a channel does."""

    def __init__(self, conversations: KnownConversations) -> None:
        self.conversations = conversations
        self.conversation: KnownConversation | None = conversations.begin()
        self.machine = ByMachine(conversations.limits)
        self.log: list[Said] = self.conversation.log
        self._sent = bytearray()

    def say(self, request: Request) -> bool:
        """Make a call. Return False if the peer takes none now."""
        if self.conversation is not None:
            if self.conversation.say(request):
                self.flush()
                return True
            self._take_over()
        self.log.append(request)
        return self.machine.say(request)

    def hear(self, data: bytes) -> None:
        """Take bytes of the peer."""
        if self.conversation is not None:
            if self.conversation.hear(data):
                return
            self._take_over()
        self.log.append(data)
        self.machine.hear(data)

    def flush(self) -> None:
        """Send what is to be sent."""
        if self.conversation is None:
            self.machine.flush()
        else:
            self._sent += self.conversation.unsent
            assert self.conversation.note_sent(len(self.conversation.unsent))

    def learn(self) -> None:
        """Remember the conversation after a call that has ended well."""
        if self.conversation is None and self.machine.call is not None and self.machine.call.outcome is SUCCESS:
            self.conversations.learn(self.log)

    def as_machine(self) -> ByMachine:
        """Return the machine that has the same conversation: another one if it goes on by its bytes."""
        if self.conversation is None:
            return self.machine
        machine = ByMachine(self.conversations.limits)
        machine.call = replay(machine.connection, self.log, AUTHORITY)
        machine.sent = self._sent.copy()
        del machine.connection.outgoing[: self.conversation.sent]
        return machine

    def _take_over(self) -> None:
        self.machine = self.as_machine()
        self.conversation = None


def state_of(machine: ByMachine) -> dict[str, object]:
    """Return what later bytes and the caller can tell of a machine."""
    connection, call = machine.connection, machine.call
    sender, budgets, failure = connection.sender, connection.budgets, connection.failure
    state: dict[str, object] = {
        "sent": bytes(machine.sent),
        "outgoing": bytes(connection.outgoing),
        "settled": connection.settled,
        "failure": failure and (failure.problem, failure.message),
        "windows": (sender.send_window, sender.initial_window, sender.max_frame, sender.max_streams),
        "streams": sorted(sender.streams),
        "refused": sender.refused and sender.refused.message,
        "held": (connection.buffered, connection.unparsed),
    }
    if failure is None:
        left = (budgets.frames_left, budgets.header_bytes_left, budgets.bytes_left)
        state |= {"budgets": (left, tuple(budgets.spent), budgets.counted)}
    if call is not None:
        outcome = call.outcome and (call.outcome.status, call.outcome.message)
        heads = [block and block.fields for block in (call.head, call.trailers)]
        windows = (call.send_window, call.receive_window, call.unacknowledged)
        messages = list(call.messages or ())
        state |= {"call": (call.id, outcome, heads, windows, messages, call.local_open, call.remote_open)}
    return state


@attrs.frozen
class Difference(Exception):  # noqa: N818 - it names what was found
    """What the two clients disagree on."""

    one: object
    other: object


#: The limits that conversations are compared with.
LIMITS: Final = (
    REGISTRATION_LIMITS,
    REGISTRATION_LIMITS,
    REGISTRATION_LIMITS,
    DEFAULT_LIMITS,
    WireLimits(message_bytes=40, settings=1, call_frames=9),
    WireLimits(total_bytes=200),
    WireLimits(small_data=1),
    WireLimits(header_list_bytes=100, settings_entries=3),
)


def compare(conversations: KnownConversations, parts: Sequence[Sequence[bytes]], requests: Sequence[Request]) -> bool:
    """Lead one conversation in both ways, and return whether all of it was known.

    Raises:
      Difference: if the two differ in anything at any time.
    """
    one, other = ByBytes(conversations), ByMachine(conversations.limits)
    for request, pieces in zip(requests, parts, strict=True):
        said = one.say(request), other.say(request)
        if said[0] is not said[1]:
            raise Difference(*said)
        for piece in pieces if all(said) else ():
            one.hear(piece)
            other.hear(piece)
            _check(one, other)
            if not other.has_ended:
                one.flush()
                other.flush()
        one.learn()
        if not other.has_ended:
            break
    _check(one, other)
    return one.conversation is not None and one.conversation.state.ended


def _check(one: ByBytes, other: ByMachine) -> None:
    states = state_of(one.as_machine()), state_of(other)
    if states[0] != states[1]:
        raise Difference(*states)
    conversation, call = one.conversation, other.call
    if conversation is not None and call is not None:
        ends = conversation.state.ended, call.outcome is SUCCESS
        messages = conversation.message, next(iter(call.messages or ()), None)
        if ends[0] is not ends[1] or messages[0] != messages[1]:
            raise Difference((conversation, ends[0], messages[0]), (call, ends[1], messages[1]))

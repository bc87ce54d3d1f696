"""Our client and a server on h2, connected in memory: any calls, any answers, bytes in any pieces.

h2 refuses every byte that breaks a rule of RFC 9113, and so checks what our half sends. What each side receives is
compared with what the other sent. Windows are small, so that both sides often wait for each other.
"""

from __future__ import annotations

import attrs
import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
from grpclib.const import Status
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from plugind.protocol.wire.grpc import ClientCall, frame_message, request_head
from plugind.protocol.wire.hpack_cache import HeaderCache
from plugind.protocol.wire.http2 import ClientConnection
from plugind.protocol.wire.limits import WireLimits
from plugind.tests.protocol.hypothesis_settings import examples

HEAD = request_head("/a.B/C", "localhost")
LIMITS = WireLimits(stream_window=65_535, connection_window=65_535)
#: All examples share it, as the connections of a process do. No example may affect the next one.
CACHE = HeaderCache()
SIZES = st.sampled_from([0, 1, 100, 5_000, 20_000, 70_000])
WHICH = st.integers(0, 5)


@attrs.define(eq=False)
class Talk:
    """One call, and its state at the server."""

    call: ClientCall
    #: What the client has yet to send, and all that it sends.
    unsent: bytes
    asked: bytes
    #: What the server received.
    received: bytearray = attrs.Factory(bytearray)
    received_end: bool = False
    #: What the server has yet to send, and the messages that it has begun.
    unsent_reply: bytes = b""
    messages: list[bytes] = attrs.Factory(list)
    taken: list[bytes] = attrs.Factory(list)
    answered: bool = False
    #: The status of the trailers that the server sent; it may have reset the call instead.
    closing: str | None = None
    closed: str | None = None
    #: Whether the client cancelled the call.
    cancelled: bool = False


class WireMachine(RuleBasedStateMachine):
    """Both sides send, bytes are delivered in pieces, and messages are read at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.client = ClientConnection(LIMITS, CACHE)
        config = h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        self.server = h2.connection.H2Connection(config)
        self.talks: list[Talk] = []
        self.to_client = bytearray()

    @initialize(window=st.sampled_from([65_535, 0, 100, 1 << 20]), most=st.sampled_from([1, 3, 100]))
    def greet(self, window: int, most: int) -> None:
        # h2 enforces its initial settings at once, and takes the first acknowledgement for that of a later change.
        self.server.initiate_connection()
        self.deliver(1000)
        self.deliver(1000)
        codes = h2.settings.SettingCodes
        self.server.update_settings({codes.INITIAL_WINDOW_SIZE: window, codes.MAX_CONCURRENT_STREAMS: most})

    # --- the client -------------

    @rule(size=SIZES, unary=st.booleans(), at_once=st.booleans())
    def call(self, size: int, unary: bool, at_once: bool) -> None:
        if not self.client.sender.can_open:
            return
        body = frame_message(b"q" * size)
        talk = Talk(ClientCall(self.client.sender, unary=unary), body, body)
        if at_once and self.client.sender.request(talk.call, HEAD, body):
            talk.unsent = b""
        else:
            self.client.sender.open(talk.call, HEAD)
        self.talks.append(talk)

    @rule(which=WHICH)
    def send(self, which: int) -> None:
        for talk in self.some(which):
            if talk.call.local_open:
                sent = self.client.sender.send(talk.call, memoryview(talk.unsent), end=True)
                talk.unsent = talk.unsent[sent:]

    @rule(which=WHICH)
    def take(self, which: int) -> None:
        for talk in self.some(which):
            while talk.call.messages:
                talk.taken.append(talk.call.take())

    @rule(which=WHICH)
    def cancel(self, which: int) -> None:
        for talk in self.some(which):
            talk.cancelled = talk.cancelled or talk.call.outcome is None
            self.client.sender.reset(talk.call)

    # --- the server -------------

    @rule(which=WHICH, size=SIZES, padding=st.sampled_from([None, 0, 20]))
    def answer(self, which: int, size: int, padding: int | None) -> None:
        for talk in self.open_ones(which):
            self.begin(talk)
            if talk.closing is None and (not talk.messages or not talk.call.unary):
                talk.messages.append(b"a" * size)
                talk.unsent_reply += frame_message(b"a" * size)
            self.send_reply(talk, padding)

    @rule(which=WHICH, status=st.sampled_from(["0", "0", "5"]))
    def finish(self, which: int, status: str) -> None:
        for talk in self.open_ones(which):
            if talk.closing is None and (talk.messages or status != "0" or not talk.call.unary):
                self.begin(talk)
                talk.closing = status
                self.send_reply(talk, None)

    @rule(which=WHICH)
    def reset(self, which: int) -> None:
        for talk in self.open_ones(which):
            self.server.reset_stream(talk.call.id, h2.errors.ErrorCodes.REFUSED_STREAM)
            talk.closed = "reset"

    @rule(window=st.sampled_from([0, 100, 65_535, 1 << 20]))
    def resize(self, window: int) -> None:
        self.server.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})

    @rule()
    def ping(self) -> None:
        self.server.ping(b"12345678")

    @rule(piece=st.integers(1, 100_000))
    def deliver(self, piece: int) -> None:
        """Deliver bytes in both directions, at most ``piece`` at once."""
        if self.client.outgoing:
            data = bytes(self.client.outgoing[:piece])
            del self.client.outgoing[:piece]
            self.receive_events(self.server.receive_data(data))
        self.to_client += self.server.data_to_send()
        if self.to_client:
            self.client.receive(bytes(self.to_client[:piece]))
            del self.to_client[:piece]
            self.client.touched.clear()
            # These streams contain no flood.
            self.client.budgets.replenish()

    # --- invariants -------

    @invariant()
    def no_rule_is_broken(self) -> None:
        assert self.client.failure is None
        assert self.client.sender.send_window >= 0
        for talk in self.talks:
            assert talk.asked.startswith(bytes(talk.received))
            got = [*talk.taken, *(talk.call.messages or ())]
            assert got == talk.messages[: len(got)]

    def teardown(self) -> None:
        """Deliver all bytes, and check that every call has the outcome that one side gave it."""
        for _ in range(200):
            self.deliver(1 << 20)
            for talk in self.talks:
                while talk.call.messages:
                    talk.taken.append(talk.call.take())
                if talk.closed is None and not talk.cancelled and talk.call.id in self.server.streams:
                    self.send_reply(talk, None)
            self.to_client += self.server.data_to_send()
            if not (self.client.outgoing or self.to_client):
                break
        for talk in self.talks:
            self.check_end(talk)
        live = {talk.call.id for talk in self.talks if talk.call.local_open or talk.call.remote_open}
        assert set(self.client.sender.streams) == live

    def check_end(self, talk: Talk) -> None:
        outcome = talk.call.outcome
        if talk.cancelled:
            return
        if talk.closed is None:
            # The server has not ended this call. A window of zero may delay its messages.
            assert outcome is None, talk
            assert talk.taken == talk.messages or talk.unsent_reply
            return
        assert outcome is not None, talk
        expected = {"0": Status.OK, "5": Status.NOT_FOUND, "reset": Status.UNAVAILABLE}[talk.closed]
        assert outcome.status is expected
        if talk.closed == "0":
            assert talk.taken == talk.messages

    # --- helpers ---

    def some(self, which: int) -> list[Talk]:
        return [self.talks[which % len(self.talks)]] if self.talks else []

    def open_ones(self, which: int) -> list[Talk]:
        """Return a call that has reached the server and has not ended, or none."""
        usable = [talk for talk in self.talks if talk.closed is None and self.is_open(talk)]
        return [usable[which % len(usable)]] if usable else []

    def is_open(self, talk: Talk) -> bool:
        stream = self.server.streams.get(talk.call.id)
        return stream is not None and not stream.closed

    def begin(self, talk: Talk) -> None:
        if not talk.answered:
            talk.answered = True
            head = [(":status", "200"), ("content-type", "application/grpc"), ("x", str(len(self.talks) % 3))]
            self.server.send_headers(talk.call.id, head)

    def send_reply(self, talk: Talk, padding: int | None) -> None:
        """Send as much as the windows allow, and the trailers after the last byte."""
        if not self.is_open(talk):
            return
        while talk.unsent_reply:
            room = self.server.local_flow_control_window(talk.call.id) - (0 if padding is None else padding + 1)
            part = talk.unsent_reply[: min(room, 16_000)] if room > 0 else b""
            if not part:
                return
            self.server.send_data(talk.call.id, part, pad_length=padding)
            talk.unsent_reply = talk.unsent_reply[len(part) :]
        if talk.closing is not None and talk.closed is None:
            talk.closed = talk.closing
            self.server.send_headers(talk.call.id, [("grpc-status", talk.closing)], end_stream=True)

    def receive_events(self, events: list[h2.events.Event]) -> None:
        by_id = {talk.call.id: talk for talk in self.talks}
        for event in events:
            match event:
                case h2.events.DataReceived():
                    assert event.stream_id is not None
                    talk = by_id[event.stream_id]
                    talk.received += event.data or b""
                    if event.flow_controlled_length:
                        self.server.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                case h2.events.StreamEnded():
                    assert event.stream_id is not None
                    talk = by_id[event.stream_id]
                    assert bytes(talk.received) == talk.asked
                    talk.received_end = True
                case _:
                    pass


TestWire = WireMachine.TestCase
TestWire.settings = examples(30, steps=40)

"""The rules of gRPC without a socket: the bytes of a server determine the outcome of its call."""

from __future__ import annotations

import pytest
from grpclib.const import Status
from hypothesis import given
from hypothesis import strategies as st

from plugind.protocol.wire.errors import WireError, WireProblem
from plugind.protocol.wire.frames import DATA, PADDED, RST_STREAM, frame
from plugind.protocol.wire.grpc import (
    ClientCall,
    metadata_fields,
    request_head,
)
from plugind.protocol.wire.hpack_cache import HeaderCache
from plugind.protocol.wire.http2 import ClientConnection
from plugind.protocol.wire.limits import WireLimits
from plugind.protocol.wire.outcomes import SUCCESS, CallOutcome, decode_message, failure_outcome
from plugind.tests.protocol.hypothesis_settings import examples
from plugind.tests.wire.hostile import HELLO, answer, data, fields, headers, message, trailers

HEAD = request_head("/a.B/C", "localhost")
GRPC = ("content-type", "application/grpc")
OK_STATUS = (":status", "200")


def called(
    said: bytes, *, unary: bool = True, limits: WireLimits | None = None, ended: bool = True
) -> tuple[ClientConnection, ClientCall]:
    connection = ClientConnection(limits or WireLimits(), HeaderCache())
    call = ClientCall(connection.sender, unary=unary)
    connection.sender.open(call, HEAD, end=ended)
    connection.receive(HELLO)
    connection.outgoing.clear()
    connection.receive(said)
    return connection, call


def outcome_of(call: ClientCall) -> tuple[Status, str] | None:
    return None if call.outcome is None else (call.outcome.status, call.outcome.message)


def only(*pairs: tuple[str, str]) -> bytes:
    """Return a trailers-only response: a single header block."""
    return headers(1, fields(*pairs), end=True)


def ended(*pairs: tuple[str, str], body: bytes = message(b"x")) -> bytes:
    """Return a response with one message and these trailers."""
    return headers(1) + data(1, body) + trailers(1, fields(*pairs))


OK = (Status.OK, "")
NO_STATUS = (Status.UNKNOWN, "the trailers have no grpc-status")


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        pytest.param(answer(1), OK, id="a good answer"),
        pytest.param(ended(("grpc-status", "0")), OK, id="a good answer of three frames"),
        pytest.param(ended(("grpc-status", "0"), ("grpc-message", "fine")), OK, id="OK with a message"),
        pytest.param(ended(("grpc-status", "5"), ("grpc-message", "no%20")), (Status.NOT_FOUND, "no "), id="an error"),
        pytest.param(ended(("grpc-status", "16")), (Status.UNAUTHENTICATED, ""), id="an error without a message"),
        pytest.param(
            ended(("grpc-status", "17")), (Status.UNKNOWN, "grpc-status is 17"), id="an undefined status"
        ),
        pytest.param(
            ended(("grpc-status", "no"), ("grpc-message", "word")),
            (Status.UNKNOWN, "grpc-status is no: word"),
            id="a status that is no number",
        ),
        pytest.param(ended(("grpc-status", "-1")), (Status.UNKNOWN, "grpc-status is -1"), id="a negative status"),
        pytest.param(ended(("x", "y")), NO_STATUS, id="no status"),
        pytest.param(only(OK_STATUS, GRPC, ("grpc-status", "12")), (Status.UNIMPLEMENTED, ""), id="trailers only"),
        pytest.param(
            only(OK_STATUS, GRPC, ("grpc-status", "0")),
            (Status.INTERNAL, "the response has no message"),
            id="trailers only, OK but no response message",
        ),
        pytest.param(
            only((":status", "404"), ("grpc-status", "0")),
            (Status.INTERNAL, "the response has no message"),
            id="OK with an HTTP error",
        ),
        pytest.param(
            ended(("grpc-status", "")), (Status.UNKNOWN, "grpc-status is "), id="an empty status"
        ),
        pytest.param(only(OK_STATUS, GRPC), NO_STATUS, id="trailers only, without a status"),
        pytest.param(only(OK_STATUS, ("grpc-status", "5")), (Status.NOT_FOUND, ""), id="trailers only, untyped"),
        pytest.param(
            only((":status", "404"), ("grpc-status", "5")), (Status.NOT_FOUND, ""), id="an error with an HTTP error"
        ),
        pytest.param(
            only(OK_STATUS),
            (Status.UNKNOWN, "the peer answered with no content-type, not application/grpc"),
            id="not gRPC",
        ),
        pytest.param(
            headers(1, fields(OK_STATUS, ("content-type", "text/html"))),
            (Status.UNKNOWN, "the peer answered with content-type text/html, not application/grpc"),
            id="a web page",
        ),
        pytest.param(
            headers(1, fields(OK_STATUS, ("content-type", "application/grpc+json"))),
            (Status.UNKNOWN, "the peer answered with content-type application/grpc+json, not application/grpc"),
            id="JSON",
        ),
        pytest.param(
            headers(1) + trailers(1), (Status.INTERNAL, "the response has no message"), id="no message for a unary call"
        ),
        pytest.param(
            headers(1) + data(1, message(b"x") * 2),
            (Status.INTERNAL, "the peer sent more than one message to a call that takes one"),
            id="two messages for a unary call",
        ),
        pytest.param(
            headers(1) + data(1, message(b"x")) * 2,
            (Status.INTERNAL, "the peer sent more than one message to a call that takes one"),
            id="two messages in two frames",
        ),
        pytest.param(
            headers(1) + data(1, message(b"x") + message(b"y")[:3]) + trailers(1),
            (Status.INTERNAL, "the response ended in the middle of a message"),
            id="half a message",
        ),
        pytest.param(
            headers(1) + data(1, message(b"xyz")[:4]) + trailers(1, fields(("grpc-status", "5"))),
            (Status.NOT_FOUND, ""),
            id="half a message and an error of the plugin's own",
        ),
        pytest.param(
            headers(1) + data(1, message(b"x"), end=True),
            (Status.UNKNOWN, "the response ended without trailers"),
            id="no trailers",
        ),
        pytest.param(
            headers(1) + data(1, message(b"xyz")[:4], end=True),
            (Status.INTERNAL, "the response ended in the middle of a message"),
            id="no trailers and half a message",
        ),
        pytest.param(
            headers(1) + data(1, message(b"x", compressed=1)),
            (Status.INTERNAL, "the peer sent a compressed message, though no compression was agreed on"),
            id="a compressed message",
        ),
    ],
)  # fmt: skip
def test_a_unary_call_has_the_outcome_that_its_frames_imply(said: bytes, outcome: tuple[Status, str]) -> None:
    """Faults 67 to 70."""
    connection, call = called(said)
    assert outcome_of(call) == outcome
    assert connection.failure is None
    assert not connection.sender.streams, "a call that is over no longer has a stream"


@pytest.mark.parametrize("kind", ["application/grpc+proto", "application/grpc;charset=utf-8", "application/grpc"])
def test_the_variants_of_the_content_type_are_accepted(kind: str) -> None:
    block = fields(OK_STATUS, ("content-type", kind))
    _, call = called(headers(1, block) + data(1, message(b"x")) + trailers(1))
    assert outcome_of(call) == OK
    assert call.head is not None
    assert call.head.content_type == kind


@pytest.mark.parametrize(
    ("http", "status"),
    [
        *((400, Status.INTERNAL), (401, Status.UNAUTHENTICATED), (403, Status.PERMISSION_DENIED)),
        *((404, Status.UNIMPLEMENTED), (429, Status.UNAVAILABLE), (502, Status.UNAVAILABLE)),
        *((503, Status.UNAVAILABLE), (504, Status.UNAVAILABLE), (500, Status.UNKNOWN), (201, Status.UNKNOWN)),
    ],
)
@pytest.mark.parametrize("end", [False, True])
def test_an_http_status_maps_to_a_status_as_grpc_defines(http: int, status: Status, end: bool) -> None:
    """Fault 67."""
    _, call = called(headers(1, fields((":status", str(http)), GRPC), end=end))
    assert outcome_of(call) == (status, f"the peer answered with HTTP status {http}")


@pytest.mark.parametrize(
    ("code", "status", "name"),
    [
        *((0x0, Status.INTERNAL, "NO_ERROR"), (0x2, Status.INTERNAL, "INTERNAL_ERROR")),
        *((0x7, Status.UNAVAILABLE, "REFUSED_STREAM"), (0x8, Status.CANCELLED, "CANCEL")),
        *(
            (0xB, Status.RESOURCE_EXHAUSTED, "ENHANCE_YOUR_CALM"),
            (0xC, Status.PERMISSION_DENIED, "INADEQUATE_SECURITY"),
        ),
        *((0xD, Status.UNKNOWN, "HTTP_1_1_REQUIRED"), (0xE, Status.UNKNOWN, "error code 0xe")),
        (0xFFFFFFFF, Status.UNKNOWN, "error code 0xffffffff"),
    ],
)
def test_a_reset_maps_to_a_status_as_grpc_defines(code: int, status: Status, name: str) -> None:
    """Fault 60."""
    connection, call = called(frame(RST_STREAM, 0, 1, code.to_bytes(4, "big")))
    assert outcome_of(call) == (status, f"the peer reset the call ({name})")
    assert not connection.outgoing, "a call that the peer reset is not reset again"


@pytest.mark.parametrize(
    ("problem", "status"),
    [
        (WireProblem.CLOSED, Status.UNAVAILABLE),
        (WireProblem.GOING_AWAY, Status.UNAVAILABLE),
        (WireProblem.NOT_HTTP2, Status.UNAVAILABLE),
        (WireProblem.PROTOCOL, Status.INTERNAL),
        (WireProblem.FRAME_SIZE, Status.INTERNAL),
        (WireProblem.FLOW_CONTROL, Status.INTERNAL),
        (WireProblem.COMPRESSION, Status.INTERNAL),
    ],
)
def test_a_broken_connection_has_a_status(problem: WireProblem, status: Status) -> None:
    error = WireError(problem, "why")
    assert failure_outcome(error) == CallOutcome(status, "why", error)


def test_every_limit_exhausts_a_resource() -> None:
    """Each limit is a field of ``WireLimits``, and the reason names it."""
    limits = [problem for problem in WireProblem if problem.is_limit]
    assert len(limits) == 19
    for problem in limits:
        assert hasattr(WireLimits(), problem.value)
        assert failure_outcome(WireError(problem, "")).status is Status.RESOURCE_EXHAUSTED


def test_the_first_outcome_is_final() -> None:
    """A call that was cancelled does not succeed later, and the peer gets a reset."""
    connection, call = called(headers(1))
    mine = CallOutcome(Status.CANCELLED, "given up")
    call.cancel(mine)
    assert bytes(connection.outgoing) == frame(RST_STREAM, 0, 1, b"\0\0\0\x08")
    connection.receive(data(1, message(b"x")) + trailers(1))
    assert call.outcome is mine
    call.cancel(SUCCESS)
    assert call.outcome is mine
    assert call.messages is None


def test_a_stream_without_a_message_can_end_ok() -> None:
    _, call = called(headers(1) + trailers(1), unary=False)
    assert outcome_of(call) == OK
    assert call.trailers is not None
    assert call.trailers.grpc_status == "0"


def test_a_stream_can_end_ok_in_its_headers() -> None:
    """The response is trailers-only; its grpc-message has no effect on an OK."""
    _, call = called(only(OK_STATUS, GRPC, ("grpc-status", "0"), ("grpc-message", "fine")), unary=False)
    assert call.outcome is SUCCESS
    assert call.trailers is not None
    assert call.trailers is call.head


def test_a_piece_that_looks_like_a_whole_message_is_treated_as_a_piece() -> None:
    inner = message(b"x")
    connection, call = called(headers(1), unary=False)
    whole = message(b"ab" + inner)
    connection.receive(data(1, whole[: -len(inner)]))
    connection.receive(data(1, whole[-len(inner) :]))
    assert list(call.messages or ()) == [b"ab" + inner]


def test_a_recognized_response_with_an_empty_status_is_not_a_success() -> None:
    cache = HeaderCache()
    for _ in range(3):
        connection = ClientConnection(WireLimits(), cache)
        call = ClientCall(connection.sender, unary=True)
        connection.sender.open(call, HEAD, end=True)
        connection.receive(HELLO + ended(("grpc-status", "")))
        assert outcome_of(call) == (Status.UNKNOWN, "grpc-status is ")


def test_a_text_of_4096_characters_is_not_cut() -> None:
    """Fault 94."""
    assert decode_message("x" * 4096) == "x" * 4096
    assert decode_message("x" * 4097) == "x" * 4096 + "…"


def test_a_failure_before_the_headers_ends_every_wait() -> None:
    connection, call = called(b"", unary=False)
    connection.fail(WireError(WireProblem.CLOSED, "gone"))
    assert [call.has_head(), call.has_message(), call.has_ended_or_message(), call.has_ended()] == [True] * 4
    assert outcome_of(call) == (Status.UNAVAILABLE, "gone")


def test_lengths_around_the_limit_are_handled_the_same_for_whole_messages_and_for_pieces() -> None:
    """Fault 50: the first five bytes of an unfinished message are enough to check its length."""
    limits = WireLimits(message_bytes=10)
    for size in (0, 9, 10, 11):
        for cut in (0, 1, 5, 6):
            connection, call = called(headers(1), unary=False, limits=limits)
            body = message(b"x" * size)
            connection.receive(data(1, body[:cut]) + data(1, body[cut:]))
            if size <= 10:
                assert list(call.messages or ()) == [b"x" * size], (size, cut)
                assert call.outcome is None
            else:
                assert outcome_of(call) == (
                    Status.RESOURCE_EXHAUSTED,
                    "a message of 11 bytes over the limit of 10 (limit message_bytes)",
                )


def test_messages_beyond_the_window_are_credited_when_they_are_taken() -> None:
    """Fault 65: each of them is credited exactly once."""
    limits = WireLimits(stream_window=65_535, connection_window=1 << 20)
    connection, call = called(headers(1), unary=False, limits=limits)
    one = message(b"x" * 16_000)
    for _ in range(5):
        # The first four are within the window and credited as they arrive; the fifth is not.
        connection.receive(data(1, one))
    assert call.outcome is None
    assert call.receive_window + call.unacknowledged == 65_535 - len(one)
    call.take()
    assert call.receive_window + call.unacknowledged == 65_535
    for _ in range(4):
        call.take()
    assert call.receive_window + call.unacknowledged == 65_535
    assert not call.messages


def test_padding_is_credited_and_is_not_part_of_a_message() -> None:
    connection, call = called(headers(1), unary=False)
    padded = b"\x05" + message(b"x") + bytes(5)
    connection.receive(frame(DATA, PADDED, 1, padded))
    assert call.take() == b"x"
    assert call.receive_window + call.unacknowledged == connection.limits.stream_window


def test_a_response_that_the_peer_ended_is_not_reset() -> None:
    for said in (headers(1) + data(1, message(b"x"), end=True), answer(1), only(OK_STATUS, GRPC)):
        connection, call = called(said)
        assert call.outcome is not None
        assert not connection.outgoing
        assert not call.remote_open


HEADERS = st.tuples(
    st.sampled_from([OK_STATUS, OK_STATUS, (":status", "404"), (":status", "103"), None]),
    st.sampled_from([GRPC, GRPC, ("content-type", "text/html"), None]),
    st.sampled_from([("grpc-status", "0"), ("grpc-status", "5"), ("grpc-status", "x"), None, None]),
    st.sampled_from([("grpc-message", "no"), None]),
).map(lambda pairs: fields(*(pair for pair in pairs if pair is not None)))
PIECES = st.one_of(
    st.builds(lambda block, end: headers(1, block, end=end), HEADERS, st.booleans()),
    st.builds(lambda end: headers(1, end=end), st.booleans()),
    st.builds(
        lambda body, end: data(1, body, end=end),
        st.sampled_from([b"", message(b""), message(b"x"), message(b"x") * 2, message(b"xyz")[:6], b"yz", bytes(5)]),
        st.booleans(),
    ),
    st.just(frame(RST_STREAM, 0, 1, bytes(4))),
    st.just(trailers(1)),
)


@examples(120)
@given(st.lists(PIECES, min_size=1, max_size=4), st.booleans(), st.booleans())
def test_any_shape_of_a_response_has_one_well_formed_outcome(pieces: list[bytes], unary: bool, ended: bool) -> None:
    """Faults 67 to 70: a unary call succeeds only with a message, and an outcome is final."""
    connection, call = called(b"", unary=unary, ended=ended)
    outcome: CallOutcome | None = None
    for piece in pieces:
        connection.receive(piece)
        assert outcome is None or call.outcome is outcome
        outcome = call.outcome
        assert (call.id in connection.sender.streams) == (outcome is None)
    if outcome is not None:
        assert not call.remote_open
        assert outcome.message.isprintable()
        assert (outcome.cause is None) or outcome.status is not Status.OK
    if outcome is not None and outcome.status is Status.OK:
        assert outcome is SUCCESS
        assert not unary or len(call.messages or ()) == 1


def test_the_cache_of_request_heads_is_bounded() -> None:
    """Fault 65: the methods that are called may have new names each time."""
    first = request_head("/a.B/C", "localhost")
    assert request_head("/a.B/C", "localhost") is first
    for number in range(600):
        request_head(f"/a.B/{number}", "localhost")
    again = request_head("/a.B/C", "localhost")
    assert again == first
    assert again is not first


def test_metadata_that_grpc_does_not_allow_is_refused() -> None:
    assert metadata_fields({"x": "y"}) == b"\0\1x\1y"
    with pytest.raises(ValueError, match="Invalid metadata key"):
        metadata_fields({"grpc-own": "y"})


def test_a_window_full_of_messages_is_credited_and_one_byte_more_is_not() -> None:
    """Fault 65."""
    limits = WireLimits(stream_window=65_535, connection_window=1 << 20)
    framed = 65_535 // 5
    for more, uncredited in ((0, 0), (1, framed + 1)):
        connection, call = called(headers(1), unary=False, limits=limits)
        for size in (framed, framed, framed, framed, framed + more):
            connection.receive(data(1, message(b"x" * (size - 5))))
        assert 65_535 - call.receive_window - call.unacknowledged == uncredited


def test_there_is_room_to_send_while_both_windows_are_open() -> None:
    connection, call = called(b"", ended=False)
    assert call.can_send()
    for side in (connection.sender, call):
        window, side.send_window = side.send_window, 0
        assert not call.can_send()
        side.send_window = window
    call.local_open = False
    connection.sender.send_window = 0
    assert call.can_send(), "a call that can no longer send must not wait for room"

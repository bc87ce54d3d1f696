"""Conversations that are known by their bytes have the same effect as those that the machine leads."""

import random
import struct
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugind.protocol.wire.conversation import MAX_MESSAGE, MAX_RESPONSES, Request
from plugind.protocol.wire.frames import ACK, CONTINUATION, DATA, GOAWAY, HEADERS, PADDED, PING, PRIORITY, frame
from plugind.protocol.wire.learning import (
    MAX_BYTES,
    MAX_CALLS,
    MAX_COUNTED,
    MAX_STEPS,
    MOST_MISSED,
    KnownConversations,
)
from plugind.protocol.wire.limits import DEFAULT_LIMITS, REGISTRATION_LIMITS, WireLimits
from plugind.tests.tools.fuzz_wire import mutate
from plugind.tests.tools.known_streams import (
    FORMS,
    GET_INFO,
    LIMITS,
    NOTIFY,
    REFUSED,
    Answers,
    answers,
    compare,
    cut,
    plain,
)
from plugind.tests.wire.hostile import HELLO, RESPONSE, data, fields, headers, message, trailers

BOTH = (GET_INFO, NOTIFY)
REAL = [form for form in FORMS if form is not plain]


def at_once(said: Answers) -> list[list[bytes]]:
    return [[b"".join(frames)] for frames in said]


def has_led(*conversations: Sequence[Sequence[bytes]], limits: WireLimits = REGISTRATION_LIMITS) -> KnownConversations:
    """Return a table that has the conversations, none of which was known before."""
    table = KnownConversations(limits)
    for said in conversations:
        assert not compare(table, said, BOTH[: len(said)])
    return table


def is_known(table: KnownConversations, *pieces: bytes, requests: Sequence[Request] = (GET_INFO,)) -> bool:
    return compare(table, [pieces] if len(requests) == 1 else [[piece] for piece in pieces], requests)


BODY = message(b"x")
REST = data(1, BODY) + trailers(1)
ANSWER = HELLO + headers(1) + REST


@pytest.mark.parametrize("form", REAL, ids=lambda form: form.__name__)
def test_a_conversation_is_known_once_one_of_its_form_was_led(form: object) -> None:
    """Whatever the message is, and the payload of a PING: they are all that differs from one plugin to the next."""
    assert callable(form)
    chance = random.Random(7)
    table = has_led(at_once(form(chance, b"one")))
    found = [compare(table, at_once(form(chance, chance.randbytes(40))), BOTH) for _ in range(20)]
    # grpc-js says what time it is, which is one of two here.
    assert sum(found) >= 18


@pytest.mark.parametrize(
    ("limits", "is_taken"),
    [
        (DEFAULT_LIMITS, True),
        (WireLimits(message_bytes=4), True),
        (WireLimits(message_bytes=3), False),
        (WireLimits(small_data=100), False),
        (WireLimits(call_bytes=MAX_BYTES + MAX_CALLS * MAX_MESSAGE), True),
        (WireLimits(call_bytes=MAX_BYTES + MAX_CALLS * MAX_MESSAGE - 1), False),
        (WireLimits(total_bytes=MAX_BYTES + MAX_CALLS * MAX_MESSAGE), True),
        (WireLimits(total_bytes=MAX_BYTES + MAX_CALLS * MAX_MESSAGE - 1), False),
    ],
)
def test_nothing_is_known_that_a_message_could_take_beyond_a_limit(limits: WireLimits, *, is_taken: bool) -> None:
    table = has_led([[ANSWER]], limits=limits)
    assert is_known(table, HELLO + headers(1) + data(1, message(b"four")) + trailers(1)) is is_taken


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(HELLO + frame(PRIORITY, 0, 1, bytes(5)) + ANSWER[9:], id="PRIORITY"),
        pytest.param(HELLO + frame(0xF0, 0, 0, b"x") + ANSWER[9:], id="unknown type"),
        pytest.param(HELLO + frame(PING, ACK, 0, bytes(8)) + ANSWER[9:], id="PING that answers"),
        pytest.param(HELLO + frame(HEADERS, 0, 1, RESPONSE) + frame(CONTINUATION, 4, 1) + REST, id="CONTINUATION"),
        pytest.param(ANSWER + frame(GOAWAY, 0, 0, struct.pack(">II", 1, 0)), id="GOAWAY"),
        pytest.param(HELLO + headers(1) + frame(DATA, PADDED, 1, b"\1" + BODY + b"\0") + trailers(1), id="padding"),
        pytest.param(HELLO + headers(1) + data(1, BODY[:3]) + data(1, BODY[3:]) + trailers(1), id="message in two"),
        pytest.param(HELLO + headers(1) + data(1, b"") + data(1, BODY) + trailers(1), id="empty DATA"),
        pytest.param(HELLO + headers(1) + data(1, b"\1" + BODY[1:]) + trailers(1), id="compressed"),
        pytest.param(HELLO + headers(1) + data(1, BODY) * 2 + trailers(1), id="two messages"),
        pytest.param(HELLO + headers(1) + data(1, BODY, end=True), id="no trailers"),
        pytest.param(HELLO + headers(1) + trailers(1), id="no message"),
        pytest.param(HELLO + headers(1) + data(1, BODY) + trailers(1, fields(("grpc-status", "5"))), id="a failure"),
        pytest.param(ANSWER + data(1, message(b"late")), id="late DATA"),
        pytest.param(ANSWER + b"\0", id="something cut after it"),
        pytest.param(HELLO * (MAX_COUNTED + 1) + ANSWER[9:], id="many frames that cost a budget"),
        pytest.param(HELLO + headers(1, RESPONSE + fields(("x", "y" * 250))) + REST, id="much work"),
        pytest.param(HELLO + headers(1) + data(1, message(bytes(MAX_BYTES - 60))) + trailers(1), id="long"),
    ],
)
def test_what_is_unusual_is_not_remembered(said: bytes) -> None:
    """Faults 52 to 70: it may have meant more than is known here."""
    table = KnownConversations()
    for _ in range(2):
        assert not is_known(table, said)
    assert len(table) == 0


def test_the_memory_is_bounded_and_another_form_is_known_after_a_flood_of_new_ones() -> None:
    """Fault 65: peers that say something new each time fill the table once, and it is emptied once in a while."""
    table, number = KnownConversations(), 0
    while len(table) < MAX_STEPS:
        number += 1
        table.learn([GET_INFO, HELLO + frame(8, 0, 0, struct.pack(">I", number)) + ANSWER[9:]])
    assert len(table) < MAX_STEPS + 10
    for _ in range(MOST_MISSED - 1):
        table.learn([GET_INFO, ANSWER])
    assert not is_known(table, ANSWER)
    assert is_known(table, ANSWER)
    assert len(table) < 10


def test_a_state_remembers_few_whole_responses_and_the_others_frame_by_frame() -> None:
    table = KnownConversations()
    forms = [HELLO + frame(8, 0, 0, struct.pack(">I", n + 1)) + ANSWER[9:] for n in range(2 * MAX_RESPONSES)]
    for said in forms:
        assert not is_known(table, said)
    for said in (*forms, *forms):
        assert is_known(table, said)
    conversation = table.begin()
    assert conversation.say(GET_INFO)
    assert len(conversation.state.responses) == MAX_RESPONSES


def led(seed: int, tables: dict[WireLimits, KnownConversations]) -> bool:
    """Compare one random conversation, a part of which may be garbled."""
    chance = random.Random(seed)
    table = tables.setdefault(limits := chance.choice(LIMITS), KnownConversations(limits))
    parts = [list(cut(frames, chance)) for frames in answers(chance)]
    if chance.random() < 0.3:
        number = chance.randrange(2)
        parts[number] = list(cut([mutate(b"".join(parts[number]), chance)], chance))
    return compare(table, parts, (GET_INFO, chance.choice((NOTIFY, NOTIFY, REFUSED))))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_whatever_a_peer_says_both_ways_agree_at_any_time(seed: int) -> None:
    """Faults 52 to 70: what is sent, how calls end, and the whole state that later bytes could tell from another."""
    tables: dict[WireLimits, KnownConversations] = {}
    for number in range(12):
        led(seed + number, tables)


def test_conversations_that_are_known_are_among_those_compared() -> None:
    tables: dict[WireLimits, KnownConversations] = {}
    assert sum(led(seed, tables) for seed in range(300)) > 25

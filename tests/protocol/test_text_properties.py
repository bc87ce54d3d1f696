"""Independent readers decode what was written: text, log lines, metadata, deadlines and the bytes of frames."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime, timedelta

import hpack
from hypothesis import example, given
from hypothesis import strategies as st

from plugind.protocol.logs.lines import MAX_VALUE, Field, Level, json_line, text_line, timestamp
from plugind.protocol.text import cut, encodable, escaped
from plugind.protocol.wire.frames import (
    literal_field,
    literal_string,
)
from plugind.protocol.wire.grpc import metadata_fields, timeout_field
from plugind.protocol.wire.limits import DEFAULT_WINDOW, MAX_WINDOW, WireLimits
from plugind.protocol.wire.metadata import decode_metadata
from plugind.protocol.wire.outcomes import decode_message
from plugind.tests.protocol.hypothesis_settings import examples

#: Decoded names of files, with surrogates for bytes that are not UTF-8.
ANYTHING = st.text(max_size=20) | st.binary(max_size=20).map(lambda name: name.decode("utf-8", "surrogateescape"))
#: Texts that could break a line: quotes, escapes, line ends, and text that looks like a field.
NASTY = st.text(st.sampled_from('"\\ =\n\r\t\x1b\x85\u2028\u202ea\ufeff\U000e0001é'), max_size=12)
KEYS = st.sampled_from(["socket", "reason", "attempt", "took"])
VALUES: st.SearchStrategy[Field] = st.one_of(
    ANYTHING, NASTY, st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False, allow_infinity=False)
)
#: Bytes that are not UTF-8 are excluded, since they share their escapes with control characters.
PLAIN = st.text(max_size=20) | NASTY


def unescaped(shown: str) -> str:
    """Decode escapes by their rules, independently of the code that is tested."""
    named = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"'}

    def one(match: re.Match[str]) -> str:
        text = match[0]
        return named[text[1]] if text[1] in named else chr(int(text[2:], 16))

    return re.sub(r'\\(?:[nrt"\\]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})', one, shown)


def fields_of(line: str) -> dict[str, str]:
    """Parse a line of ``key=value`` pairs, whose values may be quoted."""
    read: dict[str, str] = {}
    rest = line
    while rest:
        match = re.match(r'([a-z]+)=(?:"((?:[^"\\]|\\.)*)"|([^ "=\\]*))(?: |$)', rest)
        assert match, f"{rest!r} in {line!r} is not a field"
        read[match[1]] = match[3] if match[2] is None else unescaped(match[2])
        rest = rest[match.end() :]
    return read


@examples(80)
@given(PLAIN, st.dictionaries(KEYS, PLAIN, max_size=3))
def test_a_line_has_exactly_the_logged_fields(message: str, fields: dict[str, str]) -> None:
    """Faults 22 and 91: a reader finds exactly these fields and values, for any values."""
    line = text_line(0.5, Level.WARNING, message, fields)
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    time = "1970-01-01T00:00:00.500Z"
    assert fields_of(line[:-1]) == {"time": time, "level": "warning", "msg": message, **fields}


@examples(100)
@given(ANYTHING | NASTY, st.dictionaries(KEYS, VALUES, max_size=4), st.sampled_from(Level))
def test_an_event_is_one_line_in_each_form(message: str, fields: dict[str, Field], level: Level) -> None:
    text, shown_json = text_line(1e9, level, message, fields), json_line(1e9, level, message, fields)
    for line in (text, shown_json):
        assert line.splitlines() == [line[:-1]]
        line.encode("utf-8")
    present = {key: value for key, value in fields.items() if value is not None}
    assert list(fields_of(text[:-1])) == ["time", "level", "msg", *present]
    read = json.loads(shown_json)
    assert list(read) == ["time", "level", "msg", *present]
    for key, value in present.items():
        assert read[key] == (encodable(value) if isinstance(value, str) else value)
        if isinstance(value, int):
            assert fields_of(text[:-1])[key] == str(value).lower()
        elif isinstance(value, float):
            assert math.isclose(float(fields_of(text[:-1])[key]), value, rel_tol=1e-5)


@examples(40)
@given(st.integers(0, 3), st.sampled_from(["x", "é", "\n", '"']))
def test_a_value_is_truncated_only_beyond_its_limit(over: int, character: str) -> None:
    """Fault 94."""
    value = character * (MAX_VALUE + over)
    expected = value if not over else f"{character * MAX_VALUE}…(+{over})"
    assert fields_of(text_line(0.0, Level.INFO, "m", {"reason": value})[:-1])["reason"] == expected
    assert json.loads(json_line(0.0, Level.INFO, "m", {"reason": value}))["reason"] == expected


@examples(40)
@given(st.floats(0, 4e9))
def test_a_timestamp_is_truncated_to_the_millisecond(time: float) -> None:
    read = datetime.strptime(timestamp(time), "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
    late = datetime.fromtimestamp(time, UTC) - read
    assert timedelta(microseconds=-1) <= late <= timedelta(microseconds=1001)


@examples(80)
@given(PLAIN)
def test_escapes_can_be_decoded(text: str) -> None:
    """This requires that backslashes of the text are escaped as well."""
    assert unescaped(escaped(text.replace("\\", "\\\\"))) == text


@examples(40)
@given(ANYTHING | NASTY)
def test_escaping_twice_changes_nothing(text: str) -> None:
    assert escaped(escaped(text)) == escaped(text)
    assert encodable(encodable(text)) == encodable(text)
    assert escaped(encodable(text)) == escaped(text)
    if text.isprintable():
        assert escaped(text) == encodable(text) == text


@examples(40)
@given(st.binary(max_size=20).map(lambda name: name.replace(b"\0", b"")))
def test_all_bytes_of_a_file_name_are_shown(name: bytes) -> None:
    """Fault 21: the name can be recovered from the shown text."""
    text = name.decode("utf-8", "surrogateescape").replace("\\", "\\\\")
    marked = re.sub(r"\\(\\|x[89a-f][0-9a-f])", lambda m: "\\" if m[1] == "\\" else f"\0{m[1][1:]}", encodable(text))
    back = b"".join(
        bytes.fromhex(part[:2]) + part[2:].encode() if number else part.encode()
        for number, part in enumerate(marked.split("\0"))
    )
    assert back == name


@examples(40)
@given(st.text(max_size=30), st.integers(0, 30))
def test_truncated_text_ends_with_the_number_of_characters_cut(text: str, limit: int) -> None:
    shown_text = cut(text, limit)
    if len(text) <= limit:
        assert shown_text == text
    else:
        assert shown_text == text[:limit] + f"…(+{len(text) - limit})"


# --- what gRPC writes into fields -------------------------------------------------------------------------------------

UNITS = {"u": 1e-6, "m": 1e-3, "S": 1.0, "M": 60.0, "H": 3600.0}


@examples(100)
@given(st.floats(0, 3.5e11) | st.floats(0, 1000) | st.integers(0, 10**9).map(lambda n: n / 1e6))
@example(100_000_000 * 60.0)
@example(0.0)
def test_a_deadline_is_never_too_short_and_at_most_a_unit_too_long(seconds: float) -> None:
    block = bytes(timeout_field(seconds))
    ((name, value),) = hpack.Decoder().decode(block)
    match = re.fullmatch(r"grpc-timeout=([1-9][0-9]{0,7})([umSMH])", f"{name!s}={value!s}")
    assert match is not None
    unit = UNITS[match[2]]
    written = int(match[1]) * unit
    assert written >= seconds * (1 - 1e-12)
    # Each coarser unit rounds up once more.
    assert written <= seconds + unit * 1.1 or written == unit == 1e-6
    if match[2] != "u":
        finer = UNITS["umSMH"["umSMH".index(match[2]) - 1]]
        assert seconds / finer > 99_999_990, "a finer unit would have been enough"


@examples(40)
@given(st.text(max_size=60), st.sampled_from([0, 4030, 4096, 5000]))
def test_any_message_is_decoded_as_text_of_bounded_length(sent: str, more: int) -> None:
    """Fault 94."""
    read = decode_message(sent + "x" * more)
    assert len(read) <= 4097
    assert read.endswith("…") or len(read) < 4097


METADATA_NAMES = st.from_regex(r"x-[a-z0-9_.-]{0,8}", fullmatch=True).filter(lambda name: not name.endswith("-bin"))
TEXTS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=200)
BINARY = st.tuples(METADATA_NAMES.map("{}-bin".format), st.binary(max_size=40))
METADATA = st.lists(st.tuples(METADATA_NAMES, TEXTS) | BINARY, max_size=5)


@examples(50)
@given(METADATA)
def test_metadata_survives_a_round_trip(metadata: list[tuple[str, str | bytes]]) -> None:
    fields = [(str(name), str(value)) for name, value in hpack.Decoder().decode(metadata_fields(metadata))]
    assert decode_metadata([(":status", "200"), ("grpc-status", "0"), *fields, ("te", "trailers")]) == metadata


# --- bytes of frames --------------------------------------------------------------------------------------------------

SIZES = st.integers(0, 400) | st.sampled_from([126, 127, 128, 254, 255, 16_383, 16_384, 16_510, 70_000])


@examples(40)
@given(SIZES, st.binary(max_size=3))
@example(126, b"")
@example(127, b"")
@example(254, b"")
@example(255, b"")
def test_another_decoder_reads_a_string_of_any_length(size: int, start: bytes) -> None:
    """RFC 7541 section 5.2."""
    value = start + b"v" * size
    decoder = hpack.Decoder(1 << 20)
    assert decoder.decode(literal_field(b"x", value), raw=True) == [(b"x", value)]
    assert decoder.decode(b"\0" + literal_string(value[:100]) + literal_string(b"y"), raw=True) == [(value[:100], b"y")]
    assert list(decoder.header_table.dynamic_entries) == []


@examples(40)
@given(st.integers(-10, 2**32), st.integers(-10, 2**32), st.integers(-2, 2**33))
def test_any_valid_limits_give_a_preamble_that_a_server_accepts(stream: int, connection: int, headers: int) -> None:
    """RFC 9113 sections 3.4, 6.5 and 6.9."""
    import h2.config
    import h2.connection

    within = all(DEFAULT_WINDOW <= window <= MAX_WINDOW for window in (stream, connection)) and headers >= 1
    try:
        limits = WireLimits(stream_window=stream, connection_window=connection, header_list_bytes=headers)
    except ValueError:
        assert not within
        return
    assert within
    server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    server.initiate_connection()
    server.receive_data(limits.preamble)
    assert server.remote_settings.initial_window_size == stream
    assert server.remote_settings.max_header_list_size == min(headers, 2**32 - 1)
    assert server.outbound_flow_control_window == connection
    assert not server.remote_settings.enable_push

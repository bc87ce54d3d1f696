from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugind.protocol.text import encodable, escaped


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("größe 日本", "größe 日本"),
        ("a\nb\rc\td", "a\\nb\\rc\\td"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("abc\u202edef", "abc\\u202edef"),
        ("a\udcffb", "a\\xffb"),
        ("zero\x00width\u200b", "zero\\x00width\\u200b"),
        # Surrogates next to the 128 that represent bytes of a file name.
        ("\udc7f\udc80\udcff\udd00", "\\udc7f\\x80\\xff\\udd00"),
        ("\uffff\U000e0001", "\\uffff\\U000e0001"),
    ],
)
def test_characters_that_are_not_printable_are_escaped(text: str, shown: str) -> None:
    """Faults 21, 22 and 91."""
    assert escaped(text) == shown


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_escaped_text_is_always_printable(text: str) -> None:
    """Fault 91."""
    assert escaped(text).isprintable()


@given(st.binary())
def test_every_file_name_becomes_json_that_every_parser_accepts(name: bytes) -> None:
    """Fault 21: no lone surrogate is left."""
    text = encodable(name.decode("utf-8", "surrogateescape"))
    assert json.loads(json.dumps(text)) == text
    text.encode("utf-8")


def test_the_bytes_of_a_utf_8_name_that_the_locale_could_not_decode_become_its_characters() -> None:
    """Fault 21: in the POSIX locale a file name of UTF-8 arrives as one surrogate for each byte."""
    undecoded = "/r/été\U0001f600.sock".encode().decode("ascii", "surrogateescape")
    assert encodable(undecoded) == "/r/été\U0001f600.sock"
    assert encodable(undecoded + "\udcff\udcc3") == "/r/été\U0001f600.sock\\xff\\xc3"

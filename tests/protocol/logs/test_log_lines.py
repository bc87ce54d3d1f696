from __future__ import annotations

import json
import logging

import pytest

from plugind.protocol.logs.lines import Level, json_line, text_line


def test_a_line_is_a_constant_message_and_its_fields() -> None:
    line = text_line(
        0.25, Level.INFO, "plugin registered",
        {"socket": "/r/a.sock", "reason": None, "attempt": 2, "took": 0.0123456789, "ok": True, "empty": ""},
    )  # fmt: skip
    assert line == (
        'time=1970-01-01T00:00:00.250Z level=info msg="plugin registered"'
        ' socket=/r/a.sock attempt=2 took=0.0123457 ok=true empty=""\n'
    )


def test_no_value_can_forge_a_line_or_a_field() -> None:
    """Faults 22 and 91: log injection."""
    hostile = 'a" level=error\ntime=now msg=forged \x1b[2J\u202e\\'
    line = text_line(0.0, Level.INFO, "m", {"name": hostile})
    assert line.count("\n") == 1
    assert line[:-1].isprintable()
    assert line.endswith(' name="a\\" level=error\\ntime=now msg=forged \\x1b[2J\\u202e\\\\"\n')


def test_json_lines_have_every_logged_field() -> None:
    line = json_line(1.0, Level.WARNING, "m", {"name": "a\nb\udcff", "attempt": 1, "none": None})
    assert line.isascii()
    assert line.count("\n") == 1
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:01.000Z",
        "level": "warning",
        "msg": "m",
        "name": "a\nb\\xff",
        "attempt": 1,
    }


@pytest.mark.parametrize(
    ("size", "shown"), [(1024, "x" * 1024), (1025, "x" * 1024 + "…(+1)"), (99_999, "x" * 1024 + "…(+98975)")]
)
def test_a_value_of_more_than_1024_characters_is_cut(size: int, shown: str) -> None:
    """Fault 94."""
    fields: dict[str, str] = {"error": "x" * size}
    assert text_line(0.0, Level.INFO, "m", fields).endswith(f" error={shown}\n")
    assert json.loads(json_line(0.0, Level.INFO, "m", fields))["error"] == shown


def test_levels_have_the_numbers_of_the_standard_library() -> None:
    """A program that embeds a node can pass them to ``logging``."""
    assert {level.name: int(level) for level in Level} == {
        name: getattr(logging, name) for name in ("DEBUG", "INFO", "WARNING", "ERROR")
    }

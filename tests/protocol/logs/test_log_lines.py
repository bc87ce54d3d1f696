from __future__ import annotations

import json

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

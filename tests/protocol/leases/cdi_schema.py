"""The rules of CDI 0.3.0 to 0.5.0: of its JSON schema, and those that engines check beside it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], bool]

_NAME = re.compile(r"[A-Za-z]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")


def _text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _uint32(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 32


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and bool(value) and all(map(check, value))


def _variable(value: Any) -> bool:
    return isinstance(value, str) and value.find("=") > 0


#: Each field, and whether it is required.
_Fields = Mapping[str, tuple[Check, bool]]
_NODE: _Fields = {
    "path": (_text, True),
    "hostPath": (_text, False),
    "type": (lambda value: value in ("b", "c", "p", "u"), False),
    "major": (lambda value: type(value) is int, False),
    "minor": (lambda value: type(value) is int, False),
    "fileMode": (lambda value: type(value) is int and 0 <= value <= 512, False),
    "permissions": (lambda value: _text(value) and set(value) <= set("rwm"), False),
    "uid": (_uint32, False),
    "gid": (_uint32, False),
}
_MOUNT: _Fields = {
    "hostPath": (_text, True),
    "containerPath": (_text, True),
    "options": (_list_of(_text), False),
    "type": (_text, False),
}
_HOOK: _Fields = {
    "hookName": (
        lambda value: (
            value in ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
        ),
        True,
    ),
    "path": (lambda value: _text(value) and value.startswith("/"), True),
    "args": (_list_of(_text), False),
    "env": (_list_of(_variable), False),
    "timeout": (lambda value: type(value) is int and value > 0, False),
}


def _object(fields: _Fields) -> Check:
    def check(value: Any) -> bool:
        assert isinstance(value, dict)
        assert set(value) <= set(fields), f"fields that no engine knows: {set(value) - set(fields)}"
        assert {name for name, (_, required) in fields.items() if required} <= set(value)
        for name, content in value.items():
            assert fields[name][0](content), (name, content)
        return True

    return check


def _edits(value: Any) -> bool:
    assert value, "edits that are empty do not resolve"
    return _object(
        {
            "env": (_list_of(_variable), False),
            "deviceNodes": (_list_of(_object(_NODE)), False),
            "mounts": (_list_of(_object(_MOUNT)), False),
            "hooks": (_list_of(_object(_HOOK)), False),
        }
    )(value)


_DEVICE: _Fields = {
    "name": (lambda value: _text(value) and _NAME.fullmatch(value) is not None, True),
    "containerEdits": (_edits, True),
}
_DOCUMENT: _Fields = {
    "cdiVersion": (lambda value: value in ("0.3.0", "0.4.0", "0.5.0"), True),
    "kind": (lambda value: re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*/[A-Za-z][A-Za-z0-9_-]*", value) is not None, True),
    "devices": (_list_of(_object(_DEVICE)), True),
    "containerEdits": (_edits, False),
}


def check_document(document: Any) -> None:
    """Assert that every engine that knows the document's version loads it."""
    _object(_DOCUMENT)(document)
    needed = max(map(_version_of, document["devices"]))
    assert document["cdiVersion"] >= needed


def _version_of(device: Any) -> str:
    edits = device["containerEdits"]
    if any("hostPath" in node for node in edits.get("deviceNodes", ())):
        return "0.5.0"
    return "0.4.0" if any("type" in mount for mount in edits.get("mounts", ())) else "0.3.0"

"""The JSON of handlers in other processes: what they are sent, line by line, and the bodies of what they post.

``docs/remote-handlers.md`` describes it for the authors of handlers. Both directions are here, for the daemon and for
the clients of ``plugind.client``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar, assert_never

from ..handlers.remote import MOST_OPEN, Ask, AskKind, AskResult, Event, Instance, RoleTold, Synced, Withdrawn
from ..leases.asked_json import Fields, check_range, fields_of, flag, or_none, word
from ..leases.json_values import every, exactly, exactly_or_none, number, text_by_text, texts, wrong_form_is
from ..plugins.health import Health
from ..plugins.info import Plugin
from ..text import encodable
from ..values import value
from ..version import __version__
from .asks_forms import (
    MAX_PATH,
    MOST_AT_ONCE,
    AnswersBody,
    AskLine,
    HealthBody,
    HealthForm,
    HeldBody,
    HeldForm,
    HelloLine,
    Line,
    PluginForm,
)
from .status_values import StatusFormError

T = TypeVar("T")

# --- lines, which the daemon sends ------------------------------------------------------------------------------------


def hello_to_json(plugin_type: str, epoch: str, session: str, heartbeat: float) -> HelloLine:
    """Return the first line."""
    return {
        "hello": {
            "type": plugin_type,
            "version": __version__,
            "epoch": epoch,
            "session": session,
            "most_open": MOST_OPEN,
            "heartbeat": heartbeat,
        }
    }


def event_to_json(event: Event, now: float) -> Line:
    """Return one line at the time ``now``, in seconds of the clock of deadlines."""
    match event:
        case Ask():
            line: AskLine = {"ask": event.kind, "id": event.number}
            if event.instance is not None:
                line["plugin"] = _instance_to_json(event.instance)
            # A line of JSON has no infinity.
            if (seconds := event.deadline - now) <= _FOR_EVER:
                line["seconds"] = round(max(seconds, 0.0), 3)
            return line
        case Withdrawn():
            return {"withdrawn": event.number}
        case RoleTold():
            return {"role": {"instance": event.instance, "active": event.active}}
        case Synced():
            return {"synced": True}
        case _:
            assert_never(event)


#: A deadline after so many seconds is none.
_FOR_EVER: Final = 1e6


def _instance_to_json(instance: Instance) -> PluginForm:
    known: PluginForm = {
        "instance": instance.id,
        "name": encodable(instance.name),
        "socket": encodable(instance.socket),
    }
    if (plugin := instance.plugin) is None:
        return known
    device, inode = (None, None) if plugin.file is None else plugin.file
    return {
        **known,
        "type": plugin.type,
        "endpoint": encodable(plugin.endpoint),
        "versions": [encodable(version) for version in plugin.versions],
        "privileged": plugin.privileged,
        "uid": plugin.uid,
        "pid": plugin.pid,
        "device": device,
        "inode": inode,
    }


# --- what handlers post -----------------------------------------------------------------------------------------------


@value
class HealthPosted:
    """What a handler says of one instance."""

    instance: str
    health: Health | None = None
    reason: str = ""
    facts: Mapping[str, str] | None = None
    warnings: tuple[str, ...] = ()
    usable: bool | None = None
    #: Why the plugin has left for good, if it has.
    gone: str | None = None


#: Bytes of the instances in one body, which is limited by the HTTP server.
_MOST_BYTES: Final = 48 * 1024


def held_to_json(session: str, instances: Iterable[Instance]) -> Iterator[HeldBody]:
    """Yield the bodies of ``POST …/held`` that name all instances."""
    few, size = list[HeldForm](), 0
    for each in instances:
        form: HeldForm = {"instance": each.id, "name": each.name, "socket": each.socket}
        length = len(json.dumps(form))
        if few and (len(few) == MOST_AT_ONCE or size + length > _MOST_BYTES):
            yield {"session": session, "held": few, "more": True}
            few, size = [], 0
        few.append(form)
        size += length
    yield {"session": session, "held": few, "more": False}


def answer_to_json(session: str, asked: int, verdict: AskResult) -> AnswersBody:
    """Return the body of ``POST …/answers`` with one answer."""
    return {"session": session, "answers": [{"id": asked, "error": verdict.error, "cause": verdict.cause}]}


def health_to_json(session: str, posted: HealthPosted) -> HealthBody:
    """Return the body of ``POST …/health`` for one instance."""
    plugin: HealthForm = {"instance": posted.instance, "reason": posted.reason, "warnings": [*posted.warnings]}
    if posted.health is not None:
        plugin["health"] = posted.health
    if posted.facts is not None:
        plugin["facts"] = dict(posted.facts)
    if posted.usable is not None:
        plugin["usable"] = posted.usable
    if posted.gone is not None:
        plugin["gone"] = posted.gone
    return {"session": session, "plugins": [plugin]}


_NAMES: Final = ("instance", "name", "socket")


def held_from_json(body: bytes) -> tuple[str, tuple[Instance, ...], bool]:
    """Return the token of a handler's session, what it says it holds, and whether more follows.

    Raises:
      RequestError: if the body is not of that form.
    """
    fields = fields_of(body, '{"session": TOKEN, "held": []}')
    session, held = _posted(fields, "held", _held, '{"instance": "8f-3", "name": "a.example", "socket": "/a"}')
    more = fields.get("more", flag, "true if another list follows", default=False)
    fields.end()
    return session, held, more


def _held(fields: Fields) -> Instance:
    hint = "that of the ask's plugin"
    return Instance(
        fields.needed("instance", word, hint), fields.needed("name", word, hint), fields.needed("socket", _path, hint)
    )


def _path(found: object) -> str:
    return _text(found, MAX_PATH)


def _said(found: object) -> str:
    """Read an error, which is cut where it is kept."""
    return _text(found)


def _text(found: object, most: float = math.inf) -> str:
    text = exactly(str, found)
    check_range(1, most, len(text))
    text.encode()
    return text


def answers_from_json(body: bytes) -> tuple[str, tuple[tuple[int, AskResult], ...]]:
    """Return the token of a handler's session, and its verdicts by the numbers of their asks.

    Raises:
      RequestError: if the body is not of that form.
    """
    fields = fields_of(body, '{"session": TOKEN, "answers": [{"id": 7}]}')
    posted = _posted(fields, "answers", _answer, '{"id": 7} or {"id": 7, "error": "too old"}')
    fields.end()
    return posted


def _answer(fields: Fields) -> tuple[int, AskResult]:
    number = fields.needed("id", lambda found: exactly(int, found), "the id of an ask, a number")
    error = fields.get("error", or_none(_said), "why not, in words; null or nothing if all is well", None)
    return number, AskResult(error, fields.get("cause", or_none(_said), "the error in few words", None))


def health_from_json(body: bytes) -> tuple[str, tuple[HealthPosted, ...]]:
    """Return the token of a handler's session, and what it says of its plugins.

    Raises:
      RequestError: if the body is not of that form.
    """
    fields = fields_of(body, '{"session": TOKEN, "plugins": [{"instance": "8f-3", "health": "healthy"}]}')
    posted = _posted(fields, "plugins", _health, '{"instance": "8f-3", "health": "healthy"}')
    fields.end()
    return posted


def _health(fields: Fields) -> HealthPosted:
    words = ", ".join(health.value for health in Health)
    return HealthPosted(
        fields.needed("instance", word, "the instance of a follow"),
        fields.get("health", lambda found: Health(exactly(str, found)), f"one of {words}", None),
        fields.get("reason", lambda found: exactly(str, found), "a text", ""),
        fields.get("facts", or_none(text_by_text), "an object of texts", None),
        fields.get("warnings", lambda found: every(word, found), "a list of texts", ()),
        fields.get("usable", flag, "true or false", None),
        fields.get("gone", word, "why the plugin has left", None),
    )


def _posted(fields: Fields, key: str, read: Callable[[Fields], T], example: str) -> tuple[str, tuple[T, ...]]:
    """Return the token of a session, and what ``read`` makes of each object of a list."""
    session = fields.needed("session", word, "the token of the line hello")
    listed = fields.needed(key, _few, f"a list of at most {MOST_AT_ONCE} objects such as {example}")
    found = []
    for each in listed:
        of_one = Fields(each, f"{key}.")
        found.append(read(of_one))
        of_one.end()
    return session, tuple(found)


def _few(found: object) -> list[dict[str, object]]:
    listed = exactly(list, found)
    if len(listed) > MOST_AT_ONCE:
        raise ValueError(f"there are {len(listed)}")
    return [exactly(dict, each) for each in listed]


# --- what clients read of the lines -----------------------------------------------------------------------------------


@value
class Hello:
    """The first line of a session."""

    session: str
    #: Seconds between two heartbeats.
    heartbeat: float


@value
class Asked:
    """An ask, as a handler gets it."""

    id: int
    kind: AskKind
    #: None for a ping.
    instance: Instance | None
    #: How long the answer may take; None if it has no deadline.
    seconds: float | None


def hello_from_json(content: object) -> Hello:
    """Return what the first line says.

    Raises:
      StatusFormError: if it is not of that form.
    """
    with wrong_form_is(StatusFormError, "it is no first line that this version of plugind knows"):
        hello = exactly(dict, exactly(dict, content)["hello"])
        return Hello(exactly(str, hello["session"]), number(hello["heartbeat"]))


def event_from_json(content: object) -> Asked | Withdrawn | RoleTold | Synced | None:
    """Return what a line says; None if this version does not know it.

    Raises:
      StatusFormError: if it is not of the form that this version knows.
    """
    with wrong_form_is(StatusFormError, "it is no line that this version of plugind knows"):
        return _event_of(content)


def _event_of(content: object) -> Asked | Withdrawn | RoleTold | Synced | None:
    match content:
        case {"ask": str(kind), "id": int(asked), **more}:
            instance = _instance_of(exactly(dict, more["plugin"])) if "plugin" in more else None
            return Asked(asked, AskKind(kind), instance, number(more["seconds"]) if "seconds" in more else None)
        case {"withdrawn": int(asked)}:
            return Withdrawn(asked)
        case {"role": {"instance": str(of), "active": bool(active)}}:
            return RoleTold(of, active)
        case {"synced": True}:
            return Synced()
        case _:
            return None


def _instance_of(found: dict[str, Any]) -> Instance:
    instance, name, socket = (exactly(str, found[key]) for key in _NAMES)
    plugin = None
    if "endpoint" in found:
        device, inode = found["device"], found["inode"]
        plugin = Plugin(
            exactly(str, found["type"]),
            name,
            exactly(str, found["endpoint"]),
            texts(found["versions"]),
            socket,
            int(instance.rpartition("-")[2]),
            privileged=exactly(bool, found["privileged"]),
            pid=exactly_or_none(int, found["pid"]),
            uid=exactly_or_none(int, found["uid"]),
            file=None if device is None else (exactly(int, device), exactly(int, inode)),
        )
    return Instance(instance, name, socket, plugin)

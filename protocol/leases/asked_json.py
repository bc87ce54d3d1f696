"""The JSON of what is asked of leases: the bodies of requests to the status socket. Both directions.

It is read strictly, since a key that is ignored may be the one that mattered, and each error says what to give instead.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar, assert_never

from ..text import cut, encodable
from ..values import value
from .drains import Drain, DrainTarget
from .json_values import WRONG_FORM, encodables, every, exactly, number
from .values import (
    START_WITHIN,
    ConnectionOwner,
    ContainerOwner,
    NoOwner,
    ProcessIdentity,
    Request,
    TimeOwner,
    Wanted,
)

if TYPE_CHECKING:
    from ..status.json import Json

T = TypeVar("T")

#: What a request may have.
MAX_RESOURCES: Final = 64
MAX_COUNT: Final = 1_000_000
MAX_LABELS: Final = 64
#: The largest uid: the next number means "no user" in the kernel's calls.
MAX_UID: Final = 2**32 - 2
#: Characters of one text; the id of a lease has a limit of its own.
MAX_TEXT: Final = 1024
#: Seconds of a wait and of a lease that ends at a time: 68 years.
MAX_SECONDS: Final = 2.0**31
#: Characters of a wrong value that are shown.
_SHOWN: Final = 64
#: The last Unix second that can be written as a date.
_LAST_DATE: Final = 253402300799.0


class RequestError(Exception):
    """What is asked cannot be understood; the text says what to give instead."""


# --- fields -----------------------------------------------------------------------------------------------------------


class Fields:
    """The keys of an object, each of which is read once."""

    def __init__(self, content: Mapping[str, object], name: str = "") -> None:
        """Read ``content``; ``name`` is what stands before each key in errors."""
        self._content = content
        self._name = name
        self._keys: list[str] = []

    def get(self, key: str, read: Callable[[object], T], hint: str, default: T) -> T:
        """Return what ``read`` makes of the value at ``key``, or ``default`` if there is none.

        Raises:
          RequestError: if ``read`` raises one of :data:`~.json_values.WRONG_FORM`; the text says to give ``hint``.
        """
        self._keys.append(key)
        return self._read(key, read, hint) if key in self._content else default

    def needed(self, key: str, read: Callable[[object], T], hint: str) -> T:
        """Return what ``read`` makes of the value at ``key``, which has to be there.

        Raises:
          RequestError: if it is not there, or as :meth:`get` does.
        """
        self._keys.append(key)
        if key not in self._content:
            raise RequestError(f"there is no {self._name}{key}: give {hint}")
        return self._read(key, read, hint)

    def _read(self, key: str, read: Callable[[object], T], hint: str) -> T:
        found = self._content[key]
        try:
            return read(found)
        except WRONG_FORM as error:
            raise RequestError(f"{self._name}{key} is {_shown(found)}: give {hint}") from error

    def end(self) -> None:
        """Check that there is no other key.

        Raises:
          RequestError: if there is one.
        """
        unknown = sorted(self._content.keys() - set(self._keys))
        if unknown:
            there = ", ".join(f"{self._name}{key}" for key in self._keys)
            name = self._name + cut(encodable(unknown[0]), _SHOWN)
            raise RequestError(f"{name} is not known here: there is {there}")


def _shown(found: object) -> str:
    """Return a wrong value in few words. What is nested may be too deep to be written."""
    match found:
        case dict():
            return "an object" if found else "an empty object"
        case list():
            return "a list" if found else "an empty list"
        case _:
            return cut(json.dumps(found), _SHOWN)


def fields_of(body: bytes, example: str) -> Fields:
    """Return the keys of a body.

    Raises:
      RequestError: if it is no JSON object, or one has a key twice; the text shows ``example``.
    """
    try:
        content = exactly(dict, json.loads(body, object_pairs_hook=_once, parse_constant=_no_constant))
    except _TwiceError as error:
        raise RequestError(f"{error}: give each key once") from error
    except WRONG_FORM as error:
        raise RequestError(f"the body is no JSON object: give one such as {example}") from error
    return Fields(content)


class _TwiceError(Exception):
    """A key stands twice in an object."""


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    content: dict[str, object] = {}
    for key, found in pairs:
        if key in content:
            raise _TwiceError(f"{_shown(key)} stands twice in an object")
        content[key] = found
    return content


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


# --- readers ----------------------------------------------------------------------------------------------------------


def check_range(least: float, most: float, found: float) -> None:
    """Check that a number lies between two others.

    Raises:
      ValueError: if it does not.
    """
    if not least <= found <= most:
        raise ValueError(f"{found} is not from {least} to {most}")


def from_one(most: int) -> Callable[[object], int]:
    """Return a reader of whole numbers from 1 to ``most``."""

    def read(found: object) -> int:
        whole = exactly(int, found)
        check_range(1, most, whole)
        return whole

    return read


def seconds(found: object) -> float:
    """Read a time of 0 seconds or more."""
    time = number(found)
    check_range(0, MAX_SECONDS, time)
    return time


def some_seconds(found: object) -> float:
    """Read a time of more than 0 seconds."""
    time = seconds(found)
    check_range(math.ulp(0.0), MAX_SECONDS, time)
    return time


def unix_seconds(found: object) -> float:
    """Read a time in Unix seconds that can be written as a date."""
    time = number(found)
    check_range(0, _LAST_DATE, time)
    return time


def word(found: object) -> str:
    """Read a text that is not empty, and that can be encoded."""
    text = exactly(str, found)
    check_range(1, MAX_TEXT, len(text))
    text.encode()
    return text


def flag(found: object) -> bool:
    """Read true or false."""
    return exactly(bool, found)


def or_none(read: Callable[[object], T]) -> Callable[[object], T | None]:
    """Return a reader that also takes null."""
    return lambda found: None if found is None else read(found)


# --- what is asked ----------------------------------------------------------------------------------------------------


@value
class ProcessWish:
    """The caller wants a process to own the lease, and names it by its pid."""

    pid: int
    #: The pid of the client as the client knows it: see :func:`why_not_owner`.
    client_pid: int


#: Who is to own a lease, in the words of the caller.
OwnerWish = ProcessWish | ContainerOwner | TimeOwner | ConnectionOwner | NoOwner


@value
class LeaseBody:
    """The body of ``POST /v1/leases``."""

    request: Request
    owner: OwnerWish
    #: The name that the caller gives to the lease.
    id: str | None = None
    #: For how many seconds it waits for devices; None if it does not wait.
    wait: float | None = None


def why_not_owner(own_pid: int, peer_pid: int) -> str | None:
    """Return why a client may not name an owner by its pid; None if it may.

    A pid is a number in one pid namespace. A client in another one that says ``--owner 1`` means its own init, and the
    daemon would watch that of the host.

    ``own_pid`` is the pid of the client as the client knows it, and ``peer_pid`` is the one that ``SO_PEERCRED`` has
    for the daemon, which is 0 for a process that the daemon's namespace does not contain.
    """
    if own_pid == peer_pid:
        return None
    seen = f"as {peer_pid}" if peer_pid else "not at all"
    return (
        f"--owner PID cannot be used in another pid namespace than plugind's, and neither can -- CMD: this client has"
        f" the pid {own_pid}, and plugind sees it {seen}; use --ttl or --until-release"
    )


def asked_to_json(asked: LeaseBody) -> dict[str, Json]:
    """Return the body of ``POST /v1/leases``."""
    client = {"client_pid": asked.owner.client_pid} if isinstance(asked.owner, ProcessWish) else {}
    owner = _wish_to_json(asked.owner)
    return {**request_to_json(asked.request), "id": asked.id, "wait": asked.wait, "owner": owner, **client}


def _wish_to_json(owner: OwnerWish) -> dict[str, Json]:
    match owner:
        case ProcessWish():
            return {"kind": "process", "pid": owner.pid}
        case ContainerOwner(start_within=seconds):
            # An earlier version knows no such key.
            return {"kind": "container"} | ({} if seconds == START_WITHIN else {"start_within": seconds})
        case TimeOwner():
            return {"kind": "time", "seconds": owner.seconds}
        case ConnectionOwner():
            return {"kind": "connection"}
        case NoOwner():
            return {"kind": "none"}
        case _:
            assert_never(owner)


def request_to_json(request: Request) -> dict[str, Json]:
    """Return the JSON form of what a lease is to give."""
    return {
        "resources": {encodable(wanted.resource): wanted.count for wanted in request.wanted},
        "ids": encodables(request.ids),
        "include": encodables(request.include),
        "pool": request.pool,
        "labels": dict(request.labels),
        "container": request.container,
        "ignore_missing": request.ignore_missing,
        "stop_on_unhealthy": request.stop_on_unhealthy,
        # Left out where nobody is meant, since an earlier daemon does not know the key.
        **({} if request.for_uid is None else {"for_uid": request.for_uid}),
    }


def asked_from_json(body: bytes) -> LeaseBody:
    """Return what the body of ``POST /v1/leases`` asks for.

    Raises:
      RequestError: if it is not of the form of such a body, or too large in some way.
    """
    fields = fields_of(body, '{"resources": {"vendor.com/gpu": 1}, "owner": {"kind": "none"}}')
    resources = fields.needed("resources", _resources, _RESOURCES)
    request = Request(
        wanted=tuple(Wanted(name, count) for name, count in resources.items()),
        ids=fields.get("ids", _names, _IDS, ()),
        include=fields.get("include", _names, _IDS, ()),
        pool=fields.get("pool", or_none(word), "the name of a pool, or null for the devices that are in none", None),
        labels=fields.get("labels", _labels, _LABELS, ()),
        container=fields.get("container", flag, _FLAG, default=False),
        ignore_missing=fields.get("ignore_missing", flag, _FLAG, default=False),
        stop_on_unhealthy=fields.get("stop_on_unhealthy", flag, _FLAG, default=False),
        for_uid=fields.get("for_uid", or_none(_uid), _UID, None),
    )
    name = fields.get("id", or_none(_name), _NAME, None)
    wait = fields.get("wait", or_none(seconds), _WAIT, None)
    owner = _wish(fields)
    fields.end()
    return LeaseBody(request, owner, name, wait)


_RESOURCES: Final = (
    f'an object of 1 to {MAX_RESOURCES} resources with numbers from 1 to {MAX_COUNT}, such as {{"vendor.com/gpu": 1}}'
)
_IDS: Final = 'a list of ids of devices, such as ["GPU-0"]'
_LABELS: Final = f'an object of at most {MAX_LABELS} texts of at most {MAX_TEXT} characters, such as {{"job": "7"}}'
_FLAG: Final = "true or false"
_UID: Final = "the uid of the user who is to have the lease, or null for the one who asks"
_WAIT: Final = f"seconds from 0 to {MAX_SECONDS:.0f}, or null to fail at once if there are not enough devices"
_NAME: Final = "another name for the lease than watch and recover, or null for one of plugind's"
_KINDS: Final = (
    '"process" (with pid), "container" (or with start_within), "time" (with seconds), "connection" or "none"'
)
_PID: Final = "the pid of a process, a number above 0"
_CLIENT_PID: Final = "the client's own pid, as getpid() has it"
_STARTS: Final = "within how many seconds a container has to start, above 0, or null for a lease until its release"
_LASTS: Final = f"how long the lease lasts: seconds above 0, up to {MAX_SECONDS:.0f}"


def _wish(fields: Fields) -> OwnerWish:
    content = fields.needed("owner", lambda found: exactly(dict, found), f"an object that has a kind: {_KINDS}")
    owner = Fields(content, "owner.")
    wish: OwnerWish
    match owner.needed("kind", _kind, _KINDS):
        case "process":
            wish = ProcessWish(owner.needed("pid", _pid, _PID), fields.needed("client_pid", _pid, _CLIENT_PID))
        case "container":
            usual: float | None = START_WITHIN
            wish = ContainerOwner(None, owner.get("start_within", or_none(some_seconds), _STARTS, usual))
        case "time":
            wish = TimeOwner(owner.needed("seconds", some_seconds, _LASTS))
        case "connection":
            wish = ConnectionOwner()
        case _:
            wish = NoOwner()
    owner.end()
    return wish


def _name(found: object) -> str:
    """Read the id of a lease, which is part of a path on the status socket."""
    name = word(found)
    if name in ("watch", "recover"):
        raise ValueError(f"{name} is another path")
    return name


def _kind(found: object) -> str:
    kind = exactly(str, found)
    if kind not in ("process", "container", "time", "connection", "none"):
        raise ValueError(f"{kind} is no kind of owner")
    return kind


def _uid(found: object) -> int:
    uid = exactly(int, found)
    check_range(0, MAX_UID, uid)
    return uid


def _resources(found: object) -> dict[str, int]:
    resources = {word(name): _count(count) for name, count in exactly(dict, found).items()}
    check_range(1, MAX_RESOURCES, len(resources))
    return resources


def _names(found: object) -> tuple[str, ...]:
    return every(word, found)


def _labels(found: object) -> tuple[tuple[str, str], ...]:
    labels = exactly(dict, found)
    check_range(0, MAX_LABELS, len(labels))
    return tuple(sorted((word(key), "" if text == "" else word(text)) for key, text in labels.items()))


_count = from_one(MAX_COUNT)
_pid = from_one(2**31 - 1)
_ticks = from_one(2**63 - 1)


def init_to_json(init: ProcessIdentity) -> dict[str, Json]:
    """Return the body of ``POST /v1/leases/ID/bind``."""
    return {"pid": init.pid, "start_ticks": init.start_ticks, "boot_id": init.boot_id}


def init_from_json(body: bytes) -> ProcessIdentity:
    """Return the process that the body of ``POST /v1/leases/ID/bind`` names.

    Raises:
      RequestError: if it is not of the form of such a body.
    """
    fields = fields_of(body, '{"pid": 991, "start_ticks": 4711, "boot_id": "4c9d5bcf-4b6f-4f0e-8a41-8d1d5c2a3a0b"}')
    init = ProcessIdentity(
        fields.needed("pid", _pid, _PID),
        fields.needed("start_ticks", _ticks, "field 22 of /proc/PID/stat"),
        fields.needed("boot_id", word, "what /proc/sys/kernel/random/boot_id has"),
    )
    fields.end()
    return init


def token_from_json(body: bytes) -> str:
    """Return the token in the body of ``POST /v1/leases/ID/resume``.

    Raises:
      RequestError: if it is not of the form of such a body.
    """
    fields = fields_of(body, '{"token": TOKEN}')
    token = fields.needed("token", word, "the token that came with the lease")
    fields.end()
    return token


def recovery_from_json(body: bytes) -> None:
    """Check the body of ``POST /v1/leases/recover``.

    Raises:
      RequestError: if it does not say that no leased device is in use.
    """
    fields = fields_of(body, '{"none_held": true}')
    fields.needed("none_held", _true, "true if no leased device is in use")
    fields.end()


def target_to_json(target: DrainTarget) -> dict[str, Json]:
    """Return the body of ``POST /v1/drains/end``, and the beginning of that of ``POST /v1/drains``."""
    return {"resource": target.resource, "device": target.device}


def target_from_json(body: bytes) -> DrainTarget:
    """Return what the body of ``POST /v1/drains/end`` names.

    Raises:
      RequestError: if it is not of the form of such a body.
    """
    fields = fields_of(body, _DRAIN)
    target = _target(fields)
    fields.end()
    return target


def drain_body_from_json(body: bytes, uid: int, since: float) -> Drain:
    """Return the drain that the body of ``POST /v1/drains`` asks for, by a user and from a Unix second on.

    Raises:
      RequestError: if it is not of the form of such a body.
    """
    return drain_of(fields_of(body, _DRAIN), uid, since)


def drain_of(fields: Fields, uid: int, since: float) -> Drain:
    """Return the drain that the keys of such a body, or a program that embeds a node, ask for.

    Raises:
      RequestError: if they are not of that form.
    """
    target = _target(fields)
    reason = fields.get("reason", _reason, f"a printable text of at most {MAX_TEXT} characters", "")
    until = fields.get("until_unix", or_none(unix_seconds), "Unix seconds before the year 10000, or null", None)
    fields.end()
    return Drain(target, uid, since, reason, until)


_DRAIN: Final = '{"resource": "vendor.com/gpu", "device": "GPU-0"}, or {"resource": null} for the node'


def _target(fields: Fields) -> DrainTarget:
    resource = fields.needed("resource", or_none(word), "the name of a resource, or null for the node")
    device = fields.get("device", or_none(word), "the id of a device, or null for all of the resource", None)
    if device is not None and resource is None:
        raise RequestError("device has no resource: name the resource of the device")
    return DrainTarget(resource, device)


def _reason(found: object) -> str:
    text = "" if found == "" else word(found)
    if not text.isprintable():
        raise ValueError(f"{text!r} is not printable")
    return text


def _true(found: object) -> None:
    if found is not True:
        raise ValueError(f"{found!r} is not True")

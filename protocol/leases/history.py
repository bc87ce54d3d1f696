"""The history of leases: who had which device, from when until when, and how it ended.

It has a row for each device of a lease that was granted. A row whose end nobody saw, for example because the machine
was restarted, says until when the lease was certainly held, and when it was found to have ended. All times are Unix
seconds of the wall clock, which can jump.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from ..logs.lines import timestamp
from ..text import cut, encodable
from ..values import value
from .asked_json import MAX_UID, RequestError, or_none, unix_seconds
from .json_values import every, exactly, exactly_or_none, number, text_by_text, wrong_form_is
from .leases_json import LeaseJsonError
from .rows import kind_of
from .values import Lease, process_of

if TYPE_CHECKING:
    from ..status.json import Json

PATH: Final = "/v1/history"
USAGE_PATH: Final = f"{PATH}/usage"
#: How long a row's reason and the JSON of its labels may be, in characters, so that nobody fills the file with them.
MAX_REASON: Final = 256
MAX_LABELS: Final = 1024
#: By what usage is summed, besides one label: ``label:KEY``.
USER, RESOURCE, LABEL = "user", "resource", "label"
_HOUR: Final = 3600.0
#: Characters of a wrong parameter that are shown.
_SHOWN: Final = 64


# --- what is written --------------------------------------------------------------------------------------------------


@value
class Granted:
    """A lease that was granted; its end, once it has ended."""

    lease: Lease
    granted: float
    ended: float | None = None

    @property
    def key(self) -> tuple[str, float]:
        """What tells it from all other leases, of which some may have the same id."""
        return self.lease.id, self.lease.created


@value
class Gap:
    """Leases that are not in the history."""

    #: When the first and the last of them ended; the first is None for all that was known before.
    since: float | None
    until: float
    #: How many there were; None if that is not known.
    leases: int | None
    reason: str


@value
class HistoryRow:
    """One device that a lease had."""

    lease: str
    #: When the lease was asked for.
    created: float
    resource: str
    device: str
    #: The user for whom the lease was.
    uid: int
    pool: str | None
    labels: Mapping[str, str] = attrs.field(hash=False)
    #: The kind of owner: process, container, connection, time or none.
    owner: str
    pid: int | None
    granted: float
    #: When the lease ended; None if it has not.
    ended: float | None = None
    #: If nobody saw the end: until when the lease was certainly held. It ended between this and ``ended``.
    seen: float | None = None
    #: Why it ended.
    reason: str | None = None

    def seconds(self, now: float) -> float:
        """Return how long the device was certainly held until ``now``."""
        ended = self.ended if self.seen is None else self.seen
        return max(0.0, (now if ended is None else ended) - self.granted)


#: The columns of a row that is written, in their order.
COLUMNS: Final = tuple(field.name for field in attrs.fields(HistoryRow))


def columns_of(entry: Granted) -> Iterable[tuple[str | float | None, ...]]:
    """Return the columns of the rows of a lease."""
    lease, process = entry.lease, process_of(entry.lease.owner)
    reason = None if entry.ended is None or lease.reason is None else encodable(cut(lease.reason, MAX_REASON))
    before = encodable(lease.id), lease.created
    after = (
        lease.for_uid,
        None if lease.request.pool is None else encodable(lease.request.pool),
        _labels_of(lease),
        kind_of(lease.owner),
        None if process is None else process.pid,
        entry.granted,
        entry.ended,
        None,
        reason,
    )
    return [
        (*before, encodable(resource), encodable(device), *after)
        for resource, ids in lease.devices.items()
        for device in ids
    ]


def _labels_of(lease: Lease) -> str:
    labels = lease.request.labels
    if not labels:
        return "{}"
    while len(text := json.dumps(dict(labels))) > MAX_LABELS:
        labels = labels[:-1]
    return text


# --- what is asked ----------------------------------------------------------------------------------------------------


@value
class HistoryQuery:
    """Which rows are asked for: those that are, in part, between two times."""

    #: A device, or the device with all its shares.
    device: str | None = None
    resource: str | None = None
    #: The user for whom the lease was.
    uid: int | None = None
    since: float | None = None
    until: float | None = None


_PARAMETERS: Final = tuple(field.name for field in attrs.fields(HistoryQuery))


def query_of(parameters: Mapping[str, str], *also: str) -> HistoryQuery:
    """Return what the parameters of a request ask for; ``also`` are others that it may have.

    Raises:
      RequestError: if they cannot be understood.
    """
    known = (*_PARAMETERS, *also)
    if unknown := parameters.keys() - known:
        raise RequestError(f"there is no parameter {encodable(min(unknown))}; there are {', '.join(known)}")
    uid = parameters.get("uid")
    if uid is not None and not (uid.isascii() and uid.isdigit() and int(uid[:11]) <= MAX_UID):
        raise RequestError(f"uid is {encodable(cut(uid, _SHOWN))!r}: give a number from 0 to {MAX_UID}")
    return HistoryQuery(
        parameters.get("device"),
        parameters.get("resource"),
        None if uid is None else int(uid),
        _time_in(parameters, "since"),
        _time_in(parameters, "until"),
    )


def _time_in(parameters: Mapping[str, str], key: str) -> float | None:
    text = parameters.get(key)
    try:
        return None if text is None else unix_seconds(float(text))
    except ValueError:
        raise RequestError(f"{key} is {encodable(cut(str(text), _SHOWN))!r}: give Unix seconds") from None


def parameters_of(query: HistoryQuery) -> dict[str, str]:
    """Return the parameters that :func:`query_of` is given."""
    return {key: str(asked) for key in _PARAMETERS if (asked := getattr(query, key)) is not None}


def by_of(parameters: Mapping[str, str]) -> str:
    """Return by what usage is to be summed: a user unless the parameter ``by`` says something else.

    Raises:
      RequestError: if it says something that there is not.
    """
    by = parameters.get("by", USER)
    if by in (USER, RESOURCE, LABEL) or by.startswith(f"{LABEL}:"):
        return by
    raise RequestError(f"by is {encodable(cut(by, _SHOWN))!r}: give {USER}, {RESOURCE}, {LABEL} or {LABEL}:KEY")


@value
class Usage:
    """How long devices were held."""

    #: The uid, the resource, or the label; None for leases without this label.
    key: int | str | None
    #: The seconds of all devices together.
    seconds: float
    leases: int


# --- JSON -------------------------------------------------------------------------------------------------------------


@value
class History:
    """An answer: the rows, the latest grant first, and what is missing."""

    #: Whose rows these are, if not everybody's.
    uid: int | None
    gaps: tuple[Gap, ...]
    rows: tuple[HistoryRow, ...]
    #: Whether there are more rows than are answered at once.
    more: bool


@value
class UsageAnswer:
    """An answer: sums, the largest first, and what is missing."""

    uid: int | None
    gaps: tuple[Gap, ...]
    usage: tuple[Usage, ...]
    more: bool


def _time(unix: float | None) -> Json:
    return None if unix is None else timestamp(unix)


def row_to_json(row: HistoryRow, now: float) -> dict[str, Json]:
    """Return the JSON form of a row at the time ``now``."""
    return {
        "lease": row.lease,
        "created_unix": row.created,
        "resource": row.resource,
        "device": row.device,
        "uid": row.uid,
        "pool": row.pool,
        "labels": {**row.labels},
        "owner": row.owner,
        "pid": row.pid,
        "granted": _time(row.granted),
        "granted_unix": row.granted,
        "ended": _time(row.ended),
        "ended_unix": row.ended,
        "seen_unix": row.seen,
        "seconds": round(row.seconds(now), 3),
        "reason": row.reason,
    }


_number_or_none: Final = or_none(number)


def _row_of(content: Any) -> HistoryRow:
    return HistoryRow(
        exactly(str, content["lease"]),
        number(content["created_unix"]),
        exactly(str, content["resource"]),
        exactly(str, content["device"]),
        exactly(int, content["uid"]),
        exactly_or_none(str, content["pool"]),
        text_by_text(content["labels"]),
        exactly(str, content["owner"]),
        exactly_or_none(int, content["pid"]),
        number(content["granted_unix"]),
        _number_or_none(content["ended_unix"]),
        _number_or_none(content["seen_unix"]),
        exactly_or_none(str, content["reason"]),
    )


def gap_to_json(gap: Gap) -> dict[str, Json]:
    """Return the JSON form of a gap."""
    return {"since_unix": gap.since, "until_unix": gap.until, "leases": gap.leases, "reason": gap.reason}


def _gap_of(content: Any) -> Gap:
    return Gap(
        _number_or_none(content["since_unix"]),
        number(content["until_unix"]),
        exactly_or_none(int, content["leases"]),
        exactly(str, content["reason"]),
    )


def history_from_json(content: Any) -> History:
    """Return the answer to a request for the history.

    Raises:
      LeaseJsonError: if it is not of that form.
    """
    with wrong_form_is(LeaseJsonError, "it is no history that this version of plugind knows"):
        uid, more = exactly_or_none(int, content["uid"]), exactly(bool, content["more"])
        return History(uid, every(_gap_of, content["gaps"]), every(_row_of, content["rows"]), more)


def usage_to_json(usage: Usage, by: str) -> dict[str, Json]:
    """Return the JSON form of a sum."""
    key = "uid" if by == USER else RESOURCE if by == RESOURCE else LABEL
    return {key: usage.key, "device_hours": round(usage.seconds / _HOUR, 4), "leases": usage.leases}


def usage_from_json(content: Any) -> UsageAnswer:
    """Return the answer to a request for usage.

    Raises:
      LeaseJsonError: if it is not of that form.
    """
    with wrong_form_is(LeaseJsonError, "it is no usage that this version of plugind knows"):
        key = {USER: "uid", RESOURCE: RESOURCE}.get(exactly(str, content["by"]), LABEL)

        def usage_of(one: Any) -> Usage:
            found = one[key] if type(one[key]) is int else exactly_or_none(str, one[key])
            return Usage(found, number(one["device_hours"]) * _HOUR, exactly(int, one["leases"]))

        uid, more = exactly_or_none(int, content["uid"]), exactly(bool, content["more"])
        return UsageAnswer(uid, every(_gap_of, content["gaps"]), every(usage_of, content["usage"]), more)

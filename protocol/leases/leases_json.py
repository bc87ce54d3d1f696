"""The JSON of leases: what the status socket takes and answers, and what the commands print. Both directions.

What is asked is read strictly; see :mod:`.asked_json`. What is answered is read as far as it is known here: another
version of plugind may say more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_never

import attrs

from ..logs.lines import timestamp
from ..text import encodable, escaped
from .asked_json import init_to_json, or_none, request_to_json, unix_seconds
from .drains import Drain, DrainTarget
from .json_values import (
    answer_of,
    answer_to_json,
    encodables,
    every,
    exactly,
    exactly_or_none,
    number,
    owner_of,
    request_of,
    texts,
    wrong_form_is,
)
from .replies import Failure, InLine, LeasesSnapshot, LimitMet, Problem, Released
from .values import (
    ConnectionOwner,
    ContainerOwner,
    Lease,
    LeaseState,
    NoOwner,
    Owner,
    ProcessOwner,
    TimeOwner,
)

if TYPE_CHECKING:
    from ..status.json import Json


class LeaseJsonError(ValueError):
    """What the daemon answers cannot be understood: it is another version of plugind, or none."""


def lease_to_json(lease: Lease, boottime: int | None = None) -> dict[str, Json]:
    """Return the JSON form of a lease; ``boottime`` is ``CLOCK_BOOTTIME`` now, if its end is to be shown in seconds.

    The hash of the token of a connection is left out: it is of no use to anybody else.
    """
    return {
        "id": encodable(lease.id),
        "state": lease.state.value,
        "reason": None if lease.reason is None else encodable(lease.reason),
        "uid": lease.uid,
        "owner": _owner_to_json(lease.owner, boottime),
        "created": timestamp(lease.created),
        "created_unix": lease.created,
        "devices": {encodable(name): encodables(ids) for name, ids in lease.devices.items()},
        "request": request_to_json(lease.request),
        "answer": None if lease.answer is None else answer_to_json(lease.answer),
        "cdi_name": lease.cdi_name,
        "warnings": encodables(lease.warnings),
        "withheld_until_unix": lease.withheld_until,
        "longest": _longest_to_json(lease, boottime),
    }


def lease_to_line(lease: Lease) -> str:
    """Return a lease as four words for a shell: its id, its state, the kind of its owner, and the uid of its user."""
    name = escaped(lease.id).replace(" ", "\\x20")
    return f"{name} {lease.state.value} {_owner_to_json(lease.owner, None)['kind']} {lease.uid}\n"


def _longest_to_json(lease: Lease, boottime: int | None) -> dict[str, Json] | None:
    if (until := lease.longest_until) is None:
        return None
    return {"until_boottime_ns": until, "ends_in": _left(until, boottime), "overdue": lease.overdue}


def _left(until: int | None, boottime: int | None) -> float | None:
    """Return how many seconds are left until a time; None if that is not known."""
    return None if until is None or boottime is None else round(max(0.0, (until - boottime) / 1e9), 6)


def _owner_to_json(owner: Owner, boottime: int | None) -> dict[str, Json]:
    match owner:
        case ProcessOwner():
            return {"kind": "process", **init_to_json(owner.process)}
        case ContainerOwner():
            init = None if owner.init is None else init_to_json(owner.init)
            return {"kind": "container", "init": init, "start_within": owner.start_within}
        case TimeOwner():
            left = _left(owner.expires, boottime)
            return {"kind": "time", "seconds": owner.seconds, "expires_boottime_ns": owner.expires, "ends_in": left}
        case ConnectionOwner():
            return {"kind": "connection"}
        case NoOwner():
            return {"kind": "none"}
        case _:
            assert_never(owner)


def lease_from_json(content: object) -> Lease:
    """Return the lease that :func:`lease_to_json` was given.

    Raises:
      LeaseJsonError: if it is not of that form.
    """
    with wrong_form_is(LeaseJsonError, "it is no lease that this version of plugind knows"):
        return _lease_of(content)


def _lease_of(content: Any) -> Lease:
    # An earlier version has no such key.
    longest = content.get("longest") or {"until_boottime_ns": None, "overdue": False}
    return Lease(
        id=exactly(str, content["id"]),
        uid=exactly(int, content["uid"]),
        request=request_of(content["request"], content["request"]),
        owner=owner_of(content["owner"]),
        state=LeaseState(content["state"]),
        created=number(content["created_unix"]),
        devices={name: texts(ids) for name, ids in exactly(dict, content["devices"]).items()},
        answer=None if content["answer"] is None else answer_of(content["answer"]),
        cdi_name=exactly_or_none(str, content["cdi_name"]),
        reason=exactly_or_none(str, content["reason"]),
        warnings=texts(content["warnings"]),
        withheld_until=or_none(number)(content.get("withheld_until_unix")),
        longest_until=exactly_or_none(int, longest["until_boottime_ns"]),
        overdue=exactly(bool, longest["overdue"]),
    )


def failure_to_json(failure: Failure, boottime: int | None = None) -> dict[str, Json]:
    """Return the JSON form of a failure; the holders are shown without what their plugins have answered."""
    holders = [lease_to_json(attrs.evolve(lease, answer=None), boottime) for lease in failure.holders]
    limit = None if failure.limit is None else limit_to_json(failure.limit)
    return {"error": encodable(failure.text), "problem": failure.problem.value, "holders": holders, "limit": limit}


def limit_to_json(limit: LimitMet) -> dict[str, Json]:
    """Return the JSON form of a limit, which says where the configuration has it."""
    return {
        "name": limit.name,
        "value": limit.value,
        "resource": encodable(limit.resource),
        "pool": limit.pool,
        "source": encodable(limit.source),
    }


def _limit_of(content: Any) -> LimitMet:
    name, resource, source = (exactly(str, content[key]) for key in ("name", "resource", "source"))
    value = content["value"] if type(content["value"]) is int else number(content["value"])
    return LimitMet(name, value, resource, exactly_or_none(str, content["pool"]), source)


def failure_from_json(content: Any) -> Failure:
    """Return the failure that :func:`failure_to_json` was given.

    Raises:
      LeaseJsonError: if it is not of that form: other errors of the status socket have no ``problem``.
    """
    with wrong_form_is(LeaseJsonError, "it is no failure that this version of plugind knows"):
        # An earlier version has no limits.
        limit, holders = or_none(_limit_of)(content.get("limit")), every(_lease_of, content["holders"])
        return Failure(Problem(content["problem"]), exactly(str, content["error"]), holders, limit)


def place_to_json(in_line: InLine, boottime: int | None = None) -> dict[str, Json]:
    """Return the JSON form of a place in line."""
    shortage = failure_to_json(in_line.shortage, boottime)
    why = {"why": shortage["error"], "holders": shortage["holders"], "limit": shortage["limit"]}
    return {"place": in_line.place, **why}


def place_from_json(content: Any) -> InLine | None:
    """Return the place in line that :func:`place_to_json` was given; None if it is something else.

    Raises:
      LeaseJsonError: if it is not of that form.
    """
    if not isinstance(content, dict) or "place" not in content:
        return None
    with wrong_form_is(LeaseJsonError, "it is no place in line that this version of plugind knows"):
        text, holders = exactly(str, content["why"]), every(_lease_of, content["holders"])
        limit = or_none(_limit_of)(content.get("limit"))
        problem = Problem.UNAVAILABLE if limit is None else Problem.LIMIT
        return InLine(exactly(int, content["place"]), Failure(problem, text, holders, limit))


def released_to_json(released: Released) -> dict[str, Json]:
    """Return the JSON form of what was released."""
    unwritten = None if released.unwritten is None else encodable(released.unwritten)
    return {
        "released": encodables(released.released),
        "unknown": encodables(released.unknown),
        "unwritten": unwritten,
    }


def released_from_json(content: Any) -> Released:
    """Return what :func:`released_to_json` was given.

    Raises:
      LeaseJsonError: if it is not of that form.
    """
    with wrong_form_is(LeaseJsonError, "it does not say what was released"):
        return Released(
            texts(content["released"]), texts(content["unknown"]), exactly_or_none(str, content.get("unwritten"))
        )


def snapshot_to_json(snapshot: LeasesSnapshot, unix: float, boottime: int | None = None) -> dict[str, Json]:
    """Return the JSON form of all leases at the moment that the wall clock calls ``unix``; the leases are last."""
    return {
        "time": timestamp(unix),
        "withheld": None if snapshot.withheld is None else encodable(snapshot.withheld),
        "problem": None if snapshot.problem is None else encodable(snapshot.problem),
        "leases": [lease_to_json(lease, boottime) for lease in snapshot.leases],
    }


def snapshot_from_json(content: Any, time: float) -> LeasesSnapshot:
    """Return the leases that :func:`snapshot_to_json` was given, which were asked for at ``time``.

    Raises:
      LeaseJsonError: if they are not of that form.
    """
    with wrong_form_is(LeaseJsonError, "these are no leases that this version of plugind knows"):
        withheld, problem = (exactly_or_none(str, content[key]) for key in ("withheld", "problem"))
        return LeasesSnapshot(time, every(_lease_of, content["leases"]), withheld, problem)


def drain_to_json(drain: Drain) -> dict[str, Json]:
    """Return the JSON form of a drain, on the status socket and in files."""
    resource, device = drain.target.resource, drain.target.device
    return {
        "resource": None if resource is None else encodable(resource),
        "device": None if device is None else encodable(device),
        "reason": encodable(drain.reason),
        "since": timestamp(drain.since),
        "since_unix": drain.since,
        "until": None if drain.until is None else timestamp(drain.until),
        "until_unix": drain.until,
        "by": drain.uid,
    }


def drain_from_json(content: Any) -> Drain:
    """Return the drain that :func:`drain_to_json` was given.

    Raises one of :data:`~.json_values.WRONG_FORM` if it is not of that form.
    """
    target = DrainTarget(*(exactly_or_none(str, content[key]) for key in ("resource", "device")))
    if target.resource is None and target.device is not None:
        raise ValueError(f"the device {target.device!r} has no resource")
    return Drain(
        target,
        exactly(int, content["by"]),
        unix_seconds(content["since_unix"]),
        exactly(str, content["reason"]),
        or_none(unix_seconds)(content["until_unix"]),
    )

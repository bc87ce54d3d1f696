"""The allocations of a node, as the API of Nomad's agents shows them, and whose leases end with them. Nothing waits.

Nomad tells no device plugin of the end of a task, so a lease is compared to the allocations. A lease ends only for an
allocation that is shown and has ended: Nomad leaves out those of namespaces that a token may not read, so an allocation
that is not there says nothing.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, TypeVar

from .leases.values import Lease, LeaseState, Pool
from .nomad import Instance, NomadError, instances
from .values import value

T = TypeVar("T")

#: The id of a node, which becomes a part of a path.
_ID: Final = re.compile(r"[0-9A-Za-z-]{1,64}")
#: The statuses of allocations of which nothing runs. ``lost`` alone says less: that a server has not heard of the node.
_ENDED: Final = ("complete", "failed", "lost")
#: The state of a task that has ended.
_DEAD: Final = "dead"


@value
class Allocation:
    """What runs on the node, or did, and its devices."""

    id: str
    #: Whether some of it runs, or may run.
    lives: bool
    #: When its last task ended, in Unix seconds; None if none has ever run, or some of it lives.
    ended: float | None
    devices: frozenset[Instance]


def node_of(content: object) -> str:
    """Return the id of the node from what the agent says of itself.

    Raises:
      NomadError: if the agent runs no tasks, or the answer cannot be understood.
    """
    stats = _member(_a(dict, content, "the agent's answer"), "stats", dict)
    node = _member(stats, "client", dict).get("node_id")
    if not isinstance(node, str) or _ID.fullmatch(node) is None:
        raise NomadError("the agent does not say the id of its node: it runs no tasks")
    return node


def allocations(content: object) -> tuple[Allocation, ...]:
    """Return the allocations from what the API says of a node.

    Raises:
      NomadError: if one of them cannot be understood.
    """
    return tuple(_allocation(_a(dict, it, "an allocation")) for it in _a(list, content, "the list of allocations"))


def _allocation(shown: Mapping[str, object]) -> Allocation:
    states = [_a(dict, it, "the state of a task") for it in _member(shown, "TaskStates", dict).values()]
    dead = all(state.get("State") == _DEAD for state in states)
    lives = _text(shown, "ClientStatus") not in _ENDED or not dead
    if lives and not isinstance(shown.get("AllocatedResources"), dict):
        raise NomadError("an allocation does not say what it has")
    ends = [end for state in states if (end := _end(state)) is not None]
    return Allocation(_text(shown, "ID"), lives, None if lives else max(ends, default=None), _devices(shown))


def _end(state: Mapping[str, object]) -> float | None:
    """Return when a task ended; None if it never ran."""
    text = state.get("FinishedAt")
    if text is None:
        return None
    try:
        end = datetime.fromisoformat(_a(str, text, "the end of a task"))
        # The year 1 is Go's word for no time.
        return end.timestamp() if end.year > 1 and end.tzinfo is not None else None
    except (ValueError, OverflowError) as error:
        raise NomadError(f"the end of a task cannot be understood: {error}") from error


def _devices(shown: Mapping[str, object]) -> frozenset[Instance]:
    tasks = _member(_member(shown, "AllocatedResources", dict), "Tasks", dict)
    return frozenset(
        (_text(group, "Vendor"), _text(group, "Type"), _text(group, "Name"), _a(str, name, "the id of a device"))
        for task in tasks.values()
        for it in _member(_a(dict, task, "a task"), "Devices", list)
        for group in (_a(dict, it, "a group of devices"),)
        for name in _member(group, "DeviceIDs", list)
    )


def _member(of: Mapping[str, object], name: str, kind: type[T]) -> T:
    """Return a part of an answer, an empty one if it is not there: Go writes null for it."""
    found = of.get(name)
    return kind() if found is None else _a(kind, found, name)


def _text(of: Mapping[str, object], name: str) -> str:
    return _a(str, of.get(name), name)


def _a(kind: type[T], found: object, what: str) -> T:
    if not isinstance(found, kind):
        raise NomadError(f"Nomad's answer cannot be understood: {what} is no {kind.__name__}")
    return found


@value
class Compared:
    """What the allocations say of the leases."""

    #: By the id of each lease that may end, the id of the allocation that has ended.
    ended: Mapping[str, str]
    #: The ids of leases of which no allocation is shown.
    unknown: tuple[str, ...]


def of_pools(leases: Iterable[Lease], pools: Sequence[Pool]) -> tuple[Lease, ...]:
    """Return the leases that are held from these pools."""
    names = {pool.name for pool in pools}
    return tuple(
        it for it in leases if it.state is LeaseState.HELD and it.request.pool in names and instances(pools, it.devices)
    )


def compared(leases: Iterable[Lease], shown: Sequence[Allocation], pools: Sequence[Pool]) -> Compared:
    """Return which leases of ``pools`` may end now: those of allocations that have ended since the lease began.

    A device that an allocation has, or is to have, keeps its lease.
    """
    ended, unknown = {}, []
    living = frozenset[Instance]().union(*(it.devices for it in shown if it.lives))
    for lease in leases:
        devices = instances(pools, lease.devices)
        if devices & living:
            continue
        found = [it for it in shown if it.ended is not None and it.ended >= lease.created and devices <= it.devices]
        if found:
            ended[lease.id] = found[0].id
        else:
            unknown.append(lease.id)
    return Compared(ended, tuple(unknown))

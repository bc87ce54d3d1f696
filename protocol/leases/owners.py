"""How the owner of a lease that is held may change: each function returns the next owner, or why there is none."""

from __future__ import annotations

import attrs

from .messages import Failure, Problem
from .replies import LimitMet
from .values import (
    ConnectionOwner,
    ContainerOwner,
    Lease,
    NoOwner,
    Owner,
    ProcessIdentity,
    ProcessOwner,
    TimeOwner,
    process_of,
)


def begun(owner: TimeOwner, boottime: int, longest_until: int | None) -> TimeOwner:
    """Return the owner with its time beginning at ``boottime``, in nanoseconds of ``CLOCK_BOOTTIME``.

    It ends with the longest time of the lease at the latest.
    """
    expires = boottime + round(owner.seconds * 1e9)
    return attrs.evolve(owner, expires=expires if longest_until is None else min(expires, longest_until))


def renewed(lease: Lease, boottime: int, limit: LimitMet | None = None) -> Owner | Failure:
    """Let the time of a lease begin again; ``limit`` is that of its longest time, if it still has one."""
    if not isinstance(lease.owner, TimeOwner):
        text = f"lease {lease.id} has no time to renew: only one that was asked for with --ttl has"
        return Failure(Problem.USAGE, text)
    if lease.longest_until is not None and lease.owner.expires == lease.longest_until:
        where = "" if limit is None else f" ({limit.words})"
        text = f"lease {lease.id} cannot be renewed any more: it ends with its longest time{where}"
        return Failure(Problem.LIMIT, text, limit=limit)
    return begun(lease.owner, boottime, lease.longest_until)


def lets_go(owner: Owner) -> bool:
    """Return whether a lease ends with its longest time: nobody is known to use its devices then."""
    return isinstance(owner, TimeOwner | NoOwner | ContainerOwner) and process_of(owner) is None


def bound(lease: Lease, init: ProcessIdentity, *, in_grace: bool) -> Owner | Failure:
    """Bind a lease to a container; in its grace, the container that it was bound to has ended."""
    owner = lease.owner
    if not isinstance(owner, ContainerOwner):
        return Failure(Problem.USAGE, f"lease {lease.id} belongs to no container")
    if owner.init is None or owner.init == init or in_grace:
        return attrs.evolve(owner, init=init)
    text = f"lease {lease.id} is bound to another container, whose init is {owner.init.pid}"
    return Failure(Problem.FORBIDDEN, text)


def resumed(lease: Lease, token_hash: str) -> Owner | Failure:
    """Let another connection own a lease, which names its token."""
    if lease.owner == ConnectionOwner(token_hash):
        return lease.owner
    return Failure(Problem.FORBIDDEN, f"lease {lease.id} has another token")


def same_owner(held: Owner, asked: Owner) -> bool:
    """Return whether the owner of a lease is the one that a caller names who asks for the lease again."""
    match held, asked:
        case ProcessOwner(), ProcessOwner():
            return held == asked
        case TimeOwner(), TimeOwner():
            return held.seconds == asked.seconds
        case ConnectionOwner(), ConnectionOwner():
            return held.token_hash == asked.token_hash
        case ContainerOwner(), ContainerOwner():
            return held.start_within == asked.start_within
        case NoOwner(), NoOwner():
            return True
        case _:
            return False

"""What is asked of leases that are held: to renew them, to bind them to a container, to own them again."""

from __future__ import annotations

import attrs

from ..messages.addresses import Address
from . import effects as e
from . import messages as m
from .allocations import Allocations
from .entries import Amendment, LeaseEntry
from .messages import Failure, Problem
from .states import LeasePhase
from .values import ConnectionOwner, ContainerOwner, Lease, TimeOwner


class HeldLeases:
    """The leases that are held, and the changes of their owners that are being written."""

    def __init__(self, leases: Allocations, operators: frozenset[int]) -> None:
        """Change those of ``leases`` that are held; ``operators`` may change those of others."""
        self._all = leases
        self.operators = operators
        self._amendments: dict[int, Amendment] = {}

    def may_change(self, uid: int, entry: LeaseEntry) -> bool:
        """Whether a user may end or change a lease."""
        return uid == entry.lease.uid or uid in self.operators

    def saved(self, message: m.Saved) -> bool:
        """Answer whoever asked for the change that was to be written; return whether it was one."""
        amendment = self._amendments.pop(message.write, None)
        if amendment is None:
            return False
        self._amended(amendment, message.error)
        return True

    def _find(self, lease: str, uid: int) -> LeaseEntry | Failure:
        entry = self._all.entries.get(lease)
        if entry is None and self._all.withheld is not None:
            return self._all.withheld_failure()  # It may be one that is not known yet, or was lost.
        if entry is None:
            return Failure(Problem.UNKNOWN, f"there is no lease {lease}")
        if not self.may_change(uid, entry):
            return forbidden(lease)
        if entry.phase is not LeasePhase.HELD:
            return Failure(Problem.UNAVAILABLE, f"lease {lease} is {entry.lease.state.value}, not held")
        return entry

    def renew(self, asked: m.RenewAsked) -> None:
        """Let the time of a lease begin again."""
        entry = self._find(asked.id, asked.uid)
        if isinstance(entry, LeaseEntry) and isinstance(owner := entry.lease.owner, TimeOwner):
            self._amend(entry, self._all.begun(owner), asked.reply)
        elif isinstance(entry, LeaseEntry):
            text = f"lease {asked.id} has no time to renew: only one that was asked for with --ttl has"
            self._all.answer(asked.reply, Failure(Problem.USAGE, text))
        else:
            self._all.answer(asked.reply, entry)

    def bind(self, asked: m.BindAsked) -> None:
        """Bind a lease to its container."""
        entry = self._find(asked.id, asked.uid)
        if isinstance(entry, Failure):
            self._all.answer(asked.reply, entry)
        elif (failure := unbindable(entry, asked)) is not None:
            self._all.answer(asked.reply, failure)
        else:
            self._amend(entry, ContainerOwner(asked.init), asked.reply)

    def resume(self, asked: m.ResumeAsked) -> None:
        """Let another connection own a lease, after a restart."""
        entry = self._find(asked.id, asked.uid)
        if isinstance(entry, LeaseEntry) and entry.lease.owner != ConnectionOwner(asked.token_hash):
            entry = Failure(Problem.FORBIDDEN, f"lease {asked.id} has another token")
        if isinstance(entry, LeaseEntry):
            self._all.ends.forget(asked.id)
            entry.tickets.add(asked.ticket)
            self._all.tickets[asked.ticket] = asked.id
            self._all.wait_for_owner(entry)
            self._all.answer(asked.reply, entry.lease)
        else:
            self._all.answer(asked.reply, entry)

    def _amend(self, entry: LeaseEntry, owner: ContainerOwner | TimeOwner, reply: Address[Lease | Failure]) -> None:
        """Have another owner written; it is told when it is written, since a restart must know it too."""
        lease, end = entry.lease, self._all.ends.forget(entry.lease.id)
        amendment = Amendment(lease.id, lease.owner, owner, entry.grace, end, reply)
        entry.lease, entry.grace = attrs.evolve(lease, owner=owner), False
        self._all.watch(entry)
        self._amendments[self._all.write(e.SaveLease(entry.lease), awaited=True)] = amendment

    def _amended(self, amendment: Amendment, error: str | None) -> None:
        entry = self._all.entries.get(amendment.id)
        if entry is None or entry.phase is not LeasePhase.HELD:
            failure = Failure(Problem.UNKNOWN, f"there is no lease {amendment.id} any more")
            self._all.answer(amendment.reply, failure)
        elif error is None:
            self._all.touch(entry)
            # Another change may have been asked for since, which is not written yet.
            self._all.answer(amendment.reply, attrs.evolve(entry.lease, owner=amendment.after))
        else:
            self._undo(entry, amendment)
            self._all.answer(amendment.reply, not_written(error))

    def _undo(self, entry: LeaseEntry, amendment: Amendment) -> None:
        before, grace, end = amendment.before, amendment.grace, amendment.end
        later = next((number for number, other in self._amendments.items() if other.id == amendment.id), None)
        if later is not None:
            # The next change began with what is not written: if it cannot be written either, both are undone.
            self._amendments[later] = attrs.evolve(self._amendments[later], before=before, grace=grace, end=end)
        elif before != amendment.after:
            entry.lease, entry.grace = attrs.evolve(entry.lease, owner=before), grace
            self._all.forget_owner(entry)
            self._wait_until(entry, end)
            self._all.write(e.SaveLease(entry.lease))

    def _wait_until(self, entry: LeaseEntry, end: float | None) -> None:
        """Wait for the end of a lease: a container has no more time than before to bind it, or to come back."""
        if end is None:
            self._all.wait_for_owner(entry)
        else:
            self._all.ends.set(entry.lease.id, end)


def unbindable(entry: LeaseEntry, asked: m.BindAsked) -> Failure | None:
    """Return why a lease is not bound to a container; None if it is."""
    owner = entry.lease.owner
    if not isinstance(owner, ContainerOwner):
        return Failure(Problem.USAGE, f"lease {asked.id} belongs to no container")
    if owner.init is None or owner.init == asked.init or entry.grace:
        return None
    return Failure(Problem.FORBIDDEN, f"lease {asked.id} is bound to another container, whose init is {owner.init.pid}")


def forbidden(lease: str) -> Failure:
    """Return why a user may not do something with a lease."""
    return Failure(Problem.FORBIDDEN, f"lease {lease} belongs to another user")


def not_written(error: str) -> Failure:
    """Return why a change of a lease is not made."""
    return Failure(Problem.STORAGE, f"the lease cannot be written: {error}")

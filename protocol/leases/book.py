"""The leases of a node: what follows from each message, and from time. The lease actor has the only instance."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import assert_never

import attrs

from ..messages.addresses import Address
from ..trust.users import user_words
from . import effects as e
from . import messages as m
from .allocations import BIND, WITHHELD, Allocations
from .answers import AnswerError
from .config import LeaseLimits
from .entries import Asker, LeaseEntry, Notified, Sources
from .held import HeldLeases, forbidden, not_written
from .limits import failure_of, reserved_failure_of, same_owner
from .messages import Failure, Problem
from .permits import left_out
from .permits import permitted as permitted_of
from .shortages import unhealthy_since
from .states import Event, LeasePhase
from .values import ConnectionOwner, ContainerOwner, Lease, LeaseState, Pool

#: Seconds for which a lease stays after the end of its container, which may be started again.
GRACE = 10.0
#: Who may end the leases of others, unless more are named.
ROOT = frozenset({0})

_NO_FILE = "its CDI file is not there: "
_RESTARTED = "plugind ended while a plugin was preparing its devices"


class Leases:
    """All leases of a node."""

    def __init__(
        self,
        inbox: Address[m.CallMessage],
        sources: Sources,
        *,
        pools: Iterable[Pool] = (),
        limits: LeaseLimits | None = None,
        operators: frozenset[int] = ROOT,
        privileged: frozenset[int] = ROOT,
        permitted: Collection[str] = (),
        closed: str | None = None,
        numbers: Iterator[int] | None = None,
    ) -> None:
        """Begin without leases and devices; plugins answer to ``inbox``.

        Plugins of ``privileged`` users may put anything into a lease, those of others what is ``permitted``. No lease
        is given if there is a reason in ``closed``. Writes are given these ``numbers``, none of which was used
        before a crash.

        Raises:
            ValueError: A device is in two of ``pools``.
        """
        self._all = Allocations(inbox, sources, pools, numbers or itertools.count(1))
        self._closed = closed
        self._sources = sources
        self._limits = limits or LeaseLimits()
        self._operators = operators
        self._privileged = privileged
        self._permitted = permitted
        self._held = HeldLeases(self._all, operators)
        self._recoveries: dict[int, m.RecoverAsked] = {}
        #: Who is told, and what, once the end of leases is written: the number of the write.
        self._releases: dict[int, tuple[m.ReleaseAsked, m.Released]] = {}

    # --- to inspect ---

    @property
    def next_end(self) -> float:
        """When :meth:`pass_time` has something to do; infinity if that is never."""
        return min(self._all.ends.next, self._all.stock.next_missing)

    @property
    def withheld(self) -> str | None:
        """Why no device is given to anybody, and what to do; None if they are."""
        return None if self._all.withheld is None else self._all.withheld_failure().text

    def find(self, lease: str) -> Lease | None:
        """Return a lease, or None."""
        entry = self._all.entries.get(lease)
        return None if entry is None else entry.lease

    def snapshot(self, now: float, problem: str | None = None) -> m.LeasesSnapshot:
        """Return all leases as they are shown; ``problem`` is what is wrong with the file that keeps them."""
        leases = tuple(entry.lease for _, entry in sorted(self._all.entries.items()))
        gives_none = self._closed is not None or self._all.withheld is not None
        free = {name: 0 if gives_none else number for name, number in self._all.stock.free_numbers()}
        return m.LeasesSnapshot(now, leases, self._all.withheld, problem, free=free)

    # --- to drive ---

    def start(self, kept: m.Kept, now: float) -> list[e.Effect]:
        """Take the leases of this boot that were found in the store, at the start or later."""
        self._all.begin(now)
        self._all.withheld = kept.withheld
        for lease in kept.leases:
            self._take_up(lease)
        return self._all.finish()

    def start_again(self, kept: m.Kept, notified: Mapping[str, Notified], now: float) -> list[e.Effect]:
        """Take the leases that are written, after a crash of whoever had the book.

        Somebody was ``notified`` of those that are there by their ids. Any other that is held ends.
        """
        self._all.begin(now)
        self._all.withheld = kept.withheld
        for lease in kept.leases:
            self._take_up(lease)
            entry = self._all.entries[lease.id]
            if lease.id in notified:
                self._restore(entry, notified[lease.id])
            elif entry.phase is LeasePhase.HELD:
                self._all.step(entry, Event.LEFT)
        return self._all.finish()

    def _restore(self, entry: LeaseEntry, notified: Notified) -> None:
        entry.named = notified.named
        entry.tickets.update(notified.tickets)
        self._all.tickets.update(dict.fromkeys(notified.tickets, entry.lease.id))
        if notified.tickets and isinstance(entry.lease.owner, ConnectionOwner):
            self._all.ends.forget(entry.lease.id)

    def pass_time(self, now: float) -> list[e.Effect]:
        """Let time pass until ``now``."""
        self._all.begin(now)
        self._all.judge_devices(self._all.stock.pass_time(now))
        over = [self._all.entries[lease] for lease in self._all.ends.take(now)]
        for entry in over:
            if entry.phase is not LeasePhase.QUEUED:
                self._all.step(entry, Event.SETTLED if entry.phase is LeasePhase.UNCERTAIN else Event.OWNER_ENDED)
        for entry in over:
            self._all.serve()  # One that was before it in line may just have ended.
            if entry.phase is LeasePhase.QUEUED:
                self._all.fail(entry, Problem.TIMEOUT)
        return self._all.finish()

    def handle(self, message: m.StateMessage, now: float) -> list[e.Effect]:
        """Take one message and return what to do, in order; ``now`` is ``trio.current_time()``."""
        self._all.begin(now)
        match message:
            case m.OfferChanged():
                self._all.judge_devices(self._all.stock.offer(message.offer, now))
                for entry in self._all.stoppable.values():
                    self._all.stop_if_unhealthy(entry)
            case m.OfferEnded():
                self._all.stock.end(message.resource)
            case m.PluginEnded():
                self._plugin_ended(message)
            case m.LeaseAsked():
                self._ask(message)
            case m.AskerLeft():
                self._asker_left(message)
            case m.ReleaseAsked():
                self._release(message)
            case m.RenewAsked():
                self._held.renew(message)
            case m.BindAsked():
                self._held.bind(message)
            case m.ResumeAsked():
                self._held.resume(message)
            case m.RecoverAsked():
                self._recover(message)
            case m.Preferred() | m.Allocated() | m.AllocationRefused() | m.AllocationLost():
                self._called(message)
            case m.Saved():
                self._saved(message)
            case m.LeasesRead():
                return self.start(message.kept, now)
            case m.OwnerEnded():
                self._owner_ended(message)
            case m.FileWritten():
                self._file_written(message)
            case m.LeaseRulesChanged():
                self._limits, self._operators = message.limits, message.operators
                self._held.operators, self._permitted = message.operators, message.permitted
                self._all.sort_into(message.pools)
            case _:
                assert_never(message)
        return self._all.finish()

    # --- a start ---

    def _take_up(self, lease: Lease) -> None:
        if lease.id in self._all.entries:
            return
        phase = LeasePhase.HELD if lease.state is LeaseState.HELD else LeasePhase.UNCERTAIN
        # Which devices of a lease are missing is found out anew.
        reason = {LeaseState.PENDING: _RESTARTED, LeaseState.HELD: None}.get(lease.state, lease.reason)
        filed = lease.cdi_name is not None
        found = attrs.evolve(lease, state=phase.shown, reason=reason)
        entry = LeaseEntry(found, 0, phase, written=True, filed=filed)
        self._all.add(entry)
        if phase is LeasePhase.UNCERTAIN:
            self._all.ends.set(lease.id, self._all.now + WITHHELD)
            if lease.state is not LeaseState.UNCERTAIN:
                self._all.write(e.SaveLease(found))
            return
        if filed:
            self._all.effects.append(e.WriteFile(found))
        if isinstance(lease.owner, ConnectionOwner):
            self._all.ends.set(lease.id, self._all.now + BIND)
        else:
            self._all.wait_for_owner(entry)

    # --- to get a lease ---

    def _ask(self, asked: m.LeaseAsked) -> None:
        entry = None if asked.id is None else self._all.entries.get(asked.id)
        if entry is not None:
            failure = self._ask_again(entry, asked)
        else:
            failure = self._refusal(asked)
            if failure is None:
                entry = self._new_entry(asked)
        if failure is not None:
            self._all.answer(asked.reply, failure)
            self._all.report_failure(tuple(wanted.resource for wanted in asked.request.wanted), asked.uid, failure)
        elif entry is not None:
            entry.tickets.add(asked.ticket)
            self._all.tickets[asked.ticket] = entry.lease.id

    def _refusal(self, asked: m.LeaseAsked) -> Failure | None:
        failure = failure_of(asked, self._all.stock.pools)
        failure = failure or reserved_failure_of(asked.id, asked.uid, self._operators)
        if failure is None and self._closed is not None:
            return Failure(Problem.STORAGE, self._closed)
        if failure is None and self._all.withheld is not None:
            return self._all.withheld_failure()
        return failure or self._all.usage.failure(self._limits, asked)

    def _new_entry(self, asked: m.LeaseAsked) -> LeaseEntry:
        name = asked.id
        while name is None or (asked.id is None and name in self._all.entries):
            name = f"{self._sources.bits() % (1 << 48):012x}"
        lease = Lease(name, asked.uid, asked.request, asked.owner, LeaseState.QUEUED, self._sources.wall())
        entry = LeaseEntry(lease, 0, named=asked.id is not None)
        entry.askers[asked.ticket] = Asker(asked.reply, asked.deadline)
        self._all.add(entry)
        return entry

    def _ask_again(self, entry: LeaseEntry, asked: m.LeaseAsked) -> Failure | None:
        lease = entry.lease
        if lease.uid != asked.uid and asked.uid not in self._operators:
            return Failure(Problem.FORBIDDEN, f"lease {lease.id} belongs to another user")
        same = lease.uid == asked.uid and lease.request == asked.request and same_owner(lease.owner, asked.owner)
        if not same:
            return Failure(Problem.USAGE, f"lease {lease.id} exists with another request")
        match entry.phase:
            case LeasePhase.HELD:
                if text := unhealthy_since(self._all.stock, lease):
                    return Failure(Problem.UNAVAILABLE, text)
                self._all.answer(asked.reply, lease)
                return None
            case LeasePhase.UNCERTAIN:
                return Failure(Problem.REFUSED, f"lease {lease.id} is uncertain: {lease.reason}; ask again in a minute")
            case LeasePhase.ABANDONED:
                return Failure(Problem.UNAVAILABLE, f"lease {lease.id} is about to end; ask again")
            case LeasePhase.QUEUED:
                if asked.deadline is None:
                    text = f"lease {lease.id} waits for its devices; ask again with --wait"
                    return Failure(Problem.UNAVAILABLE, text)
            case _:
                pass
        entry.askers[asked.ticket] = Asker(asked.reply, asked.deadline)
        if entry.phase is LeasePhase.QUEUED:
            self._all.ends.set(lease.id, entry.next_end())
        return None

    def _asker_left(self, left: m.AskerLeft) -> None:
        entry = self._all.entries.get(self._all.tickets.pop(left.ticket, ""))
        if entry is None:
            return
        entry.tickets.discard(left.ticket)
        entry.askers.pop(left.ticket, None)
        if isinstance(entry.lease.owner, ConnectionOwner) and not entry.tickets:
            if left.cut and entry.phase is LeasePhase.HELD:
                self._all.ends.set(entry.lease.id, self._all.now + BIND)
                return
            self._all.step(entry, Event.OWNER_ENDED)
        elif not entry.askers:
            self._all.step(entry, Event.NAMED_LEFT if entry.named else Event.LEFT)

    # --- what plugins, the disk and owners say ---

    def _called(self, message: m.CallMessage) -> None:
        entry = self._all.entries.get(message.lease)
        if entry is None:
            return
        entry.calling.pop(message.resource, None)
        if entry.phase is LeasePhase.UNCERTAIN:
            self._heard_of_uncertain(entry, message)
        elif isinstance(message, m.Preferred) or entry.phase is LeasePhase.CHOOSING:
            devices = message.devices if isinstance(message, m.Preferred) else ()
            self._all.preferred(entry, message.resource, devices)
        elif entry.phase in (LeasePhase.PREPARING, LeasePhase.ABANDONED) and entry.preparing == message.resource:
            self._prepared(entry, message)

    def _heard_of_uncertain(self, entry: LeaseEntry, message: m.CallMessage) -> None:
        """Take the answer to a call that was made before a crash of whoever had the book."""
        if isinstance(message, m.Allocated | m.AllocationRefused):
            self._all.step(entry, Event.SETTLED)

    def _prepared(self, entry: LeaseEntry, message: m.Allocated | m.AllocationRefused | m.AllocationLost) -> None:
        entry.preparing = None
        match message:
            case m.Allocated() if entry.phase is LeasePhase.ABANDONED:
                self._all.step(entry, Event.PREPARED)
            case m.Allocated():
                self._take(entry, message)
            case m.AllocationRefused():
                self._all.step(entry, Event.REFUSED, _refused_by(message))
            case m.AllocationLost():
                self._all.lose(entry, message)
                self._all.step(entry, Event.LOST, _refused_by(message))
            case _:
                assert_never(message)

    def _take(self, entry: LeaseEntry, message: m.Allocated) -> None:
        """Take what a plugin has answered, or of a plugin of somebody else what is permitted."""
        answer, uid, name = message.answer, message.uid, message.resource
        if uid is None or uid not in self._privileged | {entry.lease.uid}:
            whose = user_words(uid)
            try:
                answer, names = permitted_of(answer, name, self._permitted)
            except AnswerError as error:
                text = f"{name}: the answer of a device plugin of {whose} to Allocate is not permitted: {error}"
                self._all.step(entry, Event.REFUSED, Failure(Problem.REFUSED, text))
                return
            if names:
                warnings = (*entry.lease.warnings, left_out(name, names, whose))
                entry.lease = attrs.evolve(entry.lease, warnings=warnings)
        entry.answers[name] = answer
        self._all.prepare(entry)

    def _plugin_ended(self, message: m.PluginEnded) -> None:
        for entry in [*self._all.entries.values()]:
            if entry.phase is LeasePhase.UNCERTAIN and entry.lost == message.key:
                self._all.step(entry, Event.SETTLED)

    def _saved(self, message: m.Saved) -> None:
        if self._held.saved(message):
            return
        if (release := self._releases.pop(message.write, None)) is not None:
            self._tell_released(release[0], attrs.evolve(release[1], unwritten=message.error))  # It is tried again.
            return
        if (asked := self._recoveries.pop(message.write, None)) is not None:
            self._recovered(asked, message.error)
        elif (lease := self._all.writes.pop(message.write, None)) is not None:
            entry = self._all.entries[lease]
            entry.write = None
            if message.error is None:
                self._all.step(entry, Event.SAVED)
            else:
                self._all.step(entry, Event.NOT_SAVED, not_written(message.error))

    def _file_written(self, message: m.FileWritten) -> None:
        entry = self._all.entries.get(message.id)
        if entry is None:
            return
        if entry.phase is not LeasePhase.FILING:
            # It is held, from before a restart of plugind: its container may run already.
            warnings = tuple(warning for warning in entry.lease.warnings if not warning.startswith(_NO_FILE))
            if message.error is not None:
                warnings = (*warnings, f"{_NO_FILE}{message.error}")
            if warnings != entry.lease.warnings:
                entry.lease = attrs.evolve(entry.lease, warnings=warnings)
                self._all.touch(entry)
        elif message.error is None:
            self._all.step(entry, Event.FILED)
        else:
            text = f"the CDI file cannot be written: {message.error}"
            self._all.step(entry, Event.NOT_FILED, Failure(Problem.STORAGE, text))

    def _owner_ended(self, ended: m.OwnerEnded) -> None:
        entry = self._all.entries.get(ended.id)
        if entry is None or not entry.watched or entry.lease.owner != ended.owner:
            return  # After a crash an end may be told twice, and the second time another container has the lease.
        entry.watched = False
        if isinstance(ended.owner, ContainerOwner) and entry.phase is LeasePhase.HELD:
            entry.grace = True
            self._all.ends.set(ended.id, self._all.now + GRACE)
        else:
            self._all.step(entry, Event.OWNER_ENDED)

    # --- to end leases ---

    def _release(self, asked: m.ReleaseAsked) -> None:
        found = {name: entry for name in asked.ids if (entry := self._all.entries.get(name)) is not None}
        for name, entry in found.items():
            if not self._held.may_change(asked.uid, entry):
                self._tell_released(asked, forbidden(name))
                return
        for entry in found.values():
            self._all.step(entry, Event.RELEASED)
        unknown = tuple(name for name in dict.fromkeys(asked.ids) if name not in found)
        released = m.Released(tuple(found), unknown)
        if any(entry.written and entry.phase is LeasePhase.GONE for entry in found.values()):
            # Writes are made in order, so what has ended is written when this one is: it has nothing of its own.
            self._releases[self._all.write(awaited=True)] = asked, released
        else:
            self._tell_released(asked, released)

    def _tell_released(self, asked: m.ReleaseAsked, answer: m.Released | Failure) -> None:
        self._all.effects.append(e.AnswerAsker(asked.reply, answer))

    # --- a lost state ---

    def _recover(self, asked: m.RecoverAsked) -> None:
        if asked.uid not in self._operators:
            failure = Failure(Problem.FORBIDDEN, "only root and the user of the daemon may do that")
            self._tell_recovered(asked, failure)
        elif self._all.withheld is None:
            self._tell_recovered(asked, None)
        else:
            self._recoveries[self._all.write(e.EndWithholding(), awaited=True)] = asked

    def _recovered(self, asked: m.RecoverAsked, error: str | None) -> None:
        if error is None:
            self._all.withheld = None
        self._tell_recovered(asked, None if error is None else not_written(error))

    def _tell_recovered(self, asked: m.RecoverAsked, answer: Failure | None) -> None:
        self._all.effects.append(e.AnswerAsker(asked.reply, answer))


def _refused_by(message: m.AllocationRefused | m.AllocationLost) -> Failure:
    """Return why there is no lease: a request may be for several resources, and the words of plugins name none."""
    return Failure(Problem.REFUSED, f"{message.resource}: {message.reason}")

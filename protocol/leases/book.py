"""The book of leases: an event goes in, and effects come out. The lease actor has the only instance.

An event is a message to the lease actor, or the passing of time. For one lease it becomes a row of the table in
:mod:`.states`, which says the next state and what is done; :meth:`Book._step` does that.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import assert_never

import attrs

from ..messages.addresses import Address
from ..values import value
from . import effects as e
from . import messages as m
from .accepting import accepted
from .answers import AnswerError, joined
from .cdi import name_of
from .choosing import LeaseLine, Reserved, can_have, choose
from .draining import DrainChange, change_of, first_end, look_in, over_at
from .drains import Drain, Drains, DrainTarget
from .ends import Ends
from .entries import Amendment, Asker, LeaseEntry
from .grace import GRACE, needed_of
from .limits import (
    UserTotals,
    failure_of,
    limits_of,
    longest_of,
    over_limit,
    pool_failure_of,
    reserved_failure_of,
    stops_at_longest,
    why_held_back,
)
from .messages import Failure, Problem
from .owners import begun, bound, lets_go, renewed, resumed, same_owner
from .shortages import missing_devices, shortage, unhealthy_since, unusable
from .states import Action, Event, LeasePhase, step
from .stock import Stock
from .values import (
    Answer,
    ConnectionOwner,
    ContainerOwner,
    Lease,
    LeaseState,
    Owner,
    ProcessOwner,
    Request,
    TimeOwner,
    Wanted,
    process_of,
)

#: Seconds for which the devices of an uncertain lease are withheld.
WITHHELD = 60.0
#: Seconds until a connection must have come back after a restart.
BIND = 60.0
#: How many holders a failure names.
MAX_HOLDERS = 64

_NO_FILE = "its CDI file is not there: "
_RESTARTED = "plugind ended while a plugin was preparing its devices"
_NOT_PRIVILEGED = Failure(Problem.FORBIDDEN, "only root and the user of the daemon may do that")
_NOT_FOR_OTHERS = Failure(Problem.FORBIDDEN, "only root and the user of plugind may lease devices for another user")
_REASONS = {
    Event.LEFT: "its caller has left",
    Event.NAMED_LEFT: "its caller has left",
    Event.RELEASED: "it was released",
    Event.OWNER_ENDED: "its owner has ended, or its time is over",
    Event.SETTLED: "its plugin is no longer preparing it",
}


@value
class Sources:
    """What decisions need of the world: clocks and names. Tests and the simulator give their own."""

    #: Unix seconds.
    wall: Callable[[], float]
    #: ``CLOCK_BOOTTIME`` in nanoseconds.
    boottime: Callable[[], int]
    #: 128 random bits.
    bits: Callable[[], int]


class Book:
    """All leases of a node, the devices that there are, and the line of those that wait for devices."""

    def __init__(
        self,
        inbox: Address[m.CallMessage],
        sources: Sources,
        rules: m.LeaseRules | None = None,
        *,
        privileged: frozenset[int] = m.ROOT,
        closed: str | None = None,
        numbers: Iterator[int] | None = None,
    ) -> None:
        """Begin without leases and devices; plugins answer to ``inbox``.

        Plugins of ``privileged`` users may put anything into a lease, those of others what the ``rules`` permit. No
        lease is given if there is a reason in ``closed``. Writes are given these ``numbers``, none of which was used
        before a crash.

        Raises:
            ValueError: A device is in two pools.
        """
        self._inbox = inbox
        self._sources = sources
        self._rules = rules or m.LeaseRules()
        self._privileged = privileged
        self._closed = closed
        self._numbers = numbers or itertools.count(1)
        self._entries: dict[str, LeaseEntry] = {}
        #: The lease of each ticket.
        self._tickets: dict[int, str] = {}
        self._stock = Stock(self._rules.pools)
        self._stock.limits = limits_of(self._rules)
        self._line = LeaseLine()
        #: What is reserved for those that are in line before the one that is given devices now.
        self._reserved = Reserved()
        #: The leases of which somebody is told the place in line.
        self._observed: set[str] = set()
        #: What is in line and does not wait.
        self._impatient: set[str] = set()
        self._ends = Ends()
        #: When the longest times of held leases are over, by ``CLOCK_BOOTTIME`` in nanoseconds.
        self._longest = Ends()
        self._usage = UserTotals()
        #: The leases whose containers have ended and may come back, in the order of these ends.
        self._in_grace: dict[str, LeaseEntry] = {}
        #: The leases whose owners are to be stopped when a device is unhealthy.
        self._stoppable: dict[str, LeaseEntry] = {}
        #: When the first drain ends, in Unix seconds.
        self._drain_end = math.inf
        #: Why no device is given to anybody, since leases were lost.
        self._withheld: str | None = None
        #: What follows from each awaited write, by its number: a lease goes on, a change of an owner counts, a release
        #: a drain or a recovery is answered.
        self._awaited: dict[
            int, LeaseEntry | Amendment | DrainChange | tuple[m.ReleaseAsked, m.Released] | m.RecoverAsked
        ] = {}
        self._arrivals = 0
        # Of one turn of the actor: when it is, what is to be done, and which leases are to be shown at its end.
        self._now = 0.0
        self._effects: list[e.Effect] = []
        self._touched: dict[str, LeaseEntry] = {}

    # --- to inspect ---

    @property
    def next_end(self) -> float:
        """When :meth:`pass_time` has something to do; infinity if that is never."""
        return min(self._ends.next, self._stock.next_missing, self._next_drain_look(), self._next_longest_look())

    def _next_drain_look(self) -> float:
        return math.inf if self._drain_end == math.inf else self._now + look_in(self._drain_end, self._sources.wall())

    def _next_longest_look(self) -> float:
        if (end := self._longest.next) == math.inf:
            return math.inf
        # A suspended machine goes on with that clock alone.
        return self._now + look_in(end / 1e9, self._sources.boottime() / 1e9)

    @property
    def withheld(self) -> str | None:
        """Why no device is given to anybody, and what to do; None if they are."""
        return None if self._withheld is None else f"all devices are withheld: {self._withheld}"

    @property
    def drains(self) -> Drains:
        """What is out of service."""
        return self._stock.drains

    def find(self, lease: str) -> Lease | None:
        """Return a lease, or None."""
        entry = self._entries.get(lease)
        return None if entry is None else entry.lease

    def snapshot(self, now: float, problem: str | None = None) -> m.LeasesSnapshot:
        """Return all leases as they are shown; ``problem`` is what is wrong with the file that keeps them."""
        leases = tuple(entry.lease for entry in sorted(self._entries.values(), key=_shown_at))
        gives_none = self._closed is not None or self._withheld is not None
        free = {name: 0 if gives_none else number for name, number in self._stock.free_numbers()}
        drained = dict(self._stock.drained_numbers())
        return m.LeasesSnapshot(
            now, leases, self._withheld, problem, self._rules.pools, self.drains, free=free, drained=drained
        )

    # --- events ---

    def start(self, kept: m.Kept, now: float) -> list[e.Effect]:
        """Take the leases of this boot that were found in the store, at the start or later."""
        self._begin(now)
        self._withheld = kept.withheld
        self._set_drains(kept.drains)
        for lease in kept.leases:
            self._take_up(lease)
        return self._finish()

    def start_again(self, kept: m.Kept, notified: Mapping[str, m.Notified], now: float) -> list[e.Effect]:
        """Take the leases that are written, after a crash of whoever had the book.

        Somebody was ``notified`` of those that are there by their ids. Any other that is held ends.
        """
        self._begin(now)
        self._withheld = kept.withheld
        self._set_drains(kept.drains)
        for lease in kept.leases:
            self._take_up(lease)
            entry = self._entries[lease.id]
            if lease.id in notified:
                self._restore(entry, notified[lease.id])
            elif entry.phase is LeasePhase.HELD:
                self._step(entry, Event.LEFT)
        return self._finish()

    def pass_time(self, now: float) -> list[e.Effect]:
        """Let time pass until ``now``."""
        self._begin(now)
        self._judge_devices(self._stock.pass_time(now))
        self._end_drains()
        for lease in self._longest.take(self._sources.boottime()):
            self._judge_longest(self._entries[lease])
        over = [self._entries[lease] for lease in self._ends.take(now)]
        for entry in over:
            if entry.phase is not LeasePhase.QUEUED:
                self._step(entry, Event.SETTLED if entry.phase is LeasePhase.UNCERTAIN else Event.OWNER_ENDED)
        for entry in over:
            self._serve()  # One that was before it in line may just have ended.
            if entry.phase is LeasePhase.QUEUED:
                self._stop_waiting(entry, Problem.TIMEOUT)
        return self._finish()

    def handle(self, message: m.StateMessage, now: float) -> list[e.Effect]:
        """Take one message and return what to do, in order; ``now`` is ``trio.current_time()``."""
        self._begin(now)
        match message:
            case m.OfferChanged():
                self._judge_devices(self._stock.offer(message.offer, now))
                for entry in self._stoppable.values():
                    self._stop_if_unhealthy(entry)
            case m.OfferEnded():
                self._stock.end(message.resource)
            case m.PluginEnded():
                self._plugin_ended(message)
            case m.LeaseAsked():
                self._ask(message)
            case m.AskerLeft():
                self._asker_left(message)
            case m.ReleaseAsked():
                self._release(message)
            case m.RenewAsked() | m.BindAsked() | m.ResumeAsked():
                self._change_owner(message)
            case m.RecoverAsked():
                self._recover(message)
            case m.DrainAsked() | m.UndrainAsked():
                self._change_drain(message)
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
            case m.LeaseRules():
                self._change_rules(message)
            case _:
                assert_never(message)
        return self._finish()

    # --- one turn of the actor ---

    def _begin(self, now: float) -> None:
        self._now, self._effects = now, []

    def _finish(self) -> list[e.Effect]:
        """Give devices to those whose turn has come, and return what is to be done."""
        self._serve()
        if self._stock.limits:
            self._show_held_back()
        self._tell_places()
        for entry in self._touched.values():
            if entry.shown or entry.phase is not LeasePhase.GONE:
                entry.shown = True
                self._effects.append(e.ShowLease(entry.lease))
        self._touched.clear()
        return self._effects

    def _serve(self) -> None:
        """Give devices to those whose turn has come, and end those that do not wait."""
        if self._withheld is not None or not len(self._line):
            return
        for lease, reserved in self._line.take_fitting(self._stock):
            self._reserved = reserved
            self._impatient.discard(lease)
            self._step(self._entries[lease], Event.GRANTED)
        ended = (entry.lease for entry in self._in_grace.values())
        if self._in_grace and (needed := needed_of(ended, self._line, self._stock)):
            for yielding in needed:
                self._step(self._entries[yielding.id], Event.OWNER_ENDED)
            self._serve()
        elif self._impatient:
            first = min((self._entries[lease] for lease in self._impatient), key=lambda entry: entry.arrival)
            self._stop_waiting(first, Problem.UNAVAILABLE)
            self._serve()  # Those behind it may have what was reserved for it.

    def _show_held_back(self) -> None:
        """Show those in line whose users' limits hold them back."""
        for lease, waiting, before in self._line.waiting(self._stock):
            entry = self._entries[lease]
            held_back = why_held_back(self._stock, before, waiting.request, waiting.uid)
            reason = None if held_back is None else held_back[0]
            if entry.lease.reason != reason:
                entry.lease = attrs.evolve(entry.lease, reason=reason)
                self._touch(entry)

    def _tell_places(self) -> None:
        """Tell those in line who ask for it of their places, if these have changed."""
        for lease, place, before in self._line.places(self._stock) if self._observed else ():
            entry = self._entries[lease]
            told = place, before, self._stock.could(entry.lease.request), entry.lease.reason
            for asker in entry.askers.values():
                if asker.progress is not None and asker.told != told:
                    asker.told = told
                    in_line = m.InLine(place, self._shortage(entry, Problem.UNAVAILABLE))
                    self._effects.append(e.TellPlace(asker.progress, in_line))

    def _touch(self, entry: LeaseEntry) -> None:
        """Show the lease to subscribers at the end of the turn."""
        self._touched[entry.lease.id] = entry

    def _write(self, *changes: e.Change, awaited: bool = False) -> int:
        """Have ``changes`` written, and return the number of the write."""
        number = next(self._numbers)
        self._effects.append(e.Write(number, changes, awaited))
        return number

    def _answer(self, reply: Address[Lease | Failure], answer: Lease | Failure) -> None:
        self._effects.append(e.AnswerAsker(reply, answer))

    def _answer_all(self, entry: LeaseEntry, answer: Lease | Failure) -> None:
        """Answer all who wait for a lease."""
        for asker in entry.askers.values():
            self._answer(asker.reply, answer)
        entry.askers.clear()
        self._observed.discard(entry.lease.id)

    def _refuse(self, reply: Address[Lease | Failure], request: Request, uid: int, failure: Failure) -> None:
        """Answer a caller who gets no lease, and note that."""
        self._answer(reply, failure)
        self._effects.append(e.Failed(request.resources, uid, failure))

    # --- a row of the table of states ---

    def _step(self, entry: LeaseEntry, event: Event, failure: Failure | None = None) -> None:
        """Let ``event`` happen to a lease; callers are told of the ``failure`` if it has none for them then."""
        text = _REASONS.get(event) if failure is None else failure.text
        entry.phase, actions = step(entry.phase, event)
        if entry.lease.state is not entry.phase.shown:
            ended = entry.phase in (LeasePhase.GONE, LeasePhase.UNCERTAIN)
            entry.lease = entry.lease.moved(entry.phase.shown, text if ended else None)
            self._touch(entry)
        for action in actions:
            match action:
                case Action.CHOOSE:
                    self._choose(entry)
                case Action.REQUEUE:
                    self._queue(entry)
                case Action.COMMIT:
                    if entry.lease.request.container:
                        entry.lease = attrs.evolve(entry.lease, cdi_name=name_of(self._sources.bits()))
                    entry.written = True
                    self._save(entry, entry.lease)
                    if isinstance(entry.lease.owner, ProcessOwner):
                        self._watch(entry)
                case Action.PREPARE:
                    self._prepare(entry)
                case Action.FILE if entry.lease.request.container:
                    entry.filed = True
                    self._effects.append(e.WriteFile(entry.lease))
                case Action.FILE:
                    self._step(entry, Event.FILED)
                case Action.CONFIRM:
                    entry.lease = self._begun(entry.lease)
                    self._save(entry, entry.lease.moved(LeaseState.HELD))
                case Action.TELL:
                    self._wait_for_owner(entry)
                    self._answer_all(entry, entry.lease)
                case Action.FAIL if entry.askers:
                    because = failure or _because(entry, text)
                    self._answer_all(entry, because)
                    self._effects.append(e.Failed(entry.lease.request.resources, entry.lease.uid, because))
                case Action.FAIL:
                    pass  # Nobody waits for the answer.
                case Action.WITHDRAW:
                    self._effects.extend(e.Withdraw(calls, entry.lease.id) for calls in entry.calling.values())
                case Action.WITHHOLD:
                    self._withhold(entry)
                    self._write(e.SaveLease(entry.lease))
                    self._end_access(entry)
                    self._forget_owner(entry)
                case Action.END:
                    self._end(entry)
                case _:
                    assert_never(action)

    def _begun(self, lease: Lease) -> Lease:
        """Return a lease with its time, and its longest time, beginning now."""
        longest, now = longest_of(self._stock, lease.request, lease.uid), self._sources.boottime()
        if longest is not None:
            lease = attrs.evolve(lease, longest_until=now + round(longest.value * 1e9))
        if isinstance(lease.owner, TimeOwner):
            lease = attrs.evolve(lease, owner=begun(lease.owner, now, lease.longest_until))
        return lease

    # --- a start ---

    def _take_up(self, lease: Lease) -> None:
        """Take a lease from the store."""
        if lease.id in self._entries:
            return
        phase = LeasePhase.HELD if lease.state is LeaseState.HELD else LeasePhase.UNCERTAIN
        # Which devices of a lease are missing is found out anew.
        reason = {LeaseState.PENDING: _RESTARTED, LeaseState.HELD: None}.get(lease.state, lease.reason)
        filed = lease.cdi_name is not None
        found = attrs.evolve(lease, state=phase.shown, reason=reason)
        admitted = lease.answer is not None and bool(lease.answer.access)
        entry = LeaseEntry(found, 0, phase, written=True, filed=filed, admitted=admitted)
        self._add(entry)
        if phase is LeasePhase.UNCERTAIN:
            self._withhold(entry)
            if lease.state is not LeaseState.UNCERTAIN:
                self._write(e.SaveLease(found))
            return
        if filed:
            self._effects.append(e.WriteFile(found))
        if isinstance(lease.owner, ConnectionOwner):
            self._ends.set(lease.id, self._now + BIND)
            self._bound_longest(entry)
        else:
            self._wait_for_owner(entry)

    def _withhold(self, entry: LeaseEntry) -> None:
        """Withhold the devices of an uncertain lease for some time."""
        entry.lease = attrs.evolve(entry.lease, withheld_until=self._sources.wall() + WITHHELD)
        self._ends.set(entry.lease.id, self._now + WITHHELD)

    def _restore(self, entry: LeaseEntry, notified: m.Notified) -> None:
        entry.named = notified.named
        entry.tickets.update(notified.tickets)
        self._tickets.update(dict.fromkeys(notified.tickets, entry.lease.id))
        if notified.tickets and isinstance(entry.lease.owner, ConnectionOwner):
            self._ends.forget(entry.lease.id)

    def _add(self, entry: LeaseEntry) -> None:
        """Take a lease, which is in line or has its devices already."""
        self._arrivals += 1
        entry.arrival = self._arrivals
        self._entries[entry.lease.id] = entry
        self._usage.add(entry.lease)
        self._touch(entry)
        if entry.lease.request.stop_on_unhealthy:
            self._stoppable[entry.lease.id] = entry
        if entry.phase is LeasePhase.QUEUED:
            self._queue(entry)
        self._stock.take_lease(entry.lease)

    # --- to get a lease ---

    def _ask(self, asked: m.LeaseAsked) -> None:
        asker, user = asked.uid, asked.request.for_uid
        if user is not None:
            if asker not in self._privileged:
                self._refuse(asked.reply, asked.request, asker, _NOT_FOR_OTHERS)
                return
            asked = attrs.evolve(asked, uid=user)
        entry = None if asked.id is None else self._entries.get(asked.id)
        if entry is not None:
            failure = self._ask_again(entry, asked)
        else:
            failure = self._refusal(asked, asker)
            if failure is None:
                entry = self._new_entry(asked)
        if failure is not None:
            self._refuse(asked.reply, asked.request, asked.uid, failure)
        elif entry is not None:
            entry.tickets.add(asked.ticket)
            self._tickets[asked.ticket] = entry.lease.id

    def _refusal(self, asked: m.LeaseAsked, asker: int) -> Failure | None:
        failure = failure_of(asked, self._stock.pools)
        failure = failure or reserved_failure_of(asked.id, asker, self._rules.operators)
        failure = failure or self._over_limit(asked)
        if failure is None and self._closed is not None:
            return Failure(Problem.STORAGE, self._closed)
        if failure is None and self.withheld is not None:
            return Failure(Problem.STORAGE, self.withheld)
        return failure or self._usage.failure(self._rules.limits, asked)

    def _over_limit(self, asked: m.LeaseAsked) -> Failure | None:
        wait = None if asked.deadline is None else asked.deadline - self._now
        return over_limit(self._stock, asked.request, asked.owner, asked.uid, wait)

    def _new_entry(self, asked: m.LeaseAsked) -> LeaseEntry:
        name = asked.id
        while name is None or (asked.id is None and name in self._entries):
            name = f"{self._sources.bits() % (1 << 48):012x}"
        lease = Lease(name, asked.uid, asked.request, asked.owner, LeaseState.QUEUED, self._sources.wall())
        entry = LeaseEntry(lease, 0, named=asked.id is not None)
        self._admit(entry, asked)
        self._add(entry)
        return entry

    def _admit(self, entry: LeaseEntry, asked: m.LeaseAsked) -> None:
        """Let a caller wait for the answer."""
        entry.askers[asked.ticket] = Asker(asked.reply, asked.deadline, asked.progress)
        if asked.progress is not None:
            self._observed.add(entry.lease.id)

    def _ask_again(self, entry: LeaseEntry, asked: m.LeaseAsked) -> Failure | None:
        lease = entry.lease
        if not self._may_change(asked.uid, entry):
            return _forbidden(lease.id)
        same = lease.uid == asked.uid and lease.request == asked.request and same_owner(lease.owner, asked.owner)
        if not same:
            return Failure(Problem.USAGE, f"lease {lease.id} exists with another request")
        match entry.phase:
            case LeasePhase.HELD:
                if text := unhealthy_since(self._stock, lease):
                    return Failure(Problem.UNAVAILABLE, text)
                self._answer(asked.reply, lease)
                return None
            case LeasePhase.UNCERTAIN:
                return Failure(Problem.REFUSED, f"lease {lease.id} is uncertain: {lease.reason}; ask again in a minute")
            case LeasePhase.ABANDONED:
                return Failure(Problem.UNAVAILABLE, f"lease {lease.id} is about to end; ask again")
            case LeasePhase.QUEUED:
                if asked.deadline is None:
                    text = f"lease {lease.id} waits for its devices; ask again with --wait"
                    return Failure(Problem.UNAVAILABLE, text)
                if (failure := self._over_limit(asked)) is not None:
                    return failure
            case _:
                pass
        self._admit(entry, asked)
        if entry.phase is LeasePhase.QUEUED:
            self._ends.set(lease.id, entry.next_end())
        return None

    def _asker_left(self, left: m.AskerLeft) -> None:
        entry = self._entries.get(self._tickets.pop(left.ticket, ""))
        if entry is None:
            return
        entry.tickets.discard(left.ticket)
        entry.askers.pop(left.ticket, None)
        if isinstance(entry.lease.owner, ConnectionOwner) and not entry.tickets:
            if left.cut and entry.phase is LeasePhase.HELD:
                self._ends.set(entry.lease.id, self._now + BIND)
                return
            self._step(entry, Event.OWNER_ENDED)
        elif not entry.askers:
            self._step(entry, Event.NAMED_LEFT if entry.named else Event.LEFT)

    # --- in line ---

    def _queue(self, entry: LeaseEntry) -> None:
        lease = entry.lease.id
        if (failure := self._ruled_out(entry)) is not None:
            # Its pool or a limit was changed while it had a turn.
            self._step(entry, Event.TIMED_OUT, failure)
            return
        self._line.add(lease, entry.arrival, entry.lease.request, entry.lease.uid)
        if all(asker.waits(self._now) for asker in entry.askers.values()):
            self._ends.set(lease, entry.next_end())
        else:
            self._impatient.add(lease)

    def _ruled_out(self, entry: LeaseEntry) -> Failure | None:
        """Return why one in line will never have its devices by the present rules."""
        lease = entry.lease
        failure = pool_failure_of(lease.request, lease.uid, self._stock.pools)
        return failure or over_limit(self._stock, lease.request, lease.owner, lease.uid)

    def _stop_waiting(self, entry: LeaseEntry, problem: Problem) -> None:
        """Let those wait no longer for one that is in line who do not wait, or have waited long enough."""
        over = [ticket for ticket, asker in entry.askers.items() if not asker.waits(self._now)]
        if len(over) == len(entry.askers):
            self._step(entry, Event.TIMED_OUT, self._shortage(entry, problem))
            return
        self._impatient.discard(entry.lease.id)
        for ticket in over:
            failure = self._shortage(entry, problem)
            self._refuse(entry.askers.pop(ticket).reply, entry.lease.request, entry.lease.uid, failure)
        self._ends.set(entry.lease.id, entry.next_end())

    def _shortage(self, entry: LeaseEntry, problem: Problem) -> Failure:
        """Return why one that is in line has no devices."""
        if self.withheld is not None:
            return Failure(Problem.STORAGE, self.withheld)
        request, uid = entry.lease.request, entry.lease.uid
        before = self._line.reserved_before(entry.arrival, self._stock)
        if (held_back := why_held_back(self._stock, before, request, uid)) is not None:
            text, limit = held_back
            having = (self._entries[lease].lease for lease in self._stock.holders((limit.resource,)))
            own = (lease for lease in having if (lease.uid, lease.request.pool) == (uid, limit.pool))
            problem = Problem.LIMIT if problem is Problem.UNAVAILABLE else problem
            return Failure(problem, text, tuple(itertools.islice(own, MAX_HOLDERS)), limit)
        text = shortage(self._stock, before, request, uid)
        places = self._line.places(self._stock)
        earlier = next((names for lease, _, names in places if lease == entry.lease.id), ())
        holders = itertools.islice(chain(earlier, self._stock.holders(request.resources)), MAX_HOLDERS)
        return Failure(problem, text, tuple(self._entries[lease].lease for lease in holders))

    # --- choosing ---

    def _choose(self, entry: LeaseEntry) -> None:
        """Take devices for a lease, and ask the plugins that may prefer others."""
        self._ends.forget(entry.lease.id)
        entry.preferred.clear()
        self._take_devices(entry, self._reserved)
        calls = [call for wanted in entry.lease.request.wanted if (call := self._preference(entry, wanted)) is not None]
        entry.asked = {call.resource for call in calls}
        for call in calls:
            self._call(entry, call)
        if not entry.asked:
            self._step(entry, Event.CHOSEN)

    def _preference(self, entry: LeaseEntry, wanted: Wanted) -> m.PreferenceAsked | None:
        """Return what to ask a plugin that may prefer other devices; None if it has no preference, or no choice."""
        name, request = wanted.resource, entry.lease.request
        if request.ids or not self._stock.options(name).get_preferred_allocation_available:
            return None
        others = self._stock.free((name, request.pool)).keys() - self._reserved.named(name)
        if not others:
            return None
        available = tuple(sorted(others.union(entry.lease.devices[name])))
        return m.PreferenceAsked(entry.lease.id, name, available, request.include, wanted.count, self._inbox)

    def _call(self, entry: LeaseEntry, call: m.PluginCall) -> None:
        calls = entry.calling[call.resource] = self._stock.calls(call.resource)
        self._effects.append(e.CallPlugin(calls, call))

    def _preferred(self, entry: LeaseEntry, name: str, devices: tuple[str, ...]) -> None:
        """Take what a plugin prefers, nothing if it has no answer; the last one lets the lease choose anew."""
        if entry.phase is not LeasePhase.CHOOSING or name not in entry.asked:
            return
        entry.asked.discard(name)
        entry.preferred[name] = devices
        if entry.asked:
            return
        reserved = self._line.reserved_before(entry.arrival, self._stock)
        self._stock.give_lease_back(entry.lease)
        entry.lease = attrs.evolve(entry.lease, devices={})
        if can_have(self._stock, reserved, entry.lease.request, entry.lease.uid):
            self._take_devices(entry, reserved)
            self._step(entry, Event.CHOSEN)
        else:
            self._step(entry, Event.SHORT)

    def _take_devices(self, entry: LeaseEntry, reserved: Reserved) -> None:
        request, devices = entry.lease.request, {}
        for wanted in request.wanted:
            name = wanted.resource
            free, preferred = self._stock.free((name, request.pool)), entry.preferred.get(name, ())
            devices[name] = request.ids or choose(free, wanted.count, request.include, preferred, reserved.named(name))
        entry.lease = attrs.evolve(entry.lease, devices=devices)
        self._stock.take_lease(entry.lease)

    # --- plugins prepare devices ---

    def _prepare(self, entry: LeaseEntry) -> None:
        """Ask the plugin of the next resource to prepare its devices; go on if all have."""
        name = next((resource for resource in entry.lease.request.resources if resource not in entry.answers), None)
        entry.preparing = name
        if name is None:
            self._join(entry)
        elif (text := unusable(self._stock, name, entry.lease.devices[name])) is not None:
            self._step(entry, Event.REFUSED, Failure(Problem.UNAVAILABLE, text))
        else:
            pre_start = self._stock.options(name).pre_start_required
            lease = entry.lease
            self._call(
                entry, m.AllocateAsked(lease.id, name, lease.devices[name], pre_start, self._inbox, lease.for_uid)
            )

    def _called(self, message: m.CallMessage) -> None:
        """Take what a plugin answers, unless the lease does not wait for that any more."""
        entry = self._entries.get(message.lease)
        if entry is None:
            return
        entry.calling.pop(message.resource, None)
        if entry.phase is LeasePhase.UNCERTAIN:
            # The call was made before a crash of whoever had the book.
            if isinstance(message, m.Allocated | m.AllocationRefused):
                self._step(entry, Event.SETTLED)
        elif isinstance(message, m.Preferred) or entry.phase is LeasePhase.CHOOSING:
            devices = message.devices if isinstance(message, m.Preferred) else ()
            self._preferred(entry, message.resource, devices)
        elif entry.phase in (LeasePhase.PREPARING, LeasePhase.ABANDONED) and entry.preparing == message.resource:
            self._prepared(entry, message)

    def _prepared(self, entry: LeaseEntry, message: m.Allocated | m.AllocationRefused | m.AllocationLost) -> None:
        entry.preparing = None
        entry.admitted |= isinstance(message, m.Allocated) and bool(message.answer.access)
        match message:
            case m.Allocated() if entry.phase is LeasePhase.ABANDONED:
                self._step(entry, Event.PREPARED)
            case m.Allocated():
                self._take_answer(entry, message)
            case m.AllocationRefused():
                self._step(entry, Event.REFUSED, _refused_by(message))
            case m.AllocationLost():
                entry.lost = message.key
                if message.pid is not None:
                    self._effects.append(e.WatchPlugin(message.key, message.pid, message.is_cut))
                self._step(entry, Event.LOST, _refused_by(message))
            case _:
                assert_never(message)

    def _take_answer(self, entry: LeaseEntry, message: m.Allocated) -> None:
        try:
            answer, left_out = accepted(message, entry.lease.request, entry.lease.uid, self._rules, self._privileged)
        except AnswerError as error:
            self._step(entry, Event.REFUSED, Failure(Problem.REFUSED, str(error)))
            return
        overlap = None if answer.identities else self._overlap(answer)
        warnings = [*left_out, *([] if overlap is None else [f"{message.resource}: {overlap}"])]
        if warnings:
            entry.lease = attrs.evolve(entry.lease, warnings=(*entry.lease.warnings, *warnings))
        entry.answers[message.resource] = answer
        self._prepare(entry)

    def _overlap(self, answer: Answer) -> str | None:
        """Return which node of a plugin's ``answer`` a lease of static devices has; None if none does."""
        paths = {node.host_path for node in answer.nodes}
        for lease in self._stock.static_holders():
            given = self._entries[lease].lease.answer
            for node in () if given is None else given.nodes:
                if node.host_path in paths:
                    return f"the plugin gives {node.host_path}, which is also of the lease {lease} of static devices"
        return None

    def _join(self, entry: LeaseEntry) -> None:
        try:
            answer = joined({name: entry.answers[name] for name in entry.lease.request.resources})
        except AnswerError as error:
            self._step(entry, Event.REFUSED, Failure(Problem.REFUSED, str(error)))
            return
        entry.lease = attrs.evolve(entry.lease, answer=answer)
        self._step(entry, Event.PREPARED)

    # --- what the disk says ---

    def _save(self, entry: LeaseEntry, lease: Lease) -> None:
        """Have a lease written before it goes on."""
        entry.write = self._write(e.SaveLease(lease), awaited=True)
        self._awaited[entry.write] = entry

    def _saved(self, message: m.Saved) -> None:
        """Go on with what waited for a write."""
        match self._awaited.pop(message.write, None):
            case None:
                pass
            case LeaseEntry() as entry:
                entry.write = None
                if message.error is None:
                    self._step(entry, Event.SAVED)
                else:
                    self._step(entry, Event.NOT_SAVED, _not_written(message.error))
            case Amendment() as amendment:
                self._amended(amendment, message.error)
            case DrainChange() as change:
                self._drained(change, message.error)
            case m.RecoverAsked() as asked:
                if message.error is None:
                    self._withheld = None
                failure = None if message.error is None else _not_written(message.error)
                self._effects.append(e.RecoverReply(asked.reply, failure))
            case (asked, released):
                # What could not be written is tried again.
                released = attrs.evolve(released, unwritten=message.error)
                self._effects.append(e.ReleaseReply(asked.reply, released))

    def _file_written(self, message: m.FileWritten) -> None:
        entry = self._entries.get(message.id)
        if entry is None:
            return
        if entry.phase is not LeasePhase.FILING:
            # It is held, from before a restart of plugind: its container may run already.
            warnings = tuple(warning for warning in entry.lease.warnings if not warning.startswith(_NO_FILE))
            if message.error is not None:
                warnings = (*warnings, f"{_NO_FILE}{message.error}")
            if warnings != entry.lease.warnings:
                entry.lease = attrs.evolve(entry.lease, warnings=warnings)
                self._touch(entry)
        elif message.error is None:
            self._step(entry, Event.FILED)
        else:
            text = f"the CDI file cannot be written: {message.error}"
            self._step(entry, Event.NOT_FILED, Failure(Problem.STORAGE, text))

    # --- owners ---

    def _watch(self, entry: LeaseEntry) -> None:
        """Hear of the end of the owner."""
        entry.watched = True
        self._effects.append(e.WatchOwner(entry.lease.id, entry.lease.owner))

    def _forget_owner(self, entry: LeaseEntry) -> None:
        """Hear of the end of the owner no more."""
        if entry.watched:
            entry.watched = False
            self._effects.append(e.Unwatch(entry.lease.id))

    def _wait_for_owner(self, entry: LeaseEntry) -> None:
        """Hear of the end of the owner of a held lease; a container has some time to bind it."""
        match entry.lease.owner:
            case ContainerOwner(init=None, start_within=seconds):
                if seconds is not None:
                    self._ends.set(entry.lease.id, self._now + seconds)
            case ProcessOwner() | ContainerOwner() | TimeOwner() if not entry.watched:
                self._watch(entry)
            case _:
                pass  # Its end is told by its connection, or there is nobody.
        self._bound_longest(entry)
        self._judge_devices([entry.lease.id])

    def _bound_longest(self, entry: LeaseEntry) -> None:
        """Note when the longest time of a held lease is over; one with a time of its own ends with that."""
        if entry.lease.longest_until is not None and not isinstance(entry.lease.owner, TimeOwner):
            self._longest.set(entry.lease.id, entry.lease.longest_until)

    def _judge_longest(self, entry: LeaseEntry) -> None:
        """End a held lease whose longest time is over, or show that it is over while its owner may use the devices."""
        lease = entry.lease
        if lets_go(lease.owner) or lease.id in self._in_grace:
            self._step(entry, Event.OWNER_ENDED)
            return
        if not lease.overdue:
            entry.lease = lease = attrs.evolve(lease, overdue=True)
            self._touch(entry)
        if not stops_at_longest(self._stock, lease.request):
            return
        if isinstance(lease.owner, ConnectionOwner):
            self._step(entry, Event.OWNER_ENDED)
        else:
            self._stop(entry, "its longest time is over")

    def _stop(self, entry: LeaseEntry, reason: str) -> None:
        """Stop the process that owns a held lease, once."""
        process = process_of(entry.lease.owner)
        if not entry.stopped and process is not None:
            entry.stopped = True
            self._effects.append(e.StopOwner(entry.lease.id, process, entry.lease.uid, reason))

    def _owner_ended(self, ended: m.OwnerEnded) -> None:
        entry = self._entries.get(ended.id)
        if entry is None or not entry.watched or entry.lease.owner != ended.owner:
            return  # After a crash an end may be told twice, and the second time another container has the lease.
        entry.watched = False
        if isinstance(ended.owner, ContainerOwner) and entry.phase is LeasePhase.HELD and not entry.lease.overdue:
            if ended.owner.start_within is None:
                entry.lease = attrs.evolve(entry.lease, owner=attrs.evolve(ended.owner, init=None))
                self._write(e.SaveLease(entry.lease))
                self._touch(entry)
            else:
                self._in_grace[ended.id] = entry
                self._ends.set(ended.id, self._now + GRACE)
        else:
            self._step(entry, Event.OWNER_ENDED)

    # --- the devices of leases that are held ---

    def _judge_devices(self, leases: Iterable[str]) -> None:
        """Show which devices of held leases are missing, and stop owners who asked for that."""
        for entry in map(self._entries.__getitem__, leases):
            reason = missing_devices(self._stock, entry.lease)
            if entry.phase is LeasePhase.HELD and reason != entry.lease.reason:
                entry.lease = attrs.evolve(entry.lease, reason=reason)
                self._touch(entry)
            self._stop_if_unhealthy(entry)

    def _stop_if_unhealthy(self, entry: LeaseEntry) -> None:
        """Stop the owner of a held lease, once, if it asked for that and a device is unhealthy."""
        lease = entry.lease
        if entry.phase is not LeasePhase.HELD or entry.stopped or not lease.request.stop_on_unhealthy:
            return
        if (reason := unhealthy_since(self._stock, lease)) is not None:
            self._stop(entry, reason)

    # --- to change leases that are held ---

    def _may_change(self, uid: int, entry: LeaseEntry) -> bool:
        """Whether a user may end or change a lease."""
        return uid == entry.lease.uid or uid in self._rules.operators

    def _find_held(self, lease: str, uid: int) -> LeaseEntry | Failure:
        """Return a lease that is held, or why a user may not change it."""
        entry = self._entries.get(lease)
        if entry is None and self.withheld is not None:
            return Failure(Problem.STORAGE, self.withheld)  # It may be one that is not known yet, or was lost.
        if entry is None:
            return Failure(Problem.UNKNOWN, f"there is no lease {lease}")
        if not self._may_change(uid, entry):
            return _forbidden(lease)
        if entry.phase is not LeasePhase.HELD:
            return Failure(Problem.UNAVAILABLE, f"lease {lease} is {entry.lease.state.value}, not held")
        return entry

    def _change_owner(self, asked: m.RenewAsked | m.BindAsked | m.ResumeAsked) -> None:
        """Let the time of a lease begin again, bind it to its container, or let another connection own it."""
        entry = self._find_held(asked.id, asked.uid)
        if isinstance(entry, Failure):
            self._answer(asked.reply, entry)
            return
        match asked:
            case m.RenewAsked():
                limit = longest_of(self._stock, entry.lease.request, entry.lease.uid)
                owner = renewed(entry.lease, self._sources.boottime(), limit)
            case m.BindAsked():
                owner = bound(entry.lease, asked.init, in_grace=asked.id in self._in_grace)
            case m.ResumeAsked():
                owner = resumed(entry.lease, asked.token_hash)
            case _:
                assert_never(asked)
        if isinstance(owner, Failure):
            self._answer(asked.reply, owner)
        elif isinstance(asked, m.ResumeAsked):
            self._ends.forget(asked.id)
            entry.tickets.add(asked.ticket)
            self._tickets[asked.ticket] = asked.id
            self._wait_for_owner(entry)
            self._answer(asked.reply, entry.lease)
        else:
            self._amend(entry, owner, asked.reply)

    def _amend(self, entry: LeaseEntry, owner: Owner, reply: Address[Lease | Failure]) -> None:
        """Have another owner written; it is told when it is written, since a restart must know it too."""
        lease, end = entry.lease, self._ends.forget(entry.lease.id)
        grace = self._in_grace.pop(lease.id, None) is not None
        amendment = Amendment(lease.id, lease.owner, owner, grace, end, reply)
        entry.lease = attrs.evolve(lease, owner=owner)
        self._watch(entry)
        self._awaited[self._write(e.SaveLease(entry.lease), awaited=True)] = amendment

    def _amended(self, amendment: Amendment, error: str | None) -> None:
        entry = self._entries.get(amendment.id)
        if entry is None or entry.phase is not LeasePhase.HELD:
            failure = Failure(Problem.UNKNOWN, f"there is no lease {amendment.id} any more")
            self._answer(amendment.reply, failure)
        elif error is None:
            self._touch(entry)
            # Another change may have been asked for since, which is not written yet.
            self._answer(amendment.reply, attrs.evolve(entry.lease, owner=amendment.after))
        else:
            self._undo(entry, amendment)
            self._answer(amendment.reply, _not_written(error))

    def _undo(self, entry: LeaseEntry, amendment: Amendment) -> None:
        for number, later in self._awaited.items():
            if isinstance(later, Amendment) and later.id == amendment.id:
                # This change began with what is not written: if it cannot be written either, both are undone.
                self._awaited[number] = attrs.evolve(
                    later, before=amendment.before, grace=amendment.grace, end=amendment.end
                )
                return
        if amendment.before != amendment.after:
            entry.lease = attrs.evolve(entry.lease, owner=amendment.before)
            if amendment.grace:
                self._in_grace[amendment.id] = entry
            self._forget_owner(entry)
            if amendment.end is None:
                self._wait_for_owner(entry)
            else:
                # A container has no more time than before to bind the lease, or to come back.
                self._ends.set(entry.lease.id, amendment.end)
            self._write(e.SaveLease(entry.lease))
            if entry.lease.overdue:
                self._judge_longest(entry)

    # --- the end ---

    def _release(self, asked: m.ReleaseAsked) -> None:
        found = {name: entry for name in asked.ids if (entry := self._entries.get(name)) is not None}
        for name, entry in found.items():
            if not self._may_change(asked.uid, entry):
                self._effects.append(e.ReleaseReply(asked.reply, _forbidden(name)))
                return
        for entry in found.values():
            self._step(entry, Event.RELEASED)
        unknown = tuple(name for name in dict.fromkeys(asked.ids) if name not in found)
        released = m.Released(tuple(found), unknown)
        if any(entry.written and entry.phase is LeasePhase.GONE for entry in found.values()):
            # Writes are made in order, so what has ended is written when this one is: it has nothing of its own.
            self._awaited[self._write(awaited=True)] = asked, released
        else:
            self._effects.append(e.ReleaseReply(asked.reply, released))

    def _plugin_ended(self, message: m.PluginEnded) -> None:
        for entry in [*self._entries.values()]:
            if entry.phase is LeasePhase.UNCERTAIN and entry.lost == message.key:
                self._step(entry, Event.SETTLED)

    def _end(self, entry: LeaseEntry) -> None:
        lease = entry.lease
        if entry.filed and lease.cdi_name is not None:
            self._effects.append(e.RemoveFile(lease.id, lease.cdi_name))
        self._end_access(entry)
        self._stock.give_lease_back(entry.lease)
        if entry.written:
            self._write(e.DeleteLease(lease.id))
        self._forget_owner(entry)
        self._forget_plugin(entry)
        self._line.remove(lease.id)
        self._impatient.discard(lease.id)
        self._observed.discard(lease.id)
        self._ends.forget(lease.id)
        self._longest.forget(lease.id)
        self._usage.add(lease, -1)
        self._stoppable.pop(lease.id, None)
        for ticket in entry.tickets:
            self._tickets.pop(ticket, None)
        if entry.write is not None:
            self._awaited.pop(entry.write, None)
        self._in_grace.pop(lease.id, None)
        del self._entries[lease.id]

    def _end_access(self, entry: LeaseEntry) -> None:
        if entry.admitted:
            entry.admitted = False
            self._effects.append(e.EndAccess(entry.lease.id))

    def _forget_plugin(self, entry: LeaseEntry) -> None:
        others = (other for other in self._entries.values() if other is not entry)
        if entry.lost is not None and not any(other.lost == entry.lost for other in others):
            self._effects.append(e.Unwatch(entry.lost))

    # --- rules, and a lost state ---

    def _change_rules(self, rules: m.LeaseRules) -> None:
        """Sort the devices into other pools, and end those in line that will have none by the new rules.

        Raises:
            ValueError: A device is in two pools.
        """
        self._rules = rules
        self._stock.sort_into(rules.pools)
        self._stock.limits = limits_of(rules)
        for entry in [*self._entries.values()]:
            if entry.phase is LeasePhase.QUEUED and (failure := self._ruled_out(entry)) is not None:
                self._step(entry, Event.TIMED_OUT, failure)
            elif entry.phase is LeasePhase.HELD and entry.lease.overdue:
                self._judge_longest(entry)

    def _recover(self, asked: m.RecoverAsked) -> None:
        """Have written that no leased device is in use."""
        if asked.uid not in self._rules.operators:
            self._effects.append(e.RecoverReply(asked.reply, _NOT_PRIVILEGED))
        elif self._withheld is None:
            self._effects.append(e.RecoverReply(asked.reply, None))
        else:
            self._awaited[self._write(e.EndWithholding(), awaited=True)] = asked

    # --- what is out of service ---

    def _change_drain(self, asked: m.DrainAsked | m.UndrainAsked) -> None:
        """Have written that a target is drained, or that it is no more, unless that is refused."""
        change: DrainChange | Failure
        # Operators whom the configuration adds may not do that.
        if (asked.drain.uid if isinstance(asked, m.DrainAsked) else asked.uid) not in self._privileged:
            change = _NOT_PRIVILEGED
        elif self._closed is not None:
            change = Failure(Problem.STORAGE, self._closed)
        else:
            change = change_of(self.drains, asked, self._sources.wall())
        if isinstance(change, Failure):
            self._effects.append(e.DrainReply(asked.reply, change))
        else:
            self._awaited[self._write(e.SaveDrain(change.target, change.after), awaited=True)] = change

    def _drained(self, change: DrainChange, error: str | None) -> None:
        if error is None:
            self._set_drains(change.applied_to(self.drains))
            ended = "it was ended" if change.after is None else None
            self._effects += [e.ShowDrain(change.answer, ended), e.DrainReply(change.reply, change.answer)]
            return
        # It may be written in part, or be written yet.
        self._write_drain(change.target, self.drains.get(change.target))
        failure = Failure(Problem.STORAGE, f"that cannot be written: {error}")
        self._effects.append(e.DrainReply(change.reply, failure))

    def _write_drain(self, target: DrainTarget, drain: Drain | None) -> None:
        """Have a drain written, or its end, unless a change that is being written takes its place."""
        if not any(isinstance(each, DrainChange) and each.target == target for each in self._awaited.values()):
            self._write(e.SaveDrain(target, drain))

    def _set_drains(self, drains: Drains) -> None:
        if drains != self.drains:
            self._stock.drain(drains)
            self._drain_end = first_end(drains)

    def _end_drains(self) -> None:
        """End the drains whose time is over by the wall clock."""
        if self._drain_end == math.inf or self._drain_end > (wall := self._sources.wall()):
            return
        over = over_at(self.drains, wall)
        self._set_drains({target: drain for target, drain in self.drains.items() if target not in over})
        for target, drain in over.items():
            self._effects.append(e.ShowDrain(drain, "its time is over"))
            self._write_drain(target, None)


def _forbidden(lease: str) -> Failure:
    return Failure(Problem.FORBIDDEN, f"lease {lease} belongs to another user")


def _not_written(error: str) -> Failure:
    return Failure(Problem.STORAGE, f"the lease cannot be written: {error}")


def _shown_at(entry: LeaseEntry) -> tuple[int, str]:
    """Return the key that puts those in line after all others, in the order of the line."""
    return entry.arrival if entry.phase is LeasePhase.QUEUED else 0, entry.lease.id


def _because(entry: LeaseEntry, text: str | None) -> Failure:
    return Failure(Problem.UNAVAILABLE, f"there is no lease {entry.lease.id} any more: {text}")


def _refused_by(message: m.AllocationRefused | m.AllocationLost) -> Failure:
    """Return why there is no lease: a request may be for several resources, and the words of plugins name none."""
    return Failure(Problem.REFUSED, f"{message.resource}: {message.reason}")

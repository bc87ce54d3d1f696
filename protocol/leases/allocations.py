"""How each lease goes on: what is done for each action of :mod:`.states`, and whose turn it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import assert_never

import attrs

from ..messages.addresses import Address
from . import effects as e
from .answers import AnswerError, joined
from .cdi import name_of
from .choosing import Choices
from .entries import Ends, LeaseEntry, Sources
from .limits import Usage, pool_failure_of
from .line import LeaseLine, Reserved
from .messages import AllocateAsked, AllocationLost, CallMessage, Failure, Problem
from .shortages import missing_devices, shortage, unhealthy_since
from .states import Action, Event, LeasePhase, step
from .stock import Stock
from .values import ContainerOwner, Lease, LeaseState, Pool, ProcessOwner, TimeOwner

#: Seconds for which the devices of an uncertain lease are withheld.
WITHHELD = 60.0
#: Seconds until a container must have bound its lease, or a connection must have come back after a restart.
BIND = 60.0
#: How many holders a failure names.
MAX_HOLDERS = 64

_REASONS = {
    Event.LEFT: "its caller has left",
    Event.NAMED_LEFT: "its caller has left",
    Event.RELEASED: "it was released",
    Event.OWNER_ENDED: "its owner has ended, or its time is over",
    Event.SETTLED: "its plugin is no longer preparing it",
}


class Allocations:
    """All leases, the devices that there are, and the line."""

    def __init__(
        self, inbox: Address[CallMessage], sources: Sources, pools: Iterable[Pool], numbers: Iterator[int]
    ) -> None:
        """Begin without leases; writes are given these ``numbers``.

        Raises:
            ValueError: A device is in two of ``pools``.
        """
        self.entries: dict[str, LeaseEntry] = {}
        self.stock = Stock(pools)
        self.ends = Ends()
        self.usage = Usage()
        self.tickets: dict[int, str] = {}
        #: The leases whose owners are to be stopped when a device is unhealthy.
        self.stoppable: dict[str, LeaseEntry] = {}
        #: Why no device is given to anybody.
        self.withheld: str | None = None
        self.effects: list[e.Effect] = []
        self.now = 0.0
        #: What is awaited of the disk: the lease of each number.
        self.writes: dict[int, str] = {}
        self._inbox = inbox
        self._sources = sources
        self._choices = Choices(self.stock, inbox)
        self._line = LeaseLine()
        #: What is in line and does not wait.
        self._impatient: set[str] = set()
        self._touched: dict[str, LeaseEntry] = {}
        self._reserved = Reserved()
        self._numbers = numbers
        self._arrivals = 0

    # --- turns ---

    def begin(self, now: float) -> None:
        """Begin a turn of the actor at ``now``."""
        self.now, self.effects = now, []

    def finish(self) -> list[e.Effect]:
        """Give devices to those whose turn has come, and return what is to be done."""
        self.serve()
        for entry in self._touched.values():
            if entry.shown or entry.phase is not LeasePhase.GONE:
                entry.shown = True
                self.effects.append(e.ShowLease(entry.lease))
        self._touched.clear()
        return self.effects

    def serve(self) -> None:
        """Give devices to those whose turn has come, and end those that do not wait."""
        if self.withheld is not None or not len(self._line):
            return
        for lease, reserved in self._line.take_fitting(self.stock):
            self._reserved = reserved
            self._impatient.discard(lease)
            self.step(self.entries[lease], Event.GRANTED)
        if self._impatient:
            self.fail(
                min((self.entries[lease_id] for lease_id in self._impatient), key=lambda entry: entry.arrival),
                Problem.UNAVAILABLE,
            )
            self.serve()  # Those behind it may have what was reserved for it.

    def touch(self, entry: LeaseEntry) -> None:
        """Show the lease to subscribers at the end of the turn."""
        self._touched[entry.lease.id] = entry

    def write(self, *changes: e.Change, awaited: bool = False) -> int:
        """Have ``changes`` written, and return the number of the write."""
        number = next(self._numbers)
        self.effects.append(e.Write(number, changes, awaited))
        return number

    def answer(self, reply: Address[Lease | Failure], answer: Lease | Failure) -> None:
        """Answer a caller."""
        self.effects.append(e.AnswerAsker(reply, answer))

    # --- to and fro ---

    def add(self, entry: LeaseEntry) -> None:
        """Take a lease, which is in line or has its devices already."""
        self._arrivals += 1
        entry.arrival = self._arrivals
        self.entries[entry.lease.id] = entry
        self.usage.add(entry.lease)
        self.touch(entry)
        if entry.lease.request.stop_on_unhealthy:
            self.stoppable[entry.lease.id] = entry
        if entry.phase is LeasePhase.QUEUED:
            self._queue(entry)
        for name, ids in entry.devices.items():
            self.stock.take(entry.lease.id, name, ids)

    def _queue(self, entry: LeaseEntry) -> None:
        lease = entry.lease.id
        if (failure := pool_failure_of(entry.lease.request, entry.lease.uid, self.stock.pools)) is not None:
            # Its pool was changed while it had a turn.
            self.step(entry, Event.TIMED_OUT, failure)
            return
        self._line.add(lease, entry.arrival, entry.lease.request)
        if all(asker.waits(self.now) for asker in entry.askers.values()):
            self.ends.set(lease, entry.next_end())
        else:
            self._impatient.add(lease)

    def step(self, entry: LeaseEntry, event: Event, failure: Failure | None = None) -> None:
        """Let ``event`` happen to a lease."""
        text = _REASONS.get(event) if failure is None else failure.text
        entry.phase, actions = step(entry.phase, event)
        if entry.lease.state is not entry.phase.shown:
            ended = entry.phase in (LeasePhase.GONE, LeasePhase.UNCERTAIN)
            entry.lease = entry.lease.moved(entry.phase.shown, text if ended else None)
            self.touch(entry)
        if actions:
            because = failure or _because(entry, text)
            for action in actions:
                self._carry_out(entry, action, because)

    def _carry_out(self, entry: LeaseEntry, action: Action, failure: Failure) -> None:
        match action:
            case Action.CHOOSE:
                self._choose(entry)
            case Action.REQUEUE:
                self._queue(entry)
            case Action.COMMIT:
                self._commit(entry)
            case Action.PREPARE:
                self.prepare(entry)
            case Action.FILE:
                self._file(entry)
            case Action.CONFIRM:
                self._confirm(entry)
            case Action.TELL:
                self._tell(entry)
            case Action.FAIL:
                self._fail(entry, failure)
            case Action.WITHDRAW:
                self._withdraw(entry)
            case Action.WITHHOLD:
                self._withhold(entry)
            case Action.END:
                self._end(entry)
            case _:
                assert_never(action)

    # --- choosing ---

    def _choose(self, entry: LeaseEntry) -> None:
        self.ends.forget(entry.lease.id)
        for call in self._choices.choose(entry, self._reserved):
            self._call(entry, call)
        if not entry.asked:
            self.step(entry, Event.CHOSEN)

    def _call(self, entry: LeaseEntry, call: e.CallPlugin) -> None:
        entry.calling[call.call.resource] = call.calls
        self.effects.append(call)

    def _withdraw(self, entry: LeaseEntry) -> None:
        self.effects.extend(e.Withdraw(calls, entry.lease.id) for calls in entry.calling.values())

    def preferred(self, entry: LeaseEntry, name: str, devices: tuple[str, ...]) -> None:
        """Take what a plugin prefers; nothing if it has no answer."""
        if entry.phase is not LeasePhase.CHOOSING or name not in entry.asked:
            return
        entry.asked.discard(name)
        entry.preferred[name] = devices
        if not entry.asked:
            reserved = self._line.reserved_before(entry.arrival, self.stock)
            self.step(entry, Event.CHOSEN if self._choices.choose_again(entry, reserved) else Event.SHORT)

    # --- from the choice to the answer ---

    def _commit(self, entry: LeaseEntry) -> None:
        if entry.lease.request.container:
            entry.lease = attrs.evolve(entry.lease, cdi_name=name_of(self._sources.bits()))
        entry.written = True
        self._save(entry, entry.lease)
        if isinstance(entry.lease.owner, ProcessOwner):
            self.watch(entry)

    def _save(self, entry: LeaseEntry, lease: Lease) -> None:
        entry.write = self.write(e.SaveLease(lease), awaited=True)
        self.writes[entry.write] = lease.id

    def watch(self, entry: LeaseEntry) -> None:
        """Hear of the end of the owner."""
        entry.watched = True
        self.effects.append(e.WatchOwner(entry.lease.id, entry.lease.owner))

    def forget_owner(self, entry: LeaseEntry) -> None:
        """Hear of the end of the owner no more."""
        if entry.watched:
            entry.watched = False
            self.effects.append(e.ForgetOwner(entry.lease.id))

    def prepare(self, entry: LeaseEntry) -> None:
        """Ask the plugin of the next resource to prepare its devices; go on if all have."""
        name = next((resource for resource in entry.resources if resource not in entry.answers), None)
        entry.preparing = name
        if name is None:
            self._join(entry)
        elif not self.stock.is_healthy(name, entry.devices[name]):
            self.step(entry, Event.REFUSED, self._unavailable(name))
        else:
            pre_start = self.stock.options(name).pre_start_required
            asked = AllocateAsked(entry.lease.id, name, entry.devices[name], pre_start, self._inbox)
            self._call(entry, e.CallPlugin(self.stock.calls(name), asked))

    def _unavailable(self, name: str) -> Failure:
        if not self.stock.is_offered(name):
            return Failure(Problem.UNAVAILABLE, f"unknown Device Plugin {name}")
        text = f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {name}"
        return Failure(Problem.UNAVAILABLE, text)

    def _join(self, entry: LeaseEntry) -> None:
        try:
            answer = joined({name: entry.answers[name] for name in entry.resources})
        except AnswerError as error:
            self.step(entry, Event.REFUSED, Failure(Problem.REFUSED, str(error)))
            return
        entry.lease = attrs.evolve(entry.lease, answer=answer)
        self.step(entry, Event.PREPARED)

    def _file(self, entry: LeaseEntry) -> None:
        if entry.lease.request.container:
            entry.filed = True
            self.effects.append(e.WriteFile(entry.lease))
        else:
            self.step(entry, Event.FILED)

    def _confirm(self, entry: LeaseEntry) -> None:
        if isinstance(owner := entry.lease.owner, TimeOwner):
            entry.lease = attrs.evolve(entry.lease, owner=self.begun(owner))
        self._save(entry, entry.lease.moved(LeaseState.HELD))

    def begun(self, owner: TimeOwner) -> TimeOwner:
        """Return the owner with its time beginning now."""
        return attrs.evolve(owner, expires=self._sources.boottime() + round(owner.seconds * 1e9))

    def _tell(self, entry: LeaseEntry) -> None:
        self.wait_for_owner(entry)
        for asker in entry.askers.values():
            self.answer(asker.reply, entry.lease)
        entry.askers.clear()

    def wait_for_owner(self, entry: LeaseEntry) -> None:
        """Hear of the end of the owner of a held lease; a container has some time to bind it."""
        match entry.lease.owner:
            case ContainerOwner(init=None):
                self.ends.set(entry.lease.id, self.now + BIND)
            case ProcessOwner() | ContainerOwner() | TimeOwner() if not entry.watched:
                self.watch(entry)
            case _:
                pass  # Its end is told by its connection, or there is nobody.
        self.judge_devices([entry.lease.id])

    def judge_devices(self, leases: Iterable[str]) -> None:
        """Show which devices of held leases are missing, and stop owners who asked for that."""
        for entry in map(self.entries.__getitem__, leases):
            reason = missing_devices(self.stock, entry.lease)
            if entry.phase is LeasePhase.HELD and reason != entry.lease.reason:
                entry.lease = attrs.evolve(entry.lease, reason=reason)
                self.touch(entry)
            self.stop_if_unhealthy(entry)

    def stop_if_unhealthy(self, entry: LeaseEntry) -> None:
        """Stop the owner of a held lease, once, if it asked for that and a device is unhealthy."""
        lease = entry.lease
        if entry.phase is not LeasePhase.HELD or entry.stopped or not lease.request.stop_on_unhealthy:
            return
        reason = unhealthy_since(self.stock, lease)
        if reason is not None and isinstance(lease.owner, ProcessOwner):
            entry.stopped = True
            self.effects.append(e.StopOwner(lease.id, lease.owner.process, lease.uid, reason))

    # --- the end ---

    def sort_into(self, pools: Iterable[Pool]) -> None:
        """Sort the devices into other pools, and end those in line that may have none of their pool any more.

        Raises:
            ValueError: A device is in two of ``pools``.
        """
        self.stock.sort_into(pools)
        for entry in [entry for entry in self.entries.values() if entry.phase is LeasePhase.QUEUED]:
            failure = pool_failure_of(entry.lease.request, entry.lease.uid, self.stock.pools)
            if failure is not None:
                self.step(entry, Event.TIMED_OUT, failure)

    def fail(self, entry: LeaseEntry, problem: Problem) -> None:
        """Let those wait no longer for one that is in line who do not wait, or have waited long enough."""
        over = [ticket for ticket, asker in entry.askers.items() if not asker.waits(self.now)]
        if len(over) == len(entry.askers):
            self.step(entry, Event.TIMED_OUT, self._failure(entry, problem))
            return
        self._impatient.discard(entry.lease.id)
        for ticket in over:
            failure = self._failure(entry, problem)
            self.answer(entry.askers.pop(ticket).reply, failure)
            self.report_failure(entry.resources, entry.lease.uid, failure)
        self.ends.set(entry.lease.id, entry.next_end())

    def _failure(self, entry: LeaseEntry, problem: Problem) -> Failure:
        if self.withheld is not None:
            return self.withheld_failure()
        request = entry.lease.request
        before = self._line.reserved_before(entry.arrival, self.stock)
        text = shortage(self.stock, before, request, entry.lease.uid)
        holders = islice(self.stock.holders(entry.resources), MAX_HOLDERS)
        return Failure(problem, text, tuple(self.entries[lease_id].lease for lease_id in holders))

    def withheld_failure(self) -> Failure:
        """Return why nobody gets any device."""
        return Failure(Problem.STORAGE, f"all devices are withheld: {self.withheld}")

    def _fail(self, entry: LeaseEntry, failure: Failure) -> None:
        for asker in entry.askers.values():
            self.answer(asker.reply, failure)
        if entry.askers:
            self.report_failure(entry.resources, entry.lease.uid, failure)
        entry.askers.clear()

    def report_failure(self, resources: tuple[str, ...], uid: int, failure: Failure) -> None:
        """Note that a caller got no lease."""
        self.effects.append(e.Failed(resources, uid, failure))

    def _withhold(self, entry: LeaseEntry) -> None:
        self.write(e.SaveLease(entry.lease))
        self.forget_owner(entry)
        self.ends.set(entry.lease.id, self.now + WITHHELD)

    def lose(self, entry: LeaseEntry, message: AllocationLost) -> None:
        """Note which plugin may still be preparing devices, and hear of the end of its process."""
        entry.lost = message.key
        if message.pid is not None:
            self.effects.append(e.WatchPlugin(message.key, message.pid, message.is_cut))

    def _forget_plugin(self, entry: LeaseEntry) -> None:
        others = (other for other in self.entries.values() if other is not entry)
        if entry.lost is not None and not any(other.lost == entry.lost for other in others):
            self.effects.append(e.ForgetPlugin(entry.lost))

    def _end(self, entry: LeaseEntry) -> None:
        lease = entry.lease
        if entry.filed and lease.cdi_name is not None:
            self.effects.append(e.RemoveFile(lease.id, lease.cdi_name))
        self._choices.give_back(entry)
        if entry.written:
            self.write(e.DeleteLease(lease.id))
        self.forget_owner(entry)
        self._forget_plugin(entry)
        self._line.remove(lease.id)
        self._impatient.discard(lease.id)
        self.ends.forget(lease.id)
        self.usage.add(lease, -1)
        self.stoppable.pop(lease.id, None)
        for ticket in entry.tickets:
            self.tickets.pop(ticket, None)
        if entry.write is not None:
            self.writes.pop(entry.write, None)
        del self.entries[lease.id]


def _because(entry: LeaseEntry, text: str | None) -> Failure:
    return Failure(Problem.UNAVAILABLE, f"there is no lease {entry.lease.id} any more: {text}")

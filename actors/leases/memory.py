"""What the lease actor knows beside the leases that are written, and what outlives its crash."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import attrs

from ...protocol.leases import effects as e
from ...protocol.leases import messages as m
from ...protocol.leases.effects import Failed
from ...protocol.leases.messages import LeasesViewMessage
from ...protocol.leases.values import Lease, LeaseState
from ...protocol.messages.addresses import Address
from ...protocol.messages.status import Lagged
from ...protocol.status.histograms import KUBELET_BUCKETS, Histogram
from ...protocol.status.metrics import ResourceLabels
from ...protocol.values import record
from ..messaging.mailbox import Audience, offer


def _no_durations() -> Histogram:
    return Histogram(KUBELET_BUCKETS)


@record
class LeaseCounts:
    """Counters by the labels of resources: those that device plugins offer have some of their own."""

    _labels: ResourceLabels = attrs.field(init=False, factory=ResourceLabels)
    #: The labels of what was offered: their numbers of leases begin with 0.
    _offered: set[str] = attrs.field(init=False, factory=set)
    _failures: Counter[tuple[str, str]] = attrs.field(init=False, factory=Counter)
    _durations: defaultdict[str, Histogram] = attrs.field(init=False, factory=lambda: defaultdict(_no_durations))

    def note(self, message: m.StateMessage) -> None:
        """Count what a plugin has answered; a resource that is offered has a label."""
        match message:
            case m.OfferChanged():
                self._offered.add(self._labels.label(message.offer.resource))
            case m.Allocated() | m.AllocationRefused() | m.AllocationLost() if message.seconds is not None:
                self._durations[self._labels.label(message.resource)].observe(message.seconds)
            case _:
                pass

    def fail(self, failed: Failed) -> None:
        """Count a caller who got no lease; it may have asked for anything."""
        for name in failed.resources:
            self._failures[self._labels.label(name, may_be_new=False), failed.failure.problem.value] += 1

    def added_to(self, snapshot: m.LeasesSnapshot) -> m.LeasesSnapshot:
        """Return ``snapshot`` with the counts."""
        held = [(name, len(devices)) for lease in snapshot.leases for name, devices in lease.devices.items()]
        durations = {
            label: attrs.evolve(histogram, counts=[*histogram.counts]) for label, histogram in self._durations.items()
        }
        return attrs.evolve(
            snapshot,
            counts=self._by_label((name, 1) for name, _ in held),
            leased=self._by_label(held),
            free=self._by_label(snapshot.free.items()),
            drained=self._by_label(snapshot.drained.items()),
            failures=dict(self._failures),
            durations=durations,
        )

    def _by_label(self, numbers: Iterable[tuple[str, int]]) -> dict[str, int]:
        found = Counter(dict.fromkeys(sorted(self._offered), 0))
        for name, number in numbers:
            found[self._labels.label(name)] += number
        return found


#: What is taken once more after a crash.
Once = m.LeasesAsked | m.ShowAsked | m.LeasesSubscribed | m.AskerLeft


@attrs.frozen(eq=False)
class WaitingCaller:
    """A caller who waits for an answer."""

    reply: Address[m.Failure]
    #: Its ticket, if it asks for a lease.
    ticket: int | None = None
    #: Whether it may ask again for the same lease by name.
    named: bool = True
    #: Where it awaits the end of the lease.
    ended: Address[Lease] | None = None


@record(eq=False)
class LeasesMemory:
    """What outlives a crash of the actor."""

    audience: Audience[LeasesViewMessage] = attrs.field(factory=lambda: Audience[LeasesViewMessage](Lagged()))
    #: The leases as they were shown last, and those that the subscribers have not been told of.
    shown: dict[str, Lease] = attrs.field(factory=dict)
    changed: dict[str, Lease] = attrs.field(factory=dict)
    #: The message that is being taken, if whoever sent it cannot be told to send it again.
    in_hand: Once | None = None
    #: Who waits for an answer, by the identity of the address; and which of them has a ticket.
    asked: dict[int, WaitingCaller] = attrs.field(factory=dict)
    waiting: dict[int, WaitingCaller] = attrs.field(factory=dict)
    #: The leases of which somebody was notified, and the lease of each ticket.
    notified: dict[str, m.Notified] = attrs.field(factory=dict)
    tickets: dict[int, str] = attrs.field(factory=dict)
    #: Where the call is under way, or waits, with which the devices of a lease are prepared.
    calls: dict[str, Address[m.DeviceCall]] = attrs.field(factory=dict)

    #: Why no device is given to anybody, and what to do; for health.
    withheld: str | None = None
    #: What is counted.
    counts: LeaseCounts = attrs.field(factory=LeaseCounts)

    def begin(self, kept: Iterable[Lease]) -> None:
        """Note the leases of before the start, when they are known: whoever has one that is held knows of it."""
        for lease in kept:
            self.shown[lease.id] = lease
            if lease.state is LeaseState.HELD:
                self.notified[lease.id] = m.Notified()

    def take_calls(self) -> list[tuple[str, Address[m.DeviceCall]]]:
        """Return the leases whose calls may still wait in line, each with where."""
        calls, self.calls = self.calls, {}
        return list(calls.items())

    def take_asked(self) -> list[WaitingCaller]:
        """Return those who wait for an answer."""
        asked, self.asked, self.waiting = self.asked, {}, {}
        return list(asked.values())

    def note(self, message: m.StateMessage) -> None:
        """Note what is lost if the actor crashes over this message."""
        self.counts.note(message)
        match message:
            case m.LeaseAsked():
                self._wait(WaitingCaller(message.reply, message.ticket, message.id is not None, message.ended))
            case m.ResumeAsked():
                self._wait(WaitingCaller(message.reply, message.ticket, ended=message.ended))
            case (
                m.ReleaseAsked() | m.RenewAsked() | m.BindAsked() | m.RecoverAsked() | m.DrainAsked() | m.UndrainAsked()
            ):
                self._wait(WaitingCaller(message.reply))
            case m.AskerLeft():
                self.in_hand = message
                if (asked := self.waiting.get(message.ticket)) is not None:
                    self.answered(asked.reply)
            case m.Allocated() | m.AllocationRefused() | m.AllocationLost():
                self.calls.pop(message.lease, None)
            case m.LeasesRead():
                self.begin(message.kept.leases)
            case _:
                pass

    def take_in_hand(self) -> Once | None:
        """Return the message that was being taken when the actor crashed; it is taken once more at most."""
        message, self.in_hand = self.in_hand, None
        return message

    def _wait(self, asked: WaitingCaller) -> None:
        self.asked[id(asked.reply)] = asked
        if asked.ticket is not None:
            self.waiting[asked.ticket] = asked

    def leave(self, ticket: int) -> None:
        """Note that whoever was notified of a lease has left."""
        if (notified := self.notified.get(self.tickets.pop(ticket, ""))) is not None:
            notified.tickets.discard(ticket)
            notified.ends.pop(ticket, None)

    def answered(self, reply: object) -> WaitingCaller | None:
        """Note that a caller is given its answer; return the caller."""
        asked = self.asked.pop(id(reply), None)
        if asked is not None and asked.ticket is not None:
            del self.waiting[asked.ticket]
        return asked

    def tell(self, asked: WaitingCaller, lease: Lease) -> None:
        """Note that a caller knows of a lease."""
        notified = self.notified.setdefault(lease.id, m.Notified(asked.named))
        if asked.ticket is not None:
            notified.tickets.add(asked.ticket)
            self.tickets[asked.ticket] = lease.id
            if asked.ended is not None:
                notified.ends[asked.ticket] = asked.ended

    def calling(self, effect: e.CallPlugin) -> None:
        """Note that a plugin is asked to prepare the devices of a lease."""
        if isinstance(effect.call, m.AllocateAsked):
            self.calls[effect.call.lease] = effect.calls

    def show(self, lease: Lease) -> Lease | None:
        """Note how a lease is now, and return it as it was shown before."""
        before = self.shown.pop(lease.id, None)
        self.changed[lease.id] = lease
        if lease.state is not LeaseState.GONE:
            self.shown[lease.id] = lease
        else:
            self._end(lease)
        return before

    def _end(self, lease: Lease) -> None:
        notified = self.notified.pop(lease.id, None)
        if notified is None:
            return
        for ticket in notified.tickets:
            self.tickets.pop(ticket, None)
        for address in notified.ends.values():
            offer(address, lease)

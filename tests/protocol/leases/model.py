"""A disk, plugins, owners and callers around the book of leases, and what must hold whatever they do.

The model knows what was said to plugins, owners and callers, and the rules of leases. It makes no choice of its own.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from plugind.protocol.leases import effects as e
from plugind.protocol.leases import messages as m
from plugind.protocol.leases.book import Book, Sources
from plugind.protocol.leases.config import LeaseLimits
from plugind.protocol.leases.drains import Drain, DrainTarget
from plugind.protocol.leases.grace import GRACE
from plugind.protocol.leases.limits import devices_of
from plugind.protocol.leases.mapped import ResourceConfig
from plugind.protocol.leases.messages import Failure, Problem
from plugind.protocol.leases.values import (
    ConnectionOwner,
    ContainerOwner,
    Lease,
    LeaseState,
    NoOwner,
    Owner,
    ProcessOwner,
    Request,
    TimeOwner,
    UserLimits,
    process_of,
)
from plugind.tests.protocol.leases.script import PLUGIN, offer
from plugind.tests.protocol.leases.supply import IDS, POOL, Place, Supply, Thing, things

Turn = Callable[[], list[e.Effect]]

LIMITS = LeaseLimits(leases=4, devices=5)
#: Seconds for which the devices of an uncertain lease are nobody's, and in which a lease must be bound.
MINUTE = 60.0

#: The states of one whose turn has come.
_TURN = (LeaseState.CHOOSING, LeaseState.PENDING)
_GIVEN = (LeaseState.PENDING, LeaseState.HELD, LeaseState.UNCERTAIN)


@attrs.define(eq=False)
class Caller:
    """One that asked for something; a reply is one answer and no more."""

    asked: m.LeaseAsked | None = None
    answers: list[Lease | Failure] = attrs.field(factory=list)
    left: bool = False

    def send_nowait(self, message: Lease | Failure, /) -> None:
        assert not self.answers, "a caller was answered twice"
        self.answers.append(message)


class Sink:
    def send_nowait(self, message: object, /) -> None:
        """Take it."""


class Model:
    """A node with a book of leases."""

    def __init__(self, *, preferred: bool) -> None:
        self.now = 0.0
        self.preferred = preferred
        self.numbers = itertools.count(1)
        self.limits: dict[Place, UserLimits] = {}
        self.book = self.new_book()
        self.calls: list[m.PluginCall] = []
        self.writes: list[e.Write] = []
        self.files: list[Lease] = []
        self.callers: dict[int, Caller] = {}
        self.tickets = itertools.count()
        self.supply = Supply(lambda: self.leases)
        #: Until when leases wait.
        self.deadlines: dict[str, float] = {}
        self.watched: dict[str, Owner] = {}
        #: When a lease goes by itself: one that no container has bound, or whose container has ended.
        self.until: dict[str, float] = {}
        #: When the longest times of leases are over, in nanoseconds.
        self.longest: dict[str, int] = {}
        #: Those of them whose container has ended: they end earlier for a request that needs that.
        self.in_grace: set[str] = set()
        #: The owners of held leases; and of each that a container binds, its owner before, until when it had time, and
        #: whether that was after a container.
        self.owners: dict[str, Owner] = {}
        self.unbound: dict[str, tuple[Owner, float, bool]] = {}
        #: What is being released.
        self.released: set[str] = set()
        #: What is on the disk: leases by id.
        self.disk: dict[str, Lease] = {}
        self.drains: dict[DrainTarget, Drain] = {}
        #: Devices that a plugin is preparing, and those that it may be preparing until a time, or until its end.
        self.preparing: dict[Thing, str] = {}
        self.doubtful: dict[Thing, float] = {}
        #: The leases that are uncertain since that plugin did not answer.
        self.lost: set[str] = set()
        self.files_there: set[str] = set()
        self.withheld = False
        for resource, ids in IDS.items():
            self.change_offer(resource, ids)

    def new_book(self) -> Book:
        sources = Sources(self.wall, lambda: round(self.now * 1e9), lambda: next(self.numbers))
        return Book(Sink(), sources, self.rules())

    def rules(self) -> m.LeaseRules:
        pool = attrs.evolve(POOL, limits=self.limits.get((POOL.resource, POOL.name), UserLimits()))
        resources = {name: ResourceConfig(limits=limits) for (name, of), limits in self.limits.items() if of is None}
        return m.LeaseRules((pool,), LIMITS, resources=resources)

    def limit(self, limits: dict[Place, UserLimits]) -> None:
        """A reload changes the limits of users."""
        self.limits = self.supply.limits = limits
        self.send(self.rules())

    def wall(self) -> float:
        return 1e9 + self.now

    @property
    def leases(self) -> tuple[Lease, ...]:
        return self.book.snapshot(self.now).leases

    # --- what is said to the book, and by it ---

    def send(self, message: m.StateMessage) -> None:
        self.take(lambda: self.book.handle(message, self.now))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.doubtful = {thing: until for thing, until in self.doubtful.items() if until > self.now}
        bounded, longest, drained = {**self.until}, {**self.longest}, self.supply.drained.items()
        in_grace = {*self.in_grace}
        self.supply.drained = {target: until for target, until in drained if until is None or until > self.wall()}
        self.take(lambda: self.book.pass_time(self.now))
        assert self.book.next_end > self.now
        for each in self.leases:
            self.check_longest(each)
        for lease, until in bounded.items():
            found = self.book.find(lease)
            if longest.get(lease, math.inf) <= self.now * 1e9:
                is_late = found is not None and isinstance(found.owner, ConnectionOwner) and until > self.now
                assert found is None or is_late, "it outlived its longest time"
            elif found is not None or lease not in in_grace:
                assert (found is None) is (until <= self.now), f"{found} outlived its time, or {lease} ended before"
        for lease, owner in [*self.watched.items()]:
            if isinstance(owner, TimeOwner) and (owner.expires or 0) <= self.now * 1e9:
                self.end_owner(lease)

    def take(self, turn: Turn) -> None:
        """Let the book make one turn, and check what follows from it."""
        before = {lease.id: lease for lease in self.leases}
        for effect in turn():
            self.carry_out(effect)
        self.check(before)

    def carry_out(self, effect: e.Effect) -> None:
        match effect:
            case e.AnswerAsker():
                self.check_reply(effect)
                effect.send()
            case e.CallPlugin():
                self.check_call(effect.call)
                self.calls.append(effect.call)
            case e.Write():
                self.writes.append(effect)
            case e.WriteFile():
                self.files.append(effect.lease)
                self.files_there.add(effect.lease.id)
            case e.RemoveFile():
                self.files_there.discard(effect.id)
            case e.WatchOwner():
                self.watched[effect.id] = effect.owner
                until, owner = self.until.pop(effect.id, None), self.owners.get(effect.id)
                if until is not None and owner is not None and owner != effect.owner:
                    self.unbound[effect.id] = owner, until, effect.id in self.in_grace
                self.in_grace.discard(effect.id)
            case e.Unwatch(str(lease)):
                self.watched.pop(lease, None)
            case e.StopOwner():
                assert process_of(self.watched[effect.id]) == effect.process, "a signal goes by a pidfd"
            case _:
                pass

    def change_offer(self, resource: str, words: list[str], *, lost: bool = False) -> None:
        self.supply.listed[resource] = {word.removesuffix("!") for word in words}
        self.supply.healthy[resource] = set() if lost else {word for word in words if not word.endswith("!")}
        key = None if lost else PLUGIN
        self.send(m.OfferChanged(offer(words, resource, key=key, preferred=self.preferred)))

    def ask(self, asked: Request, owner: Owner, name: str | None, wait: float | None, uid: int) -> None:
        ticket = next(self.tickets)
        caller = self.callers[ticket] = Caller()
        deadline = None if wait is None else self.now + wait
        caller.asked = m.LeaseAsked(asked, owner, uid, ticket, caller, name, deadline)
        alone = not any(lease.state is LeaseState.QUEUED for lease in self.leases)
        enough = alone and not self.withheld and self.supply.fits(asked, Counter(), set()) and not self.is_known(name)
        over = self.is_over_limit(uid, asked) or (uid != 0 and self.limits != {})
        if name is not None and not self.is_known(name):
            self.supply.arrivals[name], self.deadlines[name] = ticket, -1.0 if deadline is None else deadline
        elif name is not None and deadline is not None:
            self.deadlines[name] = max(self.deadlines[name], deadline)
        self.send(caller.asked)
        if caller.answers and isinstance(failure := caller.answers[0], Failure):
            assert not (enough and failure.problem is Problem.UNAVAILABLE), failure
            assert over or failure.problem is not Problem.LIMIT, failure
        for lease in self.leases:
            self.supply.arrivals.setdefault(lease.id, ticket)
            self.deadlines.setdefault(lease.id, -1.0 if deadline is None else deadline)

    def is_known(self, name: str | None) -> bool:
        return name is not None and self.book.find(name) is not None

    def is_over_limit(self, uid: int, asked: Request) -> bool:
        theirs = [lease.request for lease in self.leases if lease.uid == uid]
        return uid != 0 and (len(theirs) >= LIMITS.leases or sum(map(devices_of, [*theirs, asked])) > LIMITS.devices)

    def write(self, error: str | None = None) -> None:
        """The disk makes the first write; of one that is late nobody knows whether it was made, and it was."""
        done = self.writes.pop(0)
        if error != "disk full" or not done.awaited:
            for change in done.changes:
                match change:
                    case e.SaveLease():
                        self.check_written(change.lease)
                        self.disk[change.lease.id] = change.lease
                    case e.DeleteLease():
                        self.disk.pop(change.id, None)
                    case e.EndWithholding():
                        self.withheld = False
                    case e.SaveDrain():
                        change.put_into(self.drains)
        if done.awaited:
            self.send(m.Saved(done.number, error, unknown=error == "late"))

    def answer(self, call: m.PluginCall, answer: m.CallMessage) -> None:
        """A plugin answers a call, or it never will."""
        self.calls.remove(call)
        if isinstance(call, m.AllocateAsked):
            for device in call.devices:
                del self.preparing[call.resource, device]
                if isinstance(answer, m.AllocationLost):
                    self.doubtful[call.resource, device] = self.now + MINUTE
        self.send(answer)
        found = self.book.find(call.lease)
        if isinstance(answer, m.AllocationRefused):
            assert found is None, "a refusal frees"
        elif isinstance(answer, m.AllocationLost):
            assert found is not None
            assert found.state is LeaseState.UNCERTAIN
            self.lost.add(call.lease)

    def file(self, error: str | None = None) -> None:
        self.send(m.FileWritten(self.files.pop(0).id, error))

    def end_owner(self, lease: str) -> None:
        owner, before = self.watched.pop(lease), self.book.find(lease)
        stays = isinstance(owner, ContainerOwner) and before is not None and before.state is LeaseState.HELD
        is_kept = isinstance(owner, ContainerOwner) and owner.start_within is None
        if stays and not is_kept:
            self.until[lease] = self.now + GRACE
            self.in_grace.add(lease)
        self.send(m.OwnerEnded(lease, owner))
        found = self.book.find(lease)
        if before is not None and before.overdue:
            assert found is None, "it outlived its owner, and its longest time"
        elif stays and is_kept:
            assert found is not None
            assert before is not None
            assert found == attrs.evolve(before, owner=ContainerOwner(start_within=None))
        elif stays:
            assert found in (before, None), "a container may be started again"
        else:
            assert found is None or found.state in (LeaseState.PENDING, LeaseState.UNCERTAIN)

    def leave(self, ticket: int) -> None:
        caller = self.callers.pop(ticket)
        assert caller.asked is not None
        is_unnamed = caller.asked.id is None and bool(caller.answers)
        lease = caller.answers[0] if is_unnamed and isinstance(caller.answers[0], Lease) else None
        self.released = set() if lease is None else {lease.id}
        self.send(m.AskerLeft(ticket))
        self.released = set()
        if lease is not None:
            assert self.book.find(lease.id) is None, "an answer that is not delivered releases"

    def release(self, lease: Lease, uid: int) -> None:
        self.released = {lease.id}
        self.send(m.ReleaseAsked((lease.id,), uid, Sink()))
        self.released = set()
        after = self.book.find(lease.id)
        if uid not in (0, lease.uid):
            assert after == lease
        else:
            assert after is None or after.state in (LeaseState.UNCERTAIN, LeaseState.PENDING)

    def end_plugin(self) -> None:
        self.doubtful.clear()
        self.send(m.PluginEnded(PLUGIN))
        assert self.lost.isdisjoint(lease.id for lease in self.leases), "a plugin that has ended prepares nothing"
        self.lost.clear()

    def restart(self, *, withheld: bool) -> None:
        """SIGKILL: what was not written is lost, and all callers with it; plugins go on with what they do."""
        answered = {lease.id for lease in self.answered()}
        self.doubtful = dict.fromkeys([*self.doubtful, *self.preparing], self.now + MINUTE)
        gone = self.writes, self.calls, self.files, self.preparing, self.watched, self.callers
        for of in (*gone, self.until, self.unbound, self.lost, self.in_grace):
            of.clear()
        self.book, self.withheld = self.new_book(), withheld
        kept = m.Kept(tuple(self.disk.values()), "the state was lost" if withheld else None, {**self.drains})
        self.supply.drained = {target: drain.until for target, drain in self.drains.items()}
        self.take(lambda: self.book.start(kept, self.now))
        held = {lease.id for lease in self.leases if lease.state is LeaseState.HELD}
        assert answered <= held, "a lease that a caller was told of is lost"
        assert {lease.id for lease in self.leases} == self.disk.keys()
        assert {
            lease.id for lease in self.leases if lease.state is LeaseState.HELD and lease.cdi_name
        } <= self.files_there
        for lease in self.leases:
            if lease.state is LeaseState.HELD and lease.owner in (ContainerOwner(), ConnectionOwner("hash")):
                self.until[lease.id] = self.now + MINUTE
        for resource, ids in IDS.items():
            self.change_offer(resource, ids)

    def answered(self) -> Iterator[Lease]:
        """Yield the leases that callers were told of, and that are held still."""
        for answer in itertools.chain.from_iterable(caller.answers for caller in self.callers.values()):
            if isinstance(answer, Lease):
                found = self.book.find(answer.id)
                if found is not None and found.state is LeaseState.HELD and things(found) == things(answer):
                    yield answer

    # --- what holds of each message ---

    def check_reply(self, reply: e.AnswerAsker[Any]) -> None:
        answer = reply.answer
        if isinstance(answer, Drain):
            assert answer.uid == 0, "only an operator drains"
            if self.drains.get(answer.target) == answer:
                self.supply.drained[answer.target] = answer.until
            else:
                assert answer.target not in self.drains, "an answer came before the disk had it"
                self.supply.drained.pop(answer.target, None)
        if isinstance(answer, Lease):
            assert answer.state is LeaseState.HELD
            assert answer.answer is not None
            on_disk = self.disk.get(answer.id)
            assert on_disk is not None, "a caller was told of a lease that is not written"
            assert on_disk.state is LeaseState.HELD, "a caller was told of a lease that is not written as held"
            assert things(on_disk) == things(answer)
            if isinstance(reply.reply, Caller):
                asked = reply.reply.asked
                if asked is None:
                    assert on_disk.owner == answer.owner, "a change of the owner is not written"
                else:
                    assert (answer.request, answer.uid) == (asked.request, asked.uid), "it is the lease of another one"
            assert not answer.request.container or answer.id in self.files_there

    def check_call(self, call: m.PluginCall) -> None:
        assert not self.withheld, "a device is given though all are withheld"
        if isinstance(call, m.PreferenceAsked):
            assert set(call.must_include) <= set(call.available)
            assert call.size < len(call.available)
            return
        on_disk = self.disk.get(call.lease)
        assert on_disk is not None, "a plugin was asked before the lease was written"
        assert on_disk.devices[call.resource] == call.devices
        assert {*call.devices} <= self.supply.healthy[call.resource], "a device is not healthy"
        for device in call.devices:
            thing = call.resource, device
            assert thing not in self.preparing, "two plugins' calls for one device"
            self.preparing[thing] = call.lease

    def check_written(self, lease: Lease) -> None:
        taken = {thing for other in self.disk.values() if other.id != lease.id for thing in things(other)}
        assert not taken & things(lease), "two leases with one device cannot be written"

    # --- what holds after each turn ---

    def is_over(self, lease: str) -> bool:
        return self.until.get(lease, math.inf) <= self.now or self.longest.get(lease, math.inf) <= self.now * 1e9

    def check_longest(self, lease: Lease) -> None:
        """The longest time of a lease ends it, or it is overdue while somebody may use its devices."""
        if lease.longest_until is None or lease.state is not LeaseState.HELD:
            return
        assert lease.uid != 0, "root has no longest time"
        is_over = lease.longest_until <= self.now * 1e9
        match lease.owner:
            case TimeOwner(expires=expires):
                assert expires is not None
                assert expires <= lease.longest_until
            case NoOwner() | ContainerOwner(init=None):
                assert not is_over, "nobody may use its devices any more"
            case _:
                assert lease.overdue is is_over

    def check(self, before: dict[str, Lease]) -> None:
        leases = self.leases
        self.lost &= {lease.id for lease in leases}
        self.longest |= {lease.id: lease.longest_until for lease in leases if lease.longest_until is not None}
        self.check_devices(leases)
        self.owners = {lease.id: lease.owner for lease in leases if lease.state is LeaseState.HELD}
        self.unbound = {lease_id: unbound for lease_id, unbound in self.unbound.items() if lease_id in self.owners}
        for lease in leases:
            self.check_lease(lease)
        granted = [
            lease
            for lease in leases
            if lease.state in _TURN and (lease.id not in before or before[lease.id].state != lease.state)
        ]
        for lease in granted:
            self.supply.check_turn(lease, granted)
        gone = before.keys() - {lease.id for lease in leases}
        yielded = {lease for lease in gone & self.in_grace if lease not in self.released and not self.is_over(lease)}
        assert granted or not yielded, f"{yielded} ended for nobody"
        self.in_grace -= gone
        self.until = {lease_id: until for lease_id, until in self.until.items() if lease_id not in gone}
        self.longest = {lease_id: until for lease_id, until in self.longest.items() if lease_id not in gone}
        if not self.withheld:
            self.supply.check_line({lease.id for lease in leases if lease.id in self.in_grace})
        assert self.files_there <= {lease.id for lease in leases}, "a file is there without a lease"
        if not self.writes:
            there = {
                lease.id: (lease.state, lease.owner)
                for lease in leases
                if lease.id in self.disk or lease.state in _GIVEN
            }
            assert there == {lease.id: (lease.state, lease.owner) for lease in self.disk.values()}, "the disk differs"

    def check_devices(self, leases: tuple[Lease, ...]) -> None:
        holders: dict[Thing, list[str]] = defaultdict(list)
        for lease in leases:
            for thing in things(lease):
                holders[thing].append(lease.id)
        assert all(len(found) == 1 for found in holders.values()), holders
        for thing, lease_id in self.preparing.items():
            assert holders[thing] == [lease_id], "a device is free while its plugin prepares it"
        for thing in self.doubtful:
            assert holders[thing], "a device is free that its plugin may be preparing"

    def check_lease(self, lease: Lease) -> None:
        wanted = {each.resource: each.count for each in lease.request.wanted}
        has = {name: len(devices) for name, devices in lease.devices.items()}
        assert lease.state is not LeaseState.GONE
        assert has == ({} if lease.state is LeaseState.QUEUED else wanted)
        if lease.state is LeaseState.QUEUED:
            assert self.deadlines.get(lease.id, math.inf) > self.now, "it waits for too long"
            self.check_askers(lease)
            return
        devices = {device for _, device in things(lease)}
        assert devices >= {*lease.request.ids, *lease.request.include}
        assert all(device in POOL.ids for device in devices) or lease.request.pool is None
        assert devices.isdisjoint(POOL.ids) or lease.request.pool is not None
        if lease.state is LeaseState.HELD:
            self.check_owner(lease)

    def check_askers(self, lease: Lease) -> None:
        for caller in self.callers.values():
            asked = caller.asked
            if asked is not None and asked.id == lease.id and not (caller.answers or caller.left):
                assert asked.deadline is not None, "one that does not wait was not answered"
                assert asked.deadline > self.now, "one waits for longer than it said"

    def check_owner(self, lease: Lease) -> None:
        owner, until, in_grace = self.unbound.get(lease.id, (None, 0.0, False))
        if lease.owner == owner:
            # The binding could not be written: there is no more time than before.
            del self.unbound[lease.id]
            self.until[lease.id] = until
            if in_grace:
                self.in_grace.add(lease.id)
        match lease.owner:
            case NoOwner() | ConnectionOwner() | ContainerOwner(init=None, start_within=None):
                return
            case ContainerOwner(init=None):
                self.until.setdefault(lease.id, self.now + MINUTE)
            case ProcessOwner() | TimeOwner() | ContainerOwner():
                assert lease.id in self.watched or lease.id in self.until, "nobody hears of its owner's end"

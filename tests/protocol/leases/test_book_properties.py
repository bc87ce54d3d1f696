"""Leases under any order of messages: no device in two leases, every refusal frees, and nothing waits for ever.

The model knows what was said to plugins, owners and callers, and nothing of the decisions.
"""

from __future__ import annotations

import itertools
from collections import defaultdict

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from plugind.protocol.leases import effects as e
from plugind.protocol.leases import messages as m
from plugind.protocol.leases.book import Leases
from plugind.protocol.leases.entries import Sources
from plugind.protocol.leases.messages import Failure
from plugind.protocol.leases.values import (
    Answer,
    ConnectionOwner,
    ContainerOwner,
    Lease,
    LeaseState,
    NoOwner,
    Owner,
    Pool,
    ProcessIdentity,
    ProcessOwner,
    Request,
    TimeOwner,
    Wanted,
)
from plugind.tests.protocol.hypothesis_settings import examples
from plugind.tests.protocol.leases.script import GPU, NIC, PLUGIN, offer

#: A device, with its resource.
Thing = tuple[str, str]

IDS = {GPU: ["g0", "g1", "g2", "g3"], NIC: ["n0", "n1"]}
PROCESS = ProcessIdentity(5, 6, "boot")
OWNERS: list[Owner] = [
    ProcessOwner(PROCESS),
    NoOwner(),
    TimeOwner(5.0),
    ContainerOwner(),
    ConnectionOwner("hash"),
]
REQUESTS = [
    Request((Wanted(GPU, 1),)),
    Request((Wanted(GPU, 2),)),
    Request((Wanted(GPU, 3),)),
    Request((Wanted(NIC, 1), Wanted(GPU, 1))),
    Request((Wanted(GPU, 1), Wanted(NIC, 2))),
    Request((Wanted(GPU, 1),), ids=("g1",)),
    Request((Wanted(GPU, 2),), include=("g0",)),
    Request((Wanted(GPU, 1),), pool="big"),
]


def things(lease: Lease) -> set[Thing]:
    return {(name, device) for name, devices in lease.devices.items() for device in devices}


@attrs.define(eq=False)
class Caller:
    """One that asked for a lease; a reply is one answer and no more."""

    asked: m.LeaseAsked | None = None
    answers: list[Lease | Failure] = attrs.field(factory=list)
    left: bool = False

    def send_nowait(self, message: Lease | Failure, /) -> None:
        assert not self.answers, "a caller was answered twice"
        self.answers.append(message)


class Sink:
    def send_nowait(self, message: object, /) -> None:
        """Take it."""


class LeasesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.numbers = itertools.count(1)
        self.pools = [Pool("big", GPU, frozenset(["g3"]))]
        self.book = self.new_book()
        self.calls: list[m.PluginCall] = []
        self.writes: list[e.Write] = []
        self.files: list[Lease] = []
        self.callers: dict[int, Caller] = {}
        self.watched: dict[str, Owner] = {}
        #: What is on the disk: leases by id.
        self.disk: dict[str, Lease] = {}
        #: Devices that a plugin is preparing or may be preparing.
        self.preparing: dict[Thing, str] = {}
        self.offered: dict[str, list[str]] = {}
        self.files_there: set[str] = set()

    def new_book(self) -> Leases:
        sources = Sources(lambda: 1e9, lambda: round(self.now * 1e9), lambda: next(self.numbers))
        return Leases(Sink(), sources, pools=self.pools)

    @initialize(preferred=st.booleans())
    def begin(self, preferred: bool) -> None:
        self.preferred = preferred
        for resource, ids in IDS.items():
            self.change_offer(resource, ids)

    # --- what is done ---

    def send(self, message: m.StateMessage) -> None:
        self.take(self.book.handle(message, self.now))

    def take(self, effects: list[e.Effect]) -> None:
        for effect in effects:
            match effect:
                case e.Reply():
                    self.check_reply(effect.answer)
                    effect.send()
                case e.Call():
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
                case e.ForgetOwner():
                    self.watched.pop(effect.id, None)
                case e.StopOwner():
                    assert self.watched[effect.id] == ProcessOwner(effect.process), "a signal goes by a pidfd"
                case e.Changed() | e.Failed() | e.Withdraw() | e.WatchPlugin() | e.ForgetPlugin():
                    pass

    def check_reply(self, answer: object) -> None:
        if isinstance(answer, Lease):
            assert answer.state is LeaseState.HELD
            assert answer.answer is not None
            on_disk = self.disk.get(answer.id)
            assert on_disk is not None, "a caller was told of a lease that is not written"
            assert on_disk.state is LeaseState.HELD
            assert things(on_disk) == things(answer)
            assert not answer.request.container or answer.id in self.files_there

    def check_call(self, call: m.PluginCall) -> None:
        if isinstance(call, m.AllocateAsked):
            on_disk = self.disk.get(call.lease)
            assert on_disk is not None, "a plugin was asked before the lease was written"
            assert on_disk.devices[call.resource] == call.devices
            for device in call.devices:
                assert (call.resource, device) not in self.preparing, "two plugins' calls for one device"
                self.preparing[call.resource, device] = call.lease
        else:
            assert set(call.must_include) <= set(call.available)
            assert call.size < len(call.available)

    def change_offer(self, resource: str, words: list[str], *, lost: bool = False) -> None:
        self.offered[resource] = [] if lost else [word for word in words if not word.endswith("!")]
        key = None if lost else PLUGIN
        self.send(m.OfferChanged(offer(words, resource, key=key, preferred=self.preferred)))

    # --- rules ---

    @rule(
        asked=st.sampled_from(REQUESTS),
        owner=st.sampled_from(OWNERS),
        name=st.sampled_from([None, None, "x", "y"]),
        wait=st.sampled_from([None, 10.0, 1000.0]),
        uid=st.sampled_from([0, 1000]),
    )
    def ask(self, asked: Request, owner: Owner, name: str | None, wait: float | None, uid: int) -> None:
        asked = attrs.evolve(asked, container=isinstance(owner, ContainerOwner))
        ticket = len(self.callers)
        caller = self.callers[ticket] = Caller()
        deadline = None if wait is None else self.now + wait
        caller.asked = m.LeaseAsked(asked, owner, uid, ticket, caller, name, deadline)
        self.send(caller.asked)

    @precondition(lambda self: self.writes)
    @rule(error=st.sampled_from([None, None, None, "disk full", "late"]))
    def write(self, error: str | None) -> None:
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
                        pass
        if done.awaited:
            self.send(m.Saved(done.number, error, unknown=error == "late"))

    def check_written(self, lease: Lease) -> None:
        taken = {thing: other.id for other in self.disk.values() if other.id != lease.id for thing in things(other)}
        assert not taken.keys() & things(lease), "two leases with one device cannot be written"

    @precondition(lambda self: self.calls)
    @rule(outcome=st.sampled_from(["ok", "ok", "ok", "refused", "lost"]), data=st.data())
    def answer(self, outcome: str, data: st.DataObject) -> None:
        call = self.calls.pop(data.draw(st.integers(0, len(self.calls) - 1)))
        if isinstance(call, m.PreferenceAsked):
            devices = data.draw(st.lists(st.sampled_from([*IDS[call.resource], "z"]), max_size=3))
            self.send(m.Preferred(call.lease, call.resource, tuple(devices)))
            return
        for device in call.devices:
            del self.preparing[call.resource, device]
        match outcome:
            case "ok":
                self.send(m.Allocated(call.lease, call.resource, Answer({call.resource: "yes"})))
            case "refused":
                self.send(m.AllocationRefused(call.lease, call.resource, "no"))
                assert self.book.find(call.lease) is None, "a refusal frees"
            case _:
                self.send(m.AllocationLost(call.lease, call.resource, PLUGIN, "lost"))
                found = self.book.find(call.lease)
                assert found is not None
                assert found.state is LeaseState.UNCERTAIN

    @precondition(lambda self: self.files)
    @rule(error=st.sampled_from([None, None, "no space"]))
    def file(self, error: str | None) -> None:
        self.send(m.FileWritten(self.files.pop(0).id, error))

    @precondition(lambda self: self.watched)
    @rule(data=st.data())
    def end_owner(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(sorted(self.watched)))
        if not isinstance(self.watched[lease], TimeOwner):
            del self.watched[lease]
            self.send(m.OwnerEnded(lease))

    @precondition(lambda self: self.callers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.callers)))
        caller = self.callers[ticket]
        if not caller.left:
            caller.left = True
            self.send(m.AskerLeft(ticket))

    @rule(data=st.data(), uid=st.sampled_from([0, 1000, 1001]))
    def release(self, data: st.DataObject, uid: int) -> None:
        leases = self.book.snapshot(self.now).leases
        if not leases:
            return
        lease = data.draw(st.sampled_from(leases))
        self.send(m.ReleaseAsked((lease.id,), uid, Sink()))
        after = self.book.find(lease.id)
        if uid not in (0, lease.uid):
            assert after == lease
        else:
            assert after is None or after.state in (LeaseState.UNCERTAIN, LeaseState.PENDING)

    @rule(data=st.data(), renew=st.booleans(), pid=st.integers(1, 2))
    def amend(self, data: st.DataObject, renew: bool, pid: int) -> None:
        leases = [it for it in self.book.snapshot(self.now).leases if it.state is LeaseState.HELD]
        if not leases:
            return
        lease = data.draw(st.sampled_from(leases))
        if renew:
            self.send(m.RenewAsked(lease.id, 0, Caller()))
        else:
            self.send(m.BindAsked(lease.id, 0, ProcessIdentity(pid, 1, "boot"), Caller()))

    @rule(
        resource=st.sampled_from([GPU, NIC]),
        healthy=st.lists(st.booleans(), min_size=4, max_size=4),
        lost=st.booleans(),
        renamed=st.booleans(),
    )
    def change(self, resource: str, healthy: list[bool], lost: bool, renamed: bool) -> None:
        words = [f"{it}{'' if well else '!'}" for it, well in zip(IDS[resource], healthy, strict=False)]
        self.change_offer(resource, [f"r{word}" for word in words] if renamed else words, lost=lost)

    @rule(resource=st.sampled_from([GPU, NIC]))
    def end_offer(self, resource: str) -> None:
        self.offered[resource] = []
        self.send(m.OfferEnded(resource))

    @rule()
    def end_plugin(self) -> None:
        self.send(m.PluginEnded(PLUGIN))

    @rule(seconds=st.sampled_from([1.0, 10.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.book.pass_time(self.now))
        assert self.book.next_end > self.now
        for lease, owner in [*self.watched.items()]:
            if isinstance(owner, TimeOwner) and (owner.expires or 0) <= self.now * 1e9:
                del self.watched[lease]
                self.send(m.OwnerEnded(lease))

    @rule()
    def restart(self) -> None:
        """SIGKILL: what was not written is lost, and all callers with it."""
        answered = {it.id for it in self.answered_leases()}
        self.writes.clear()
        self.calls.clear()
        self.files.clear()
        self.preparing.clear()
        self.watched.clear()
        self.callers.clear()
        self.book = self.new_book()
        self.take(self.book.start(m.Kept(tuple(self.disk.values())), self.now))
        held = {it.id for it in self.book.snapshot(self.now).leases if it.state is LeaseState.HELD}
        assert answered <= held, "a lease that a caller was told of is lost"
        for resource, ids in IDS.items():
            self.change_offer(resource, ids)

    def answered_leases(self) -> list[Lease]:
        """Return the leases that callers were told of, and that are held still."""
        answers = [answer for caller in self.callers.values() for answer in caller.answers]
        return [
            answer
            for answer in answers
            if isinstance(answer, Lease)
            and (found := self.book.find(answer.id)) is not None
            and found.created == answer.created
            and found.state is LeaseState.HELD
        ]

    # --- what always holds ---

    @invariant()
    def no_device_is_in_two_leases(self) -> None:
        holders: dict[Thing, list[str]] = defaultdict(list)
        for lease in self.book.snapshot(self.now).leases:
            for thing in things(lease):
                holders[thing].append(lease.id)
        assert all(len(found) == 1 for found in holders.values()), holders
        for thing, lease_id in self.preparing.items():
            assert holders[thing] == [lease_id], "a device is free while its plugin prepares it"

    @invariant()
    def all_states_have_their_devices(self) -> None:
        for lease in self.book.snapshot(self.now).leases:
            assert lease.state is not LeaseState.GONE
            wanted = {it.resource: it.count for it in lease.request.wanted}
            has = {name: len(devices) for name, devices in lease.devices.items()}
            assert has == ({} if lease.state is LeaseState.QUEUED else wanted)

    @invariant()
    def a_file_is_there_only_for_a_lease(self) -> None:
        leases = {lease.id for lease in self.book.snapshot(self.now).leases}
        assert self.files_there <= leases

    @invariant()
    def the_first_in_line_waits_for_something(self) -> None:
        leases = self.book.snapshot(self.now).leases
        queued = [lease for lease in leases if lease.state is LeaseState.QUEUED]
        if len(queued) != 1:
            return
        taken = {thing for lease in leases for thing in things(lease)}
        (lease,) = queued
        free = {name: {it for it in ids if (name, it) not in taken} for name, ids in self.offered.items()}
        # Leased devices that are not listed may be those that are free, by another name.
        unlisted = any(device not in self.offered[name] for name, device in taken)
        for wanted in lease.request.wanted:
            pool = {"g3"} if wanted.resource == GPU else set()
            there = free[wanted.resource] & pool if lease.request.pool else free[wanted.resource] - pool
            named = set(lease.request.ids or lease.request.include)
            if len(there) < wanted.count or not named <= there or unlisted:
                return
        raise AssertionError(f"{lease} waits for nothing")

    def teardown(self) -> None:
        """Everybody goes, and everything is answered: then nothing is left, and all devices can be had."""
        for resource, ids in IDS.items():
            self.change_offer(resource, ids)
        for _ in range(200):
            leases = self.book.snapshot(self.now).leases
            if not leases and not self.writes:
                break
            for call in [*self.calls]:
                self.calls.remove(call)
                if isinstance(call, m.AllocateAsked):
                    for device in call.devices:
                        del self.preparing[call.resource, device]
                    self.send(m.AllocationRefused(call.lease, call.resource, "no"))
                else:
                    self.send(m.Preferred(call.lease, call.resource))
            self.files.clear()
            for lease in leases:
                self.send(m.ReleaseAsked((lease.id,), 0, Sink()))
            while self.writes:
                self.write(None)
            self.now += 60
            self.take(self.book.pass_time(self.now))
        assert not self.book.snapshot(self.now).leases
        assert not self.disk
        assert not self.files_there
        for caller in self.callers.values():
            assert caller.left or caller.answers, "a caller was never answered"
        last = Caller()
        self.send(m.LeaseAsked(Request((Wanted(GPU, 3), Wanted(NIC, 2))), NoOwner(), 0, 10**6, last, "last"))
        assert not last.answers
        found = self.book.find("last")
        assert found is not None


TestLeases = LeasesMachine.TestCase
TestLeases.settings = examples(40, steps=40)

"""Leases under any order of messages: no device in two leases, every refusal frees, and nothing waits for ever.

Hypothesis writes a script of bytes, and each act takes from it what it needs to know: a script takes no time to write,
and one that fails shrinks to a short one. ``python -m tests.protocol.leases.book_bugs`` shows which bugs it finds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import attrs
from hypothesis import given
from hypothesis import strategies as st

from plugind.protocol.leases import messages as m
from plugind.protocol.leases.drains import NODE, Drain, DrainTarget
from plugind.protocol.leases.values import (
    Answer,
    ConnectionOwner,
    ContainerOwner,
    Lease,
    LeaseState,
    NoOwner,
    Owner,
    ProcessIdentity,
    ProcessOwner,
    Request,
    TimeOwner,
    UserLimits,
    Wanted,
)
from plugind.tests.protocol.hypothesis_settings import examples
from plugind.tests.protocol.leases.model import Caller, Model, Sink
from plugind.tests.protocol.leases.script import GPU, NIC, PLUGIN
from plugind.tests.protocol.leases.supply import IDS, Place, things

T = TypeVar("T")

OWNERS: list[Owner] = [
    ProcessOwner(ProcessIdentity(5, 6, "boot")),
    NoOwner(),
    TimeOwner(5.0),
    ContainerOwner(),
    ContainerOwner(start_within=None),
    ConnectionOwner("hash"),
]
REQUESTS = [
    Request((Wanted(GPU, 1),)),
    Request((Wanted(GPU, 1),)),
    Request((Wanted(GPU, 2),)),
    Request((Wanted(GPU, 3),)),
    Request((Wanted(NIC, 1), Wanted(GPU, 1))),
    Request((Wanted(GPU, 1), Wanted(NIC, 1))),
    Request((Wanted(GPU, 1),), ids=("g0",)),
    Request((Wanted(GPU, 2),), include=("g2",)),
    Request((Wanted(GPU, 1),), pool="big"),
    Request((Wanted(GPU, 1),), ignore_missing=True, stop_on_unhealthy=True),
]
TARGETS = [DrainTarget(GPU, "g0"), DrainTarget(GPU, "g3"), DrainTarget(NIC), NODE]


GPUS, BIG, NICS = (GPU, None), (GPU, "big"), (NIC, None)
LIMITS_OF_USERS: list[dict[Place, UserLimits]] = [
    {},
    {GPUS: UserLimits(devices_per_user=2), BIG: UserLimits(devices_per_user=1), NICS: UserLimits(longest_lease=20.0)},
    {GPUS: UserLimits(devices_per_user=1), NICS: UserLimits(devices_per_user=1)},
    {GPUS: UserLimits(devices_per_user=2, longest_lease=5.0, stop_at_longest=True, longest_wait=100.0)},
    {GPUS: UserLimits(longest_lease=40.0), BIG: UserLimits(devices_per_user=0)},
]


class Script:
    """Acts on a model, as the bytes of a script say."""

    def __init__(self, script: bytes) -> None:
        self._bytes = iter(script)
        self.model = Model(preferred=self.pick([False, True]))

    def pick(self, some: Sequence[T]) -> T:
        """Return one of some; the first one when the script has ended."""
        return some[next(self._bytes, 0) % len(some)]

    def run(self) -> None:
        for byte in self._bytes:
            ACTS[byte % len(ACTS)](self)

    def nothing(self) -> None:
        """Scripts shrink to this."""

    # --- what callers do ---

    def ask(self) -> None:
        owner = self.pick(OWNERS)
        asked = attrs.evolve(self.pick(REQUESTS), container=isinstance(owner, ContainerOwner))
        wait, uid = self.pick([None, 10.0, 1000.0]), self.pick([0, 1000])
        self.model.ask(asked, owner, self.pick([None, None, "x", "y"]), wait, uid)

    def ask_and_get(self) -> None:
        self.ask()
        self.succeed()

    def ask_and_interrupt(self) -> None:
        """Something goes wrong amid an allocation."""
        self.succeed()
        self.ask()
        for _ in range(self.pick(range(5))):
            self.go_on()
        for _ in range(3):
            self.pick(INTERRUPTIONS)(self)

    def leave(self) -> None:
        if self.model.callers:
            self.model.leave(self.pick([*self.model.callers]))

    def release(self) -> None:
        if leases := self.model.leases:
            self.model.release(self.pick(leases), self.pick([0, 1000, 1001]))

    def held(self, kind: type[Owner]) -> Lease | None:
        held = [
            lease for lease in self.model.leases if lease.state is LeaseState.HELD and isinstance(lease.owner, kind)
        ]
        return self.pick(held) if held else None

    def renew(self) -> None:
        if lease := self.held(TimeOwner):
            self.model.send(m.RenewAsked(lease.id, 0, Caller()))

    def bind(self) -> None:
        if lease := self.held(ContainerOwner):
            init = ProcessIdentity(self.pick([1, 2]), 1, "boot")
            self.model.send(m.BindAsked(lease.id, 0, init, Caller()))

    def resume(self) -> None:
        if lease := self.held(ConnectionOwner):
            ticket = next(self.model.tickets)
            self.model.send(m.ResumeAsked(lease.id, 0, "hash", ticket, Caller()))
            self.model.until.pop(lease.id, None)

    def recover(self) -> None:
        self.model.send(m.RecoverAsked(self.pick([0, 1000]), Sink()))

    def limit(self) -> None:
        self.model.limit(self.pick(LIMITS_OF_USERS))

    def drain(self) -> None:
        until = self.pick([None, self.model.wall() + 30.0])
        drain = Drain(self.pick(TARGETS), self.pick([0, 0, 1000]), 0.0, "", until)
        self.model.send(m.DrainAsked(drain, Sink()))

    def undrain(self) -> None:
        self.model.send(m.UndrainAsked(self.pick([*self.model.supply.drained, *TARGETS]), 0, Sink()))

    # --- what the world does ---

    def succeed(self) -> None:
        """Let everything that is under way succeed."""
        while self.model.writes or self.model.calls or self.model.files:
            while self.model.writes:
                self.model.write()
            while self.model.files:
                self.model.file()
            for call in [*self.model.calls]:
                self.answer_well(call)

    def answer_well(self, call: m.PluginCall) -> None:
        if isinstance(call, m.AllocateAsked):
            self.model.answer(call, m.Allocated(call.lease, call.resource, Answer({call.resource: "yes"}), uid=0))
        else:
            devices = [self.pick([*IDS[call.resource], "z"]) for _ in range(2)]
            self.model.answer(call, m.Preferred(call.lease, call.resource, tuple(devices)))

    def go_on(self) -> None:
        """Let what was asked for first succeed."""
        if self.model.writes:
            self.model.write()
        elif self.model.files:
            self.model.file()
        elif self.model.calls:
            self.answer_well(self.model.calls[0])

    def write(self) -> None:
        if self.model.writes:
            self.model.write()

    def fail_to_write(self) -> None:
        if self.model.writes:
            self.model.write(self.pick(["disk full", "late"]))

    def file(self) -> None:
        if self.model.files:
            self.model.file()

    def fail_to_file(self) -> None:
        if self.model.files:
            self.model.file("no space")

    def answer(self) -> None:
        if self.model.calls:
            self.answer_well(self.pick(self.model.calls))

    def fail_to_answer(self) -> None:
        if self.model.calls:
            call = self.pick(self.model.calls)
            if isinstance(call, m.PreferenceAsked):
                self.model.answer(call, m.Preferred(call.lease, call.resource, error="no"))
            elif self.pick([True, False]):
                self.model.answer(call, m.AllocationRefused(call.lease, call.resource, "no"))
            else:
                self.model.answer(call, m.AllocationLost(call.lease, call.resource, PLUGIN, "lost"))

    def end_owner(self) -> None:
        watched = [lease_id for lease_id, owner in self.model.watched.items() if not isinstance(owner, TimeOwner)]
        if watched:
            self.model.end_owner(self.pick(watched))

    def change(self) -> None:
        """A plugin lists other devices, or is lost."""
        resource, health = self.pick([GPU, NIC]), self.pick(range(8))
        words = [f"{device_id}{'!' if health >> at & 1 else ''}" for at, device_id in enumerate(IDS[resource])]
        kind = self.pick(["same", "same", "renamed", "lost"])
        self.model.change_offer(
            resource, [f"r{word}" for word in words] if kind == "renamed" else words, lost=kind == "lost"
        )

    def remove_leased(self) -> None:
        """A plugin lists no device that is leased."""
        taken = {device for lease in self.model.leases for _, device in things(lease)}
        self.model.change_offer(GPU, [device_id for device_id in IDS[GPU] if device_id not in taken])

    def offer_all(self) -> None:
        for resource, ids in IDS.items():
            self.model.change_offer(resource, ids)

    def end_offer(self) -> None:
        resource = self.pick([GPU, NIC])
        self.model.supply.listed[resource] = self.model.supply.healthy[resource] = set()
        self.model.send(m.OfferEnded(resource))

    def end_plugin(self) -> None:
        self.model.end_plugin()

    def wait(self) -> None:
        self.model.pass_time(self.pick([1.0, 9.0, 31.0, 60.0]))

    def restart(self) -> None:
        self.model.restart(withheld=self.pick([False, False, False, True]))

    def drain_ends(self) -> None:
        self.succeed()
        for target in [*self.model.drains]:
            self.model.send(m.UndrainAsked(target, 0, Sink()))
        self.succeed()

    # --- the end ---

    def end(self) -> None:
        """Everybody goes, and everything is answered: then nothing is left, and all devices can be had."""
        model = self.model
        self.offer_all()
        model.limit({})
        self.model.send(m.RecoverAsked(0, Sink()))
        self.drain_ends()
        for lease in model.leases:
            model.release(lease, 0)
        self.succeed()
        model.pass_time(1000.0)
        self.succeed()
        assert not model.leases
        assert not model.disk
        assert not model.drains
        assert not model.files_there
        for caller in model.callers.values():
            assert caller.answers, "a caller was never answered"
        model.ask(Request((Wanted(GPU, 2), Wanted(NIC, 1))), NoOwner(), "last", None, 1000)
        model.ask(Request((Wanted(GPU, 1),), pool="big"), NoOwner(), "last of the pool", None, 1000)
        self.succeed()
        assert [lease.state for lease in model.leases] == [LeaseState.HELD, LeaseState.HELD]


#: What may happen, with what is common more than once.
ACTS: list[Callable[[Script], None]] = [
    Script.nothing,
    *[Script.ask_and_get] * 4,
    *[Script.ask] * 6,
    *[Script.ask_and_interrupt] * 4,
    *[Script.write] * 4,
    *[Script.answer] * 4,
    *[Script.end_owner] * 3,
    *[Script.release] * 3,
    *[Script.succeed] * 2,
    *[Script.change] * 2,
    *[Script.offer_all] * 2,
    *[Script.wait] * 2,
    *[Script.fail_to_answer] * 2,
    *[Script.fail_to_write] * 2,
    *[Script.bind] * 2,
    Script.remove_leased,
    Script.leave,
    Script.renew,
    Script.resume,
    Script.recover,
    Script.drain,
    *[Script.limit] * 2,
    Script.undrain,
    Script.file,
    Script.fail_to_file,
    Script.end_offer,
    Script.end_plugin,
    Script.restart,
]


INTERRUPTIONS: list[Callable[[Script], None]] = [
    Script.fail_to_write,
    Script.fail_to_answer,
    Script.fail_to_file,
    Script.release,
    Script.leave,
    Script.end_owner,
    Script.change,
    Script.wait,
    Script.restart,
]

SCRIPTS = st.binary(min_size=200, max_size=200)
SETTINGS = examples(200)


def play(script: bytes) -> None:
    run = Script(script)
    run.run()
    run.end()


@SETTINGS
@given(SCRIPTS)
def test_leases_hold_whatever_happens(script: bytes) -> None:
    play(script)

"""Bugs in leases, put in on purpose; see ``plugind.tests.tools.planted_bugs``."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import cast
from unittest.mock import patch

import attrs

from plugind.actors.leases.cdi_writer import CdiWriter
from plugind.actors.leases.owners import Owners
from plugind.actors.leases.saving import Saving
from plugind.protocol.leases import book, states
from plugind.protocol.leases.book import Book
from plugind.protocol.leases.choosing import LeaseLine, Reserved
from plugind.protocol.leases.effects import DeleteLease, Effect, Write
from plugind.protocol.leases.messages import Kept, Offer
from plugind.protocol.leases.states import Action, Event, LeasePhase, Outcome
from plugind.protocol.leases.stock import Stock
from plugind.protocol.leases.values import LeaseState
from plugind.protocol.plugins.devices import HEALTHY, Device, DeviceList
from plugind.tests.fuzz.lease_stores import SimulatedLeaseStore


@contextmanager
def _outcome(phase: LeasePhase, event: Event, outcome: Outcome) -> Iterator[None]:
    with patch.dict(cast("dict[Event, Outcome]", states.STEPS[phase]), {event: outcome}):
        yield


@contextmanager
def free_what_was_lost() -> Iterator[None]:
    """A call that is lost frees the devices, as a refusal does."""
    with _outcome(LeasePhase.PREPARING, Event.LOST, (LeasePhase.GONE, (Action.FAIL, Action.END))):
        yield


@contextmanager
def withhold_for_ever() -> Iterator[None]:
    """What is uncertain stays so until the process of the plugin ends."""
    with patch.object(book, "WITHHELD", math.inf):
        yield


@contextmanager
def withhold_what_was_refused() -> Iterator[None]:
    """A refusal counts as a loss."""
    with _outcome(LeasePhase.PREPARING, Event.REFUSED, (LeasePhase.UNCERTAIN, (Action.FAIL, Action.WITHHOLD))):
        yield


@contextmanager
def forget_held_leases_at_a_start() -> Iterator[None]:
    """A restart knows only the leases that were not held."""
    start = Book.start

    def start_with_others(self: Book, kept: Kept, now: float) -> list[Effect]:
        others = tuple(lease for lease in kept.leases if lease.state is not LeaseState.HELD)
        return start(self, attrs.evolve(kept, leases=others), now)

    with patch.object(Book, "start", start_with_others):
        yield


@contextmanager
def keep_leases_over_a_boot() -> Iterator[None]:
    """The leases of the boot before are those of this one."""

    def reboot(self: SimulatedLeaseStore, boot: str) -> None:
        self.boot = boot

    with patch.object(SimulatedLeaseStore, "reboot", reboot):
        yield


@contextmanager
def give_devices_twice() -> Iterator[None]:
    """The devices of leases from before a restart are not taken when their resource is offered."""
    take = Stock.take

    def take_what_is_offered(
        self: Stock, lease: str, name: str, ids: Collection[str], identities: Mapping[str, str] | None = None
    ) -> None:
        if self.find(name) is not None:
            take(self, lease, name, ids, identities or {})

    def give_back(self: Stock, name: str, ids: Collection[str]) -> None:
        there = self._resources.get(name)
        if there is not None:
            give_back_all(self, name, [device_id for device_id in ids if device_id in there.taken])

    give_back_all = Stock.give_back
    with patch.object(Stock, "take", take_what_is_offered), patch.object(Stock, "give_back", give_back):
        yield


@contextmanager
def give_unhealthy_devices() -> Iterator[None]:
    """All devices that are listed count as healthy."""
    offer = Stock.offer

    def offer_all(self: Stock, offered: Offer, now: float) -> set[str]:
        well = [Device(device.id, HEALTHY, device.numa) for device in offered.devices.devices.values()]
        return offer(self, attrs.evolve(offered, devices=DeviceList(well)), now)

    with patch.object(Stock, "offer", offer_all):
        yield


@contextmanager
def let_later_ones_overtake() -> Iterator[None]:
    """Nothing is reserved for those who wait."""
    with patch.object(Reserved, "add", lambda *_: None):
        yield


@contextmanager
def serve_only_the_first_in_line() -> Iterator[None]:
    """Who waits for what will never be there keeps all others from what is there."""
    take_fitting = LeaseLine.take_fitting

    def take_first(self: LeaseLine, stock: Stock) -> Iterator[tuple[str, Reserved]]:
        others = dict(self._waiting)
        first = next(iter(others))
        self._waiting = {first: others.pop(first)}
        found = [*take_fitting(self, stock)]
        self._waiting |= others
        yield from found

    with patch.object(LeaseLine, "take_fitting", take_first):
        yield


@contextmanager
def let_them_wait_for_ever() -> Iterator[None]:
    """The deadline of who waits is not looked at."""
    pass_time = Book.pass_time

    def pass_no_wait(self: Book, now: float) -> list[Effect]:
        for lease in self._ends.take(now):
            if self._entries[lease].phase is not LeasePhase.QUEUED:
                self._ends.set(lease, now)
        return pass_time(self, now)

    with patch.object(Book, "pass_time", pass_no_wait):
        yield


@contextmanager
def ignore_the_ends_of_owners() -> Iterator[None]:
    """Nobody is told that a process has ended, or that a time is over."""
    with patch.object(Owners, "end", lambda *_: None):
        yield


@contextmanager
def bind_a_lease_to_two_containers() -> Iterator[None]:
    """A second container takes the lease of the first."""
    with patch.object(book, "bound", lambda lease, init, **_: attrs.evolve(lease.owner, init=init)):
        yield


@contextmanager
def leave_files() -> Iterator[None]:
    """The file of a lease that has ended stays."""
    with patch.object(CdiWriter, "remove", lambda *_: None):
        yield


@contextmanager
def leave_rows() -> Iterator[None]:
    """What is written of a lease that has ended stays."""
    write = Saving.write

    def write_no_end(self: Saving, asked: Write) -> None:
        changes = tuple(change for change in asked.changes if not isinstance(change, DeleteLease))
        if changes:
            write(self, attrs.evolve(asked, changes=changes))

    with patch.object(Saving, "write", write_no_end):
        yield

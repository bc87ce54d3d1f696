"""What must hold of device plugins that are consumed, once the faults of a script have stopped.

Each thing that must change nothing happens alone: the crash of a follow, an update of a plugin, and another process
that takes ``kubelet.sock``.
"""

from __future__ import annotations

import os
import random
from collections.abc import Collection, Iterable
from typing import Final, Literal

import attrs
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from plugind.actors.simulation.faults import Actor
from plugind.protocol.plugins.devices import ResourceState
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.status import StateName
from plugind.tests.fuzz.call_oracle import NOTICED
from plugind.tests.fuzz.health_oracle import CONFIRM, HEALTHY_WITHIN, UNHEALTHY_WITHIN
from plugind.tests.fuzz.offer_oracle import GRACE, Offer
from plugind.tests.fuzz.offers import DIRECTORY, RESOURCES, Offers
from plugind.tests.fuzz.script import Fault
from plugind.tests.fuzz.trace import Trace

#: Seconds until all plugins are registered and have listed: every backoff is over, and every deadline.
SETTLED: Final = 400.0
#: How often a plugin that is not registered calls, with so much time between.
_TRIES: Final = 3
#: Seconds until a follow that has crashed runs again, and its stream has a list; and until a plugin has taken over.
FOLLOWED: Final = 45.0
#: Seconds until an endpoint has been checked twice that fails its checks.
TRIES_TO_MISS: Final = 45
TAKEN_OVER: Final = 200.0


@attrs.frozen(eq=False)
class OfferChecks:
    """The checks of one script."""

    _offers: Offers
    _trace: Trace
    _faults: Collection[Fault]
    _chance: random.Random

    async def check(self) -> None:
        """Check what must hold at rest, and that a crash of follows, an update and a yield touch nothing else."""
        await self._come_to_rest()
        await self._crash_follows()
        await self._hang()
        for resource in RESOURCES:
            await self._surge(resource)
        await self._yield()
        await self._end()

    async def _sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)
        self._offers.look()

    async def _come_to_rest(self) -> None:
        """Each plugin is well, calls once more, and is registered; the newest list of one of them is shown."""
        await self._sleep(NOTICED)
        for offer in self._offers.plugins.values():
            self._mend(offer)
        await self._sleep(35.0)
        for resource in RESOURCES:
            if all(offer.resource != resource for offer in self._lasting()):
                self._offers.start(resource, self._chance, count=2, way="socket", well=True)
        for _ in range(_TRIES):
            for offer in self._offers.plugins.values():
                if not self._is_registered(offer):
                    self._offers.call(offer)
            await self._sleep(SETTLED)
            if all(self._is_registered(offer) for offer in self._lasting()):
                break
        self._check_rest()

    def _mend(self, offer: Offer) -> None:
        service = offer.service
        service.options_error = service.stream_error = None
        service.options_delay = service.list_delay = 0.0
        offer.plugged.seconds_per_byte = 0.0
        offer.plugged.resume()
        if not offer.plugged.alive or not self._offers.node.directory.exists(offer.path):
            offer.plugged.restart()

    def _is_registered(self, offer: Offer) -> bool:
        return self._offers.states.get(offer.path, ("", 0))[0] == StateName.REGISTERED

    def _lasting(self) -> list[Offer]:
        """Return the plugins that are to be registered."""
        return [
            offer for offer in self._offers.plugins.values() if not offer.called or self._offers.calls.taken is None
        ]

    def _check_rest(self) -> None:
        self._offers.calls.check_answers(self._offers.directory.attempts)
        for offer in self._lasting():
            if not self._is_registered(offer):
                self._trace.violated("calls", f"{offer.path} is well, and {self._offers.states.get(offer.path)}")
        for endpoint in (
            () if self._offers.calls.taken is not None else self._offers.calls.expected(self._offers.directory)
        ):
            if self._offers.states.get(os.path.join(DIRECTORY, endpoint), ("", 0))[0] != StateName.REGISTERED:
                self._trace.violated("calls", f"{endpoint} was registered by a call, and is not any more")
        for resource in RESOURCES:
            self._check_newest(resource)

    def _check_newest(self, resource: str) -> None:
        offers, status = (
            [offer for offer in self._lasting() if offer.resource == resource],
            self._offers.oracle.status(resource),
        )
        if not offers:
            return
        if status is None or status.state is not ResourceState.LISTED:
            self._trace.violated("devices", f"{resource} is shown as {status}, and its plugins are well")
            return
        serving = next((offer for offer in offers if offer.path == status.socket), None)
        if serving is None or serving.shown != serving.newest:
            self._trace.violated("devices", f"{resource} is shown as {status}, which is no newest list")

    async def _crash_follows(self) -> None:
        """The crash of each follow touches nothing: no registration, and no device (issue 13)."""
        self._list_well(self._lasting())
        await self._sleep(1.0)
        self._hold_still(offer.path for offer in self._offers.plugins.values())
        self._keep(well=True)
        for offer in self._lasting():
            self._offers.handler.crash(offer.path)
            await self._sleep(self._chance.choice((0.0, 0.0, 0.5, 2.0)))
        await self._sleep(FOLLOWED)
        for offer in self._lasting():
            self._offers.oracle.send_list(offer, self._chance, count=self._offers.oracle.newest(offer), well=True)
        await self._sleep(1.0)
        for resource in RESOURCES:
            self._check_newest(resource)
        self._let_go()

    async def _hang(self) -> None:
        """Some plugins hang, and go on: each is shown as it is, and nothing else changes (consumers-proposal 3)."""
        well = self._lasting()
        hung = [offer for offer in well if self._chance.random() < 0.5]
        self._hold_still(offer.path for offer in self._offers.plugins.values())
        self._keep(well=True)
        self._check_health(well, Health.HEALTHY)
        for offer in hung:
            offer.plugged.suspend()
        await self._sleep(UNHEALTHY_WITHIN)
        self._check_health(hung, Health.UNHEALTHY)
        self._check_health([offer for offer in well if offer not in hung], Health.HEALTHY)
        for offer in hung:
            offer.plugged.resume()
        await self._sleep(HEALTHY_WITHIN)
        self._check_health(well, Health.HEALTHY)
        one = self._chance.choice(well)
        for _ in range(2):
            await self._miss_two(one)
        self._check_health(well, Health.HEALTHY)
        self._let_go()

    async def _miss_two(self, offer: Offer) -> None:
        """A plugin fails two checks in a row and passes the next one."""
        offer.service.options_error = GRPCError(Status.INTERNAL, "not now")
        for _ in range(TRIES_TO_MISS):
            if self._offers.health.misses_at(offer.path) == 2:
                break
            await self._sleep(1.0)
        offer.service.options_error = None
        await self._sleep(CONFIRM)

    def _check_health(self, offers: Iterable[Offer], expected: Health) -> None:
        for offer in offers:
            shown = self._offers.health.health(offer.path)
            if shown[0] is not expected:
                self._trace.violated("health", f"{offer.path} is {expected}, and is shown as {shown}")

    async def _surge(self, resource: str) -> None:
        """A plugin takes over from the others, as in an update: no device goes meanwhile, whatever crashes."""
        old, chance = self._offers.of(resource), self._chance
        self._list_well(old)
        await self._sleep(1.0)
        new = self._offers.start(resource, chance, count=2, way="socket", well=True)
        new.service.list_delay, new.service.options_delay = chance.choice((0.0, 3.0, 20.0)), chance.choice((0.0, 2.0))
        crashes: tuple[Actor | Literal["follow"] | None, ...] = (
            None,
            "follow",
            "devices",
            "status",
            "reconciler",
        )
        crash = chance.choice(crashes if Fault.CRASHES in self._faults else crashes[:2])
        self._trace.line("offer", "surge", resource, "at rest, and a crash of", crash)
        self._keep(well=crash != "reconciler")
        await self._sleep(chance.choice((0.0, 0.001, 1.0, 2.0, 10.0, 21.0)))
        for offer in old if crash == "follow" else ():
            self._offers.handler.crash(offer.path)
        if crash is not None and crash != "follow":
            self._offers.crash_actor(crash, new.path)
        await self._sleep(TAKEN_OVER)
        for offer in old:
            self._offers.stop(offer, chance)
        await self._sleep(1.0)
        self._check_newest(resource)
        self._let_go()

    async def _yield(self) -> None:
        """Another process takes the socket: who has called is let go, no device is lost, and the others stay."""
        if self._offers.calls.taken is not None:
            return
        called = [self._offers.start(resource, self._chance, count=2, way="call", well=True) for resource in RESOURCES]
        if self._chance.random() < 0.5:
            self._offers.stop(self._offers.of(RESOURCES[0])[0], self._chance)
        await self._sleep(TAKEN_OVER)
        self._check_rest()
        found = [offer.path for offer in self._offers.plugins.values() if not offer.called]
        self._keep(well=False)
        self._hold_still(found)
        for offer in called:
            self._offers.call(offer)
        self._offers.take()
        await self._sleep(NOTICED + 1.0)
        self._offers.calls.check_answers(self._offers.directory.attempts)
        for offer in called:
            if self._is_registered(offer):
                self._trace.violated("calls", f"{offer.path} is registered, and another process has the socket")
        await self._sleep(FOLLOWED)
        for resource in RESOURCES:
            self._check_newest(resource)
        self._let_go()

    async def _end(self) -> None:
        """Every plugin stops; each resource goes when its grace is over."""
        for offer in [*self._offers.plugins.values()]:
            self._offers.stop(offer, self._chance)
        await self._sleep(GRACE + 40.0)
        for resource in RESOURCES:
            status = self._offers.oracle.status(resource)
            if status is not None and status.state is not ResourceState.GONE:
                self._trace.violated("grace", f"{resource} has no plugin, and is shown as {status}")

    def _list_well(self, offers: Iterable[Offer]) -> None:
        for offer in offers:
            self._offers.oracle.send_list(offer, self._chance, count=2, well=True)

    def _hold_still(self, paths: Iterable[str]) -> None:
        """From now on no other state of these plugins may be shown."""
        self._offers.untouchable = frozenset(paths)

    def _keep(self, *, well: bool) -> None:
        """From now on no device of any resource may go; and none may be unhealthy, if they are to be ``well``."""
        self._offers.oracle.floors = dict.fromkeys(RESOURCES, 2)
        self._offers.oracle.all_healthy = well

    def _let_go(self) -> None:
        self._offers.untouchable, self._offers.oracle.floors, self._offers.oracle.all_healthy = frozenset(), {}, False

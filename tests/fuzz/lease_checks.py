"""What must hold of leases once the faults of a script have stopped: all can be had, all end, and nothing is left."""

from __future__ import annotations

import random
from typing import Final

import attrs
import trio

from plugind.protocol.leases.values import Lease, NoOwner, Request, Wanted
from plugind.tests.fuzz.call_oracle import NOTICED
from plugind.tests.fuzz.lease_acts import LeaseActs
from plugind.tests.fuzz.lease_callers import POOLS
from plugind.tests.fuzz.lease_holders import Asking
from plugind.tests.fuzz.lease_plugins import PIECES
from plugind.tests.fuzz.trace import Trace

#: Seconds until all plugins are registered and have listed, and all that wait for something have it or gave up.
SETTLED: Final = 900.0
#: Seconds until what was uncertain is not any more, and all that waits for a disk is written.
FREED: Final = 130.0
#: Seconds for which a resource is kept without a plugin.
GRACE: Final = 300.0


@attrs.frozen(eq=False)
class LeaseChecks:
    """The checks of one script."""

    _acts: LeaseActs
    _trace: Trace
    _chance: random.Random

    async def check(self) -> None:
        """Check that store, files and what is shown agree; that all devices can be had; and that nothing is left."""
        await self._come_to_rest()
        self._check_agreement()
        await self._check_all_free()
        await self._end()

    async def _sleep(self, seconds: float) -> None:
        end = trio.current_time() + seconds
        while trio.current_time() < end:
            await trio.sleep(min(30.0, end - trio.current_time()))
            self._acts.look()

    async def _come_to_rest(self) -> None:
        await self._sleep(NOTICED)
        self._acts.mend()
        for resource in PIECES:
            if not self._acts.plugins.of(resource):
                self._acts.plugins.change_process(resource, self._chance)
        self._acts.recover()
        await self._sleep(30.0)
        if self._acts.oracle.recovers:
            # A write that began before the disk was mended kept it from being written in time: the operator asks again.
            self._acts.recover()
        await self._sleep(SETTLED)
        for asking in self._acts.oracle.askings.values():
            if asking.waits:
                self._trace.violated("asked", f"{asking.ticket} is not answered at rest")

    def _check_agreement(self) -> None:
        for words in self._acts.disagreements():
            self._trace.violated("store", words)

    async def _check_all_free(self) -> None:
        """When all leases were released, each device can be had by one caller."""
        self._acts.callers.release_all()
        await self._sleep(FREED)
        for words in self._acts.left():
            self._trace.violated("leak", words)
        askings = [self._ask_for_all(resource, None) for resource in PIECES]
        askings += [self._ask_for_all(pool.resource, pool.name) for pool in POOLS]
        await self._sleep(1.0)
        for asking in askings:
            if not isinstance(asking.answer, Lease):
                self._trace.violated("freed", f"{asking.request} is not to be had at rest: {asking.answer}")
        self._check_agreement()

    def _ask_for_all(self, resource: str, pool: str | None) -> Asking:
        in_pools = sum(len(other.ids) for other in POOLS if other.resource == resource)
        count = PIECES[resource] - in_pools if pool is None else in_pools
        request = Request((Wanted(resource, count),), pool=pool)
        return self._acts.callers.ask_for(request, NoOwner())

    async def _end(self) -> None:
        """All leases are released, and all plugins stop."""
        self._acts.callers.release_all()
        await self._sleep(1.0)
        for plugin in [*self._acts.plugins.plugins.values()]:
            self._acts.plugins.stop(plugin)
        await self._sleep(GRACE + 40.0)
        for words in self._acts.left():
            self._trace.violated("leak", words)

"""What must hold of CSI and DRA drivers once the faults of a script have stopped.

Each thing that must change nothing happens alone: drivers hang, follows crash, and a driver is updated.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, Final

import attrs
import trio

from plugind.protocol.plugins.health import Health
from plugind.tests.fuzz.call_oracle import NOTICED
from plugind.tests.fuzz.drivers import Driver, Drivers
from plugind.tests.fuzz.health_oracle import HEALTHY_WITHIN, UNHEALTHY_WITHIN
from plugind.tests.fuzz.trace import Trace

#: Seconds until all drivers are registered and connected: every backoff is over, and every deadline.
SETTLED: Final = 400.0
#: Seconds until a follow that has crashed runs again, and has a connection; and until an update is over.
FOLLOWED: Final = 45.0
TAKEN_OVER: Final = 60.0


@attrs.frozen(eq=False)
class DriverChecks:
    """The checks of one script."""

    _drivers: Drivers[Any]
    _trace: Trace
    _chance: random.Random

    async def check(self) -> None:
        """Check what must hold at rest, and that neither health, nor follows, nor other instances change anything."""
        await self._come_to_rest()
        await self._hang()
        await self._crash_follows()
        for name in self._drivers.names:
            await self._drivers.check_at_rest(name, self._chance)
            await self._update(name)
        await self._end()

    async def _come_to_rest(self) -> None:
        await self._drivers.let_pass(NOTICED)
        self._drivers.mend()
        for name in self._drivers.names:
            if not self._drivers.of(name):
                self._drivers.start(name, self._chance)
        await self._drivers.let_pass(SETTLED)
        self._check_rest(self._drivers.lasting())

    def _check_rest(self, drivers: Iterable[Driver[Any]], expected: Health = Health.HEALTHY) -> None:
        for driver in drivers:
            if self._drivers.is_taken_for_another(driver.path):
                continue
            health = self._drivers.health.health(driver.path)
            if not self._drivers.is_registered(driver) or health[0] is not expected:
                status = self._drivers.statuses.get(driver.path)
                self._trace.violated("drivers", f"{driver.path} is {expected}, and is shown as {status}")

    async def _hang(self) -> None:
        """Some drivers hang, and go on: each is shown as it is, and stays registered (consumers-proposal 3)."""
        well = self._drivers.lasting()
        hung = [driver for driver in well if self._drivers.is_asked(driver) and self._chance.random() < 0.5]
        self._drivers.hold_still(well)
        for driver in hung:
            driver.process.suspend()
        await self._drivers.let_pass(UNHEALTHY_WITHIN)
        self._check_rest(hung, Health.UNHEALTHY)
        self._check_rest(driver for driver in well if driver not in hung)
        for driver in hung:
            driver.process.resume()
        await self._drivers.let_pass(HEALTHY_WITHIN)
        self._check_rest(well)
        self._drivers.hold_still(())

    async def _crash_follows(self) -> None:
        """The crash of each follow changes no registration."""
        well = self._drivers.lasting()
        self._drivers.hold_still(well)
        for driver in well:
            self._drivers.crashes.crash(driver.path)
            await self._drivers.let_pass(self._chance.choice((0.0, 0.0, 0.5, 2.0)))
        await self._drivers.let_pass(FOLLOWED)
        self._check_rest(well)
        self._drivers.hold_still(())

    async def _update(self, name: str) -> None:
        """A newer instance takes over: the older ones stay until they stop themselves."""
        old = self._drivers.lasting()
        self._drivers.hold_still(old)
        new = self._drivers.start(name, self._chance, late=self._chance.choice((0.0, 0.0, 1.0, 20.0)))
        await self._drivers.let_pass(TAKEN_OVER)
        self._check_rest([*old, new])
        status = self._drivers.statuses.get(new.path)
        if status is None or not status.active:
            self._trace.violated("roles", f"{new.path} is the newest, and is shown as {status}")
        self._drivers.hold_still(driver for driver in old if driver.name != name)
        for driver in self._drivers.of(name):
            if driver is not new:
                self._drivers.stop(driver)
        await self._drivers.let_pass(1.0)
        self._drivers.hold_still(())

    async def _end(self) -> None:
        """Every driver stops."""
        for driver in [*self._drivers.drivers.values()]:
            self._drivers.stop(driver)
        await self._drivers.let_pass(FOLLOWED)
        await trio.lowlevel.checkpoint()

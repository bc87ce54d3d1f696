"""What must hold of the health of devices of a DRA driver once the faults of a script have stopped.

Each thing happens alone to a new instance, which is the one that is used. The oracle judges what is shown meanwhile.
"""

from __future__ import annotations

import random
from typing import Final

import attrs
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from plugind.actors.simulation.streams import ClientEnd
from plugind.protocol.handlers.dra_health import DeviceReport, DRADeviceHealth
from plugind.protocol.plugins.health import Health
from plugind.tests.fuzz.dra_services import KINDS, ScriptedDRADriver, telling
from plugind.tests.fuzz.drivers import Driver, Drivers
from plugind.tests.fuzz.trace import Trace

#: Seconds between two looks, and until what has happened is shown.
_STEP: Final = 1.0
_SHOWN: Final = 4.0
#: Seconds until a stream that has ended is opened again, and its first list is shown.
_AGAIN: Final = 9.0
#: Seconds until an endpoint is connected to again.
_RECONNECTED: Final = 40.0
#: Seconds until a follow that has crashed runs again, for each crash of a row.
_RESTARTED: Final = (1.5, 3.0, 5.0, 10.0, 19.0)
_LONG: Final = 3600.0


def _report(device: str, holds: float, status: DRADeviceHealth = DRADeviceHealth.HEALTHY) -> DeviceReport:
    return DeviceReport("pool-0", device, status, "", holds)


@attrs.frozen
class DeviceChecks:
    """The checks of one driver."""

    _drivers: Drivers[ScriptedDRADriver]
    _trace: Trace
    _name: str
    _chance: random.Random

    async def check(self) -> None:
        """Check that what the driver has said last is shown for as long as it holds, whatever else happens."""
        old = self._drivers.lasting()
        driver = self._drivers.start(self._name, self._chance, service=telling())
        await self._pass(_SHOWN)
        self._drivers.hold_still([*old, driver])
        await self._let_words_expire(driver)
        await self._end_streams(driver)
        await self._crash_follows(driver)
        await self._lose_connection(driver)
        driver.service.end(GRPCError(Status.UNIMPLEMENTED, "no more"))
        await self._pass(_AGAIN)
        self._drivers.hold_still(old)
        self._drivers.stop(driver)
        await self._pass(_SHOWN)
        self._drivers.hold_still(())

    async def _pass(self, seconds: float) -> None:
        await self._drivers.let_pass(seconds, _STEP)

    def _check_healthy(self, driver: Driver[ScriptedDRADriver]) -> None:
        health, reason = self._drivers.health.health(driver.path)
        if health is not Health.HEALTHY:
            self._trace.violated("drivers", f"{driver.path} is well, and is shown as {health}: {reason}")

    async def _let_words_expire(self, driver: Driver[ScriptedDRADriver]) -> None:
        """Each word holds for its time, by a clock that nobody sets; one that is missing in a list holds on."""
        tell = driver.service.tell
        for offset in (0.0, -7200.0, 7200.0):
            unwell = _report("gpu-3", _LONG, DRADeviceHealth.UNHEALTHY)
            tell([_report("gpu-0", 6.0), _report("gpu-1", 14.0), _report("gpu-2", 0.0), unwell])
            await self._pass(2.0)
            self._drivers.wall.set_off(offset)
            tell([_report("gpu-1", 6.0)])
            await self._pass(12.0)
        await self._pass(22.0)

    async def _end_streams(self, driver: Driver[ScriptedDRADriver]) -> None:
        """Neither the end of a stream, nor nonsense, changes what was said before."""
        service = driver.service
        service.tell([_report("gpu-0", _LONG), _report("gpu-1", _LONG, DRADeviceHealth.UNHEALTHY)])
        await self._pass(_SHOWN)
        for error in (None, GRPCError(Status.INTERNAL, "nvml"), GRPCError(Status.UNAVAILABLE, "")):
            service.end(error)
            await self._pass(_AGAIN)
        for kind in range(KINDS):
            service.tell_nonsense(self._chance, kind)
            await self._pass(_AGAIN)
            self._check_healthy(driver)
        service.babbles_of_devices = False
        service.tell([_report("gpu-1", _LONG)])
        await self._pass(_AGAIN)

    async def _crash_follows(self, driver: Driver[ScriptedDRADriver]) -> None:
        """A follow that crashes again and again ends no connection, though it does not run for as long as 30 s."""
        before = self._connections(driver)
        for seconds in _RESTARTED:
            self._drivers.crashes.crash(driver.path)
            await self._pass(seconds)
        self._drivers.crashes.crash(driver.path)
        await self._pass(_RECONNECTED)
        self._check_healthy(driver)
        if self._connections(driver) != before:
            self._trace.violated("drivers", f"{driver.path} was connected to anew because its follow crashed")

    def _connections(self, driver: Driver[ScriptedDRADriver]) -> list[ClientEnd]:
        """Return the connections for calls to the endpoint."""
        linked = self._drivers.node.network.linked
        return [end for path, end in linked if path == driver.process.path and not end.closed]

    async def _lose_connection(self, driver: Driver[ScriptedDRADriver]) -> None:
        """The devices are unknown while there is no connection."""
        driver.process.close_listener()
        await self._pass(_SHOWN)
        driver.process.listen()
        await self._pass(_RECONNECTED)

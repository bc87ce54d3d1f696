"""Bugs of what DRA drivers tell of the health of their devices; see ``plugind.tests.tools.planted_bugs``."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import patch

import trio

from plugind.actors.grpc.client.channel import Channel
from plugind.actors.handlers.csi import follower as csi_follower
from plugind.actors.handlers.csi.handler import CSIHandler
from plugind.actors.handlers.dra import calls as dra_calls
from plugind.actors.handlers.dra import driver as dra_driver
from plugind.actors.handlers.dra import health as dra_health
from plugind.actors.handlers.dra.driver import DRAFollower
from plugind.actors.handlers.dra.handler import DRAHandler
from plugind.actors.handlers.dra.health import HealthFollower
from plugind.actors.handlers.link import Link
from plugind.actors.handlers.open_link import OpenLink
from plugind.actors.handlers.paced import take_newest
from plugind.protocol.handlers import dra_health as rules
from plugind.protocol.handlers.dra import HEALTH_SERVICES, DRAConfig, Drivers
from plugind.protocol.handlers.dra_health import DeviceHealths, DeviceReport, DRADeviceHealth
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.info import Plugin
from plugind.tests.fuzz.wall import WallClock

# --- what is said of a device, and for how long -----------------------------------------------------------------------


@contextmanager
def believe_a_driver_for_ever() -> Iterator[None]:
    """What a driver has said of a device holds for ever."""
    with patch.object(DeviceHealths, "next_expiry", math.inf):
        yield


@contextmanager
def _changed_reports(change: Callable[[DeviceHealths, list[DeviceReport]], list[DeviceReport]]) -> Iterator[None]:
    """Take other reports than those that a driver has sent."""
    take = DeviceHealths.take

    def changed(self: DeviceHealths, reports: Iterable[DeviceReport], now: float) -> None:
        take(self, change(self, [*reports]), now)

    with patch.object(DeviceHealths, "take", changed):
        yield


@contextmanager
def let_all_words_hold_for_30_seconds() -> Iterator[None]:
    """What a driver says of a device holds for 30 s, whatever time it names."""

    def shorten(_: DeviceHealths, reports: list[DeviceReport]) -> list[DeviceReport]:
        return [DeviceReport(report.pool, report.device, report.status, report.message) for report in reports]

    with _changed_reports(shorten):
        yield


@contextmanager
def forget_devices_that_are_missing() -> Iterator[None]:
    """A device that a message leaves out is unknown at once."""

    def add(healths: DeviceHealths, reports: list[DeviceReport]) -> list[DeviceReport]:
        said = {(report.pool, report.device) for report in reports}
        missing = [(health.pool, health.device) for health in healths if (health.pool, health.device) not in said]
        return [*reports, *(DeviceReport(*device, DRADeviceHealth.UNKNOWN, "", 3600.0) for device in missing)]

    with _changed_reports(add):
        yield


@contextmanager
def _by_the_wall_clock(module: Any, handler: type[CSIHandler | DRAHandler]) -> Iterator[None]:
    """Let a module wait and compute by the wall clock of its handler."""
    walls: list[Callable[[], float]] = [trio.current_time]
    begin = handler.__init__

    def keep(self: Any, *args: Any, wall: Callable[[], float] = time.time, **options: Any) -> None:
        # The built-in handler, which consumes nothing, has the usual one.
        if isinstance(wall, WallClock):
            walls.append(wall)
        begin(self, *args, wall=wall, **options)

    def now() -> float:
        return walls[-1]()

    def move_on_at(deadline: float) -> trio.CancelScope:
        return trio.move_on_at(deadline - now() + trio.current_time())

    clock = SimpleNamespace(**{**vars(trio), "current_time": now, "move_on_at": move_on_at})
    with patch.object(handler, "__init__", keep), patch.object(module, "trio", clock):
        yield


@contextmanager
def count_the_times_of_devices_by_the_wall_clock() -> Iterator[None]:
    """What a driver says holds longer if somebody sets the clock back."""
    with _by_the_wall_clock(dra_health, DRAHandler):
        yield


@contextmanager
def refresh_by_the_wall_clock() -> Iterator[None]:
    """A CSI driver is asked again later if somebody sets the clock back."""
    with _by_the_wall_clock(csi_follower, CSIHandler):
        yield


@contextmanager
def date_facts_by_the_clock_of_the_start() -> Iterator[None]:
    """The facts of a CSI driver have dates as if nobody had set the clock since plugind was started."""
    begin = CSIHandler.__init__

    def stay(self: CSIHandler, *args: Any, wall: Callable[[], float] = time.time, **options: Any) -> None:
        off = wall() - trio.current_time()
        begin(self, *args, wall=lambda: trio.current_time() + off, **options)

    with patch.object(CSIHandler, "__init__", stay):
        yield


# --- streams ----------------------------------------------------------------------------------------------------------

_FOLLOWER: ContextVar[HealthFollower] = ContextVar("follower")


@contextmanager
def lose_devices_with_their_stream() -> Iterator[None]:
    """The end of a stream makes all devices unknown, as in Kubernetes 1.36."""
    run, take = HealthFollower.run, take_newest

    async def note(self: HealthFollower, channel: Channel) -> None:
        _FOLLOWER.set(self)
        await run(self, channel)

    async def lose(stream: Any, pass_on: Callable[[bytes], Iterator[None]]) -> None:
        try:
            await take(stream, pass_on)
        finally:
            _FOLLOWER.get().devices.lose(trio.current_time())

    with patch.object(HealthFollower, "run", note), patch.object(dra_health, "take_newest", lose):
        yield


@contextmanager
def keep_devices_without_a_connection() -> Iterator[None]:
    """Devices stay as they were when the connection to their driver has ended."""
    with patch.object(DeviceHealths, "lose", lambda *_: None):
        yield


@contextmanager
def ask_for_what_is_not_implemented() -> Iterator[None]:
    """A driver that does not implement the stream is asked each 5 s, as in Kubernetes 1.36."""
    with patch.object(dra_health, "Status", SimpleNamespace(UNIMPLEMENTED=None)):
        yield


@contextmanager
def ask_for_what_is_not_announced() -> Iterator[None]:
    """All drivers are asked for the health of their devices."""
    with patch.object(DRAConfig, "health_services", lambda *_: HEALTH_SERVICES):
        yield


@contextmanager
def open_a_stream_once() -> Iterator[None]:
    """A stream that has ended is not opened again."""
    with patch.object(dra_health, "AGAIN_AFTER", 1e6):
        yield


@contextmanager
def open_a_stream_again_at_once() -> Iterator[None]:
    """A stream that has ended is opened again without the pause."""
    with patch.object(dra_health, "AGAIN_AFTER", 0.5):
        yield


@contextmanager
def take_the_first_list_only() -> Iterator[None]:
    """What a driver sends after its first list is not read."""

    async def take(stream: Any, pass_on: Callable[[bytes], Iterator[None]]) -> None:
        newest = await stream.recv_newest()
        if newest is not None:
            deque(pass_on(newest.message), maxlen=0)
        await stream.wait_end()

    with patch.object(dra_health, "take_newest", take):
        yield


@contextmanager
def take_any_number_of_devices() -> Iterator[None]:
    """A list is taken that has more devices than are allowed."""
    with patch.object(dra_health, "MAX_DEVICES", 10**6), patch.object(rules, "MAX_DEVICES", 10**6):
        yield


@contextmanager
def crash_because_of_nonsense() -> Iterator[None]:
    """A list that cannot be crashes the task that follows the driver."""
    with patch.object(dra_health, "DeviceHealthError", ZeroDivisionError):
        yield


# --- instances --------------------------------------------------------------------------------------------------------


@contextmanager
def show_the_devices_of_all_instances() -> Iterator[None]:
    """The devices of an instance are shown that is not used."""
    with patch.object(dra_driver, "key_of", lambda plugin: plugin.name):
        yield


@contextmanager
def blame_a_driver_for_its_stream() -> Iterator[None]:
    """A driver is unhealthy whose list was refused."""
    report = OpenLink.report

    def blame(
        self: OpenLink,
        health: Health,
        reason: str = "",
        facts: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        is_refused = "refused" in (facts or {}).get("device-health", "")
        report(self, Health.UNHEALTHY if is_refused else health, reason, facts, **more)

    with patch.object(OpenLink, "report", blame):
        yield


@contextmanager
def take_the_crash_of_a_follow_for_the_end_of_a_connection() -> Iterator[None]:
    """An instance counts as lost while no task follows it."""
    begin, run = DRAFollower.__init__, DRAFollower.run
    lost: dict[DRAFollower, Callable[[], None]] = {}

    def keep(
        self: DRAFollower, plugin: Plugin, link: Link, drivers: Drivers, changed: Callable[[str], None], *more: Any
    ) -> None:
        begin(self, plugin, link, drivers, changed, *more)

        def lose() -> None:
            drivers.disconnected(plugin, trio.current_time())
            link.role(usable=False)
            changed(plugin.name)

        lost[self] = lose

    async def follow(self: DRAFollower) -> NoReturn:
        try:
            await run(self)
        finally:
            lost[self]()

    with patch.object(DRAFollower, "__init__", keep), patch.object(DRAFollower, "run", follow):
        yield


@contextmanager
def hang_up_when_a_follow_crashes() -> Iterator[None]:
    """The connection to a driver ends with the task that follows it."""
    run = DRAFollower.run

    async def follow(self: DRAFollower) -> NoReturn:
        try:
            await run(self)
        finally:
            link: Any = self.link
            link.hang_up()

    with patch.object(DRAFollower, "run", follow):
        yield


@contextmanager
def keep_the_connection_to_the_endpoint_of_another() -> Iterator[None]:
    """A plugin whose endpoint belongs to another one keeps its connection there."""
    displace = OpenLink.set_displaced

    def keep(self: OpenLink, reason: str | None) -> None:
        with patch.object(OpenLink, "hang_up", lambda _: None):
            displace(self, reason)

    with patch.object(OpenLink, "set_displaced", keep):
        yield


@contextmanager
def take_any_answer_about_claims() -> Iterator[None]:
    """What a driver answers about claims is not compared with what it was asked."""
    with patch.object(dra_calls, "check_answer", lambda *_: None):
        yield

"""The DRA drivers of a script: their services, and the calls that are made to them."""

from __future__ import annotations

import itertools
import math
import os
import random
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, ClassVar, Final, NoReturn, cast

import attrs
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from plugind.actors.handlers.dra.handler import DRAHandler
from plugind.actors.handlers.link import Link
from plugind.actors.simulation.dra_drivers import USUAL_SERVICES, DRACall
from plugind.actors.simulation.plugins import FakePlugin
from plugind.actors.simulation.scheduling import EPSILON
from plugind.protocol.handlers.dra_claims import CALL_TIMEOUT, DRAClaim, DRAError
from plugind.protocol.messages.addresses import Address
from plugind.protocol.messages.consumers import EventNoted, PluginEvent
from plugind.protocol.messages.status import StatusMessage
from plugind.protocol.plugins.info import DRA, Plugin
from plugind.protocol.plugins.status import PluginStatus
from plugind.tests.fuzz.device_health_checks import DeviceChecks
from plugind.tests.fuzz.device_health_oracle import SHOWN, TAKEN, DeviceHealthOracle
from plugind.tests.fuzz.dra_links import WatchedLink
from plugind.tests.fuzz.dra_oracle import DRAOracle
from plugind.tests.fuzz.dra_services import CHECKED, KINDS, ScriptedDRADriver, new_service, telling
from plugind.tests.fuzz.drivers import Driver, Drivers
from plugind.tests.fuzz.script import TRUSTED
from plugind.tests.fuzz.sentinels import RECONCILER_RECOVERY

#: Seconds until an endpoint is connected to again that listens again.
RECONNECTED: Final = 40.0
#: Seconds until an instance is registered, and what has happened to a connection is shown.
REGISTERED: Final = 5.0
#: A driver of a user who is trusted, and one of root with the same endpoint.
SQUATTER: Final = "fpga.lab.com"
OWNER: Final = "tpu.lab.com"
#: Seconds until a driver repeats itself that does so.
REPEATED: Final = 8.0


class ScriptedDRAHandler(DRAHandler):
    """The handler, whose checks and instances oracles see, and whose follows a script can crash."""

    def __init__(self, drivers: DRADrivers) -> None:
        self._tap = _Tap(drivers)
        super().__init__(status=cast("trio.MemorySendChannel[StatusMessage]", self._tap), wall=drivers.wall)
        self._of = drivers
        self._crashes = drivers.crashes

    async def register(self, plugin: Plugin, link: Link) -> None:
        """See :class:`DRAHandler`."""
        self._tap.status = self._of.node.supervisor.internals.status.address
        await super().register(plugin, self._of.watched(plugin, link))
        self._of.oracle.registered(plugin)
        self._of.devices.registered(plugin)

    async def follow(self, plugin: Plugin, link: Link) -> None:
        """See :class:`DRAHandler`."""
        key, devices = (plugin.socket, plugin.generation), self._of.devices
        devices.followed(key)
        try:
            await self._of.run_follow(self._crashes, plugin, partial(super().follow, plugin, link))
        finally:
            devices.unfollowed(key)

    async def deregister(self, plugin: Plugin) -> None:
        """See :class:`DRAHandler`."""
        self._of.leaving(plugin)
        self._of.oracle.left(plugin)
        self._of.devices.left(plugin)
        await super().deregister(plugin)


@attrs.define
class _Tap:
    """Passes on what the handler tells the status actor, and tells the oracle which drivers are gone."""

    _drivers: DRADrivers
    #: That of the daemon that has registered the drivers. A call of a driver may end after it, and is told to no other.
    status: Address[StatusMessage] | None = None

    def send_nowait(self, message: StatusMessage, /) -> None:
        """Take a message."""
        if isinstance(message, EventNoted) and message.event is PluginEvent.DRIVER_GONE:
            self._drivers.oracle.gone((message.plugin.socket, message.plugin.generation))
        assert self.status is not None, "an instance is registered before anything is told of it"
        self.status.send_nowait(message)


@attrs.define(eq=False)
class DRADrivers(Drivers[ScriptedDRADriver]):
    """The DRA drivers of one script."""

    oracle: DRAOracle = attrs.field(init=False)
    devices: DeviceHealthOracle = attrs.field(init=False)
    #: When the process of an instance was suspended or ran on.
    _suspended_at: dict[str, float] = attrs.field(init=False, factory=dict)
    _handler: ScriptedDRAHandler = attrs.field(init=False)
    _serving: trio.CancelScope = attrs.field(init=False, factory=trio.CancelScope)
    _ended: bool = attrs.field(init=False, default=False)
    _claims: Iterator[int] = attrs.field(init=False, factory=lambda: itertools.count(1))

    plugin_type: ClassVar[str] = DRA
    names: ClassVar[tuple[str, ...]] = ("gpu.lab.com", "nic.lab.com")
    found: ClassVar[str] = "/registry"
    directory: ClassVar[str] = "/claims"

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.oracle = DRAOracle(self._trace.violated)
        self.devices = DeviceHealthOracle(self._trace.violated, self.wall.may_show)
        self._handler = ScriptedDRAHandler(self)

    @property
    def handler(self) -> DRAHandler:
        """See :class:`Drivers`."""
        return self._handler

    async def serve(self) -> None:
        """Let the handler of each daemon tell which drivers are gone, and let drivers repeat themselves."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._repeat)
            while not self._ended:
                with self._serving:
                    await self._handler.serve()
                self._serving = trio.CancelScope()
            nursery.cancel_scope.cancel()

    async def _repeat(self) -> NoReturn:
        while True:
            await trio.sleep(REPEATED)
            for driver in filter(_speaks, self.drivers.values()):
                if driver.service.repeats:
                    driver.service.repeat()

    def end(self) -> None:
        """Tell no more which drivers are gone: the script is over."""
        self._ended = True
        self._serving.cancel()

    def before_start(self) -> None:
        """See :class:`Drivers`."""
        super().before_start()
        self.oracle.forget()
        self.devices.forget()
        self._handler = ScriptedDRAHandler(self)
        self._serving.cancel()

    def watched(self, plugin: Plugin, link: Link) -> Link:
        """Return ``link``, whose connections and checks oracles see."""
        seen = cast("Link", WatchedLink(link, plugin, self.oracle, self.devices, self.background))
        return self.health.watched(plugin, seen, self.passes_of(plugin))

    # --- the services -------------------------------------------------------------------------------------------------

    def new_service(self, name: str, chance: random.Random) -> ScriptedDRADriver:
        """See :class:`Drivers`."""
        return new_service(chance)

    def versions(self, number: int, service: ScriptedDRADriver) -> tuple[str, ...]:
        """See :class:`Drivers`."""
        return *USUAL_SERVICES[number % 2 :], *service.announced

    def more_acts(self) -> dict[Callable[[Driver[ScriptedDRADriver], random.Random], None], int]:
        """See :class:`Drivers`."""
        return {self._tell: 24, self._fail_stream: 10}

    def _tell(self, driver: Driver[ScriptedDRADriver], chance: random.Random) -> None:
        """Let a driver tell the health of its devices, unless it is suspended."""
        service = driver.service
        if not _speaks(driver):
            return
        match chance.randrange(8):
            case 0:
                service.flood(chance)
            case 1:
                service.tell_nonsense(chance, chance.randrange(KINDS))
            case 2:
                service.repeats = not service.repeats
            case _:
                service.tell_anew(chance)

    def _fail_stream(self, driver: Driver[ScriptedDRADriver], chance: random.Random) -> None:
        """End the streams of a driver, or do something bad to the next ones."""
        service = driver.service
        code = chance.choice((None, Status.INTERNAL, Status.UNAVAILABLE, Status.UNIMPLEMENTED))
        error = None if code is None else GRPCError(code, "not now")
        match chance.randrange(5):
            case 0:
                service.hangs.add(DRACall.WATCH)
            case 1 if error is not None:
                service.errors[DRACall.WATCH] = error
            case 2:
                service.delays[DRACall.WATCH] = chance.choice((0.5, 4.0, 20.0))
            case _ if _speaks(driver):
                service.end(error)
            case _:
                pass

    def _suspend(self, driver: Driver[ScriptedDRADriver], chance: random.Random) -> None:
        self._suspended_at[driver.path] = trio.current_time()
        super()._suspend(driver, chance)

    def misbehave(self, driver: Driver[ScriptedDRADriver], chance: random.Random) -> None:
        """See :class:`Drivers`."""
        service, call = (
            driver.service,
            chance.choice((DRACall.PREPARE, DRACall.UNPREPARE, DRACall.CHECK, DRACall.CHECK)),
        )
        match chance.randrange(9):
            case 0:
                service.serving = not service.serving
            case 1:
                service.babbles = not service.babbles
            case 2:
                service.adds.add(f"another claim {self._newest_claim()}")
            case 3:
                service.hangs.add(call)
            case 4:
                service.errors[call] = GRPCError(chance.choice((Status.INTERNAL, Status.UNAVAILABLE)), "not now")
            case 5 | 6:
                service.delays[call] = chance.choice((0.5, 1.0, 2.5, 3.5, 8.0, 44.0, 46.0))
            case 7:
                service.skips.add(self._newest_claim())
            case _:
                service.claim_errors[self._newest_claim()] = "no such device"

    def _newest_claim(self) -> str:
        number = next(self._claims)
        self._claims = itertools.chain((number,), self._claims)
        return f"claim-{number}"

    def behave(self, driver: Driver[ScriptedDRADriver]) -> None:
        """See :class:`Drivers`."""
        driver.service.behave()

    def is_asked(self, driver: Driver[ScriptedDRADriver]) -> bool:
        """See :class:`Drivers`."""
        return CHECKED in driver.service.services

    async def check_at_rest(self, name: str, chance: random.Random) -> None:
        """See :class:`Drivers`."""
        await self._check_second(name, chance)
        await self._check_gone(name, chance)
        await self._check_call(name)
        if name == self.names[0]:
            await DeviceChecks(self, self._trace, name, chance).check()
            await self._check_displaced(chance)

    async def _check_second(self, name: str, chance: random.Random) -> None:
        """A second instance registers though its endpoint is late; another one is used while it is not connected."""
        second = self.start(name, chance, late=20.0)
        await self.let_pass(REGISTERED)
        if not self.is_registered(second):
            self._trace.violated("drivers", f"{second.path} is not registered, and only its endpoint is late")
        await self.let_pass(RECONNECTED)
        await self._prepare(name, [DRAClaim("lab", f"claim-{next(self._claims)}", "one")], undone=True)
        second.process.close_listener()
        await self.let_pass(REGISTERED)
        second.process.listen()
        await self.let_pass(RECONNECTED)

    async def _check_gone(self, name: str, chance: random.Random) -> None:
        """A driver is gone when no instance was connected for 30 s, though it registers anew: the oracle knows when."""
        for seconds in (chance.choice((1.0, 20.0, 29.0)), chance.choice((31.0, 70.0))):
            for driver in self.of(name):
                driver.process.close_listener()
            await self.let_pass(seconds / 2)
            for driver in self.of(name):
                if driver.process is not driver.registrar:
                    driver.registrar.restart()
            await self.let_pass(seconds / 2)
            for driver in self.of(name):
                driver.process.listen()
            await self.let_pass(RECONNECTED)

    async def _check_call(self, name: str) -> None:
        """A call that hangs ends at its deadline, and an answer that is none is refused."""
        for number, faults in enumerate(("skips", "adds", "claim_errors")):
            uid = f"claim at rest {number}"
            for driver in self.of(name):
                wrong = {uid: "no"} if faults == "claim_errors" else {"another" if faults == "adds" else uid}
                getattr(driver.service, faults).update(wrong)
            await self._prepare(name, [DRAClaim("lab", uid, "one")], undone=False)
        for driver in self.of(name):
            self.behave(driver)
        for driver in self.of(name):
            driver.service.hangs.add(DRACall.PREPARE)
        await self._prepare(name, [DRAClaim("lab", "a claim at rest", "one")], undone=False)
        for driver in self.of(name):
            self.behave(driver)

    async def _check_displaced(self, chance: random.Random) -> None:
        """An instance has no connection while its endpoint belongs to a driver of root, and one again after that."""
        squatter = self.start(SQUATTER, chance, service=telling(), uid=TRUSTED[0])
        await self.let_pass(REGISTERED)
        path = os.path.join(self.found, "owner-reg.sock")
        owner = self.node.plug(path, FakePlugin(DRA, OWNER, USUAL_SERVICES, squatter.process.path))
        await self.let_pass(REGISTERED)
        status = self.statuses.get(squatter.path)
        if status is None or status.active or not status.warnings:
            self._trace.violated("roles", f"{squatter.path} has the endpoint of {path}, and is shown as {status}")
        owner.stop()
        await self.let_pass(RECONNECTED)
        self.stop(squatter)
        await self.let_pass(REGISTERED)

    # --- calls --------------------------------------------------------------------------------------------------------

    def ask(self, driver: Driver[ScriptedDRADriver], chance: random.Random) -> None:
        """Let somebody have claims prepared, or have that undone."""
        claims = [DRAClaim("lab", f"claim-{next(self._claims)}", "one") for _ in range(chance.choice((1, 1, 2)))]
        self.background.start_soon(partial(self._prepare, driver.name, claims, undone=chance.random() < 0.5))

    async def _prepare(self, name: str, claims: list[DRAClaim], undone: bool) -> None:
        uids, used = {claim.uid for claim in claims}, self.oracle.active(name)
        prepared = await self._within_limit(DRACall.PREPARE, uids, lambda: self._handler.driver(name).prepare(claims))
        if prepared is None:
            return
        by = {driver.path for driver in self._all if uids <= driver.service.done}
        if prepared.keys() != uids or len(by) != 1 or (used is not None and used[0] not in by):
            self._trace.violated("claims", f"{sorted(uids)} are prepared: {prepared}; by {sorted(by)}, used is {used}")
        if undone:
            await self._within_limit(DRACall.UNPREPARE, uids, lambda: self._handler.driver(name).unprepare(claims))

    async def _within_limit(self, what: DRACall, uids: set[str], call: Callable[[], Awaitable[Any]]) -> Any:
        """Make a call; return None if it is refused, in time and with a text."""
        answer = None
        with trio.move_on_after(CALL_TIMEOUT + EPSILON) as scope:
            try:
                answer = await call()
                if any((what, uid) in driver.service.misstated for driver in self._all for uid in uids):
                    self._trace.violated("claims", f"the answer about {sorted(uids)} was wrong, and is taken: {answer}")
            except DRAError as error:
                self._trace.line("claims", sorted(uids), "refused", error)
        if scope.cancelled_caught:
            self._trace.violated("claims", f"the call about {sorted(uids)} has no answer in {CALL_TIMEOUT:g} s")
        return answer

    # --- what is shown ------------------------------------------------------------------------------------------------

    def judge(self, status: PluginStatus, time: float) -> None:
        """See :class:`Drivers`."""

    def compare(self) -> None:
        """See :class:`Drivers`."""
        self.oracle.look()
        self.devices.look()
        if self.crashed_within(RECONCILER_RECOVERY):
            return
        displaced = self.displaced()
        for status in self.statuses.values():
            self.oracle.compare(status, has_role=status.name not in displaced)
            used = self.oracle.active(status.name or "", for_seconds=SHOWN)
            self.devices.compare(status, is_used=None if used is None else used == (status.socket, status.generation))
        for driver in self.drivers.values():
            self._compare_taken(driver)

    def _compare_taken(self, driver: Driver[ScriptedDRADriver]) -> None:
        """Compare what was taken from an instance that runs with what it has sent."""
        status, sent = self.statuses.get(driver.path), driver.service.newest_sent
        ran_on = self._suspended_at.get(driver.path, -math.inf)
        if status is None or sent is None or not _speaks(driver) or trio.current_time() <= ran_on + TAKEN:
            return
        self.devices.compare_taken((driver.path, status.generation), sent.number, sent.at)


def _speaks(driver: Driver[ScriptedDRADriver]) -> bool:
    """Whether the process of a driver runs."""
    return driver.process.alive and not driver.process.suspended

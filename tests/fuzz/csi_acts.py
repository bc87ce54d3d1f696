"""The CSI drivers of a script: their services, and what must hold of their answers.

Each answer to NodeGetInfo has a number of its own, in the id of the node. So the facts that are shown tell which answer
of which driver they are from.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

import attrs
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from plugind.actors.handlers.csi.handler import CSIHandler
from plugind.actors.handlers.link import Link
from plugind.actors.simulation.csi_drivers import CSICall, FakeCSIDriver
from plugind.actors.simulation.scheduling import EPSILON
from plugind.protocol.handlers.csi import CSIConfig
from plugind.protocol.plugins.info import CSI, Plugin
from plugind.protocol.plugins.status import PluginStatus, StateName
from plugind.protocol.proto import csi_v1_pb2 as api
from plugind.supervisor import NodeEndedError
from plugind.tests.fuzz.drivers import Driver, Drivers
from plugind.tests.fuzz.health_oracle import LAG, AnsweredCheck
from plugind.tests.fuzz.sentinels import RECONCILER_RECOVERY

if TYPE_CHECKING:
    from grpclib.server import Stream

#: Seconds between two refreshes, and until one of them is over at the latest: their jitter, and the call.
REFRESH: Final = 20.0
REFRESHED: Final = 30.0
#: Seconds for which a driver that is not ready may be starting, and in which one that is well is registered.
STARTING_FOR: Final = 60.0
REGISTERED: Final = 5.0
#: Seconds that Register may take in all: the endpoint may be late, and each call has its deadline.
LONGEST: Final = 175.0
_ZONES: Final = ("z1", "z1", "z1", "z2")
_NODE_ID: Final = "node-"


class ScriptedCSIDriver(FakeCSIDriver):
    """The services of one instance, which knows what it has answered."""

    def __init__(self, name: str, numbers: Iterator[int], *, has_probe: bool) -> None:
        super().__init__(name)
        self._numbers = numbers
        self._right_name = name
        self._has_probe = has_probe
        #: Whether it says no id, and what else is wrong with it.
        self.has_node_id = True
        #: The newest Probe that it has answered.
        self._probed = AnsweredCheck()
        #: When it has said its right name last, and an id or that it has none.
        self.named_at = self.told_at = -math.inf
        #: The number of its newest answer that counts, and all of them.
        self.newest = 0
        self.numbers: set[int] = set()
        #: When it has given each answer that counts.
        self.answered: dict[int, float] = {}
        self.behave()

    def behave(self) -> None:
        """Do what it is asked, at once."""
        for faults in (self.errors, self.hangs, self.delays):
            faults.clear()
        self.name, self.has_node_id, self.ready = self._right_name, True, None
        self.max_volumes, self.topology = 0, {"zone": "z1"}
        if not self._has_probe:
            self.errors[CSICall.PROBE] = GRPCError(Status.UNIMPLEMENTED, "no")

    async def GetPluginInfo(  # noqa: N802 - the name in the .proto, as below
        self, stream: Stream[api.GetPluginInfoRequest, api.GetPluginInfoResponse]
    ) -> None:
        """See :class:`FakeCSIDriver`."""
        await super().GetPluginInfo(stream)
        if self.name == self._right_name:
            self.named_at = trio.current_time()

    async def Probe(self, stream: Stream[api.ProbeRequest, api.ProbeResponse]) -> None:  # noqa: N802
        """See :class:`FakeCSIDriver`."""
        asked_at = trio.current_time()
        await super().Probe(stream)
        self._probed = max(self._probed, AnsweredCheck(asked_at, trio.current_time(), self.ready is not False))

    async def NodeGetInfo(  # noqa: N802
        self, stream: Stream[api.NodeGetInfoRequest, api.NodeGetInfoResponse]
    ) -> None:
        """See :class:`FakeCSIDriver`. Each answer has another number."""
        number = next(self._numbers)
        self.node_id = f"{_NODE_ID}{number}" if self.has_node_id else ""
        self.numbers.add(number)
        try:
            await super().NodeGetInfo(stream)
        except GRPCError as error:
            if error.status is Status.UNIMPLEMENTED:
                self.told_at = trio.current_time()
            raise
        # A script may have changed what it will say while this answer was delayed.
        if self.node_id:
            self.told_at, self.newest = trio.current_time(), int(self.node_id.removeprefix(_NODE_ID))
            self.answered[self.newest] = self.told_at

    def passes(self, since: float, suspended_at: float = math.inf) -> bool | None:
        """See :class:`CheckedService`."""
        return self._probed.passes(since, suspended_at) if self._has_probe else None


class ScriptedCSIHandler(CSIHandler):
    """The handler, whose checks and instances oracles see, and whose follows a script can crash."""

    def __init__(self, drivers: CSIDrivers) -> None:
        super().__init__(CSIConfig(refresh=REFRESH), rng=random.Random("plugind csi"), wall=drivers.wall)
        self._of = drivers
        self._crashes = drivers.crashes
        #: Since when Register is under way, by socket.
        self.registering: dict[str, float] = {}

    async def register(self, plugin: Plugin, link: Link) -> None:
        """See :class:`CSIHandler`."""
        began = self.registering[plugin.socket] = trio.current_time()
        try:
            await super().register(plugin, link)
        finally:
            self.registering.pop(plugin.socket, None)
        self._of.registered(plugin, began)

    async def follow(self, plugin: Plugin, link: Link) -> None:
        """See :class:`CSIHandler`."""
        follow = partial(super().follow, plugin, self._of.watched(plugin, link))
        await self._of.run_follow(self._crashes, plugin, follow)

    async def deregister(self, plugin: Plugin) -> None:
        """See :class:`CSIHandler`."""
        self._of.leaving(plugin)
        await super().deregister(plugin)


@attrs.define(eq=False)
class CSIDrivers(Drivers[ScriptedCSIDriver]):
    """The CSI drivers of one script."""

    _handler: ScriptedCSIHandler = attrs.field(init=False)
    _answers: Iterator[int] = attrs.field(init=False, factory=lambda: itertools.count(1))
    #: The newest answer that was shown of each instance.
    _shown: dict[tuple[str, int], int] = attrs.field(init=False, factory=dict)
    #: When a state of an instance of each name was shown last, and since when two names contradict each other.
    _changed: dict[str, float] = attrs.field(init=False, factory=dict)
    _collides_since: float = attrs.field(init=False, default=math.inf)

    plugin_type: ClassVar[str] = CSI
    names: ClassVar[tuple[str, ...]] = ("disk.csi.lab.com", "share.csi.lab.com")
    found: ClassVar[str] = "/registry"
    directory: ClassVar[str] = "/volumes"

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._handler = ScriptedCSIHandler(self)

    @property
    def handler(self) -> CSIHandler:
        """See :class:`Drivers`."""
        return self._handler

    def before_start(self) -> None:
        """See :class:`Drivers`."""
        super().before_start()
        self._handler = ScriptedCSIHandler(self)
        self._shown.clear()
        self._collides_since = math.inf

    def watched(self, plugin: Plugin, link: Link) -> Link:
        """Return ``link``, whose checks the oracle sees."""
        return self.health.watched(plugin, link, self.passes_of(plugin))

    # --- the services -------------------------------------------------------------------------------------------------

    def new_service(self, name: str, chance: random.Random) -> ScriptedCSIDriver:
        """See :class:`Drivers`."""
        return ScriptedCSIDriver(name, self._answers, has_probe=chance.random() < 0.8)

    def versions(self, number: int, service: ScriptedCSIDriver) -> tuple[str, ...]:
        """See :class:`Drivers`. A driver that takes over from another one must have a higher version."""
        return (f"1.{number}.0",)

    def misbehave(self, driver: Driver[ScriptedCSIDriver], chance: random.Random) -> None:
        """See :class:`Drivers`."""
        service = driver.service
        call = chance.choice([*CSICall, CSICall.NODE_INFO, CSICall.NODE_INFO])
        match chance.randrange(12):
            case 0 | 1 if service.passes(math.inf) is not None:
                service.ready = chance.choice((True, False, False))
            case 2 | 3:
                service.hangs.add(call)
            case 4 | 5 if call is not CSICall.PROBE:
                code = chance.choice((Status.INTERNAL, Status.UNAVAILABLE, Status.UNIMPLEMENTED))
                service.errors[call] = GRPCError(code, "not now")
            case 6 | 7:
                service.delays[call] = chance.choice((0.5, 1.0, 2.5, 3.5, 4.5, 5.5, 31.0, 119.0, 121.0))
            case 8:
                service.name = "another.csi.lab.com"
            case 9:
                service.has_node_id = False
            case 10:
                service.max_volumes = chance.choice((-1, 0, 16, 2**40))
            case _:
                service.topology = {"zone": chance.choice(_ZONES), "rack": "7"}

    def behave(self, driver: Driver[ScriptedCSIDriver]) -> None:
        """See :class:`Drivers`."""
        driver.service.behave()

    def mend(self) -> None:
        """See :class:`Drivers`. All register anew: what they have said of the node before is forgotten."""
        super().mend()
        for driver in self.drivers.values():
            driver.registrar.restart()

    def is_asked(self, driver: Driver[ScriptedCSIDriver]) -> bool:
        """See :class:`Drivers`."""
        return driver.service.passes(math.inf) is not None

    def lasting(self) -> list[Driver[ScriptedCSIDriver]]:
        """See :class:`Drivers`. The others of a name have lower versions, and may be refused."""
        highest = [max(present, key=lambda driver: driver.number) for name in self.names if (present := self.of(name))]
        return [driver for driver in self.drivers.values() if driver in highest or self.is_registered(driver)]

    def ask(self, driver: Driver[ScriptedCSIDriver], chance: random.Random) -> None:
        """Let somebody ask for the facts of a driver anew."""
        self.background.start_soon(self._ask_for_facts, chance.choice((driver.name, driver.path)))

    async def _ask_for_facts(self, target: str) -> None:
        with trio.move_on_after(LONGEST) as scope:
            try:
                await self.node.supervisor.retry(target, facts=True)
            except (NodeEndedError, RuntimeError):
                # The daemon has ended, or does not run now.
                return
        if scope.cancelled_caught:
            self._trace.violated("answers", f"who asked for the facts of {target} has no answer")

    # --- what is shown ------------------------------------------------------------------------------------------------

    def registered(self, plugin: Plugin, began: float) -> None:
        """Register of an instance has succeeded: the driver has said who it is and where it runs."""
        self.health.may_start(plugin, trio.current_time() + STARTING_FOR)
        driver = self.drivers.get(plugin.socket)
        process = None if driver is None else driver.process.process
        if driver is None or process is None or process.started >= began:
            return
        service = driver.service
        if service.named_at < began or service.told_at < began:
            self._trace.violated("asked-first", f"{plugin.socket} is registered, and has not said who it is and where")

    def judge(self, status: PluginStatus, time: float) -> None:
        """See :class:`Drivers`."""
        self._changed[status.name or ""] = time
        number = self._number(status)
        if number is None:
            return
        key = status.socket, status.generation
        services = [driver.service for driver in self._all if driver.path == status.socket]
        if all(number not in service.numbers for service in services):
            self._trace.violated("facts", f"{status.socket} is shown with {_NODE_ID}{number}, which it has not said")
        refreshed = dict(status.facts)["refreshed"].partition(" ")[0]
        answered = [service.answered[number] for service in services if number in service.answered]
        if answered and not self.wall.may_show(refreshed, answered[0], trio.current_time()):
            self._trace.violated("facts", f"{status.socket} has answered at {answered[0]:g}, and not at {refreshed}")
        if number < self._shown.get(key, 0):
            self._trace.violated("facts", f"{status.socket} is shown with {_NODE_ID}{number} after {self._shown[key]}")
        self._shown[key] = number

    @staticmethod
    def _number(status: PluginStatus) -> int | None:
        node_id = dict(status.facts).get("node-id", "")
        is_number = status.state is StateName.REGISTERED and node_id.startswith(_NODE_ID)
        return int(node_id.removeprefix(_NODE_ID)) if is_number else None

    def compare(self) -> None:
        """See :class:`Drivers`."""
        now = trio.current_time()
        for socket, since in self._handler.registering.items():
            if now > since + LONGEST + EPSILON:
                self._trace.violated("calls", f"{socket} is registering since {since}")
        if not self.crashed_within(RECONCILER_RECOVERY):
            self._compare_topologies(now)
            self._compare_roles(now)

    def _registered(self, name: str | None = None) -> list[PluginStatus]:
        return [
            status
            for status in self.statuses.values()
            if status.state is StateName.REGISTERED and name in (None, status.name)
        ]

    def _compare_topologies(self, now: float) -> None:
        """No two drivers that are registered give one key different values: one of them is refused."""
        zones = [
            {dict(plugin.facts).get("topology.zone", "") for plugin in self._registered(name)} - {""}
            for name in self.names
        ]
        collides = all(zones) and len(set.union(*zones)) > 1
        self._collides_since = min(self._collides_since, now) if collides else math.inf
        if now > self._collides_since + LAG + EPSILON:
            self._trace.violated("topology", f"drivers contradict each other since {self._collides_since}: {zones}")

    def _compare_roles(self, now: float) -> None:
        """Of the instances of a name, that with the highest version is active."""
        for name in set(self.names) - self.displaced():
            present = self._registered(name)
            if not present or now <= self._changed.get(name, now) + EPSILON:
                continue
            active = [status.socket for status in present if status.active]
            highest = max(present, key=lambda status: int((status.versions or ("1.0",))[0].split(".")[1]))
            if active != [highest.socket]:
                self._trace.violated("roles", f"{highest.socket} has the highest version, and {active} are active")

    # --- rest ---------------------------------------------------------------------------------------------------------

    async def check_at_rest(self, name: str, chance: random.Random) -> None:
        """See :class:`Drivers`."""
        old = self.lasting()
        self.hold_still(old)
        await self._check_hung(name, chance)
        await self._check_refused(name, chance)
        late = self.start(name, chance, late=20.0)
        await self.let_pass(20.0 + REGISTERED)
        self._check_registered(late)
        await self._check_newest(late)
        self.stop(late)
        self.hold_still(())

    async def _check_hung(self, name: str, chance: random.Random) -> None:
        """A call of NodeGetInfo that hangs keeps no driver waiting that starts in the place of the one that hangs."""
        hung = self.start(name, chance, late=1.0)
        hung.service.hangs.add(CSICall.NODE_INFO)
        await self.let_pass(chance.choice((REGISTERED, 40.0)))
        hung.service.hangs.clear()
        hung.registrar.restart()
        await self.let_pass(REGISTERED)
        self._check_registered(hung)
        self.stop(hung)

    async def _check_refused(self, name: str, chance: random.Random) -> None:
        """A driver that does not say where it runs, or says what cannot be, is refused; one may be not ready."""
        wrong = []
        for fault in (
            {"has_node_id": False},
            {"name": "another.csi.lab.com"},
            {"topology": {"zone": "z2"}},
            {"ready": False},
        ):
            wrong.append(self.start(name, chance))
            for attribute, value in fault.items():
                setattr(wrong[-1].service, attribute, value)
            await self.let_pass(REGISTERED)
        await self.let_pass(STARTING_FOR + REFRESHED)
        for driver in wrong:
            if self.is_registered(driver) is not (driver is wrong[3]):
                status = self.statuses.get(driver.path)
                self._trace.violated("asked-first", f"{driver.path} says what cannot be, and is shown as {status}")
            self.stop(driver)

    async def _check_newest(self, driver: Driver[ScriptedCSIDriver]) -> None:
        """What was answered last is shown: when somebody asks for it, and after each refresh."""
        for pause in (LAG + 1.0, REFRESHED):
            before = driver.service.newest
            self.wall.set_off(self.wall.off - 7200.0)
            if pause < REFRESHED:
                await self.node.supervisor.retry(driver.path, facts=True)
            await self.let_pass(pause)
            shown = self._shown.get((driver.path, self.statuses[driver.path].generation), 0)
            if driver.service.newest <= before or shown < before + 1:
                self._trace.violated("facts", f"{driver.path} is shown with answer {shown} of {driver.service.newest}")

    def _check_registered(self, driver: Driver[ScriptedCSIDriver]) -> None:
        if not self.is_registered(driver) and not self.is_taken_for_another(driver.path):
            status = self.statuses.get(driver.path)
            self._trace.violated("drivers", f"{driver.path} is well, and is shown as {status}")


def _zone(status: PluginStatus) -> str:
    return dict(status.facts).get("topology.zone", "")

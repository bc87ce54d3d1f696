"""Drivers of a script that are consumed as in life: a registrar, and an endpoint that the handler connects to.

This is what CSI and DRA drivers have in common: their processes, their connections, and what holds of each. While a
script is played, everything may happen at once.
"""

from __future__ import annotations

import abc
import itertools
import math
import os
import random
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, TypeVar

import attrs
import trio

from plugind.actors.grpc.server.serve import Service
from plugind.actors.simulation.directory import Telling
from plugind.actors.simulation.faults import Actor, InjectedError
from plugind.actors.simulation.node import SimulatedNode
from plugind.actors.simulation.plugins import FakePlugin, PluggedIn
from plugind.actors.simulation.scheduling import EPSILON
from plugind.protocol.errors import leaves
from plugind.protocol.messages.status import PluginChanged
from plugind.protocol.plugins.info import Plugin
from plugind.protocol.plugins.status import PluginStatus, StateName
from plugind.tests.fuzz.health_oracle import HealthOracle
from plugind.tests.fuzz.plugs import has_stayed
from plugind.tests.fuzz.script import Fault
from plugind.tests.fuzz.sentinels import RECONCILER_RECOVERY
from plugind.tests.fuzz.trace import Trace
from plugind.tests.fuzz.wall import WallClock

if TYPE_CHECKING:
    from plugind.actors.handlers.handler import Handler


class CheckedService(Service, Protocol):
    """The services of an instance whose health is checked."""

    def passes(self, since: float, suspended_at: float = math.inf) -> bool | None:
        """Return whether it has passed a check since then; None if that is not known.

        What it has answered since ``suspended_at``, when its process was suspended, is not sent.
        """


S = TypeVar("S", bound=CheckedService)

#: How many instances a driver has at once, at most.
AT_ONCE: Final = 3
#: Seconds after which nothing is to come of what has happened to a registrar: a rescan, and what follows it.
UNDISTURBED: Final = 90.0
#: Seconds until it is known that an actor has crashed: what it leaves is deregistered before.
CRASH_SEEN: Final = 30.0
#: Seconds between two looks while time passes.
STEP: Final = 5.0


@attrs.define(eq=False)
class Driver(Generic[S]):
    """One instance of a driver."""

    name: str
    #: Those that started later have higher ones.
    number: int
    #: The process that registers, and the one that listens on the endpoint, which may be the same.
    registrar: PluggedIn
    process: PluggedIn
    service: S
    #: When the second one starts, if it is late.
    starts_at: float | None = None

    @property
    def path(self) -> str:
        """Where its registration socket is."""
        return self.registrar.path

    @property
    def processes(self) -> list[PluggedIn]:
        """Its processes, one or two."""
        return [self.registrar] if self.process is self.registrar else [self.registrar, self.process]

    def start_process(self) -> None:
        """Let the process that listens on the endpoint start anew."""
        self.starts_at = None
        self.process.restart()

    def stop(self) -> None:
        """Let its processes stop and remove their sockets."""
        self.starts_at = None
        for process in self.processes:
            process.stop()


class FollowCrashes:
    """Lets a script crash follows."""

    def __init__(self) -> None:
        self._crashes: dict[str, trio.Event] = {}

    async def run(self, socket: str, follow: Callable[[], Any]) -> None:
        """Run the follow of the plugin at ``socket``, until it ends or is to crash."""
        crash = self._crashes[socket] = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_crash_once, crash)
            await follow()

    def crash(self, socket: str) -> None:
        """Crash the follow of the plugin at ``socket``, if there is one."""
        if socket in self._crashes:
            self._crashes[socket].set()


async def _crash_once(crash: trio.Event) -> None:
    await crash.wait()
    raise InjectedError


@attrs.define(eq=False)
class Drivers(abc.ABC, Generic[S]):
    """The drivers of one script."""

    _trace: Trace
    _faults: Collection[Fault]
    #: Set before the script is played.
    node: SimulatedNode = attrs.field(init=False)
    background: trio.Nursery = attrs.field(init=False)
    #: Returns when an actor crashed last.
    crashed_at: Callable[[], float] = attrs.field(init=False)
    #: Returns when events that were kept back arrived last.
    released_at: Callable[[], float] = attrs.field(init=False)
    health: HealthOracle = attrs.field(init=False)
    #: The clock by which facts have dates.
    wall: WallClock = attrs.field(init=False)
    #: The instances by their sockets.
    drivers: dict[str, Driver[S]] = attrs.field(init=False, factory=dict)
    #: All that there were.
    _all: list[Driver[S]] = attrs.field(init=False, factory=list)
    #: What is shown of them, by their sockets.
    statuses: dict[str, PluginStatus] = attrs.field(init=False, factory=dict)
    #: Those of which no other state may be shown now.
    untouchable: frozenset[str] = attrs.field(init=False, default=frozenset())
    crashes: FollowCrashes = attrs.field(init=False, factory=FollowCrashes)
    #: When instances were deregistered to which nothing had happened, as far as was known then.
    _suspects: deque[tuple[float, str]] = attrs.field(init=False, factory=deque)
    _numbers: Iterator[int] = attrs.field(init=False, factory=lambda: itertools.count(1))
    _pids: Iterator[int] = attrs.field(init=False, factory=lambda: itertools.count(4_000_000))

    #: The type of the drivers, their names, the root in which they are found, and the directory of their endpoints.
    plugin_type: ClassVar[str]
    names: ClassVar[tuple[str, ...]]
    found: ClassVar[str]
    directory: ClassVar[str]

    def __attrs_post_init__(self) -> None:
        self.wall = WallClock(self.plugin_type)
        self.health = HealthOracle(self._trace.violated, lambda: self.crashed_within(RECONCILER_RECOVERY))

    # --- what the kinds of drivers differ in --------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def handler(self) -> Handler:
        """The handler of the daemon that runs, or starts next."""

    @abc.abstractmethod
    def new_service(self, name: str, chance: random.Random) -> S:
        """Return the service of a new instance of the driver ``name``, which is well."""

    @abc.abstractmethod
    def versions(self, number: int, service: S) -> tuple[str, ...]:
        """Return the versions that an instance announces."""

    @abc.abstractmethod
    def misbehave(self, driver: Driver[S], chance: random.Random) -> None:
        """Let the service of an instance be slow, hang, refuse or answer nonsense."""

    @abc.abstractmethod
    def behave(self, driver: Driver[S]) -> None:
        """Let the service of an instance do what it is asked, at once."""

    def more_acts(self) -> dict[Callable[[Driver[S], random.Random], None], int]:
        """Return what else may happen to an instance of this kind, and how often."""
        return {}

    @abc.abstractmethod
    def ask(self, driver: Driver[S], chance: random.Random) -> None:
        """Let somebody ask something of a driver."""

    @abc.abstractmethod
    def judge(self, status: PluginStatus, time: float) -> None:
        """Judge what is shown of an instance."""

    @abc.abstractmethod
    def compare(self) -> None:
        """Compare what is shown with what has happened, as far as it must be shown by now."""

    def is_asked(self, driver: Driver[S]) -> bool:
        """Whether an instance is asked for its health, besides being connected."""
        return True

    def lasting(self) -> list[Driver[S]]:
        """Return the instances that are to be registered, if all are well."""
        return [*self.drivers.values()]

    async def check_at_rest(self, name: str, chance: random.Random) -> None:
        """Check what must hold of a driver of this kind, when nothing else happens."""

    # --- what is shown ------------------------------------------------------------------------------------------------

    def shown(self, change: PluginChanged) -> None:
        """A change of an instance is shown."""
        status, path = change.plugin, change.plugin.socket
        before = self.statuses.get(path)
        now = (status.state, status.generation)
        is_other = before is None or now != (before.state, before.generation)
        if path in self.untouchable and is_other and not self.is_taken_for_another(path):
            was = None if before is None else (before.state, before.generation)
            self._trace.violated("drivers", f"{path} was {was}, and is {now}, and nothing has happened to it")
        self.statuses[path] = status
        self.health.shown(status, change.time)
        self.judge(status, change.time)

    def look(self) -> None:
        """Let what is due happen, and let the oracles judge what is shown."""
        self.wall.pass_on()
        for driver in self.drivers.values():
            if driver.starts_at is not None and driver.starts_at <= trio.current_time():
                self._trace.line("driver", "starts late", driver.process.path)
                driver.start_process()
        self.health.look()
        self._judge_suspects()
        self.compare()

    def displaced(self) -> set[str | None]:
        """Return the names of drivers whose endpoint may be taken for that of another plugin.

        On a file system without handles a file that was removed and one that is new may be the same.
        """
        if self.node.directory.telling is Telling.HANDLES:
            return set()
        return {
            status.name
            for status in self.statuses.values()
            if any("belongs to" in warning for warning in status.warnings)
        }

    def is_taken_for_another(self, path: str) -> bool:
        """Whether the endpoint of the driver at ``path`` may be taken for another plugin's, so that it has none.

        On a file system without handles the inode of an endpoint that was removed may be the next one's.
        """
        status = self.statuses.get(path)
        words = () if status is None else (status.cause or "", *status.warnings)
        return self.node.directory.telling is not Telling.HANDLES and any("belongs to" in warning for warning in words)

    def is_registered(self, driver: Driver[S]) -> bool:
        """Whether an instance is shown as registered."""
        status = self.statuses.get(driver.path)
        return status is not None and status.state is StateName.REGISTERED

    def crashed_within(self, seconds: float) -> bool:
        """Whether an actor has crashed in the last ``seconds``."""
        return trio.current_time() - self.crashed_at() < seconds

    async def run_follow(self, crashes: FollowCrashes, plugin: Plugin, follow: Callable[[], Any]) -> None:
        """Run the follow of an instance, until it ends: nothing but the script is a reason for it to crash."""
        try:
            await crashes.run(plugin.socket, follow)
        except Exception as error:
            for leaf in leaves(error):
                if not isinstance(leaf, InjectedError):
                    self._trace.violated("drivers", f"the follow of {plugin.socket} has crashed: {leaf!r}")
            raise

    def passes_of(self, plugin: Plugin) -> Callable[[float], bool | None]:
        """Return what says whether the endpoint of an instance has passed a check since some time, if that is known."""
        here = self.drivers.get(plugin.socket)

        def passes(since: float) -> bool | None:
            process = None if here is None else here.process.process
            # Another driver at the path may be unnoticed so far, and its endpoint may be elsewhere.
            is_same = here is self.drivers.get(plugin.socket) and process is not None and process.started < since
            return here.service.passes(since, here.process.suspended_at) if here is not None and is_same else None

        return passes

    def leaving(self, plugin: Plugin) -> None:
        """An instance is deregistered: nothing but its socket is a reason for that."""
        driver = self.drivers.get(plugin.socket)
        if driver is not None and self._is_undisturbed(driver, plugin):
            self._suspects.append((trio.current_time(), plugin.socket))

    def _judge_suspects(self) -> None:
        """A crash is known once those have been deregistered that it concerns."""
        while self._suspects and trio.current_time() > self._suspects[0][0] + CRASH_SEEN:
            time, socket = self._suspects.popleft()
            if self.crashed_at() < time - EPSILON:
                self._trace.violated(
                    "drivers", f"{socket} was deregistered at {time:g}, and nothing had happened to it"
                )

    def _is_undisturbed(self, driver: Driver[S], plugin: Plugin) -> bool:
        """Whether an instance is registered, and nothing has happened for long to its registrar or to the node."""
        long_ago = trio.current_time() - UNDISTURBED
        status = self.statuses.get(plugin.socket)
        return (
            status is not None
            and (status.state, status.generation) == (StateName.REGISTERED, plugin.generation)
            and not self.crashed_within(UNDISTURBED)
            and self.released_at() < long_ago
            and has_stayed(driver.registrar, self.node.directory, driver.path, long_ago)
        )

    # --- what happens while the script is played ----------------------------------------------------------------------

    async def act(self, chance: random.Random) -> None:
        """Let something happen to a driver, or to actors; and let time pass now and then."""
        self.look()
        name = chance.choice(self.names)
        present = self.of(name)
        if not present or (len(present) == 1 and chance.random() < 0.25):
            late = chance.choice((0.0, 0.0, 0.0, 5.0, 20.0, 40.0))
            self._trace.line("driver", "start", self.start(name, chance, late=late).path, late)
        else:
            driver = chance.choice(present)
            acts: dict[Callable[[Driver[S], random.Random], None], int] = {
                self.misbehave: 26,
                self._behave: 8,
                self._restart: 12,
                self._replace: 10,
                self._restart_process: 10,
                self._break: 10,
                self._suspend: 8,
                self._crash: 12,
                self.ask: 10,
                self._stop: 6,
                **self.more_acts(),
            }
            (act,) = chance.choices([*acts], [*acts.values()])
            self._trace.line("driver", act.__name__.strip("_"), driver.path)
            act(driver, chance)
        await self.let_pass(chance.choice((0.0, 0.0, 0.0, 0.0, 0.1, 1.0, 4.0, 7.0, 16.0, 33.0)))

    async def let_pass(self, seconds: float, step: float = STEP) -> None:
        """Let time pass, and look meanwhile."""
        end = trio.current_time() + seconds
        while trio.current_time() < end:
            await trio.sleep(min(step, end - trio.current_time()))
            self.look()

    def start(
        self, name: str, chance: random.Random, *, late: float = 0.0, service: S | None = None, uid: int = 0
    ) -> Driver[S]:
        """Let an instance of the driver ``name`` start; the one process of two that is asked starts ``late``."""
        stem = name.partition(".")[0]
        letter = next(letter for letter in "abcdefgh" if self._path(stem, letter) not in self.drivers)
        path, number = self._path(stem, letter), next(self._numbers)
        service = self.new_service(name, chance) if service is None else service
        is_one = not late and chance.random() < 0.3
        endpoint = "" if is_one else os.path.join(self.directory, f"{stem}-{letter}.sock")
        for left in filter(self.node.directory.exists, (path, endpoint)):
            self.node.directory.unlink(left)
        fake = FakePlugin(
            self.plugin_type, name, self.versions(number, service), endpoint, serves=[service] if is_one else []
        )
        registrar = self.node.plug(path, fake, uid=uid, pid=next(self._pids))
        process = registrar if is_one else self.node.plug(endpoint, [service], uid=uid, pid=next(self._pids))
        driver = self.drivers[path] = Driver(name, number, registrar, process, service)
        self._all.append(driver)
        if late:
            process.stop()
            driver.starts_at = trio.current_time() + late
        return driver

    def _path(self, stem: str, letter: str) -> str:
        return os.path.join(self.found, f"{stem}-{letter}-reg.sock")

    def _behave(self, driver: Driver[S], _chance: random.Random) -> None:
        self.behave(driver)

    def _stop(self, driver: Driver[S], _chance: random.Random) -> None:
        self.stop(driver)

    def stop(self, driver: Driver[S]) -> None:
        """Let an instance stop, and remove its sockets."""
        del self.drivers[driver.path]
        driver.stop()

    def _restart(self, driver: Driver[S], chance: random.Random) -> None:
        """Both processes start anew, now and then with another service; or the registrar alone."""
        if chance.random() < 0.5:
            self.stop(driver)
            self.start(driver.name, chance, late=chance.choice((0.0, 0.0, 0.0, 3.0, 20.0)))
            return
        if chance.random() < 0.5:
            driver.start_process()
        if driver.process is not driver.registrar or not driver.registrar.alive:
            driver.registrar.restart()

    def _replace(self, driver: Driver[S], chance: random.Random) -> None:
        """Another instance starts beside this one, as in an update; this one stops at once, later, or never."""
        if len(self.of(driver.name)) < AT_ONCE:
            self.start(driver.name, chance, late=chance.choice((0.0, 0.0, 2.0)))
        if chance.random() < 0.3:
            self.stop(driver)

    def _restart_process(self, driver: Driver[S], chance: random.Random) -> None:
        """The process that is asked ends, and another one starts now or later; the registrar goes on."""
        if driver.process is driver.registrar:
            driver.start_process()
            return
        driver.process.stop()
        driver.starts_at = trio.current_time() + chance.choice((0.0, 0.0, 2.0, 15.0, 29.0, 31.0, 70.0))

    def _break(self, driver: Driver[S], chance: random.Random) -> None:
        """Break the connections, close the listener, or open it again."""
        process = driver.process
        if not process.alive:
            if driver.starts_at is None and self.node.directory.exists(process.path):
                process.listen()
            return
        match chance.randrange(4):
            case 0:
                process.reset()
            case 1:
                process.half_close()
            case 2:
                process.close_listener()
            case _:
                process.crash()

    def _suspend(self, driver: Driver[S], _chance: random.Random) -> None:
        if driver.process.suspended:
            driver.process.resume()
        else:
            driver.process.suspend()

    def _crash(self, driver: Driver[S], chance: random.Random) -> None:
        """Crash a follow, or the actors on the way of this driver, one or two at once."""
        if chance.random() < 0.5 or Fault.CRASHES not in self._faults:
            self.crashes.crash(driver.path)
            return
        actors: tuple[Actor, ...] = ("registration", "reconciler", "status")
        for actor in chance.sample(actors, chance.randint(1, 2)):
            self.node.crash(actor, driver.path)

    async def serve(self) -> None:
        """Do in the background what the handler of each daemon needs, until :meth:`end`."""

    def end(self) -> None:
        """The script is over."""

    # --- the daemon, and rest -----------------------------------------------------------------------------------------

    def before_start(self) -> None:
        """The daemon has ended, and is about to start."""
        self.crashes = FollowCrashes()
        self.health.forget()
        self.statuses.clear()
        self._suspects.clear()

    def mend(self) -> None:
        """Let every instance be well: its processes run and listen."""
        for driver in self.drivers.values():
            self.behave(driver)
            for process in driver.processes:
                process.resume()
                if not process.alive or not self.node.directory.exists(process.path):
                    process.restart()
            driver.starts_at = None

    def of(self, name: str) -> list[Driver[S]]:
        """Return the instances of a driver, the first one first."""
        return [driver for driver in self.drivers.values() if driver.name == name]

    def hold_still(self, drivers: Iterable[Driver[S]]) -> None:
        """From now on no other state of these instances may be shown."""
        self.untouchable = frozenset(driver.path for driver in drivers)

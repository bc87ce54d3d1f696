"""Simulation: random scripts against what must always hold, one seed for everything.

One seed gives one script (:mod:`.script`), one order of Trio's tasks, one trace and its hash (:mod:`.trace`), in every
process. The modules are on three levels, and those of one level do not import each other:

1. what can be said without a running script: the script itself, the trace, the plugins of a script (:mod:`.plugs`),
   and the oracles, which check each thing that happens (:mod:`.handler_oracle`, :mod:`.backoff_oracle`,
   :mod:`.sentinels`);
2. what touches the node: it reports to the oracles (:mod:`.watched_node`), a script acts upon it (:mod:`.acts`,
   :mod:`.daemon_acts`), and it is checked at rest, once the faults have stopped (:mod:`.final_checks`);
3. this module, which makes all of these for one node in memory and plays the script on it. The node runs plugind's
   own supervisor, actors and wire.

docs/simulation.md lists the rules.

::

    outcome = simulate(7, events=200)
    assert not outcome.violations, outcome.violations
"""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Callable, Collection
from typing import assert_never

import attrs
import trio
from trio.testing import MockClock

from plugind.actors.handlers.handler import Handler
from plugind.actors.simulation.directory import Telling
from plugind.actors.simulation.node import DEFAULT_CONFIG, ROOT
from plugind.actors.simulation.scheduling import EPSILON, ROUNDS, shortcuts
from plugind.protocol.backoff import Backoff, RestartIntensity
from plugind.protocol.errors import leaves
from plugind.protocol.leases.config import LeasesConfig
from plugind.protocol.leases.mapped import ResourceConfig
from plugind.protocol.leases.values import UserLimits
from plugind.protocol.messages.status import PluginChanged
from plugind.protocol.plugins.info import DEVICE, InstancePolicy, Plugin
from plugind.protocol.plugins.status import StateName
from plugind.protocol.settings.config import DevicePluginDirectory, Root
from plugind.protocol.trust.users import Trust
from plugind.tests.fuzz.acts import Acts
from plugind.tests.fuzz.backoff_oracle import BackoffOracle
from plugind.tests.fuzz.blame_oracle import BlameOracle
from plugind.tests.fuzz.csi_acts import CSIDrivers
from plugind.tests.fuzz.daemon_acts import DaemonActs
from plugind.tests.fuzz.device_acts import DeviceActs
from plugind.tests.fuzz.device_calls import DIRECTORY, DeviceCalls
from plugind.tests.fuzz.directory_acts import DirectoryActs
from plugind.tests.fuzz.dra_acts import DRADrivers
from plugind.tests.fuzz.driver_checks import DriverChecks
from plugind.tests.fuzz.endpoint_oracle import EndpointOracle
from plugind.tests.fuzz.final_checks import FinalChecks
from plugind.tests.fuzz.follow_oracle import EVERY, REMAINDER, FollowOracle
from plugind.tests.fuzz.generation_oracle import GenerationOracle
from plugind.tests.fuzz.handler_oracle import HandlerOracle
from plugind.tests.fuzz.lease_acts import LeaseActs
from plugind.tests.fuzz.lease_callers import LIMITS, POOLS
from plugind.tests.fuzz.lease_checks import LeaseChecks
from plugind.tests.fuzz.lease_plugins import FOUND as LAB
from plugind.tests.fuzz.offer_checks import OfferChecks
from plugind.tests.fuzz.offers import DIRECTORY as OFFERS
from plugind.tests.fuzz.offers import FOUND, Offers
from plugind.tests.fuzz.plugs import Plugs
from plugind.tests.fuzz.script import (
    DRIVERS,
    PRIVILEGED,
    TRUSTED,
    TYPE,
    Act,
    Event,
    Fault,
    choose,
    has_calls,
    has_csi_drivers,
    has_dra_drivers,
    has_leases,
    has_offers,
    numbers,
    write,
)
from plugind.tests.fuzz.trace import Trace, Violation
from plugind.tests.fuzz.trust_oracle import TrustOracle
from plugind.tests.fuzz.watched_node import WatchedNode

__all__ = ["ALL", "EVENTS", "Event", "Fault", "SeedResult", "Violation", "numbers", "simulate"]

ALL = frozenset(Fault)
#: What distinguishes files on the file systems of the scripts, one after the other.
TELLINGS = (Telling.HANDLES, Telling.HANDLES, Telling.BIRTHS, Telling.NOTHING)
#: Every sixteenth script has a single dial slot, so that dials wait: those whose seeds leave this remainder.
FEW_SLOTS = 15
#: How many events a script has, unless said otherwise.
EVENTS = 200
#: Virtual seconds from the end of the faults until what is shown of listeners is checked once more: the longest pause
#: of a watcher, and the period of a rescan.
NOTICED = 45.0


@attrs.frozen
class SeedResult:
    """The result of one script."""

    seed: int
    #: How many events were played, without the races.
    events: int
    virtual_seconds: float
    trace_hash: str
    violations: tuple[Violation, ...]


def simulate(
    seed: int,
    *,
    events: int = EVENTS,
    faults: Collection[Fault] = ALL,
    only: Collection[int] | None = None,
    show: Callable[[str], None] | None = None,
) -> SeedResult:
    """Play the script of ``seed``, of so many ``events`` and their races, and return what came of it.

    Every fourth script has only a few of several ``faults``, drawn from its seed.
    ``only`` are the numbers of the events that are played, all by default; ``show`` is given each line of the trace.
    """
    if len(faults) > 1:
        faults = choose(seed, faults)
    script = [event for event in write(seed, events, faults) if only is None or event.number in only]
    trace = Trace(show)
    collects = gc.isenabled()
    # When the collector runs depends on what else this process did, and it closes what was left open.
    gc.disable()
    try:
        clock = MockClock(autojump_threshold=0)
        seconds = trio.run(_play, seed, faults, trace, script, clock, clock=clock)
    finally:
        if collects:
            gc.enable()
    return SeedResult(
        seed, sum(event.number < events for event in script), seconds, trace.hash, tuple(trace.violations)
    )


async def _play(
    seed: int, faults: Collection[Fault], trace: Trace, script: Collection[Event], clock: MockClock
) -> float:
    tasks, descriptors = trio.lowlevel.current_statistics().tasks_living, _descriptors()
    simulation = _Simulation(seed, faults, trace)
    try:
        with simulation.node.livelock_guard, shortcuts(clock):
            await simulation.run(script)
        if simulation.node.livelock_guard.cancelled_caught:
            trace.violated("livelock", f"tasks run for {ROUNDS} rounds, and time stands still")
    except Exception as error:  # noqa: BLE001 - whatever ends the node is what is looked for
        for leaf in leaves(error):
            trace.violated("crash", f"{type(leaf).__name__}: {leaf}")
    left = trio.lowlevel.current_statistics().tasks_living - tasks
    if left:
        trace.violated("leak", f"{left} tasks")
    opened = _descriptors() - descriptors
    if opened > 0:
        trace.violated("leak", f"descriptors of this process: {opened} more")
    trace.line("end")
    return round(trio.current_time(), 3)


def _descriptors() -> int:
    """How many descriptors this process has open: a node in memory needs none, and is to leave none."""
    return len(os.listdir("/proc/self/fd"))


class _Simulation:
    """One node, what a script does to it, and what watches it."""

    def __init__(self, seed: int, faults: Collection[Fault], trace: Trace) -> None:
        backoff = Backoff(jitter=0.1)
        # Crashes are asked for, and a script may ask for many.
        intensity = RestartIntensity(restarts=100_000) if Fault.CRASHES in faults else RestartIntensity(0)
        # Nothing in a script looks at health, and the timer that does would only add to the virtual hours. An oracle
        # reads each line of the log.
        unwatched = attrs.evolve(DEFAULT_CONFIG, hung_after=None, log_limits=None)
        # In every eighth script a plugin on whose socket nobody listens is deregistered.
        config = attrs.evolve(
            unwatched,
            seed=seed,
            backoff=backoff,
            intensity=intensity,
            deregister_not_serving=seed % 8 == 5,
            trust=Trust(TRUSTED),
            # In every third script a restart leaves out the notifications of plugins that were told the same before.
            renotify=seed % 3 != 1,
            state="/state",
            # Where lives count as short, hardly any socket is dialed at once: so they do in every seventh script.
            stable_after=10.0 if seed % 7 == 6 else 0.0,
            endpoint_directories=(ROOT, DRIVERS),
        )
        self._policy = list(InstancePolicy)[seed % len(InstancePolicy)]
        self._trace = trace
        self._backoff = BackoffOracle(trace.violated, backoff)
        sees_all = not {Fault.EVENTS, Fault.SCANS, Fault.CRASHES} & set(faults)
        self._generations, trust = GenerationOracle(trace.violated), TrustOracle(trace.violated, PRIVILEGED, TRUSTED)
        blame = BlameOracle(trace.violated)
        self._follows = FollowOracle(trace.violated, seed, self._is_untouched) if seed % EVERY == REMAINDER else None
        self._endpoints = EndpointOracle(trace.violated, (f"{ROOT}/", f"{DRIVERS}/"))
        self._oracle = HandlerOracle(
            trace,
            self._policy,
            self._freed,
            self._generations.validating,
            trust,
            blame,
            self._endpoints,
            sees_all=sees_all,
            follows=self._follows,
        )
        self._handler = self._oracle.new_handler()
        handlers: dict[str, Handler] = {TYPE: self._handler}
        apart: dict[str, Callable[[PluginChanged], None]] = {}
        #: The device plugins of the scripts that have some.
        self._device_calls = DeviceCalls(trace, faults) if has_calls(seed) else None
        if self._device_calls is not None:
            config = attrs.evolve(config, device_plugins=DevicePluginDirectory(DIRECTORY))
            handlers[DEVICE] = self._device_calls.handler
            apart[DIRECTORY] = self._device_calls.shown
        #: The device plugins of the scripts in which these are followed.
        self._offers = Offers(trace, faults) if has_offers(seed) else None
        if self._offers is not None:
            directory = DevicePluginDirectory(OFFERS)
            config = attrs.evolve(config, roots=(*config.roots, Root(FOUND)), device_plugins=directory)
            handlers[DEVICE] = self._offers.handler
            apart[OFFERS] = apart[FOUND] = self._offers.shown
        #: The leases of the scripts that have some.
        self._leases = LeaseActs(trace, faults) if has_leases(seed) else None
        if self._leases is not None:
            limits = {name: ResourceConfig(limits=UserLimits(most)) for name, most in LIMITS.items()}
            leases = LeasesConfig(pools=POOLS)
            config = attrs.evolve(config, roots=(*config.roots, Root(LAB)), leases=leases, resources=limits)
            handlers[DEVICE] = self._leases.handler
            apart[LAB] = self._leases.shown
        #: The CSI or DRA drivers of the scripts that have some.
        self._drivers: CSIDrivers | DRADrivers | None = None
        if has_csi_drivers(seed):
            self._drivers = CSIDrivers(trace, faults)
        elif has_dra_drivers(seed):
            self._drivers = DRADrivers(trace, faults)
        if self._drivers is not None:
            config = attrs.evolve(
                config,
                roots=(*config.roots, Root(self._drivers.found)),
                endpoint_directories=(ROOT, DRIVERS, self._drivers.found, self._drivers.directory),
            )
            handlers[self._drivers.plugin_type] = self._drivers.handler
            apart[self._drivers.found] = self._drivers.shown
        self.node = WatchedNode(
            config,
            trace,
            self._oracle,
            self._backoff,
            self._generations,
            trust,
            handlers=handlers,
            apart=apart,
        )
        if self._device_calls is not None:
            self._device_calls.node = self.node
        if self._offers is not None:
            self._offers.node, self._offers.crashed_at = self.node, lambda: self.node.crashed_at
            self._offers.released_at = lambda: self._acts.released_at
        if self._leases is not None:
            self._leases.adopt(self.node)
            self._leases.crashed_at = lambda: self.node.crashed_at
        if self._drivers is not None:
            self._drivers.node, self._drivers.crashed_at = self.node, lambda: self.node.crashed_at
            self._drivers.released_at = lambda: self._acts.released_at
        self.node.modes.grace = 0.0 if sees_all else NOTICED
        if seed % 16 == FEW_SLOTS:
            self.node.network.dial_slots = 1
        # Those with DRA drivers have the same remainder, and would all be on one kind of file system.
        self.node.directory.telling = TELLINGS[seed // (32 if has_dra_drivers(seed) else 2) % len(TELLINGS)]
        self._daemon: DaemonActs | None = None
        self._serving = self.node.serving
        self._sentinels = self.node.sentinels
        self._devices = DeviceActs(self.node, self.node.devices, trace)
        self._seed, self._faults = seed, faults
        self._plugs = Plugs(self._oracle.received)
        self._directories = DirectoryActs(self.node, self._sentinels, self._backoff, self.node.modes)
        self._acts = Acts(
            self.node,
            self._plugs,
            self._sentinels,
            self._backoff,
            self.node.crashes,
            self._serving,
            self._generations,
            self._directories,
            faults,
        )

    async def run(self, script: Collection[Event]) -> None:
        """Run the node: play the script on it, and check it at rest."""
        script = [event for event in script if not self._happens_before_the_start(event)]
        async with self.node:
            async with trio.open_nursery() as background:
                if self._drivers is not None:
                    self._drivers.background = background
                    background.start_soon(self._drivers.serve)
                daemon = self._daemon = DaemonActs(
                    self.node,
                    self._trace,
                    self._sentinels,
                    self._backoff,
                    self.node.crashes,
                    self._generations,
                    self._oracle,
                    self._handler,
                    background,
                    [
                        drivers
                        for drivers in (self._device_calls, self._offers, self._leases, self._drivers)
                        if drivers is not None
                    ],
                )
                await self._play(script, daemon)
                await self._calm_down(daemon)
            log = self.node.log
            await FinalChecks(
                self.node,
                self._trace,
                self._plugs,
                self._sentinels,
                self._oracle,
                self._endpoints,
                log,
                self._policy,
                self._follows,
            ).check()
            await self._devices.end()

    def _freed(self, name: str) -> None:
        self._backoff.freed(name)
        self.node.turns.freed(name)

    def _is_untouched(self, plugin: Plugin) -> bool:
        """Whether a plugin is well and registered, and neither its socket nor the node was disturbed."""
        path, plugged = plugin.socket, self._plugs.by_path.get(plugin.socket)
        if plugged is None or path in self._plugs.faulty or not plugged.alive or self._acts.disturbed():
            return False
        if self.node.crashed_at >= trio.current_time() - EPSILON:
            return False  # The node may start anew for it, and deregisters all plugins first.
        registration = self._oracle.registrations.get(path)
        directory = self.node.directory
        return (
            registration is not None
            and not registration.orphan
            and self._takes_plugins(registration.handler)
            and self.node.state(path) == StateName.REGISTERED
            and directory.exists(path)
            and directory.inode(path) is self.node.network.reached.get(path)
        )

    def _takes_plugins(self, handler: int) -> bool:
        """Whether the handler of that number was not removed."""
        present = None if self._daemon is None else self._daemon.handler
        return present is not None and present.number == handler

    def _happens_before_the_start(self, event: Event) -> bool:
        if event.act is not Act.START_AMID:
            return False
        self._trace.line("event", event)
        self._acts.race(event.act, random.Random(event.seed))
        return True

    async def _play(self, script: Collection[Event], daemon: DaemonActs) -> None:
        for event in script:
            self._trace.line("event", event)
            await self._perform(event.act, random.Random(event.seed), daemon)
            self._look(daemon)
            if event.pause:
                await trio.sleep(event.pause)
                self._look(daemon)

    def _look(self, daemon: DaemonActs) -> None:
        disturbed = self._acts.disturbed()
        self._sentinels.look(disturbed=disturbed or daemon.handler is None)
        self._serving.look(disturbed=disturbed)
        if self._follows is not None:
            links = self.node.supervisor.internals.links.instances
            self._follows.look(
                [link for link in links if link[0].startswith(f"{self.node.root}/")], self._oracle.may_have_link
            )
        self._devices.look()
        if self._offers is not None:
            self._offers.look()
        if self._leases is not None:
            self._leases.look()
        if self._drivers is not None:
            self._drivers.look()

    async def _perform(self, act: Act, chance: random.Random, daemon: DaemonActs) -> None:
        match act:
            case Act.PLUG | Act.STOP | Act.RESTART | Act.LISTEN | Act.DIE | Act.RENAME | Act.UNLINK | Act.TOUCH:
                self._acts.change_plugin(act, chance)
            case Act.RESET | Act.HALF_CLOSE | Act.ACCEPT | Act.TRICKLE | Act.EXHAUST:
                self._acts.disturb(act, chance)
            case Act.CLUTTER | Act.REMOVE_DIRECTORY | Act.REMOVE_ROOT:
                self._acts.change_files(act, chance)
            case Act.DROP_EVENTS | Act.DELAY_EVENTS | Act.OVERFLOW | Act.LOSE_WATCH | Act.WATCHES_OUT:
                self._acts.disturb_events(act, chance)
            case Act.SCAN_ERROR | Act.LOOK_ERROR:
                self._acts.fail_scans(act, chance)
            case Act.START_AMID | Act.REPLACE_AT_SCAN | Act.REPLACE_AT_DIAL:
                self._acts.race(act, chance)
            case Act.CHANGE_MODE:
                self._directories.change_mode(chance)
            case Act.GIVE_DIRECTORY:
                self._acts.give_directory(chance)
            case Act.CHANGE_USER:
                self._acts.change_user(chance)
            case Act.CHANGE_ENDPOINT:
                self._acts.change_endpoint(chance)
            case Act.SENTINEL:
                self._sentinels.change()
            case Act.RETRY:
                daemon.retry(chance)
            case Act.BEHAVE:
                daemon.script_handler(chance)
            case Act.TOGGLE_HANDLER:
                await daemon.toggle_handler()
            case Act.CRASH:
                daemon.crash(chance)
            case Act.CRASH_BOTH:
                daemon.crash_both(chance)
            case Act.CALL:
                if self._device_calls is not None:
                    self._device_calls.act(chance)
            case Act.OFFER:
                if self._offers is not None:
                    self._offers.act(chance)
            case Act.LEASE:
                if self._leases is not None:
                    await self._leases.act(chance)
            case Act.KILL_AMID_LEASE:
                if self._leases is not None:
                    await self._leases.wait_for_kill(chance)
                    await self._restart(chance, daemon, kill=True)
            case Act.HEALTH:
                if self._offers is not None:
                    await self._offers.disturb_health(chance)
            case Act.DRIVER:
                if self._drivers is not None:
                    await self._drivers.act(chance)
            case Act.RESTART_DAEMON:
                await self._restart(chance, daemon)
            case Act.DEVICES:
                self._devices.act(chance, may_crash=Fault.CRASHES in self._faults)
            case _:
                assert_never(act)

    async def _restart(self, chance: random.Random, daemon: DaemonActs, *, kill: bool = False) -> None:
        # A daemon does not start on a root to which others may write.
        self._directories.mend_root()
        await daemon.restart(chance, self._devices.forget, kill=kill)

    async def _calm_down(self, daemon: DaemonActs) -> None:
        """The faults stop, and every plugin is well."""
        self._trace.line("calm")
        self._acts.end_faults()
        if self._follows is not None:
            self._follows.calm = True
        await daemon.calm_down()
        # Where files have no handles and nothing is watched, a new socket with the old inode is noticed by its time.
        await trio.sleep(self.node.directory.tick_ns / 1e9)
        self._acts.mend_plugins()
        # Whatever listens from now on is noticed soon, also by a watcher whose scans have failed.
        self._serving.look(disturbed=False)
        await trio.sleep(NOTICED)
        self._serving.look(disturbed=False)
        if self._device_calls is not None:
            await self._device_calls.check()
            self._serving.look(disturbed=True)
        if self._offers is not None:
            chance = random.Random(f"plugind offers at rest {self._seed}")
            await OfferChecks(self._offers, self._trace, self._faults, chance).check()
            self._serving.look(disturbed=True)
        if self._leases is not None:
            await LeaseChecks(self._leases, self._trace, random.Random(f"plugind leases at rest {self._seed}")).check()
            self._serving.look(disturbed=True)
        if self._drivers is not None:
            chance = random.Random(f"plugind drivers at rest {self._seed}")
            await DriverChecks(self._drivers, self._trace, chance).check()
            self._drivers.end()
            self._serving.look(disturbed=True)
        self._devices.look()

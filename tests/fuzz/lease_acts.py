"""What a script does about leases: callers, owners, device plugins, disks, and crashes of all that takes part."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Collection, Iterator
from typing import ClassVar, Final, Literal

import attrs
import trio

from plugind.actors.simulation.device_plugins import AllocationCall
from plugind.actors.simulation.faults import Actor
from plugind.actors.simulation.lease_owners import MemoryBootClock, MemoryOwnerProcesses
from plugind.actors.simulation.node import SimulatedNode
from plugind.protocol.backoff import RESTART_PAUSE
from plugind.protocol.devices.messages import DevicesSubscribed, DevicesViewMessage, InstanceMessage, ResourceChanged
from plugind.protocol.leases.messages import (
    Failure,
    LeaseChanged,
    LeasesAsked,
    LeasesMessage,
    LeasesSnapshot,
    LeasesSubscribed,
    LeasesViewMessage,
    RecoverAsked,
)
from plugind.protocol.leases.replies import Problem
from plugind.protocol.leases.values import LeaseState
from plugind.protocol.messages.status import PluginChanged
from plugind.protocol.plugins.devices import DevicesSnapshot
from plugind.protocol.plugins.info import DEVICE
from plugind.tests.fuzz.crashing_handler import CrashingHandler
from plugind.tests.fuzz.lease_callers import LIMITS, POOLS, LeaseCallers, Reply
from plugind.tests.fuzz.lease_oracle import LeaseOracle
from plugind.tests.fuzz.lease_plugins import PIECES, LeasePlugins
from plugind.tests.fuzz.lease_stores import Disk, SimulatedCdiStore, SimulatedLeaseStore
from plugind.tests.fuzz.line_oracle import LineOracle
from plugind.tests.fuzz.preparation_oracle import PreparationOracle
from plugind.tests.fuzz.script import Fault
from plugind.tests.fuzz.trace import Trace

#: What a lease comes by on its way, at each of which the daemon may be killed.
Step = Literal["writing", "written", "filing", "filed", "preferred", "allocate", "pre-start", "answer"]
_STEPS: Final[dict[Step, int]] = {
    "writing": 4,
    "written": 4,
    "filing": 1,
    "filed": 1,
    "preferred": 1,
    "allocate": 3,
    "pre-start": 1,
    "answer": 2,
}
_CALLS: Final[dict[AllocationCall, Step]] = {
    AllocationCall.PREFERRED: "preferred",
    AllocationCall.ALLOCATE: "allocate",
    AllocationCall.PRE_START: "pre-start",
}
#: Seconds for which a script waits for that, with somebody asking for a lease.
_PATIENCE: Final = 10.0
#: Seconds that pass at once: deadlines and waits end in them.
_PAUSES: Final = (0.2, 2.0, 6.0, 6.0, 15.0, 31.0, 62.0)
#: Seconds that an access to a slow disk takes: some of them more than it may.
_SLOW: Final = (0.1, 1.0, 4.0, 7.0)
#: The longest pause before a crashed actor runs again.
_RESTART: Final = RESTART_PAUSE.cap + 1.0


@attrs.define(eq=False)
class LeaseActs:
    """The leases of one script."""

    plugin_type: ClassVar[str] = DEVICE
    _trace: Trace
    _faults: Collection[Fault]
    preparations: PreparationOracle = attrs.field(init=False)
    oracle: LeaseOracle = attrs.field(init=False)
    line: LineOracle = attrs.field(init=False)
    plugins: LeasePlugins = attrs.field(init=False)
    callers: LeaseCallers = attrs.field(init=False)
    handler: CrashingHandler = attrs.field(init=False)
    store: SimulatedLeaseStore = attrs.field(init=False, factory=SimulatedLeaseStore)
    files: SimulatedCdiStore = attrs.field(init=False, factory=SimulatedCdiStore)
    processes: MemoryOwnerProcesses = attrs.field(init=False, factory=MemoryOwnerProcesses)
    clock: MemoryBootClock = attrs.field(init=False, factory=MemoryBootClock)
    _node: SimulatedNode = attrs.field(init=False)
    #: Whether something has happened.
    _begun: bool = attrs.field(init=False, default=False)
    #: Returns when an actor crashed last.
    crashed_at: Callable[[], float] = attrs.field(init=False)
    #: Whether the views of the daemon that runs were asked for.
    _subscribed: bool = attrs.field(init=False, default=False)
    #: Where the daemon is to be killed, and what is set when it was.
    _kill_at: Step | None = attrs.field(init=False, default=None)
    _killed: trio.Event = attrs.field(init=False, factory=trio.Event)
    #: Whether the machine boots before the daemon starts again.
    _boots: bool = attrs.field(init=False, default=False)
    _boot_numbers: Iterator[int] = attrs.field(init=False, factory=lambda: itertools.count(2))

    def __attrs_post_init__(self) -> None:
        violated = self._trace.violated
        self.preparations, self.line = PreparationOracle(violated), LineOracle(violated, POOLS, LIMITS)
        self.oracle = LeaseOracle(
            violated,
            self._trace.line,
            self.store,
            self.files,
            self.processes,
            self.clock,
            self.preparations,
            PIECES,
        )
        self.plugins = LeasePlugins(self.preparations, self.processes)
        self.callers = LeaseCallers(self.oracle, self.line, self.processes, self.plugins, self._send, self._trace.line)
        self.handler = CrashingHandler(self)
        self.preparations.is_written = self._is_written
        self.store.conflicted = lambda conflict: violated("twice", f"a lease cannot be written: {conflict}")
        self.store.writing, self.store.written = self._passes("writing"), self._passes("written")
        self.files.writing, self.files.written = self._passes("filing"), self._passes("filed")
        self.oracle.on_told = self._passes("answer")
        self.plugins.on_call = lambda call: self._pass(_CALLS[call])

    def adopt(self, node: SimulatedNode) -> None:
        """Play on this node, before it starts."""
        self._node = self.plugins.node = node
        self.processes.start(os.getpid())
        node.lease_store, node.cdi_store, node.owners, node.boot_clock = (
            self.store,
            self.files,
            self.processes,
            self.clock,
        )

    def _is_written(self, resource: str, device: str) -> bool:
        if not self.store.noticed:
            return True  # What is lost before the next write cannot be known.
        return any(device in lease.devices.get(resource, ()) for lease in self.store.leases.values())

    def send_nowait(self, message: InstanceMessage, /) -> None:
        """Pass a message of the handler on to the devices actor of the daemon that runs."""
        self._node.supervisor.internals.devices.inbox.send_nowait(message)

    def _send(self, message: LeasesMessage) -> None:
        self._node.supervisor.internals.leases.inbox.send_nowait(message)

    def shown(self, change: PluginChanged) -> None:
        """A change of a device plugin is shown, which nothing here depends on."""

    # --- what is shown ------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Ask for what is shown, and judge what must have happened by now."""
        if not self._subscribed:
            self._subscribed = True
            self._send(LeasesSubscribed(Reply[LeasesViewMessage](self._look_at_leases)))
            devices = DevicesSubscribed(Reply[DevicesViewMessage](self._look_at_devices))
            self._node.supervisor.internals.devices.inbox.send_nowait(devices)
        else:
            self._send(LeasesAsked(Reply[LeasesSnapshot](self._check_snapshot)))
        self.oracle.check(self.crashed_at())
        if self.oracle.is_known and self.oracle.withheld is None:
            self.line.check()
        else:
            self.line.disturbed(0.0)

    def _check_snapshot(self, snapshot: LeasesSnapshot) -> None:
        self.oracle.snapshot(snapshot)

    def _look_at_leases(self, message: LeasesViewMessage) -> None:
        match message:
            case LeasesSnapshot():
                self.oracle.snapshot(message)
                self.line.forget(message.leases)
            case LeaseChanged():
                self.oracle.look(message.lease)
                self.line.look(message.lease)
            case _:
                self._trace.violated("view", "a reader of leases that is quick was dropped")

    def _look_at_devices(self, message: DevicesViewMessage) -> None:
        match message:
            case DevicesSnapshot():
                self.line.look_at_all_devices(message.resources)
            case ResourceChanged():
                self.line.look_at_devices(message.resource)
            case _:
                self._trace.violated("view", "a reader of devices that is quick was dropped")

    # --- what happens -------------------------------------------------------------------------------------------------

    async def act(self, chance: random.Random) -> None:
        """Let something happen to leases, or time pass."""
        self.look()
        callers, resource = self.callers, chance.choice([*PIECES])
        if not self._begun:
            self._begun = True
            for each in PIECES:
                self.plugins.change_process(each, chance)
        acts: dict[str, tuple[int, Fault | None, Callable[[], object]]] = {
            "ask": (55, None, lambda: callers.ask(chance)),
            "ask again": (4, None, lambda: callers.ask_again(chance)),
            "leave": (5, None, lambda: callers.leave(chance)),
            "release": (10, None, lambda: callers.release(chance)),
            "renew": (4, None, lambda: callers.renew(chance)),
            "container": (6, None, lambda: callers.start_container(chance)),
            "owner": (10, None, lambda: callers.end_owner(chance)),
            "resume": (3, None, lambda: callers.resume(chance)),
            "suspend": (1, None, lambda: self._suspend(chance.choice((1.0, 20.0, 200.0)))),
            "recover": (2, None, self.recover),
            "devices": (9, None, lambda: self.plugins.change_devices(resource, chance)),
            "start": (12, None, lambda: self._start(resource, chance)),
            "plugin": (8, Fault.NETWORK, lambda: self._change_process(resource, chance)),
            "anew": (3, Fault.NETWORK, lambda: self.plugins.register_anew(resource)),
            "misbehave": (14, Fault.PLUGINS, lambda: self.plugins.misbehave(resource, chance)),
            "disk": (7, Fault.DISK, lambda: self._change_disk(chance)),
            "crash": (8, Fault.CRASHES, lambda: self._crash(chance)),
        }
        possible = {name: act for name, act in acts.items() if act[1] is None or act[1] in self._faults}
        (name,) = chance.choices([*possible, "time"], [*(act[0] for act in possible.values()), 9])
        self._trace.line("lease", name)
        if name == "time":
            await self._sleep(chance.choice(_PAUSES))
        else:
            possible[name][2]()

    async def _sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)
        self.look()

    def _suspend(self, seconds: float) -> None:
        """Let the machine sleep; what is over by then, the daemon finds out when it wakes up."""
        self.clock.suspend(seconds)
        self.oracle.disturbed()

    def _start(self, resource: str, chance: random.Random) -> None:
        present = self.plugins.of(resource)
        if present:
            self.plugins.revive(chance.choice(present))
        else:
            self.plugins.change_process(resource, chance)

    def _change_process(self, resource: str, chance: random.Random) -> None:
        # What was answered just now may not arrive.
        self.oracle.disturbed()
        self.plugins.change_process(resource, chance)

    def recover(self) -> None:
        """Let an operator say that no device of a lease is in use that is not known."""
        self.oracle.recovers = True
        self._send(RecoverAsked(0, Reply[Failure | None](self._recovered)))

    def _recovered(self, answer: Failure | None) -> None:
        self._trace.line("lease", "recovered", answer)
        # What was not written in time is in force as soon as it is written. A crash may leave the write under way.
        self.oracle.recovers = answer is not None and answer.problem in (Problem.STORAGE, Problem.UNAVAILABLE)
        if answer is None:
            self.oracle.recovered()

    def _change_disk(self, chance: random.Random) -> None:
        disk: Disk = chance.choice((self.store.disk, self.store.disk, self.files.disk))
        disk.mend()
        match chance.randrange(6):
            case 0 | 1:
                disk.full = True
            case 2 | 3:
                disk.before = chance.choice(_SLOW)
                disk.finishes = chance.random() < 0.5
            case 4:
                disk.after = chance.choice(_SLOW)
            case _ if disk is self.store.disk:
                self.store.damage(unnoticed=False)
            case _:
                pass

    def _crash(self, chance: random.Random) -> None:
        """Crash an actor on the way of leases, or one of its parts."""
        self.oracle.disturbed(_RESTART)
        self.line.disturbed(_RESTART)
        actors: tuple[Actor, ...] = ("leases", "leases", "leases", "devices", "reconciler", "status")
        match chance.randrange(10):
            case 0:
                self.store.disk.crashes += 1
            case 1:
                self.files.disk.crashes += 1
            case 2:
                self.processes.crash()
            case 3 if self.plugins.plugins:
                self.handler.crash(chance.choice([*self.plugins.plugins]))
            case 4 if self.plugins.plugins:
                self._node.crash("registration", chance.choice([*self.plugins.plugins]))
            case _:
                actor = chance.choice(actors)
                if actor == "leases":
                    self.preparations.forsaken()
                self._node.crash(actor, DEVICE)

    # --- the end of the daemon ----------------------------------------------------------------------------------------

    def _passes(self, step: Step) -> Callable[[], None]:
        return lambda: self._pass(step)

    def _pass(self, step: Step) -> None:
        if self._kill_at == step:
            self._kill_at = None
            self._trace.line("lease", "killed at", step)
            self._node.begin_kill()
            self._killed.set()

    async def wait_for_kill(self, chance: random.Random) -> None:
        """Have the daemon killed when a lease comes by a step; the caller lets it start again."""
        self.look()
        if chance.random() < 0.2:
            # At any moment.
            self._boots = chance.random() < 0.5
            return
        self._killed = trio.Event()
        (self._kill_at,) = chance.choices([*_STEPS], [*_STEPS.values()])
        self._trace.line("lease", "kill at", self._kill_at)
        if self._kill_at in ("writing", "written") and chance.random() < 0.5:
            chance.choice((self.callers.end_owner, self.callers.release))(chance)
        else:
            self.callers.ask_for_one(chance, container=self._kill_at in ("filing", "filed"))
        with trio.move_on_after(_PATIENCE):
            await self._killed.wait()
        self._kill_at = None
        self._boots = chance.random() < 0.15
        if Fault.DISK in self._faults and chance.random() < 0.1:
            self.store.damage(unnoticed=True)

    def before_start(self) -> None:
        """The daemon has ended, and is about to start."""
        self._subscribed = False
        self.store.disk.crashes = self.files.disk.crashes = 0
        self.callers.daemon_ended()
        self.oracle.daemon_ended()
        self.line.forget()
        self.handler = CrashingHandler(self)
        if self._boots:
            self._boots = False
            self._boot()
        self.oracle.daemon_starts()
        self.line.disturbed(_RESTART)

    def _boot(self) -> None:
        boot = f"simulated boot {next(self._boot_numbers)}"
        self._trace.line("lease", boot)
        self.oracle.rebooted()
        self.preparations.rebooted()
        self.plugins.crash_all()
        self.processes.reboot(boot)
        self.processes.start(os.getpid())
        self.store.reboot(boot)
        self.files.files.clear()

    # --- at rest ------------------------------------------------------------------------------------------------------

    def mend(self) -> None:
        """End all faults."""
        self.store.disk.mend()
        self.files.disk.mend()
        self.plugins.mend_devices()
        for plugin in self.plugins.plugins.values():
            plugin.service.behave()
            self.plugins.revive(plugin)

    def left(self) -> list[str]:
        """Return what there is of leases, in words."""
        found = [f"{lease.id} is shown as {lease.state}" for lease in self.oracle.shown.values()]
        found += [f"{lease.id} is written as {lease.state}" for lease in self.store.leases.values()]
        found += [f"there is a file of {name}" for name in self._files_there()]
        if self.processes.watched:
            found.append(f"{self.processes.watched} owners are watched")
        return found

    def disagreements(self) -> list[str]:
        """Return in what the store, the files and what is shown differ, in words."""
        shown = {lease.id: (lease.state, dict(lease.devices)) for lease in self.oracle.shown.values()}
        written = {lease.id: (lease.state, dict(lease.devices)) for lease in self.store.leases.values()}
        waiting = {name for name, (state, _) in shown.items() if state is LeaseState.QUEUED}
        found = []
        if self.store.noticed and {name: lease for name, lease in shown.items() if name not in waiting} != written:
            found.append(f"shown are {shown}, and written are {written}")
        files = {lease.cdi_name for lease in self.oracle.shown.values() if lease.cdi_name is not None}
        if files != self._files_there():
            found.append(f"there are files of {self._files_there()}, and leases with {files}")
        return found

    def _files_there(self) -> set[str]:
        return self.files.files.keys() - self.files.spared

"""Random scripts for a node in observe mode: plugins of all kinds come, fail, change and go, and are told nothing.

What must always hold (behaviour 45):

* ``told``: no plugin is ever sent NotifyRegistrationStatus.
* ``node-info``: no CSI driver is ever asked NodeGetInfo.
* ``state``: no state is shown that only a registration has.
* ``crash``, ``livelock``: nothing crashes that was not made to, and virtual time goes on.

Once the faults have stopped:

* ``converges``: each plugin that is well is observed, with what it says now, and each other one waits or is parked.
* ``links``: the observed CSI and DRA drivers have a link, and nothing else has one.
* ``leak``: when all plugins are gone, nothing is left of them.
"""

from __future__ import annotations

import enum
import gc
import random
from collections.abc import Callable, Collection, Mapping
from typing import Final, assert_never

import attrs
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from trio.testing import MockClock

from plugind.actors.handlers.handler import Handler
from plugind.actors.simulation.csi_drivers import CSICall, FakeCSIDriver
from plugind.actors.simulation.faults import is_injected
from plugind.actors.simulation.node import DEFAULT_CONFIG, SimulatedNode
from plugind.actors.simulation.plugins import FakePlugin, PluggedIn
from plugind.actors.simulation.scheduling import ROUNDS
from plugind.protocol.backoff import Backoff, RestartIntensity
from plugind.protocol.errors import leaves
from plugind.protocol.messages.status import PluginChanged
from plugind.protocol.plugins.info import CSI, DEVICE, DRA
from plugind.protocol.plugins.status import PluginStatus, StateName
from plugind.tests.fuzz.run import SeedResult
from plugind.tests.fuzz.trace import Trace

#: The states in which no plugin may be that is only observed.
FORBIDDEN: Final = frozenset({StateName.REGISTERED, StateName.LEAVING})
#: Virtual seconds until all is as it should be: the longest backoff, a GetInfo, and another one of each plugin.
CONVERGED: Final = 400.0
#: Virtual seconds until nothing is left of plugins that are gone.
EMPTY: Final = 10.0
_PATHS: Final = tuple(f"{name}.sock" for name in "abcdef")
_NAMES: Final = ("red.example.com", "blue.example.com", "green.example.com")


class Kind(enum.Enum):
    """The kinds of plugins; those in the second part are never observed."""

    CSI = "csi"
    ANOTHER_DRIVER = "csi with another name"
    DRA = "dra"
    OTHER = "other"
    DEVICE = "device"
    BAD_NAME = "bad name"
    NO_INFO = "no GetInfo"
    STRANGER = "of an untrusted user"

    @property
    def is_observed(self) -> bool:
        """Whether a plugin of this kind that is well is observed."""
        return self not in (Kind.BAD_NAME, Kind.NO_INFO, Kind.STRANGER)


class Act(enum.Enum):
    """What may happen."""

    PLUG = "plug"
    STOP = "stop"
    RESTART = "restart"
    DIE = "die"
    LISTEN = "listen"
    UNLINK = "unlink"
    TOUCH = "touch"
    SUSPEND = "suspend"
    RESUME = "resume"
    RENAME = "rename"
    FAIL = "fail"
    HANG = "hang"
    RETRY = "retry"
    FACTS = "facts"
    CRASH = "crash"
    RESTART_DAEMON = "restart daemon"
    WAIT = "wait"


_WEIGHTS: Final = {Act.PLUG: 6, Act.RESTART_DAEMON: 0.5, Act.WAIT: 3}


@attrs.define(eq=False)
class _Plug:
    """One plugin of the script."""

    kind: Kind
    fake: FakePlugin
    plugged: PluggedIn


class _ObservingNode(SimulatedNode):
    """A node in observe mode whose changes are traced and judged."""

    def __init__(self, seed: int, trace: Trace) -> None:
        config = attrs.evolve(
            DEFAULT_CONFIG,
            observe=True,
            observe_again=20.0,
            seed=seed,
            hung_after=None,
            backoff=Backoff(jitter=0.1),
            intensity=RestartIntensity(restarts=100_000),
            stable_after=10.0 if seed % 3 == 0 else 0.0,
        )
        super().__init__(config)
        self.trace = trace
        self.livelock_guard = trio.CancelScope()
        self._checked_at = -1.0

    async def start(self, *, handlers: Mapping[str, Handler] | None = None) -> None:
        """See :class:`SimulatedNode`."""
        await super().start(handlers=handlers)
        self.supervisor.internals.crashes.watch(self._note_crash)

    def _note_crash(self, name: str, error: Exception) -> None:
        self.trace.line("crash", name.partition(" ")[0])
        if not is_injected(error):
            self.trace.violated("crash", f"{name}: {[repr(leaf) for leaf in leaves(error)]}")

    def check_progress(self) -> None:
        """See :class:`SimulatedNode`."""
        now = trio.current_time()
        if now == self._checked_at:
            self.livelock_guard.cancel()
        self._checked_at = now

    def record(self, change: PluginChanged) -> None:
        """See :class:`SimulatedNode`."""
        status = change.plugin
        self.trace.line("shown", status.socket, status.generation, status.state, status.attempt, status.reason)
        if status.state in FORBIDDEN:
            self.trace.violated("state", f"{status.socket} is {status.state}")
        super().record(change)


def simulate_observing(
    seed: int,
    *,
    events: int = 200,
    only: Collection[int] | None = None,
    show: Callable[[str], None] | None = None,
) -> SeedResult:
    """Play a script of so many ``events`` on a node in observe mode, and return what came of it.

    ``only`` are the numbers of the events that are played, all by default; ``show`` is given each line of the trace.
    """
    trace = Trace(show)
    collects = gc.isenabled()
    # When the collector runs depends on what else this process did, and it closes what was left open.
    gc.disable()
    try:
        numbers = [number for number in range(events) if only is None or number in only]
        seconds = trio.run(_play, seed, numbers, trace, clock=MockClock(autojump_threshold=0))
    finally:
        if collects:
            gc.enable()
    return SeedResult(seed, len(numbers), seconds, trace.hash, tuple(trace.violations))


async def _play(seed: int, numbers: Collection[int], trace: Trace) -> float:
    script = _Script(seed, trace)
    try:
        with script.node.livelock_guard:
            await script.run(numbers)
        if script.node.livelock_guard.cancelled_caught:
            trace.violated("livelock", f"tasks run for {ROUNDS} rounds, and time stands still")
    except Exception as error:  # noqa: BLE001 - whatever ends the node is what is looked for
        for leaf in leaves(error):
            trace.violated("crash", f"{type(leaf).__name__}: {leaf}")
    trace.line("end")
    return round(trio.current_time(), 3)


class _Script:
    def __init__(self, seed: int, trace: Trace) -> None:
        self._seed = seed
        self._trace = trace
        self.node = _ObservingNode(seed, trace)
        #: The plugins whose sockets may be there, by path.
        self._plugs: dict[str, _Plug] = {}
        #: All that there ever were.
        self._all: list[_Plug] = []
        #: How many calls of each were judged.
        self._judged: dict[int, int] = {}

    async def run(self, numbers: Collection[int]) -> None:
        """Play the events, and check the node at rest."""
        async with self.node:
            for number in numbers:
                chance = random.Random(f"plugind observing {self._seed} {number}")
                act = chance.choices([*Act], [_WEIGHTS.get(act, 1) for act in Act])[0]
                self._trace.line("event", number, act.value)
                await self._perform(act, chance)
                await trio.sleep(chance.choice((0.0, 0.0, 0.01, 0.3, 2.0, 15.0)))
                self._judge()
            self._trace.line("calm")
            await self._check_at_rest()
        self._judge()

    # --- acts ---

    async def _perform(self, act: Act, chance: random.Random) -> None:
        match act:
            case Act.PLUG:
                self._plug(chance)
            case Act.CRASH:
                actor = chance.choice(("reconciler", "status", "liveness", "watcher", "registration"))
                self.node.crash(actor, chance.choice(_PATHS))  # type: ignore[arg-type]  # each is the name of an actor
            case Act.RESTART_DAEMON:
                await (self.node.stop() if chance.random() < 0.5 else self.node.kill())
                await self.node.start()
            case Act.RETRY | Act.FACTS:
                target = chance.choice(_NAMES)
                # A crash of the status actor delays the answer.
                with trio.move_on_after(30.0):
                    await self.node.supervisor.retry(target, facts=act is Act.FACTS)
            case Act.WAIT:
                await trio.sleep(chance.uniform(0.0, 60.0))
            case _:
                if self._plugs:
                    self._change(act, self._plugs[chance.choice(sorted(self._plugs))], chance)

    def _plug(self, chance: random.Random) -> None:
        path, kind, name = chance.choice(_PATHS), chance.choice([*Kind]), chance.choice(_NAMES)
        if self.node.directory.exists(self.node.path(path)):
            return
        fake = _fake(kind, name)
        uid = 4711 if kind is Kind.STRANGER else 0
        plug = _Plug(kind, fake, self.node.plug(path, fake, listening=chance.random() < 0.9, uid=uid))
        self._plugs[path] = plug
        self._all.append(plug)

    def _change(self, act: Act, plug: _Plug, chance: random.Random) -> None:
        plugged, there = plug.plugged, self.node.directory.exists(plug.plugged.path)
        match act:
            case Act.STOP:
                plugged.stop()
            case Act.RESTART if there:
                plugged.restart()
            case Act.DIE:
                plugged.crash()
            case Act.LISTEN if there:
                plugged.listen()
            case Act.UNLINK if there:
                plugged.unlink()
            case Act.TOUCH if there:
                self.node.directory.chmod(plugged.path)
            case Act.SUSPEND:
                plugged.suspend()
            case Act.RESUME:
                plugged.resume()
            case Act.RENAME if plug.kind is not Kind.BAD_NAME:
                plug.fake.name = chance.choice(_NAMES)
                plug.fake.versions = (chance.choice(("1.0.0", "1.1.0")), *tuple(plug.fake.versions)[1:])
            case Act.FAIL if plug.kind is not Kind.NO_INFO:
                plug.fake.get_info_fails = chance.randrange(1, 4)
            case Act.HANG:
                plug.fake.hang = chance.choice((None, "get-info"))
            case _:
                pass

    # --- oracles ---

    def _judge(self) -> None:
        """Look at the calls that have come since the last look."""
        for plug in self._all:
            calls = plug.plugged.calls
            for call in calls[self._judged.get(id(plug), 0) :]:
                if call.method != "GetInfo":
                    self._trace.violated("told", f"{plug.plugged.path} was called {call.method} at {call.time:g} s")
            self._judged[id(plug)] = len(calls)
            for driver in plug.fake.serves:
                if isinstance(driver, FakeCSIDriver) and any(call is CSICall.NODE_INFO for _, call in driver.calls):
                    self._trace.violated("node-info", f"{plug.plugged.path} was asked NodeGetInfo")

    async def _check_at_rest(self) -> None:
        chance = random.Random(f"plugind observing at rest {self._seed}")
        for plug in self._plugs.values():
            self._change(Act.RENAME, plug, chance)
            plug.fake.hang = None
            if plug.kind is not Kind.NO_INFO:
                plug.fake.get_info_fails = 0
            plug.plugged.resume()
            if self.node.directory.exists(plug.plugged.path) and not plug.plugged.alive:
                plug.plugged.listen()
        if not await self._within(CONVERGED, self._differences):
            for difference in self._differences():
                self._trace.violated("converges", difference)
        self._check_links()
        for plug in self._plugs.values():
            plug.plugged.stop()
        if not await self._within(EMPTY, self.node.leftovers):
            for leftover in self.node.leftovers():
                self._trace.violated("leak", leftover)

    async def _within(self, seconds: float, wrong: Callable[[], list[str]]) -> bool:
        until = trio.current_time() + seconds
        while wrong() and trio.current_time() < until:  # noqa: ASYNC110 - nothing tells of all that is looked at
            await trio.sleep(0.5)
        await trio.testing.wait_all_tasks_blocked()
        return not wrong()

    def _differences(self) -> list[str]:
        """Return how what is shown differs from what is there."""
        there = self.node.directory.sockets(self.node.root)
        found = [f"{path} is not shown" for path in sorted(there.keys() - self.node.statuses.keys())]
        found += [f"{path} is shown, and not there" for path in sorted(self.node.statuses.keys() - there.keys())]
        for plug in self._plugs.values():
            status = self.node.statuses.get(plug.plugged.path)
            if status is not None and plug.plugged.path in there:
                found += _difference(plug, status)
        return found

    def _check_links(self) -> None:
        followed = {
            (status.socket, status.generation)
            for status in self.node.statuses.values()
            if status.state is StateName.OBSERVED and status.type in (CSI, DRA)
        }
        links = set(self.node.supervisor.internals.links.instances)
        if links != followed:
            self._trace.violated("links", f"followed are {sorted(followed)}, links are {sorted(links)}")


def _fake(kind: Kind, name: str) -> FakePlugin:
    unimplemented = GRPCError(Status.UNIMPLEMENTED, "no such method")
    match kind:
        case Kind.CSI | Kind.STRANGER:
            return FakePlugin(CSI, name)
        case Kind.ANOTHER_DRIVER:
            return FakePlugin(CSI, name, serves=[FakeCSIDriver("another.example.com")])
        case Kind.DRA:
            return FakePlugin(DRA, name, ("v1.DRAPlugin",))
        case Kind.OTHER:
            return FakePlugin("Other", name)
        case Kind.DEVICE:
            return FakePlugin(DEVICE, "example.com/gpu", ("v1beta1",))
        case Kind.BAD_NAME:
            return FakePlugin("Other", "x" * 300)
        case Kind.NO_INFO:
            return FakePlugin("Other", name, get_info_fails=10**9, error=unimplemented)
    assert_never(kind)


def _difference(plug: _Plug, status: PluginStatus) -> list[str]:
    path, fake = plug.plugged.path, plug.fake
    if not plug.kind.is_observed:
        is_wrong = status.state in (*FORBIDDEN, StateName.OBSERVED, StateName.STALE)
        return [f"{path} ({plug.kind.value}) is {status.state}"] if is_wrong else []
    if status.state is not StateName.OBSERVED:
        return [f"{path} ({plug.kind.value}) is {status.state}: {status.reason}"]
    said, shown = (fake.name, tuple(fake.versions)), (status.name, tuple(status.versions or ()))
    return [] if said == shown else [f"{path} says {said}, and is shown with {shown}"]

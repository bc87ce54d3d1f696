"""Plays a script on a watched node: what each event does, and what the player must know to judge what follows."""

from __future__ import annotations

import errno
import random
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Final, assert_never

import attrs
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from plugind.actors.simulate_node import ACTORS, WatchedHandler, WatchedNode
from plugind.actors.simulate_oracles import BackoffOracle, HandlerOracle
from plugind.actors.simulate_script import Act, Event, Fault
from plugind.actors.simulate_sentinels import Sentinels
from plugind.actors.simulate_trace import Trace
from plugind.actors.simulation import DEFAULT_CONFIG
from plugind.actors.simulation_handlers import Ask, Behaviour, Fails, Hangs, Takes
from plugind.actors.simulation_network import Accepting
from plugind.actors.simulation_plugins import Call, FakePlugin, PluggedIn
from plugind.protocol.backoff import Backoff, RestartIntensity
from plugind.protocol.plugins import InstancePolicy
from plugind.protocol.status import StateName

TYPE: Final = "Colour"
NAMES: Final = ("red", "green", "blue")
SOCKETS: Final = ("a.sock", "b.sock", "c.sock", "d.sock", "sub/e.sock", "sub/f.sock", "sub/deep/g.sock")
DIRECTORIES: Final = ("sub", "sub/deep")
ASKS: Final[tuple[Ask, ...]] = ("validate", "register", "deregister")
#: Seconds for a retry to be answered, and for a handler to be removed: every plugin that it has may take its deadline
#: to be registered, and again to be deregistered, one after the other; and the answers to its asks may be lost.
RETRY_BOUND: Final = 60.0
REMOVAL_BOUND: Final = 2000.0
#: Seconds for a daemon to stop: the grace, and what ends after it.
STOP_BOUND: Final = 15.0


class Told(list[Call]):
    """What a plugin was asked and told, handed on to the oracle as it comes."""

    def __init__(self, plugged: PluggedIn, seen: HandlerOracle, trace: Trace, shaky: set[str]) -> None:
        super().__init__(plugged.calls)
        self._path = plugged.path
        self._plugged = plugged
        self._seen = seen
        self._trace = trace
        self._shaky = shaky

    def append(self, call: Call) -> None:
        """Take note of one more call."""
        super().append(call)
        if call.registered is None:
            self._trace.line("asked", self._path, call.method)
        else:
            well = self._path not in self._shaky
            self._seen.told(self._path, id(self._plugged), registered=call.registered, well=well)


@attrs.define(eq=False)
class Player:
    """One node and its script; ``self.trace`` has what came of it."""

    seed: int
    faults: Collection[Fault]
    trace: Trace
    policy: InstancePolicy = attrs.field(init=False)
    backoff: BackoffOracle = attrs.field(init=False)
    handlers: HandlerOracle = attrs.field(init=False)
    node: WatchedNode = attrs.field(init=False)
    sentinels: Sentinels = attrs.field(init=False)
    handler: WatchedHandler | None = attrs.field(init=False, default=None)
    #: What is plugged in, by path; and who ever misbehaved, or was disturbed by a fault of its connections.
    plugs: dict[str, PluggedIn] = attrs.field(init=False, factory=dict)
    shaky: set[str] = attrs.field(init=False, factory=set)
    _handlers_made: int = attrs.field(init=False, default=0)
    _background: trio.Nursery = attrs.field(init=False)
    _scopes: dict[trio.CancelScope, None] = attrs.field(init=False, factory=dict)
    _removal: trio.Event | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        backoff = Backoff(jitter=0.1)
        # Crashes are asked for, and a script may ask for many.
        intensity = RestartIntensity(restarts=100_000) if Fault.CRASHES in self.faults else RestartIntensity(0)
        config = attrs.evolve(DEFAULT_CONFIG, seed=self.seed, backoff=backoff, intensity=intensity)
        self.policy = list(InstancePolicy)[self.seed % len(InstancePolicy)]
        self.backoff = BackoffOracle(self.trace, backoff)
        self.handlers = HandlerOracle(self.trace, self.policy)
        self.node = WatchedNode(config, self.trace, self.handlers, self.backoff)
        self.sentinels = Sentinels(self.node, self.trace, self.handlers)
        self.node._handlers = {TYPE: self._new_handler()}

    def _new_handler(self) -> WatchedHandler:
        self._handlers_made += 1
        self.handler = WatchedHandler(self._handlers_made, self.policy, self.handlers, self.backoff)
        return self.handler

    # --- the script ---------------------------------------------------------------------------------------------------

    async def play(self, events: Collection[Event]) -> None:
        """Play ``events`` on the node, which runs."""
        self.node.watch_crashes()
        async with trio.open_nursery() as self._background:
            for event in events:
                self.trace.line("event", event)
                await self._perform(event.act, random.Random(event.seed))
                self.sentinels.look(self._troubled())
                if event.pause:
                    await trio.sleep(event.pause)
                    self.sentinels.look(self._troubled())
            await self._calm_down()

    def _troubled(self) -> bool:
        """Whether something is wrong with the whole node, so that nobody can be sure to be registered soon."""
        directory = self.node.directory
        return bool(
            directory.deaf
            or directory.held
            or directory.scan_errors
            or directory.look_errors
            or directory.withhold_self_events
            or directory.watches_left is not None
            or self.node.network.exhausted
            or self.handler is None
        )

    async def _perform(self, act: Act, chance: random.Random) -> None:
        match act:
            case Act.PLUG | Act.STOP | Act.RESTART | Act.LISTEN | Act.DIE | Act.RENAME | Act.UNLINK | Act.TOUCH:
                self._change_plugin(act, chance)
            case Act.RESET | Act.HALF_CLOSE | Act.ACCEPT | Act.TRICKLE | Act.EXHAUST:
                self._disturb(act, chance)
            case Act.CLUTTER | Act.REMOVE_DIRECTORY | Act.REMOVE_ROOT:
                self._change_files(act, chance)
            case Act.DEAF | Act.HOLD | Act.OVERFLOW | Act.LOSE_WATCH | Act.WATCHES_OUT:
                self._disturb_events(act, chance)
            case Act.SCAN_ERROR | Act.LOOK_ERROR:
                self._fail_scans(act, chance)
            case Act.SENTINEL:
                self.sentinels.change()
            case Act.RETRY:
                self._retry(chance)
            case Act.BEHAVE:
                self._script_handler(chance)
            case Act.TOGGLE_HANDLER:
                await self._toggle_handler()
            case Act.CRASH:
                self._crash(chance)
            case Act.RESTART_DAEMON:
                await self._restart_daemon(kill=chance.random() < 0.5)
            case _:
                assert_never(act)

    # --- plugins ------------------------------------------------------------------------------------------------------

    def _change_plugin(self, act: Act, chance: random.Random) -> None:
        path = self.node.path(chance.choice(SOCKETS))
        plugin = self.plugs.get(path)
        if plugin is None:
            if act in (Act.PLUG, Act.RESTART, Act.RENAME):
                self._plug(path, chance)
            return
        match act:
            case Act.PLUG | Act.RESTART:
                plugin.plugin = self._fake(path, chance)
                plugin.restart()
            case Act.STOP:
                plugin.stop()
                del self.plugs[path]
            case Act.LISTEN:
                plugin.listen()
            case Act.DIE:
                plugin.crash()
            case Act.RENAME:
                self._rename(plugin, self.node.path(chance.choice(SOCKETS)))
            case Act.UNLINK:
                plugin.unlink()
                del self.plugs[path]
            case _:
                self.node.directory.chmod(path)
                self.backoff.touched(path)
        if act is not Act.TOUCH:
            self.shaky.add(path)
            if self.node.directory.deaf or self.node.directory.held:
                # With its inode used again, and no event that tells, it is the same socket with other attributes.
                self.backoff.touched(path)

    def _plug(self, path: str, chance: random.Random) -> None:
        if self.node.directory.exists(path):
            self.node.directory.unlink(path)
        if not (self.node.directory.deaf or self.node.directory.held):
            # Else it may still be taken for the one that was there before.
            self.shaky.discard(path)
        listening = chance.random() < 0.9 or Fault.PLUGINS not in self.faults
        self._adopt(path, self.node.plug(path, self._fake(path, chance), listening=listening))

    def _adopt(self, path: str, plugged: PluggedIn) -> None:
        plugged.path = path
        # Connections that are open tell of the path by which they were made.
        plugged.calls = Told(plugged, self.handlers, self.trace, self.shaky)
        self.plugs[path] = plugged

    def _rename(self, plugin: PluggedIn, new: str) -> None:
        old = plugin.path
        directory = self.node.directory
        if new == old or not directory.exists(new.rpartition("/")[0]):
            return
        directory.rename(old, new)
        if directory.deaf or directory.held:
            self.backoff.touched(new)
        del self.plugs[old]
        over = self.plugs.pop(new, None)
        if over is not None:
            over.crash()
        self.shaky.add(new)
        self._adopt(new, plugin)

    def _fake(self, path: str, chance: random.Random) -> FakePlugin:
        fake = FakePlugin(TYPE, chance.choice(NAMES), [f"1.{chance.randrange(9)}.0"])
        if Fault.PLUGINS not in self.faults or chance.random() < 0.4:
            return fake
        self.shaky.add(path)
        match chance.randrange(9):
            case 0:
                fake.type = "Unknown"
            case 1:
                fake.name = chance.choice(("", "a\nb", "x" * 300))
            case 2:
                fake.get_info_fails = chance.choice((1, 2, 6))
            case 3:
                fake.notify_fails = chance.choice((1, 2, 9))
            case 4:
                fake.hang = chance.choice(("get-info", "notify"))
            case 5:
                fake.die = chance.choice(("get-info", "notify"))
            case 6:
                fake.error = GRPCError(Status.UNIMPLEMENTED, "no such thing")
                fake.get_info_fails, fake.notify_fails = chance.choice(((1, 0), (0, 1)))
            case _:
                fake.delay = chance.choice((0.3, 0.9, 2.0, 6.0))
        return fake

    def _disturb(self, act: Act, chance: random.Random) -> None:
        if act is Act.EXHAUST:
            self.node.network.exhausted = chance.randrange(1, 4)
            return
        if not self.plugs:
            return
        path = chance.choice(sorted(self.plugs))
        plugin = self.plugs[path]
        self.shaky.add(path)
        match act:
            case Act.RESET:
                plugin.reset()
            case Act.HALF_CLOSE:
                plugin.half_close()
            case Act.ACCEPT:
                plugin.accepting = chance.choice(list(Accepting))
            case _:
                plugin.seconds_per_byte = chance.choice((0.001, 0.02, 1.0))

    # --- files and events ---------------------------------------------------------------------------------------------

    def _change_files(self, act: Act, chance: random.Random) -> None:
        directory = self.node.directory
        match act:
            case Act.CLUTTER:
                path = self.node.path(chance.choice(SOCKETS))
                if directory.exists(path) or not directory.exists(path.rpartition("/")[0]):
                    return
                if chance.random() < 0.5:
                    directory.write(path)
                else:
                    directory.symlink(self.node.path("a.sock"), path)
            case Act.REMOVE_DIRECTORY:
                self._remove(self.node.path(chance.choice(DIRECTORIES)))
            case _:
                directory.withhold_self_events = chance.random() < 0.2
                self._remove(self.node.root)
                self.sentinels.all_gone()
                self.sentinels.excuse(35.0)
                if chance.random() < 0.5:
                    directory.mkdir(self.node.root)
                directory.withhold_self_events = False

    def _remove(self, path: str) -> None:
        if not self.node.directory.exists(path):
            return
        self.node.directory.remove_tree(path)
        for other in [other for other in self.plugs if other.startswith(path + "/")]:
            self.plugs.pop(other).crash()

    def _disturb_events(self, act: Act, chance: random.Random) -> None:
        directory = self.node.directory
        match act:
            case Act.DEAF:
                directory.deaf = not directory.deaf
                # The kernel says when it loses events. Where it does not, a socket that is replaced by one with its
                # inode cannot be told from one whose attributes changed.
                directory.reuse_inodes = not directory.deaf
                self.sentinels.excuse(12.0)
            case Act.HOLD:
                if directory.held:
                    directory.release()
                    self.backoff.touched()
                else:
                    directory.hold()
            case Act.OVERFLOW:
                if directory.deaf:
                    return
                directory.deaf = True
                # What happens here is lost, and made good for at once, since the overflow is told.
                self.sentinels.change()
                self._change_plugin(Act.RESTART, chance)
                directory.deaf = False
                directory.overflow()
            case Act.LOSE_WATCH:
                path = self.node.path(chance.choice(("", *DIRECTORIES))).rstrip("/")
                # The kernel never loses the word that a watch ended, unless it says that it lost something.
                if directory.exists(path) and not directory.deaf:
                    directory.lose_watch(path)
                    self.sentinels.excuse(12.0)
            case _:
                directory.watches_left = None if directory.watches_left is not None else chance.randrange(2)
                self.sentinels.excuse(32.0)

    def _fail_scans(self, act: Act, chance: random.Random) -> None:
        directory = self.node.directory
        errors = directory.scan_errors if act is Act.SCAN_ERROR else directory.look_errors
        self.sentinels.excuse(32.0)
        if errors:
            errors.clear()
            return
        names = ("", *DIRECTORIES) if act is Act.SCAN_ERROR else ("", *DIRECTORIES, *SOCKETS)
        path = self.node.path(chance.choice(names)).rstrip("/")
        errors[path] = chance.choice((errno.EIO, errno.EACCES, errno.EMFILE))

    # --- people, handlers, the daemon ---------------------------------------------------------------------------------

    def _retry(self, chance: random.Random) -> None:
        target = chance.choice((*NAMES, *map(self.node.path, SOCKETS)))

        async def retry() -> None:
            with trio.move_on_after(RETRY_BOUND) as scope:
                await self.node.supervisor.retry(target)
            if scope.cancelled_caught:
                self.trace.violated("answers", f"the retry of {target} was not answered in {RETRY_BOUND:g} s")

        # Who bears a name is known when it is asked, which is later.
        self.backoff.nudged(path=target if target.startswith("/") else None)
        self._start(retry)

    def _start(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run something that ends with the daemon at the latest."""

        async def within() -> None:
            with trio.CancelScope() as scope:
                self._scopes[scope] = None
                try:
                    await run()
                finally:
                    del self._scopes[scope]

        self._background.start_soon(within)

    def _script_handler(self, chance: random.Random) -> None:
        ask, name = chance.choice(ASKS), chance.choice(NAMES)
        behaviours: tuple[Behaviour, ...] = (
            Fails("no"),
            Fails(SystemExit(3)),
            Fails(BaseExceptionGroup("many", [ValueError("no")])),
            Hangs(),
            Takes(0.1),
            Takes(3.0),
            Takes(50.0),
        )
        if self.handler is not None:
            planned = self.handler.script.setdefault((ask, name), deque())
            planned.extend([chance.choice(behaviours)] * chance.choice((1, 1, 2)))

    async def _toggle_handler(self) -> None:
        if self.handler is None:
            if self._removal is None:
                await self._add_handler()
            return
        self.handler, self._removal = None, trio.Event()

        async def remove() -> None:
            with trio.move_on_after(REMOVAL_BOUND) as scope:
                ending = self.node._ending
                await self.node.supervisor.remove_handler(TYPE)
                if ending.is_set():
                    return  # A stop deregisters nothing (behaviour 42).
            if scope.cancelled_caught:
                self.trace.violated("answers", f"a handler was not removed in {REMOVAL_BOUND:g} s")
            elif left := [path for path, owing in self.handlers.owing.items() if owing.taken and not owing.orphan]:
                self.trace.violated("view", f"a handler was removed with {left}")
            if self._removal is not None:
                self._removal.set()
                self._removal = None

        self.sentinels.excuse(1.0)
        self.backoff.nudged()
        self._start(remove)

    async def _add_handler(self) -> None:
        self.backoff.nudged()
        self.sentinels.excuse(1.0)
        await self.node.supervisor.add_handler(TYPE, self._new_handler())

    def _crash(self, chance: random.Random) -> None:
        actor = chance.choice(ACTORS)
        path = self.node.path(chance.choice(SOCKETS))
        if actor == "registration" and chance.random() < 0.3:
            self.node.network.crashes += 1
            return
        if not self.node.crash(actor, path, TYPE):
            return
        match actor:
            case "reconciler":
                self.sentinels.excuse(13.0)
                self.handlers.orphan()
            case _:
                self.sentinels.excuse(1.0)

    async def _restart_daemon(self, *, kill: bool) -> None:
        began = trio.current_time()
        await (self.node.kill() if kill else self.node.stop())
        if trio.current_time() - began > STOP_BOUND:
            self.trace.violated("answers", f"the daemon took {trio.current_time() - began:g} s to end")
        for scope in tuple(self._scopes):
            scope.cancel()
        self._removal = None
        if self.handlers.under_way:
            self.trace.violated("leak", f"the daemon ended during {self.handlers.under_way}")
        self.handlers.forget()
        self.backoff.forget()
        self.sentinels.give_up()
        self.sentinels.excuse(1.0)
        await self.node.start(handlers={TYPE: self._new_handler()})
        self.node.watch_crashes()

    # --- the end ------------------------------------------------------------------------------------------------------

    async def _calm_down(self) -> None:
        """The faults stop, and every plugin is well."""
        self.trace.line("calm")
        directory, network = self.node.directory, self.node.network
        directory.deaf, directory.watches_left, directory.crashes = False, None, 0
        directory.scan_errors.clear()
        directory.look_errors.clear()
        directory.release()
        self.backoff.touched()
        network.crashes = network.exhausted = 0
        if self.handler is not None:
            self.handler.script.clear()
        if self._removal is not None:
            await self._removal.wait()
        if self.handler is None:
            await self._add_handler()
        for path, plugin in self.plugs.items():
            self._mend(path, plugin)

    def _mend(self, path: str, plugin: PluggedIn) -> None:
        assert isinstance(plugin.plugin, FakePlugin)
        fake = plugin.plugin
        parked = fake.error.status is Status.UNIMPLEMENTED
        # Conversations that are under way are with the old one.
        fake.get_info_fails = fake.notify_fails = 0
        fake.hang = fake.die = None
        fake.delay = 0.0
        plugin.plugin = FakePlugin(plugin.plugin.type, plugin.plugin.name, plugin.plugin.versions)
        plugin.accepting, plugin.seconds_per_byte = Accepting.SERVES, 0.0
        if not plugin.alive:
            plugin.listen()
        if parked:
            # It is not tried again before it changes, or somebody asks (behaviour 28).
            self.node.directory.chmod(path)
            self.backoff.touched(path)

    def valid(self) -> dict[str, str]:
        """The names of those that are there and well, by path, once all is calm."""
        found = {path: plugin.plugin for path, plugin in (*self.plugs.items(), *self.sentinels.plugs.items())}
        return {
            path: fake.name
            for path, fake in found.items()
            if isinstance(fake, FakePlugin)
            and fake.type == TYPE
            and fake.name.isprintable()
            and 0 < len(fake.name) < 254
        }

    def unplug_all(self) -> None:
        """Every plugin ends, and removes its socket."""
        for plugin in (*self.plugs.values(), *self.sentinels.plugs.values()):
            plugin.stop()
        with suppress(FileNotFoundError):
            self.node.directory.remove_tree(self.node.path("sub"))
        self.plugs.clear()
        self.sentinels.all_gone()

    def registered_states(self) -> dict[str, int]:
        """The generations of those that are shown as registered, by path, the built-in types left out."""
        shown = self.node.shown(StateName.REGISTERED)
        return {path: status.generation for path, status in shown.items() if status.type == TYPE}

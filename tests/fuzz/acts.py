"""What a script does to a node: to plugins and their connections, to files, and to inotify events and scans."""

from __future__ import annotations

import errno
import math
import random
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

import attrs
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from plugind.actors.simulation.network import Accepting
from plugind.actors.simulation.node import SimulatedNode
from plugind.actors.simulation.plugins import FakePlugin, PluggedIn
from plugind.tests.fuzz.backoff_oracle import BackoffOracle
from plugind.tests.fuzz.crash_oracle import CrashOracle
from plugind.tests.fuzz.directory_acts import DirectoryActs
from plugind.tests.fuzz.generation_oracle import GenerationOracle
from plugind.tests.fuzz.plugs import Plugs
from plugind.tests.fuzz.script import (
    DIRECTORIES,
    ELSEWHERE,
    ENDPOINTS,
    NAMES,
    PRIVILEGED,
    SOCKETS,
    TRUSTED,
    TYPE,
    UNTRUSTED,
    Act,
    Fault,
)
from plugind.tests.fuzz.sentinels import Sentinels
from plugind.tests.fuzz.serving_oracle import ServingOracle

#: What may happen to connections, besides that they are served later.
_ACCEPTING: Final = (
    Accepting.SERVES,
    Accepting.SILENT,
    Accepting.CLOSES,
    Accepting.BACKLOG_FULL,
    Accepting.DENIED,
)


@attrs.define(eq=False)
class Acts:
    """The actions of a script on one node, and the facts about them that the oracles need."""

    _node: SimulatedNode
    _plugs: Plugs
    _sentinels: Sentinels
    _backoff: BackoffOracle
    _crashes: CrashOracle
    _serving: ServingOracle
    _generations: GenerationOracle
    _directories: DirectoryActs
    #: The faults that the script may use.
    _faults: Collection[Fault]
    #: When events that were kept back arrived last.
    released_at: float = attrs.field(init=False, default=-math.inf)

    def disturbed(self) -> bool:
        """Whether a fault affects the whole node, so that plugins may be registered late."""
        directory = self._node.directory
        return bool(
            directory.dropping_events
            or directory.delaying_events
            or directory.scan_errors
            or directory.look_errors
            or directory.withhold_self_events
            or directory.inotify.watches_left is not None
            or self._directories.frozen()
            or self._node.network.exhausted
            or self._node.network.crashes
        )

    def end_faults(self) -> None:
        """Let events arrive, watches be had, scans and dials succeed, from now on."""
        directory, network = self._node.directory, self._node.network
        directory.resume_events()
        for path in self._directories.paths():
            self._directories.mend(path)
        directory.inotify.watches_left, directory.crashes = None, 0
        directory.scan_errors.clear()
        directory.look_errors.clear()
        self._release_events()
        network.crashes = network.exhausted = 0
        network.before_dial.clear()
        directory.before_scan.clear()

    def _release_events(self) -> None:
        if self._node.directory.delaying_events:
            self.released_at = trio.current_time()
        self._node.directory.release_events()
        self._backoff.touched()

    # --- plugins ------------------------------------------------------------------------------------------------------

    def change_plugin(self, act: Act, chance: random.Random) -> None:
        """Start, stop, restart or move a plugin, or touch its socket."""
        path = self._node.path(chance.choice(SOCKETS))
        plugin = self._plugs.by_path.get(path)
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
                del self._plugs.by_path[path]
            case Act.LISTEN:
                plugin.listen()
            case Act.DIE:
                self._end(plugin, chance)
            case Act.RENAME:
                self._rename(plugin, self._node.path(chance.choice(SOCKETS)))
            case Act.UNLINK:
                plugin.unlink()
                del self._plugs.by_path[path]
            case _:
                self._node.directory.chmod(path)
                self._backoff.touched(path)
        if act is not Act.TOUCH:
            self._plugs.faulty.add(path)
            self._restarted(path)

    def change_user(self, chance: random.Random) -> None:
        """Start or restart a plugin as another user, or let it change its user and listen anew (faults 40 and 80)."""
        path = self._node.path(chance.choice(SOCKETS))
        uid = chance.choice((*PRIVILEGED, *TRUSTED, *TRUSTED, *UNTRUSTED))
        plugin = self._plugs.by_path.get(path)
        if plugin is None:
            self._plug(path, chance, uid)
        elif chance.random() < 0.5:
            self._become(plugin, uid)
        else:
            plugin.plugin = self._fake(path, chance)
            if chance.random() < 0.5:
                # The second connection is there to notify it.
                plugin.plugin.notify_fails = 1
                other = chance.choice((*PRIVILEGED, *TRUSTED, *UNTRUSTED))
                become = partial(self._become, plugin, other)
                self._node.network.before_dial[path] = partial(self._before_next_dial, path, become)
            plugin.restart(uid=uid)
            self._restarted(path)
        self._plugs.faulty.add(path)

    def change_endpoint(self, chance: random.Random) -> None:
        """Start or restart a plugin with an endpoint elsewhere, or let an endpoint come or go (faults 43 and 79)."""
        if chance.random() < 0.4:
            self._toggle_driver(chance.choice(ENDPOINTS))
            return
        path = self._node.path(chance.choice(SOCKETS))
        endpoint = chance.choice((*ENDPOINTS, *ENDPOINTS, *ELSEWHERE, self._node.path(chance.choice(SOCKETS))))
        plugin = self._plugs.by_path.get(path)
        fake, uid = FakePlugin(TYPE, chance.choice(NAMES), endpoint=endpoint), chance.choice((0, 0, *TRUSTED))
        if plugin is None:
            self._plug(path, chance, uid)
            self._plugs.by_path[path].plugin = fake
        else:
            plugin.plugin = fake
            plugin.restart(uid=uid)
            self._restarted(path)
        self._plugs.faulty.add(path)

    def give_directory(self, chance: random.Random) -> None:
        """Give a directory to a trusted user, or back to root; start a plugin of some user there (fault 3)."""
        path = self._directories.give(chance)
        inside = [socket for socket in map(self._node.path, SOCKETS) if path is not None and socket.startswith(path)]
        if not inside or chance.random() < 0.3:
            return
        socket, uid = chance.choice(inside), chance.choice((0, *TRUSTED, *TRUSTED, *TRUSTED))
        plugin = self._plugs.by_path.get(socket)
        if plugin is None:
            self._plug(socket, chance, uid)
        else:
            plugin.plugin = self._fake(socket, chance)
            plugin.restart(uid=uid)
            self._restarted(socket)
        self._plugs.faulty.add(socket)

    def _toggle_driver(self, endpoint: str) -> None:
        driver = self._plugs.drivers.pop(endpoint, None)
        if driver is None:
            self._plugs.drivers[endpoint] = self._node.plug(endpoint, FakePlugin(TYPE, "driver"))
        else:
            driver.stop()

    def _before_next_dial(self, path: str, act: Callable[[], None]) -> None:
        self._node.network.before_dial[path] = act

    def _become(self, plugin: PluggedIn, uid: int) -> None:
        if self._plugs.by_path.get(plugin.path) is plugin and self._node.directory.exists(plugin.path):
            plugin.become(uid)
            self._plugs.changed_users.add(plugin)

    def _restarted(self, path: str) -> None:
        if self._is_unseen():
            # A new socket with the old inode, and no event, looks like the old one with other attributes.
            self._backoff.touched(path)

    def _end(self, plugin: PluggedIn, chance: random.Random) -> None:
        """Kill a plugin with its socket file left behind, close its listener, or let another process have that."""
        match chance.randrange(4):
            case 0:
                plugin.close_listener()
            case 1:
                plugin.hand_over()
            case _:
                if plugin.serves_itself:
                    self._serving.killed(plugin.path)
                plugin.crash()

    def race(self, act: Act, chance: random.Random) -> None:
        """Let plugins replace their sockets at a bad moment: between watch and listing, or between look and dial."""
        match act:
            case Act.START_AMID:
                for socket in chance.sample(SOCKETS, 3):
                    self._plug(self._node.path(socket), chance)
                    self._node.directory.before_scan.append(partial(self._replace, self._node.path(socket)))
            case Act.REPLACE_AT_SCAN:
                socket = chance.choice(SOCKETS)
                self._node.directory.before_scan.append(partial(self._replace, self._node.path(socket)))
            case _:
                path = self._node.path(chance.choice(SOCKETS))
                self._node.network.before_dial[path] = partial(self._replace, path)

    def _replace(self, path: str) -> None:
        plugin = self._plugs.by_path.get(path)
        if plugin is None:
            return
        plugin.restart()
        self._plugs.faulty.add(path)
        # Where files have no handles, a look before the events takes a new socket with the old inode for the old one
        # with other attributes.
        self._backoff.touched(path)

    def _plug(self, path: str, chance: random.Random, uid: int = 0) -> None:
        if self._node.directory.exists(path):
            self._node.directory.unlink(path)
        if not self._is_unseen():
            # Otherwise the daemon may still take it for the plugin that was there before.
            self._plugs.faulty.discard(path)
        listening = chance.random() < 0.9 or Fault.PLUGINS not in self._faults
        self._plugs.adopt(path, self._node.plug(path, self._fake(path, chance), listening=listening, uid=uid))

    def _rename(self, plugin: PluggedIn, new: str) -> None:
        old = plugin.path
        directory = self._node.directory
        if new == old or not directory.exists(new.rpartition("/")[0]):
            return
        directory.rename(old, new)
        self._generations.moved(old)
        self._generations.moved(new)
        for path in (old, new):
            self._crashes.forget(path)
        if self._is_unseen():
            self._backoff.touched(new)
        del self._plugs.by_path[old]
        over = self._plugs.by_path.pop(new, None)
        if over is not None:
            over.crash()
        self._plugs.faulty.add(new)
        self._plugs.adopt(new, plugin)

    def _fake(self, path: str, chance: random.Random) -> FakePlugin:
        fake = FakePlugin(TYPE, chance.choice(NAMES), [f"1.{chance.randrange(9)}.0"])
        if Fault.PLUGINS not in self._faults or chance.random() < 0.4:
            return fake
        self._plugs.faulty.add(path)
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

    def disturb(self, act: Act, chance: random.Random) -> None:
        """Break connections, slow them down, or refuse them."""
        if act is Act.EXHAUST:
            self._node.network.exhausted = chance.randrange(1, 4)
            return
        if not self._plugs.by_path:
            return
        path = chance.choice(sorted(self._plugs.by_path))
        plugin = self._plugs.by_path[path]
        self._plugs.faulty.add(path)
        match act:
            case Act.RESET:
                plugin.reset()
            case Act.HALF_CLOSE:
                plugin.half_close()
            case Act.ACCEPT:
                self._accept(path, plugin, chance)
            case _:
                plugin.seconds_per_byte = chance.choice((0.001, 0.02, 1.0))

    def _accept(self, path: str, plugin: PluggedIn, chance: random.Random) -> None:
        """Change what happens to connections, or start the plugin anew, so that it listens and serves later."""
        plugin.accepting = chance.choice(_ACCEPTING)
        if chance.random() < 0.5 or not self._node.directory.exists(path):
            return
        # That is within GetInfo's second, or within the time of the dial, or later. Some only read from then on.
        seconds = chance.choice((0.05, 0.4, 0.7, 3.0, 9.3, 12.0))
        plugin.accept_after(seconds, chance.choice((Accepting.SERVES, Accepting.SERVES, Accepting.SILENT)))
        plugin.restart()
        self._restarted(path)

    def mend_plugins(self) -> None:
        """End the faults of all plugins, and let all endpoints be there."""
        for endpoint in ENDPOINTS:
            if endpoint not in self._plugs.drivers:
                self._toggle_driver(endpoint)
        for path, plugin in self._plugs.by_path.items():
            self._mend(path, plugin)

    def _mend(self, path: str, plugin: PluggedIn) -> None:
        assert isinstance(plugin.plugin, FakePlugin)
        fake = plugin.plugin
        parked = fake.error.status is Status.UNIMPLEMENTED
        if plugin in self._plugs.changed_users or plugin.uid not in PRIVILEGED:
            # The daemon learns of that, or of whose directory it is in, at the next connection only, and a parked
            # plugin is not connected to.
            self._replace(path)
        # Conversations that are under way use the old object.
        fake.get_info_fails = fake.notify_fails = 0
        fake.hang = fake.die = None
        fake.delay = 0.0
        plugin.plugin = FakePlugin(plugin.plugin.type, plugin.plugin.name, plugin.plugin.versions)
        plugin.accepting, plugin.seconds_per_byte = Accepting.SERVES, 0.0
        if not plugin.alive:
            plugin.listen()
        if parked:
            # The daemon does not try it again before its socket changes or a retry is asked for (behaviour 28).
            self._node.directory.chmod(path)
            self._backoff.touched(path)

    def _is_unseen(self) -> bool:
        """Whether the daemon may not see now what changes."""
        return (
            self._node.directory.dropping_events or self._node.directory.delaying_events or self._directories.frozen()
        )

    # --- files, events and scans --------------------------------------------------------------------------------------

    def change_files(self, act: Act, chance: random.Random) -> None:
        """Add files that are no sockets, or remove directories."""
        directory = self._node.directory
        match act:
            case Act.CLUTTER:
                path = self._node.path(chance.choice(SOCKETS))
                if directory.exists(path) or not directory.exists(path.rpartition("/")[0]):
                    return
                kind = chance.random()
                if kind < 0.5:
                    directory.write(path)
                else:
                    # The other half of the links leads to a directory, and counts as a plain file does.
                    directory.symlink(self._node.path("a.sock") if kind < 0.75 else self._node.root, path)
            case Act.REMOVE_DIRECTORY:
                self._remove(self._node.path(chance.choice(DIRECTORIES)))
            case _:
                directory.withhold_self_events = chance.random() < 0.2
                self._remove(self._node.root)
                self._sentinels.all_gone()
                self._sentinels.grant_grace(35.0)
                if chance.random() < 0.5:
                    directory.mkdir(self._node.root)
                directory.withhold_self_events = False

    def _remove(self, path: str) -> None:
        if not self._node.directory.exists(path):
            return
        self._node.directory.remove_tree(path)
        self._generations.removed(path)
        self._crashes.removed(path)
        for other in [other for other in self._plugs.by_path if other.startswith(path + "/")]:
            self._plugs.by_path.pop(other).crash()

    def disturb_events(self, act: Act, chance: random.Random) -> None:
        """Drop or delay events, or end watches."""
        directory = self._node.directory
        match act:
            case Act.DROP_EVENTS:
                if directory.dropping_events:
                    directory.resume_events()
                else:
                    directory.drop_events()
                # The kernel reports that it lost events. Where it does not, a socket that is replaced by one with its
                # inode looks like one whose attributes changed.
                directory.reuse_inodes = not (directory.dropping_events or self._directories.frozen())
                self._sentinels.grant_grace(12.0)
            case Act.DELAY_EVENTS:
                if directory.delaying_events:
                    self._release_events()
                else:
                    directory.delay_events()
            case Act.OVERFLOW:
                if directory.dropping_events:
                    return
                directory.drop_events()
                # The events of what happens here are lost; the overflow is reported, so the daemon recovers at once.
                self._sentinels.change()
                self.change_plugin(Act.RESTART, chance)
                directory.resume_events()
                directory.overflow()
            case Act.LOSE_WATCH:
                path = self._node.path(chance.choice(("", *DIRECTORIES))).rstrip("/")
                # The kernel never loses the event that a watch ended, unless it reports that it lost events.
                if directory.exists(path) and not directory.dropping_events:
                    directory.lose_watch(path)
                    self._sentinels.grant_grace(12.0)
            case _:
                directory.inotify.watches_left = (
                    None if directory.inotify.watches_left is not None else chance.randrange(2)
                )
                self._sentinels.grant_grace(32.0)

    def fail_scans(self, act: Act, chance: random.Random) -> None:
        """Let scans or looks fail, or succeed again."""
        directory = self._node.directory
        errors = directory.scan_errors if act is Act.SCAN_ERROR else directory.look_errors
        self._sentinels.grant_grace(32.0)
        if errors:
            errors.clear()
            return
        names = ("", *DIRECTORIES) if act is Act.SCAN_ERROR else ("", *DIRECTORIES, *SOCKETS)
        path = self._node.path(chance.choice(names)).rstrip("/")
        errors[path] = chance.choice((errno.EIO, errno.EACCES, errno.EMFILE))

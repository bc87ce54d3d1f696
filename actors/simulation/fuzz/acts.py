"""What a script does to a node: to plugins and their connections, to files, and to inotify events and scans.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import errno
import random

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ..network import Accepting
from ..plugins import FakePlugin, PluggedIn
from .script import Act, Fault
from .stage import DIRECTORIES, NAMES, SOCKETS, TYPE, Stage

# --- plugins ----------------------------------------------------------------------------------------------------------


def change_plugin(stage: Stage, act: Act, chance: random.Random) -> None:
    """A plugin comes, goes, restarts or is moved; or its socket is touched."""
    path = stage.node.path(chance.choice(SOCKETS))
    plugin = stage.plugs.get(path)
    if plugin is None:
        if act in (Act.PLUG, Act.RESTART, Act.RENAME):
            _plug(stage, path, chance)
        return
    match act:
        case Act.PLUG | Act.RESTART:
            plugin.plugin = _fake(stage, path, chance)
            plugin.restart()
        case Act.STOP:
            plugin.stop()
            del stage.plugs[path]
        case Act.LISTEN:
            plugin.listen()
        case Act.DIE:
            plugin.crash()
        case Act.RENAME:
            _rename(stage, plugin, stage.node.path(chance.choice(SOCKETS)))
        case Act.UNLINK:
            plugin.unlink()
            del stage.plugs[path]
        case _:
            stage.node.directory.chmod(path)
            stage.backoff.touched(path)
    if act is not Act.TOUCH:
        stage.faulty.add(path)
        if stage.node.directory.dropping_events or stage.node.directory.delaying_events:
            # With its inode used again, and no event that tells, it is the same socket with other attributes.
            stage.backoff.touched(path)


def _plug(stage: Stage, path: str, chance: random.Random) -> None:
    if stage.node.directory.exists(path):
        stage.node.directory.unlink(path)
    if not (stage.node.directory.dropping_events or stage.node.directory.delaying_events):
        # Else it may still be taken for the one that was there before.
        stage.faulty.discard(path)
    listening = chance.random() < 0.9 or Fault.PLUGINS not in stage.faults
    stage.adopt(path, stage.node.plug(path, _fake(stage, path, chance), listening=listening))


def _rename(stage: Stage, plugin: PluggedIn, new: str) -> None:
    old = plugin.path
    directory = stage.node.directory
    if new == old or not directory.exists(new.rpartition("/")[0]):
        return
    directory.rename(old, new)
    if directory.dropping_events or directory.delaying_events:
        stage.backoff.touched(new)
    del stage.plugs[old]
    over = stage.plugs.pop(new, None)
    if over is not None:
        over.crash()
    stage.faulty.add(new)
    stage.adopt(new, plugin)


def _fake(stage: Stage, path: str, chance: random.Random) -> FakePlugin:
    fake = FakePlugin(TYPE, chance.choice(NAMES), [f"1.{chance.randrange(9)}.0"])
    if Fault.PLUGINS not in stage.faults or chance.random() < 0.4:
        return fake
    stage.faulty.add(path)
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


def disturb(stage: Stage, act: Act, chance: random.Random) -> None:
    """Connections break, trickle or are not to be had."""
    if act is Act.EXHAUST:
        stage.node.network.exhausted = chance.randrange(1, 4)
        return
    if not stage.plugs:
        return
    path = chance.choice(sorted(stage.plugs))
    plugin = stage.plugs[path]
    stage.faulty.add(path)
    match act:
        case Act.RESET:
            plugin.reset()
        case Act.HALF_CLOSE:
            plugin.half_close()
        case Act.ACCEPT:
            plugin.accepting = chance.choice(list(Accepting))
        case _:
            plugin.seconds_per_byte = chance.choice((0.001, 0.02, 1.0))


def mend(stage: Stage, path: str, plugin: PluggedIn) -> None:
    """The plugin at ``path`` is well from now on."""
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
        stage.node.directory.chmod(path)
        stage.backoff.touched(path)


# --- files, events and scans ------------------------------------------------------------------------------------------


def change_files(stage: Stage, act: Act, chance: random.Random) -> None:
    """Clutter comes, or directories go."""
    directory = stage.node.directory
    match act:
        case Act.CLUTTER:
            path = stage.node.path(chance.choice(SOCKETS))
            if directory.exists(path) or not directory.exists(path.rpartition("/")[0]):
                return
            if chance.random() < 0.5:
                directory.write(path)
            else:
                directory.symlink(stage.node.path("a.sock"), path)
        case Act.REMOVE_DIRECTORY:
            _remove(stage, stage.node.path(chance.choice(DIRECTORIES)))
        case _:
            directory.withhold_self_events = chance.random() < 0.2
            _remove(stage, stage.node.root)
            stage.sentinels.all_gone()
            stage.sentinels.grant_grace(35.0)
            if chance.random() < 0.5:
                directory.mkdir(stage.node.root)
            directory.withhold_self_events = False


def _remove(stage: Stage, path: str) -> None:
    if not stage.node.directory.exists(path):
        return
    stage.node.directory.remove_tree(path)
    for other in [other for other in stage.plugs if other.startswith(path + "/")]:
        stage.plugs.pop(other).crash()


def disturb_events(stage: Stage, act: Act, chance: random.Random) -> None:
    """Events are lost or late, or watches end."""
    directory = stage.node.directory
    match act:
        case Act.DROP_EVENTS:
            if directory.dropping_events:
                directory.resume_events()
            else:
                directory.drop_events()
            # The kernel says when it loses events. Where it does not, a socket that is replaced by one with its
            # inode cannot be told from one whose attributes changed.
            directory.reuse_inodes = not directory.dropping_events
            stage.sentinels.grant_grace(12.0)
        case Act.DELAY_EVENTS:
            if directory.delaying_events:
                directory.release_events()
                stage.backoff.touched()
            else:
                directory.delay_events()
        case Act.OVERFLOW:
            if directory.dropping_events:
                return
            directory.drop_events()
            # What happens here is lost, and recovered from at once, since the overflow is told.
            stage.sentinels.change()
            change_plugin(stage, Act.RESTART, chance)
            directory.resume_events()
            directory.overflow()
        case Act.LOSE_WATCH:
            path = stage.node.path(chance.choice(("", *DIRECTORIES))).rstrip("/")
            # The kernel never loses the word that a watch ended, unless it says that it lost something.
            if directory.exists(path) and not directory.dropping_events:
                directory.lose_watch(path)
                stage.sentinels.grant_grace(12.0)
        case _:
            directory.inotify.watches_left = None if directory.inotify.watches_left is not None else chance.randrange(2)
            stage.sentinels.grant_grace(32.0)


def fail_scans(stage: Stage, act: Act, chance: random.Random) -> None:
    """Scans or looks fail, or no longer do."""
    directory = stage.node.directory
    errors = directory.scan_errors if act is Act.SCAN_ERROR else directory.look_errors
    stage.sentinels.grant_grace(32.0)
    if errors:
        errors.clear()
        return
    names = ("", *DIRECTORIES) if act is Act.SCAN_ERROR else ("", *DIRECTORIES, *SOCKETS)
    path = stage.node.path(chance.choice(names)).rstrip("/")
    errors[path] = chance.choice((errno.EIO, errno.EACCES, errno.EMFILE))

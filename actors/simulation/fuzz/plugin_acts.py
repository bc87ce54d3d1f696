"""What a script does to plugins and their connections."""

from __future__ import annotations

import random

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ..network import Accepting
from ..plugins import FakePlugin, PluggedIn
from .script import Act, Fault
from .stage import NAMES, SOCKETS, TYPE, Stage


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
        stage.shaky.add(path)
        if stage.node.directory.dropping_events or stage.node.directory.delaying_events:
            # With its inode used again, and no event that tells, it is the same socket with other attributes.
            stage.backoff.touched(path)


def _plug(stage: Stage, path: str, chance: random.Random) -> None:
    if stage.node.directory.exists(path):
        stage.node.directory.unlink(path)
    if not (stage.node.directory.dropping_events or stage.node.directory.delaying_events):
        # Else it may still be taken for the one that was there before.
        stage.shaky.discard(path)
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
    stage.shaky.add(new)
    stage.adopt(new, plugin)


def _fake(stage: Stage, path: str, chance: random.Random) -> FakePlugin:
    fake = FakePlugin(TYPE, chance.choice(NAMES), [f"1.{chance.randrange(9)}.0"])
    if Fault.PLUGINS not in stage.faults or chance.random() < 0.4:
        return fake
    stage.shaky.add(path)
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
    stage.shaky.add(path)
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

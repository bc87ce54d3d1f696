"""A restart that notifies no plugin twice: ``Config.renotify`` false."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.actors.registration.notices import DEADLINE, MemoryNoticeStore
from plugind.protocol.errors import ConfigError, PluginError, StateError
from plugind.protocol.registration.following import NOT_TOLD_AGAIN
from plugind.protocol.registration.notices import NoticesByPath
from plugind.protocol.settings.config import Config
from plugind.supervisor import Supervisor
from plugind.testing import DEFAULT_CONFIG, Fails, FakeHandler, FakePlugin, PluggedIn, SimulatedNode
from plugind.tests.actors.registration.timelines import asks, notified, red, shown

KEEPS = attrs.evolve(DEFAULT_CONFIG, state="/state", renotify=False)
PATH = "/plugins/a.sock"


@attrs.define(eq=False)
class Disk(MemoryNoticeStore):
    """A store that can fail, or hang."""

    fails: bool = False
    hangs: bool = False
    removes: bool = True

    async def read(self) -> NoticesByPath:
        await self._access()
        return await super().read()

    async def write(self, kept: NoticesByPath) -> None:
        if kept or not self.removes:
            await self._access()
        await super().write(kept)

    async def _access(self) -> None:
        if self.hangs:
            await trio.sleep_forever()
        if self.fails:
            raise StateError("no space left on device")


@pytest.fixture
def handler() -> FakeHandler:
    return FakeHandler()


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def node(handler: FakeHandler, disk: Disk) -> SimulatedNode:
    node = SimulatedNode(KEEPS, handlers={"Colour": handler})
    node.notice_store = disk
    return node


async def registered(node: SimulatedNode) -> None:
    """Let all plugins be registered, and what was told to them be written."""
    await node.settled()
    await trio.sleep(1.0)


async def restart(node: SimulatedNode, *, kill: bool = False) -> None:
    """Restart the daemon, and let all plugins be registered."""
    await (node.kill() if kill else node.stop())
    await node.start()
    await registered(node)


@pytest.mark.parametrize("kill", [False, True])
async def test_a_restart_has_all_steps_but_the_notification_of_a_plugin_that_was_told(
    autojump_clock: MockClock, node: SimulatedNode, handler: FakeHandler, kill: bool
) -> None:
    async with node:
        plugin = node.plug("a.sock", red())
        await registered(node)
        for _ in range(2):
            await restart(node, kill=kill)
            status = shown(node)
            assert (status.state, status.reason) == ("registered", NOT_TOLD_AGAIN.reason)
    assert notified(plugin) == [(0.0, True)]
    assert [call.method for call in plugin.calls].count("GetInfo") == 3
    assert [ask for _, ask in asks(handler)] == 3 * ["validate", "register"]


async def test_a_stop_right_after_the_notification_still_writes_that(
    autojump_clock: MockClock, node: SimulatedNode
) -> None:
    async with node:
        plugin = node.plug("a.sock", red())
        await node.settled()
        await restart(node)
    assert len(notified(plugin)) == 1


def touch(node: SimulatedNode, plugin: PluggedIn) -> None:
    node.directory.chmod(PATH)


def listen_anew(node: SimulatedNode, plugin: PluggedIn) -> None:
    plugin.crash()
    plugin.listen()


def bind_anew(node: SimulatedNode, plugin: PluggedIn) -> None:
    plugin.restart()


def change_user(node: SimulatedNode, plugin: PluggedIn) -> None:
    plugin.become(500)


def change_version(node: SimulatedNode, plugin: PluggedIn) -> None:
    assert isinstance(plugin.plugin, FakePlugin)
    plugin.plugin.versions = ("1.2.0",)


def change_name(node: SimulatedNode, plugin: PluggedIn) -> None:
    assert isinstance(plugin.plugin, FakePlugin)
    plugin.plugin.name = "green"


def lose_the_notices(node: SimulatedNode, plugin: PluggedIn) -> None:
    node.notice_store.notices = {}


def reboot(node: SimulatedNode, plugin: PluggedIn) -> None:
    node.owners.boot_id = "another boot"


@pytest.mark.parametrize(
    "change",
    [touch, listen_anew, bind_anew, change_user, change_version, change_name, lose_the_notices, reboot],
)
async def test_whatever_has_changed_meanwhile_the_plugin_is_notified_again_and_from_then_on_not(
    autojump_clock: MockClock, node: SimulatedNode, change: Callable[[SimulatedNode, PluggedIn], None]
) -> None:
    async with node:
        plugin = node.plug("a.sock", red())
        await registered(node)
        await node.stop()
        change(node, plugin)
        await node.start()
        await registered(node)
        assert len(notified(plugin)) == 2
        await restart(node)
        assert len(notified(plugin)) == 2


async def test_a_kill_before_the_notification_is_written_has_the_plugin_notified_again(
    autojump_clock: MockClock, node: SimulatedNode
) -> None:
    async with node:
        plugin = node.plug("a.sock", red())
        await node.settled()
        await restart(node, kill=True)
    assert len(notified(plugin)) == 2


async def test_a_plugin_whose_answer_was_lost_is_notified_again(autojump_clock: MockClock, node: SimulatedNode) -> None:
    async with node:
        plugin = node.plug("a.sock", red(notify_fails=1))
        await registered(node)
        assert len(notified(plugin)) == 2
        await restart(node)
        assert len(notified(plugin)) == 2


@pytest.mark.parametrize("problem", ["fails", "hangs"])
async def test_a_disk_that_is_full_or_hangs_costs_only_the_notices(
    autojump_clock: MockClock, node: SimulatedNode, disk: Disk, problem: str
) -> None:
    async with node:
        plugin = node.plug("a.sock", red())
        await registered(node)
        setattr(disk, problem, True)
        await restart(node)
        assert shown(node).state == "registered"
        assert len(notified(plugin)) == 2
        setattr(disk, problem, False)
        await trio.sleep(60.0)
        if problem == "fails":
            await restart(node)
            assert len(notified(plugin)) == 2


async def test_a_plugin_that_was_refused_meanwhile_is_notified_when_it_is_registered_again(
    autojump_clock: MockClock, node: SimulatedNode, handler: FakeHandler
) -> None:
    async with node:
        plugin = node.plug("a.sock", red())
        await registered(node)
        handler.script("validate", Fails(PluginError("no")))
        await node.stop()
        await node.start()
        await trio.sleep(0.3)
        # It is told so only once nothing that is written says the opposite.
        assert [call for _, call in notified(plugin)] == [True, False]
        await node.kill()
        await node.start()
        await registered(node)
        assert [call for _, call in notified(plugin)] == [True, False, True]


async def test_a_plugin_is_not_told_that_it_is_refused_while_what_is_written_says_the_opposite(
    autojump_clock: MockClock, node: SimulatedNode, handler: FakeHandler, disk: Disk
) -> None:
    async with node:
        plugin = node.plug("a.sock", red())
        await registered(node)
        await node.stop()
        handler.script("validate", Fails(PluginError("no")))
        await node.start()
        disk.fails, disk.removes = True, False
        await trio.sleep(4.9)
        assert (shown(node).state, len(notified(plugin))) == ("notifying", 1)
        await trio.sleep(1.0)
        assert shown(node).state == "registered"
        assert [call for _, call in notified(plugin)] == [True, True]


async def test_a_plugin_that_was_deregistered_is_notified_again(
    autojump_clock: MockClock, node: SimulatedNode, handler: FakeHandler
) -> None:
    async with node:
        plugin = node.plug("a.sock", red())
        await registered(node)
        await node.supervisor.remove_handler("Colour")
        await node.supervisor.add_handler("Colour", handler)
        await registered(node)
        assert [call for _, call in notified(plugin)][-1] is True
        assert len([call for _, call in notified(plugin) if call]) == 2


async def test_a_daemon_that_notifies_again_leaves_nothing_to_a_later_one_that_does_not(
    handler: FakeHandler, autojump_clock: MockClock
) -> None:
    node = SimulatedNode(KEEPS, handlers={"Colour": handler})
    async with node:
        plugin = node.plug("a.sock", red())
        await registered(node)
        for renotify, times in ((True, 2), (False, 3), (False, 3)):
            node.config = attrs.evolve(KEEPS, renotify=renotify)
            await restart(node)
            assert len(notified(plugin)) == times


async def test_the_notices_of_plugins_that_have_gone_are_dropped(
    autojump_clock: MockClock, node: SimulatedNode, disk: Disk
) -> None:
    async with node:
        gone, removed, stays = (node.plug(f"{name}.sock", red(name)) for name in ("gone", "removed", "stays"))
        await registered(node)
        removed.stop()
        await trio.sleep(1.0)
        assert {*disk.notices} == {gone.path, stays.path}
        await node.stop()
        gone.stop()
        await node.start()
        await trio.sleep(590.0)
        assert {*disk.notices} == {gone.path, stays.path}
        await trio.sleep(20.0)
        assert {*disk.notices} == {stays.path}


async def test_a_start_does_not_wait_for_a_disk_that_hangs(
    autojump_clock: MockClock, node: SimulatedNode, disk: Disk
) -> None:
    disk.hangs = True
    async with node:
        assert trio.current_time() == DEADLINE


def test_not_to_notify_again_needs_a_place_that_says_who_was_notified() -> None:
    with pytest.raises(ConfigError, match="needs a state"):
        Supervisor(Config(renotify=False))

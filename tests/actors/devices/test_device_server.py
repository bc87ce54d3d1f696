"""The device server, in virtual time: calls of Register, their answers, and what happens to the socket."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.actors.simulation.device_directory import LOST, MemoryDeviceDirectory
from plugind.protocol.errors import ConfigError, PluginError
from plugind.protocol.logs.limits import LogLimits
from plugind.protocol.logs.lines import SILENT, Level, Logger
from plugind.protocol.messages.status import RootStatus
from plugind.protocol.settings.config import DevicePluginDirectory
from plugind.protocol.trust.users import Trust
from plugind.testing import DEFAULT_CONFIG, Fails, FakeHandler, FakePlugin, Hangs, PluggedIn, SimulatedNode, Takes
from plugind.tests.actors.handlers.calling import Lines

DIRECTORY = "/dp"
GPU = "vendor.com/gpu"
CONFIG = attrs.evolve(DEFAULT_CONFIG, device_plugins=DevicePluginDirectory(DIRECTORY))
OK = ("OK", "")
REFUSED = "a call of Register was refused"


class Node(SimulatedNode):
    """A node with a directory of device plugins."""

    def __init__(self, handler: FakeHandler, log: Logger = SILENT) -> None:
        super().__init__(attrs.evolve(CONFIG, trust=Trust((2001, 2002))), handlers={"DevicePlugin": handler}, log=log)
        self.handler = handler

    @property
    def calls(self) -> MemoryDeviceDirectory:
        assert self.device_directory is not None
        return self.device_directory

    def serve(self, endpoint: str, pid: int = 999) -> PluggedIn:
        """Start a device plugin's process, which listens on its socket."""
        return self.plug(f"{DIRECTORY}/{endpoint}", FakePlugin("DevicePlugin", GPU), pid=pid)

    async def has(self, *endpoints: str) -> None:
        """Have device plugins that are registered."""
        for endpoint in endpoints:
            self.serve(endpoint)
            self.register(endpoint, GPU)
        await self.settled()

    async def shown(self) -> RootStatus:
        (root,) = [root for root in (await self.snapshot()).roots if root.root == DIRECTORY]
        return root


def scripted(behaviour: Fails | Hangs | Takes) -> FakeHandler:
    """Return a handler whose register behaves so."""
    handler = FakeHandler()
    handler.script("register", behaviour)
    return handler


@asynccontextmanager
async def running(handler: FakeHandler | None = None) -> AsyncIterator[Node]:
    async with Node(handler or FakeHandler()) as node:
        await node.settled()
        yield node


# --- Register ---------------------------------------------------------------------------------------------------------


async def test_a_call_may_come_before_its_socket_is_there(autojump_clock: MockClock) -> None:
    """Consumers B.1: the kubelet dials for 10 seconds; some plugins call before they listen."""
    async with running() as node:
        attempt = node.register("a.sock", GPU)
        await trio.sleep(9.5)
        assert attempt.answers == []
        node.serve("a.sock")
        await node.settled()
        assert attempt.answers == [OK]


@pytest.mark.parametrize(
    ("later", "answer"), [("vendor.com/nic", ("UNAVAILABLE", "the plugin has called Register again")), (GPU, OK)]
)
async def test_a_call_that_waits_for_its_socket_replaces_no_later_one(
    later: str, answer: tuple[str, str], autojump_clock: MockClock
) -> None:
    """Seed 21415: what called last is registered, although the earlier call looks for its socket after that."""
    async with running() as node:
        earlier = node.register("a.sock", GPU, pid=901)
        await trio.sleep(0.55)
        node.serve("a.sock")
        last = node.register("a.sock", later, pid=902)
        await trio.sleep(1.0)
        assert (earlier.answers, last.answers) == ([answer], [OK])
        status = node.status(f"{DIRECTORY}/a.sock")
        assert status is not None
        assert (status.state, status.name, status.pid) == ("registered", later, 902)


async def test_a_call_whose_socket_never_comes_is_told_so_after_ten_seconds(autojump_clock: MockClock) -> None:
    async with running() as node:
        attempt = node.register("a.sock", GPU)
        await attempt.done.wait()
        assert (attempt.answers, node.now) == (
            [("UNAVAILABLE", "failed to dial device plugin: no socket at /dp/a.sock after 10 s")],
            10.0,
        )


async def test_the_reason_names_a_socket_that_plugind_has_deleted_when_it_started(autojump_clock: MockClock) -> None:
    """A plugin that survives the restart of the daemon and does not bind its socket again cannot know why."""
    async with running() as node:
        await node.stop()
        node.directory.bind(f"{DIRECTORY}/a.sock")
        await node.start()
        await node.settled()
        for _ in range(2):
            attempt = node.register("a.sock", GPU)
            await attempt.done.wait()
            assert attempt.answers[0][1].endswith(
                "after 10 s; plugind has deleted the one that was there when it started: restart the plugin"
            )
        plugin = node.serve("a.sock")
        await node.register("a.sock", GPU).done.wait()
        plugin.unlink()
        attempt = node.register("a.sock", GPU)
        await attempt.done.wait()
        assert attempt.answers[0][1].endswith("after 10 s"), "the plugin has made it again, and removed it itself"


async def test_a_registration_that_takes_longer_than_16_seconds_is_undone(autojump_clock: MockClock) -> None:
    async with running(scripted(Hangs())) as node:
        node.serve("a.sock")
        attempt = node.register("a.sock", GPU)
        await attempt.done.wait()
        assert (attempt.answers, node.now) == ([("DEADLINE_EXCEEDED", "the registration took longer than 16 s")], 16.0)
        await trio.sleep(300)
        assert node.status(f"{DIRECTORY}/a.sock") is None


async def test_a_refusal_of_the_handler_is_told_in_plain_words_and_the_plugin_parks(autojump_clock: MockClock) -> None:
    async with running(scripted(Fails(PluginError("failed to dial device plugin: refused")))) as node:
        node.serve("a.sock")
        attempt = node.register("a.sock", GPU)
        await node.settled()
        assert attempt.answers == [("UNAVAILABLE", "failed to dial device plugin: refused")]
        status = node.status(f"{DIRECTORY}/a.sock")
        assert status is not None
        assert (status.state, status.reason) == (
            "parked",
            "failed to dial device plugin: refused: the plugin has to call Register again",
        )


async def test_a_refused_call_is_logged_with_its_process_and_a_flood_of_them_is_limited(
    autojump_clock: MockClock,
) -> None:
    """Faults 48 and 91."""
    log = Lines()
    async with Node(FakeHandler(), log) as node:
        await node.settled()
        node.register("../x", GPU, pid=812)
        await node.settled()
        ((level, line),) = log.with_text(REFUSED)
        assert line["reason"] == f'the endpoint "../x" is not a file name in {DIRECTORY}'
        shown = [line[key] for key in ("path", "name", "endpoint", "pid")]
        assert (level, shown) == (Level.WARNING, [f"{DIRECTORY}/kubelet.sock", GPU, "../x", 812])
        for number in range(300):
            node.register(f"../{'x' * number}", "y" * 300, pid=1000 + number)
            await node.settled()
        assert len(log.with_text(REFUSED)) == 1 + LogLimits().same


async def test_two_calls_of_the_same_socket_at_once_are_one_registration(autojump_clock: MockClock) -> None:
    """TestDuplicateRegistration of 1.37, and consumers B.3, consequence 4."""
    async with running(scripted(Takes(1.0))) as node:
        node.serve("a.sock")
        attempts = [node.register("a.sock", GPU), node.register("a.sock", GPU)]
        await node.settled()
        attempts.append(node.register("a.sock", GPU))
        await node.settled()
        assert [attempt.answers for attempt in attempts] == [[OK]] * 3
        assert [call.ask for call in node.handler.calls] == ["validate", "register"]


async def test_a_call_whose_socket_goes_is_cancelled_and_blocks_nobody(autojump_clock: MockClock) -> None:
    async with running(scripted(Takes(5.0))) as node:
        plugin = node.serve("a.sock")
        attempt = node.register("a.sock", GPU)
        await trio.sleep(0.5)
        plugin.unlink()
        await attempt.done.wait()
        assert attempt.answers == [("UNAVAILABLE", "/dp/a.sock was removed before the plugin was registered")]
        await trio.sleep(30)
        assert node.status(f"{DIRECTORY}/a.sock") is None
        assert [call.ask for call in node.handler.calls] == ["validate", "register", "deregister"]


# --- the socket -------------------------------------------------------------------------------------------------------


async def test_a_kubelet_socket_that_is_removed_is_made_again_after_a_second(autojump_clock: MockClock) -> None:
    async with running() as node:
        await node.has("a.sock")
        before = node.calls.serving
        node.calls.remove_socket()
        await trio.sleep(1.5)
        assert (await node.shown()).ready is False
        await trio.sleep(1.0)
        shown = await node.shown()
        assert (shown.watching, shown.ready, shown.remade) == ("serving", True, 1)
        assert node.calls.serving is not before
        again = node.register("a.sock", GPU)
        await node.settled()
        assert again.answers == [OK]
        assert [call.ask for call in node.handler.calls] == ["validate", "register"]


async def test_a_server_whose_socket_was_replaced_lets_its_plugins_go(autojump_clock: MockClock) -> None:
    """Two consumers on one directory take updates from each other (consumers B.3, consequence 5)."""
    async with running() as node:
        await node.has("a.sock")
        node.calls.take(4711)
        await trio.sleep(2.0)
        text = "/dp/kubelet.sock was replaced, by pid 4711: device plugins are let go until plugind is started again"
        shown = await node.shown()
        assert (shown.watching, shown.ready, shown.reason) == ("taken", False, text)
        assert node.status(f"{DIRECTORY}/a.sock") is None
        assert [call.ask for call in node.handler.calls] == ["validate", "register", "deregister"]
        node.calls.give_back()
        node.crash("reconciler")
        await trio.sleep(60.0)
        assert (await node.shown()).watching == "taken"
        assert node.register("a.sock", GPU).answers == [LOST]


async def test_a_directory_that_cannot_be_had_is_tried_again_with_a_backoff(autojump_clock: MockClock) -> None:
    node = Node(FakeHandler())
    node.calls.error = OSError(errno.EACCES, "Permission denied")
    async with node:
        await trio.sleep(0.5)
        shown = await node.shown()
        assert (shown.watching, shown.ready, shown.reason) == ("unavailable", False, "Permission denied")
        node.calls.error = None
        await trio.sleep(2.0)
        assert (await node.shown()).watching == "serving"


async def test_a_directory_that_may_not_be_taken_ends_the_start(autojump_clock: MockClock) -> None:
    node = Node(FakeHandler())
    node.calls.taken_by = 7
    with pytest.raises(ConfigError) as caught:
        async with node:
            pass
    assert str(caught.value) == (
        "pid 7 serves /dp/kubelet.sock: stop it, or give plugind another directory with --device-plugins=DIR"
    )


# --- crashes ----------------------------------------------------------------------------------------------------------


async def test_after_a_crash_of_the_reconciler_what_was_registered_is_reported_again(autojump_clock: MockClock) -> None:
    """Fault 85: no scan finds it, and the plugins have no sign to call again."""
    async with running() as node:
        await node.has("a.sock", "b.sock")
        node.crash("reconciler")
        node.directory.unlink(f"{DIRECTORY}/b.sock")
        await trio.sleep(5.0)
        assert node.state(f"{DIRECTORY}/a.sock") == "registered"
        assert node.status(f"{DIRECTORY}/b.sock") is None
        assert node.register("a.sock", GPU).answers == []
        await node.settled()
        assert [attempt.answers for attempt in node.calls.attempts] == [[OK]] * 3


async def test_what_is_reported_again_is_tried_until_it_is_registered_again(autojump_clock: MockClock) -> None:
    """The plugin was told that it is registered, and does not call again."""
    async with running() as node:
        await node.has("a.sock")
        node.handler.script("register", Fails(PluginError("no")), times=3)
        node.crash("reconciler")
        await trio.sleep(60.0)
        assert node.handler.asked().count("register") == 5
        assert node.state(f"{DIRECTORY}/a.sock") == "registered"


@pytest.mark.parametrize("reconcilers", [1, 3])
@pytest.mark.parametrize("takes", [0.5, 3.0])
async def test_calls_under_way_outlive_crashes_of_the_reconciler(
    reconcilers: int, takes: float, autojump_clock: MockClock
) -> None:
    """Fault 85: whether the call waits for its socket, for its turn or for the handler. Each is answered once, and with
    what became of it."""
    async with running() as node:
        node.handler.always("register", Takes(takes))
        node.serve("a.sock")
        attempts = [node.register("a.sock", GPU), node.register("b.sock", "vendor.com/nic")]
        await trio.sleep(1.0)
        for _ in range(reconcilers):
            assert node.crash("reconciler")
            await trio.sleep(0.2)
        attempts.append(node.register("c.sock", "vendor.com/fpga"))
        node.serve("b.sock")
        node.serve("c.sock")
        for attempt in attempts:
            await attempt.done.wait()
        await trio.sleep(60.0)
        assert [attempt.answers for attempt in attempts] == [[OK]] * 3
        for attempt in attempts:
            assert node.state(f"{DIRECTORY}/{attempt.call.endpoint}") == "registered"


async def test_what_was_registered_while_the_reconciler_crashed_is_registered_with_the_next(
    autojump_clock: MockClock,
) -> None:
    """Fault 85: at each moment of a registration, the caller is told yes only of what is registered in the end."""
    for moment in range(12):
        async with running(scripted(Takes(1.0))) as node:
            node.serve("a.sock")
            attempt = node.register("a.sock", GPU)
            await trio.sleep(0.1 * moment)
            assert node.crash("reconciler")
            await attempt.done.wait()
            await trio.sleep(30.0)
            assert attempt.answers == [OK]
            assert node.state(f"{DIRECTORY}/a.sock") == "registered"
            assert node.handler.registered.keys() == {f"{DIRECTORY}/a.sock"}


@pytest.mark.parametrize("crashes", [1, 2])
async def test_a_call_is_answered_after_crashes_of_its_registration(crashes: int, autojump_clock: MockClock) -> None:
    """Fault 85: the successor of the actor goes on, and answers."""
    async with running(scripted(Takes(1.0))) as node:
        node.serve("a.sock")
        attempt = node.register("a.sock", GPU)
        for _ in range(crashes):
            await trio.sleep(0.5)
            assert node.crash("registration", f"{DIRECTORY}/a.sock")
        await attempt.done.wait()
        await trio.sleep(60.0)
        assert node.now < 16.0 + 60.0
        assert (attempt.answers, node.state(f"{DIRECTORY}/a.sock")) == ([OK], "registered")


async def test_calls_under_way_lose_their_connections_in_a_crash_of_the_server_and_are_carried_out(
    autojump_clock: MockClock,
) -> None:
    """Fault 85: it is as if the callers had left. A plugin that calls again is answered with what became of it."""
    async with running(scripted(Takes(5.0))) as node:
        node.serve("a.sock")
        attempt = node.register("a.sock", GPU)
        await trio.sleep(1.0)
        assert node.calls.crash()
        await attempt.done.wait()
        assert (attempt.answers, node.now) == ([LOST], 1.0)
        await trio.sleep(2.0)
        again = node.register("a.sock", GPU)
        await again.done.wait()
        assert (again.answers, node.now) == ([OK], 5.0)
        await trio.sleep(30.0)
        assert node.handler.asked() == ["validate", "register"]


async def test_a_crash_of_the_server_leaves_everything_registered(autojump_clock: MockClock) -> None:
    """Fault 85: the socket is made anew, as after its removal, and is a sign to call again for who takes it as one."""
    async with running() as node:
        await node.has("a.sock", "b.sock")
        assert node.calls.crash()
        await trio.testing.wait_all_tasks_blocked()
        shown = await node.shown()
        assert (shown.watching, shown.ready) == ("unavailable", False)
        assert shown.reason == (
            "device plugin registration error: device plugin registration gRPC server failed and no device plugins can"
            " register: InjectedError"
        )
        await trio.sleep(2.0)
        assert ((await node.shown()).watching, (await node.shown()).sockets) == ("serving", 2)
        assert sorted(node.directory.inode(DIRECTORY).children) == ["a.sock", "b.sock", "kubelet.sock"]
        again = node.register("a.sock", GPU)
        await node.settled()
        assert again.answers == [OK]
        assert node.handler.asked() == ["validate", "register"] * 2
        node.crash("reconciler")
        await trio.sleep(5.0)
        assert node.handler.registered.keys() == {f"{DIRECTORY}/a.sock", f"{DIRECTORY}/b.sock"}


async def test_a_server_that_crashes_again_before_it_has_served_starts_as_the_daemon_does(
    autojump_clock: MockClock,
) -> None:
    """Fault 85: what it crashes of may be what it keeps. The sockets are deleted, a sign for every plugin to call."""
    async with running() as node:
        await node.has("a.sock")
        assert node.calls.crash()
        await trio.testing.wait_all_tasks_blocked()
        node.calls.error = RuntimeError("a bug")
        await trio.sleep(0.1)
        node.calls.error = None
        await trio.sleep(2.0)
        assert (await node.shown()).watching == "serving"
        assert node.status(f"{DIRECTORY}/a.sock") is None
        assert sorted(node.directory.inode(DIRECTORY).children) == ["kubelet.sock"]
        node.serve("a2.sock")
        attempt = node.register("a2.sock", GPU)
        await node.settled()
        assert attempt.answers == [OK]


async def test_a_trusted_user_may_not_register_the_socket_of_another(autojump_clock: MockClock) -> None:
    """Faults 79 and 80: otherwise it would take the place of that plugin, with whose socket it has nothing to do."""
    async with running() as node:
        node.serve("root.sock")
        node.register("root.sock", GPU)
        node.plug(f"{DIRECTORY}/own.sock", FakePlugin("DevicePlugin", GPU), uid=2001)
        await node.settled()
        foreign = node.register("root.sock", "vendor.com/nic", uid=2001)
        others = node.register("own.sock", "vendor.com/nic", uid=2002)
        await node.settled()
        text = "/dp/root.sock belongs to uid 0, so uid 2001 may not register it"
        assert foreign.answers == [("PERMISSION_DENIED", text)]
        assert others.code == "PERMISSION_DENIED"
        assert node.state(f"{DIRECTORY}/root.sock") == "registered"
        own = node.register("own.sock", "vendor.com/nic", uid=2001)
        await node.settled()
        assert own.answers == [OK]
        stranger = node.register("own.sock", "vendor.com/nic", uid=3000)
        await node.settled()
        assert stranger.answers == [("PERMISSION_DENIED", "uid 3000 may not register device plugins")]

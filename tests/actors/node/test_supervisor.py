"""The supervisor on a whole node: stops, crashes, and the embedding API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.actors.discovery.scanner import Scanner
from plugind.actors.messaging import callers
from plugind.actors.node.node import Node
from plugind.actors.node.ports import Ports
from plugind.actors.node.supervision import GaveUpError
from plugind.actors.registration import actor as registration_actor
from plugind.actors.registration import conversation
from plugind.actors.simulation.processes import MemoryProcesses
from plugind.actors.status.actor import StatusConfig
from plugind.actors.world import reconciler
from plugind.protocol.backoff import RestartIntensity
from plugind.protocol.errors import ConfigError
from plugind.protocol.logs.lines import SILENT
from plugind.protocol.settings.config import Config, Root
from plugind.protocol.status.view import View
from plugind.supervisor import LaggedError, NodeEndedError, NodeSupervisor, Supervisor
from plugind.testing import (
    DEFAULT_CONFIG,
    Fails,
    FakeHandler,
    FakePlugin,
    Hangs,
    SimulatedNode,
    Takes,
)
from plugind.tests.actors.registration.timelines import asked, at, notified_ok, registered_at, steps_at


def red(**faults: object) -> FakePlugin:
    return FakePlugin("Colour", "red", **faults)  # type: ignore[arg-type]


# --- stopping ---------------------------------------------------------------------------------------------------------


async def test_a_stop_leaves_plugins_registered_and_notifies_none(autojump_clock: MockClock) -> None:
    """Behaviour 42: plugins outlive a stop of plugind; goroutinemap Test_NewGoRoutineMap_Positive_WaitEmpty."""
    handler = FakeHandler()
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", red())
        node.plug("b.sock", FakePlugin("Colour", "bad", get_info_fails=9))
        node.plug("c.sock", FakePlugin("Shape", "round"))
        await trio.sleep(5.0)
        before = node.timeline("b.sock")
        await node.stop()
        assert node.now == 5.0
        assert node.timeline("a.sock") == registered_at(0.0)
        assert node.timeline("b.sock") == before
        assert handler.asked() == ["validate", "register"]
        assert plugin.calls == [asked(0.0), notified_ok(0.0)]


async def test_a_stop_can_deregister_registered_plugins(autojump_clock: MockClock) -> None:
    """Behaviour 42: the option, which is off by default."""
    handler = FakeHandler().always("deregister", Takes(1.0))
    config = attrs.evolve(DEFAULT_CONFIG, deregister_at_stop=True)
    async with SimulatedNode(config, handlers={"Colour": handler}) as node:
        node.plug("a.sock", red())
        node.plug("b.sock", FakePlugin("Colour", "blue"))
        await node.settled()
        await node.stop()
        assert node.now == 1.0
        assert handler.asked("red") == handler.asked("blue") == ["validate", "register", "deregister"]
        assert node.timeline("a.sock") == [*registered_at(0.0), (0.0, "leaving"), (1.0, "gone")]


async def test_a_registration_in_flight_finishes_within_the_grace(autojump_clock: MockClock) -> None:
    """Behaviour 42, fault 87: registered and notified first; goroutinemap Test_NewGoRoutineMap_Positive_Wait."""
    handler = FakeHandler().always("register", Takes(3.0))
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", red())
        await trio.sleep(1.0)
        await node.stop()
        assert node.now == 3.0
        assert plugin.calls == [asked(0.0), notified_ok(3.0)]
        assert node.timeline("a.sock") == [(0.2, "registering"), (3.0, "notifying")]
        assert handler.asked() == ["validate", "register"]


async def test_a_registration_that_hangs_is_rolled_back_at_half_the_grace(autojump_clock: MockClock) -> None:
    """Fault 87: a registration is finished or rolled back within the grace."""
    handler = FakeHandler()
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", red(hang="notify"))
        await trio.sleep(4.0)
        plugin.restart()
        await trio.sleep(1.0)
        await node.stop()
        # The notify of the second generation began at 4.5 s, after the first one's short life, with 5 s to answer.
        assert node.now == 9.5
        assert handler.asked() == ["validate", "register", "deregister"] * 2


async def test_a_register_that_hangs_delays_a_stop_no_longer_than_the_grace(autojump_clock: MockClock) -> None:
    """Fault 87: a forced stop waits for the Register, which is cancelled at the end of the grace."""
    handler = FakeHandler().always("register", Hangs())
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        node.plug("a.sock", red())
        await trio.sleep(1.0)
        await node.stop()
        assert node.now == 11.0
        assert node.timeline("a.sock") == [(0.2, "registering")]
        assert handler.asked() == ["validate", "register"]


async def test_a_new_daemon_registers_every_plugin_of_the_old_one(autojump_clock: MockClock) -> None:
    """DRA end-to-end: registers after a manager restart; fault 88: after kill -9, only the file system is left."""
    first, second, third = FakeHandler(), FakeHandler(), FakeHandler()
    async with SimulatedNode(handlers={"Colour": first}) as node:
        plugin = node.plug("a.sock", red())
        await node.settled()
        await node.stop()
        await trio.sleep(1.0)
        await node.start(handlers={"Colour": second})
        await node.settled()
        await trio.sleep(1.0)
        await node.kill()
        assert second.asked() == ["validate", "register"]
        await node.start(handlers={"Colour": third})
        await node.settled()
        assert node.state("a.sock") == "registered"
        assert third.asked() == ["validate", "register"]
        assert plugin.calls == [call for time in (0.0, 1.0, 2.0) for call in (asked(time), notified_ok(time))]


# --- crashes of actors ------------------------------------------------------------------------------------------------


def crash_once(monkeypatch: pytest.MonkeyPatch, where: object, name: str, *, after: int = 0) -> list[float]:
    """Make call number ``after`` of the function raise, once; return a list that gets the time of the crash."""
    real = getattr(where, name)
    calls = 0
    crashed: list[float] = []

    def crashing(*args: object, **named: object) -> object:
        nonlocal calls
        calls += 1
        if calls == after + 1:
            crashed.append(trio.current_time())
            raise ZeroDivisionError("a bug of ours")
        return real(*args, **named)

    monkeypatch.setattr(where, name, crashing)
    return crashed


async def test_a_registration_that_crashes_is_started_again_after_a_backoff(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 85: before Register there is nothing to deregister."""
    crashed = crash_once(monkeypatch, conversation, "check_info")
    handler = FakeHandler()
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        node.plug("a.sock", red())
        await node.settled()
        assert crashed == [0.0]
        assert node.timeline("a.sock") == [*at(0.0, "asking-info", "waiting"), *steps_at(0.5)]
        waiting = node.history("a.sock")[1]
        assert (waiting.reason, waiting.attempt) == ("internal error: ZeroDivisionError: a bug of ours", 1)
        assert handler.asked() == ["validate", "register"]


async def test_a_registration_that_crashes_after_register_is_deregistered_by_its_successor(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 85, behaviour 36: Deregister is called exactly once."""
    crash_once(monkeypatch, conversation, "_sendable")
    handler = FakeHandler()
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        node.plug("a.sock", red())
        await node.settled()
        assert node.timeline("a.sock") == [*at(0.0, "notifying", "leaving", "waiting"), *steps_at(0.5)]
        assert handler.asked() == ["validate", "register", "deregister", "validate", "register"]


async def test_a_registration_that_crashes_while_its_socket_is_gone_still_deregisters(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 85: a successor deregisters even if the socket is no longer desired."""
    handler = FakeHandler()
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", red())
        await node.settled()
        crash_once(monkeypatch, registration_actor._Registration, "_disturbed")
        plugin.stop()
        await node.settled()
        assert handler.asked() == ["validate", "register", "deregister"]
        assert node.timeline("a.sock") == at(0.0, "registered", "leaving", "gone")


async def test_a_watcher_that_crashes_scans_again_and_loses_nothing(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 85: sockets that vanished or appeared meanwhile are found, and others are not affected."""
    handler = FakeHandler()
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        node.plug("stays.sock", red())
        goes = node.plug("goes.sock", FakePlugin("Colour", "blue"))
        await node.settled()
        crashed = crash_once(monkeypatch, Scanner, "rescan")
        node.directory.drop_events()
        goes.stop()
        node.plug("comes.sock", FakePlugin("Colour", "green"))
        node.directory.resume_events()
        await trio.sleep(12.0)
        await node.settled()
        (crash,) = crashed
        when = round(crash + 0.05, 6)  # After the pause.
        assert node.timeline("stays.sock") == registered_at(0.0)
        assert node.timeline("goes.sock") == [*registered_at(0.0), *at(when, "leaving", "gone")]
        assert node.timeline("comes.sock") == registered_at(when)


async def test_a_reconciler_that_crashes_deregisters_all_and_starts_from_the_file_system(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 85: desired and actual are lost, so every plugin is deregistered, and found again."""
    handler = FakeHandler()
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        node.plug("a.sock", red())
        node.plug("b.sock", FakePlugin("Colour", "bad", get_info_fails=9))
        await node.settled(patience=0.0)
        crash_once(monkeypatch, reconciler._Reconciler, "take", after=1)
        node.plug("c.sock", FakePlugin("Colour", "green"))
        await node.settled(patience=0.0)
        assert node.timeline("a.sock") == [*registered_at(0.0), *at(0.0, "leaving", "gone"), *registered_at(0.05)]
        # It crashed on the claim of the third plugin, whose registration started again like the others.
        assert node.timeline("c.sock") == registered_at(0.05)
        assert handler.asked("green") == ["validate", "register"]
        assert node.state("b.sock") == "waiting"
        assert handler.asked("red") == ["validate", "register", "deregister", "validate", "register"]


async def test_calls_that_wait_for_a_reconciler_that_crashes_are_answered_by_the_next(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 85: a retry and the removal of a handler do not wait for ever."""
    handler = FakeHandler().always("deregister", Takes(1.0))
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", red())
        await node.settled()
        crash_once(monkeypatch, reconciler._Reconciler, "take")
        node.directory.chmod(plugin.path)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.supervisor.retry, "red")
            nursery.start_soon(node.supervisor.remove_handler, "Colour")
        assert node.now == 1.05
        await node.settled()
        assert node.state("a.sock") == "parked"


async def test_a_registration_stuck_in_deregister_when_the_reconciler_crashes_keeps_only_its_own_path(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 85, behaviour 20: unregister before register, though desired and actual are lost; seeds 1610 and 2420."""
    handler = FakeHandler().script("deregister", Hangs(), name="red")
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", red())
        node.plug("b.sock", FakePlugin("Colour", "green"))
        await node.settled(patience=0.0)
        crash_once(monkeypatch, reconciler._Reconciler, "take")
        node.plug("c.sock", FakePlugin("Shape", "round"))
        await trio.sleep(5.0)
        plugin.unlink()
        node.plug("a.sock", FakePlugin("Colour", "blue"))
        await node.settled()
        # The grace ends at 10 s, the call that hangs at 60 s.
        assert node.timeline("b.sock") == [*registered_at(0.0), *at(0.0, "leaving", "gone"), *registered_at(10.05)]
        assert node.timeline("a.sock") == [
            *registered_at(0.0),
            (0.0, "leaving"),
            (60.0, "gone"),
            *registered_at(60.0),
        ]
        assert handler.asked("red") == ["validate", "register", "deregister"]
        assert handler.asked("blue") == ["validate", "register"]


async def test_a_removed_handler_retires_after_its_last_deregister_though_the_reconciler_crashed(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 85: the removal outlives the reconciler that began it."""
    handler = FakeHandler().always("deregister", Hangs())
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        node.plug("a.sock", red())
        await node.settled()
        crash_once(monkeypatch, reconciler._Reconciler, "take")
        node.plug("c.sock", FakePlugin("Shape", "round"))
        await node.supervisor.remove_handler("Colour")
        assert node.now == 60.0
        await node.settled()
        assert node.state("a.sock") == "parked"


async def test_a_status_actor_that_crashes_repairs_its_view_and_ends_no_stream(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 85: the view is repaired; streams of changes go on."""
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        node.plug("a.sock", red())
        node.plug("old.sock", FakePlugin("Colour", "two"))
        await node.settled()
        node.plug("new.sock", FakePlugin("Colour", "two"))
        await node.settled()
        async with node.supervisor.watch() as changes:
            for _ in range(3):
                await anext(changes)
            crash_once(monkeypatch, View, "apply")
            node.plug("b.sock", FakePlugin("Colour", "blue"))
            await node.settled()
            snapshot = await node.snapshot()
            assert {(plugin.socket, plugin.state.value, plugin.active) for plugin in snapshot.plugins} == {
                ("/plugins/a.sock", "registered", True),
                ("/plugins/b.sock", "registered", True),
                ("/plugins/old.sock", "registered", False),
                ("/plugins/new.sock", "registered", True),
            }
            with trio.fail_after(60):
                async for plugin in changes:
                    if plugin.socket == "/plugins/b.sock" and plugin.state == "registered":
                        break


async def run(node: Supervisor | SimulatedNode, error: Exception | None = None) -> None:
    """Run the node until the end, or until ``error`` is raised in its block."""
    async with node:
        await wait_all_tasks_blocked()
        if error is not None:
            raise error
        await trio.sleep_forever()


async def test_crashes_that_come_too_often_end_the_block(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 85: the ``async with`` raises GaveUpError without a group, with the last crash as its cause."""

    def always(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr(Scanner, "rescan", always)
    config = attrs.evolve(DEFAULT_CONFIG, intensity=RestartIntensity(restarts=4, period=60.0))
    with pytest.raises(GaveUpError, match="more often than 4 in 60 s, the last was watcher /plugins") as caught:
        await run(SimulatedNode(config))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


# --- the embedding API ------------------------------------------------------------------------------------------------


class OwnError(Exception):
    pass


def embedded(node: SimulatedNode, **named: object) -> Supervisor:
    """A supervisor on the ports of a simulated node that is not entered."""
    ports = Ports(
        node.network.dial,
        lambda _root: node.directory,
        lambda: MemoryProcesses(node.network),
        users=lambda _trust: node.users,
    )
    return NodeSupervisor(Node(node.config, {"Colour": FakeHandler()}, ports, StatusConfig(), SILENT))


async def test_an_error_in_the_block_is_raised_without_a_group(autojump_clock: MockClock) -> None:
    """The nursery's exception group is unwrapped."""
    error = OwnError("mine")
    with pytest.raises(OwnError) as caught:
        await run(embedded(SimulatedNode()), error)
    assert caught.value is error
    assert caught.value.__cause__ is None


async def test_a_block_that_is_cancelled_ends_at_once(autojump_clock: MockClock) -> None:
    """Trio's Cancelled passes; nothing is left running."""
    node = SimulatedNode()
    node.plug("a.sock", red())
    with trio.move_on_after(2.0) as scope:
        async with embedded(node):
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert trio.current_time() == 2.0
    assert node.directory.inotify.instances == []


async def test_a_supervisor_runs_once(autojump_clock: MockClock) -> None:
    node = embedded(SimulatedNode())
    async with node:
        pass
    with pytest.raises(RuntimeError, match="runs once"):
        await node.__aenter__()


@pytest.mark.parametrize("socket", ["root/status.sock", "root/deeper/status.sock", "link/status.sock"])
def test_a_status_socket_in_a_root_is_refused(socket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was dialed as a plugin, as an endpoint in a root would be (fault 45)."""
    (tmp_path / "root").mkdir()
    (tmp_path / "link").symlink_to("root")
    monkeypatch.chdir(tmp_path)
    config = Config(roots=(Root(tmp_path / "other"), Root(tmp_path / "root")))
    for path in (socket, str(tmp_path / socket)):
        with pytest.raises(ConfigError) as error:
            Supervisor(config, status_socket=path)
        assert str(error.value) == (
            f"the status socket {path} lies in the root {tmp_path}/root, where it would be dialed as a plugin:"
            " give it another path with --status"
        )
    Supervisor(config, status_socket=tmp_path / "root.sock")


async def test_a_rescan_finds_a_plugin_that_no_event_reported(autojump_clock: MockClock) -> None:
    """Behaviour 14, fault 85: also by the successor of a watcher that crashes."""
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        await node.supervisor.wait_scanned()
        await trio.sleep(1.0)
        node.directory.drop_events()
        node.plug("a.sock", red())
        node.directory.resume_events()
        await trio.sleep(1.0)
        assert node.timeline("a.sock") == []
        for _ in range(3):
            await node.supervisor.rescan()
        await wait_all_tasks_blocked()
        assert node.timeline("a.sock") == registered_at(2.0)
        node.crash("watcher")
        await node.supervisor.rescan()
        await trio.sleep(5.0)
        assert node.timeline("a.sock") == registered_at(2.0)


async def test_waiting_for_a_plugin_returns_its_status_as_soon_as_it_is_registered(autojump_clock: MockClock) -> None:
    """``wait_for`` by name, and by type if two types have one name."""
    async with SimulatedNode(handlers={"Colour": FakeHandler(), "Shape": FakeHandler()}) as node:
        node.plug("a.sock", red(get_info_fails=2))
        node.plug("b.sock", FakePlugin("Shape", "red", get_info_fails=4))
        colour = await node.wait_for("red")
        assert (node.now, colour.type, colour.socket, colour.registered_in) == (1.5, "Colour", "/plugins/a.sock", 1.5)
        shape = await node.wait_for("red", type="Shape")
        assert (node.now, shape.type) == (7.5, "Shape")
        assert await node.wait_for("red", type="Colour") == colour


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda node: node.retry("/plugins/a.sock"), "'/plugins/a.sock' was not tried again"),
        (lambda node: node.remove_handler("Colour"), "not all plugins of Colour were deregistered"),
        (lambda node: node.wait_for("blue"), "'blue' was not registered"),
    ],
    ids=["retry", "remove", "wait"],
)
@pytest.mark.parametrize("cancelled", [False, True])
async def test_calls_that_wait_when_the_node_ends_raise_node_ended(
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[Supervisor], Awaitable[object]],
    words: str,
    cancelled: bool,
) -> None:
    """This holds for both ways to end, and also if an actor is too busy to answer."""
    simulated = SimulatedNode()
    simulated.plug("a.sock", red())
    node = embedded(simulated)
    errors: list[str] = []

    async def asking() -> None:
        with pytest.raises(NodeEndedError) as caught:
            await ask(node)
        errors.append(str(caught.value))

    async def block(self: object, message: object) -> None:
        await trio.sleep_forever()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                async with node:
                    await trio.sleep(1.0)
                    monkeypatch.setattr(reconciler._Reconciler, "take", block)
                    # The reconciler already waits in its old method; the next message enters the new one.
                    simulated.directory.chmod("/plugins/a.sock")
                    await trio.sleep(1.0)
                    nursery.start_soon(asking)
                    await trio.sleep(1.0)
                    if cancelled:
                        scope.cancel()
    assert errors == [f"the node ended, and {words}"]


async def test_a_watch_begins_with_all_plugins_and_goes_on_with_each_change(autojump_clock: MockClock) -> None:
    """Behaviour 38: every change is an event."""
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        node.plug("a.sock", red())
        await node.settled()
        async with node.supervisor.watch() as changes:
            assert (await anext(changes)).socket == "/plugins/a.sock"
            plugin = node.plug("b.sock", FakePlugin("Colour", "blue"))
            await node.settled()
            plugin.stop()
            seen: list[str] = []
            async for change in changes:
                seen.append(change.state.value)
                if change.state == "gone":
                    break
            assert seen == ["registered", "leaving", "gone"]


async def test_a_reader_that_lags_is_dropped_with_an_error_and_delays_no_other(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 86: there is back-pressure or an error, never a silent loss."""
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        monkeypatch.setattr(callers, "SUBSCRIBER_SIZE", 8)
        async with node.supervisor.watch() as slow, node.supervisor.watch() as other:
            for number in range(20):
                node.plug(f"{number}.sock", FakePlugin("Colour", f"{number}"))
            await node.settled()
            assert node.state("19.sock") == "registered"
            for _ in range(7):  # The first place has the list of all plugins, of which there were none.
                await anext(slow)
            # There is room now; the error follows the next change.
            node.plug("last.sock", FakePlugin("Colour", "last"))
            await node.settled()
            with pytest.raises(LaggedError):
                await anext(slow)
            assert (await anext(other)).state == "registered"


async def test_an_error_of_a_handler_while_a_stop_deregisters_is_not_a_crash(autojump_clock: MockClock) -> None:
    """Fault 84."""
    handler = FakeHandler().always("deregister", Fails("broken"))
    config = attrs.evolve(DEFAULT_CONFIG, deregister_at_stop=True)
    async with SimulatedNode(config, handlers={"Colour": handler}) as node:
        node.plug("a.sock", red())
        await node.settled()
    assert handler.asked() == ["validate", "register", "deregister"]

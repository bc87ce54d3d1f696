"""Actors that hang are found from outside, and the log says so once."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from plugind.actors.health.inboxes import Inboxes
from plugind.actors.messaging.mailbox import Inbox
from plugind.protocol.health.progress import Condition, Reading
from plugind.protocol.logs.lines import Level
from plugind.protocol.plugins.status import PluginCounts, StateName
from plugind.supervisor import NodeEndedError
from plugind.testing import FakeHandler, FakePlugin, Hangs, SimulatedNode
from plugind.tests.actors.status.bench import RecordingLogger


async def test_an_inbox_counts_what_waits_in_it_and_before_it_and_what_was_taken() -> None:
    """Fault 86: writers that wait for room count too."""
    inbox = Inbox[int](2)
    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(inbox.address.send, number)
        await trio.testing.wait_all_tasks_blocked()
        assert inbox.read() == Reading(waiting=4, taken=0)
        await inbox.receive()
        inbox.receive_nowait()
        assert inbox.read() == Reading(waiting=2, taken=2)
    inbox.receive_nowait()
    inbox.receive_nowait()
    with pytest.raises(trio.WouldBlock):
        inbox.receive_nowait()
    inbox.address.close()
    with pytest.raises(trio.EndOfChannel):
        await inbox.receive()
    assert inbox.read() == Reading(waiting=0, taken=4)


async def test_each_change_is_logged_once_also_when_nobody_asks(autojump_clock: MockClock) -> None:
    log = RecordingLogger()
    readings = [Reading(1, 0), Reading(9, 0), Reading(0, 9), Reading(1, 9, "no descriptors left"), Reading(1, 9)]
    inboxes = Inboxes(10.0, log)
    # Each of them is what is read for 70 s.
    inboxes.add("reconciler", lambda: readings[min(4, int(trio.current_time() / 70.0))])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(inboxes.run)
        await trio.sleep(5 * 70.0)
        nursery.cancel_scope.cancel()
    hangs = {"actor": "reconciler", "reason": "it hangs: it has taken no message for 10 s, and 1 wait"}
    assert log.events == [
        (Level.ERROR, "actor hangs", hangs),
        (Level.INFO, "actor goes on", {"actor": "reconciler"}),
        (Level.WARNING, "actor is held up", {"actor": "reconciler", "reason": "no descriptors left; 1 wait"}),
        (Level.INFO, "actor goes on", {"actor": "reconciler"}),
        (Level.ERROR, "actor hangs", hangs),
    ]


async def test_a_process_that_was_stopped_has_no_actor_that_hangs(mock_clock: MockClock) -> None:
    """As by SIGSTOP: no actor could take its messages, and none has run when the first check comes."""
    inboxes = Inboxes(10.0, RecordingLogger())
    inboxes.add("reconciler", lambda: Reading(5, 3))
    inboxes.check()
    mock_clock.jump(3600.0)
    assert [health.condition for health in inboxes.check()] == [Condition.OK]
    mock_clock.jump(5.0)
    assert [health.condition for health in inboxes.check()] == [Condition.FAILED]


async def test_a_core_actor_that_hangs_is_named_for_who_watches_the_program(autojump_clock: MockClock) -> None:
    """A service manager's watchdog is fed only while no core actor hangs."""
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        assert node.supervisor.internals.hung() == ()
        resume = node.hang("reconciler")
        node.plug("a.sock", FakePlugin("Colour", "red"))
        node.plug("b.sock", FakePlugin("Colour", "blue"))
        await trio.sleep(70.0)
        (reason,) = node.supervisor.internals.hung()
        assert reason.startswith("reconciler: it hangs: it has taken no message for ")
        resume()
        await node.settled()
        assert node.supervisor.internals.hung() == ()


async def test_a_handler_actor_that_hangs_is_no_reason_to_restart_the_program(autojump_clock: MockClock) -> None:
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        node.supervisor.internals.inboxes.add("handler Smell", lambda: Reading(5, 3))
        await trio.sleep(70.0)
        failed = {name for name, health in node.health().items() if health.condition is Condition.FAILED}
        assert (failed, node.supervisor.internals.hung()) == ({"handler Smell"}, ())


async def test_every_core_actor_has_an_inbox_that_is_read(autojump_clock: MockClock) -> None:
    async with SimulatedNode() as node:
        core = {"status", "reconciler", "liveness", "dial slots", "devices", "leases", "registrations"}
        assert {name for name in node.health() if not name.startswith("handler ")} == core
        assert node.supervisor.internals.core.keys() == core


async def test_plugins_are_counted_by_state(autojump_clock: MockClock) -> None:
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        node.plug("a.sock", FakePlugin("Colour", "red"))
        node.plug("b.sock", FakePlugin("Colour", "blue"))
        node.plug("c.sock", FakePlugin("Smell", "rose"))
        await node.settled()
        supervisor = node.supervisor
        counts = await supervisor.internals.counts()
        assert counts == PluginCounts({StateName.REGISTERED: 2, StateName.PARKED: 1}, not_serving=0)
    with pytest.raises(NodeEndedError):
        await supervisor.internals.counts()


async def test_the_status_actor_that_hangs_is_found_from_outside_of_its_loop(autojump_clock: MockClock) -> None:
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        resume = node.hang("status")
        node.plug("a.sock", FakePlugin("Colour", "red"))
        await trio.sleep(70.0)
        found = node.health()
        assert {name for name, health in found.items() if health.condition is Condition.FAILED} == {"status"}
        assert node.state("a.sock") is None, "nothing is shown meanwhile"
        resume()
        await node.settled()
        assert node.state("a.sock") == "registered"
        assert {health.condition for health in node.health().values()} == {Condition.OK}


async def test_no_actor_of_a_busy_node_hangs_while_a_handler_and_plugins_do(autojump_clock: MockClock) -> None:
    """Behaviour 22: a call that hangs is the failure of one plugin; the actor takes its other messages."""
    handler = FakeHandler().always("validate", Hangs())
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        for number in range(200):
            node.plug(f"{number}.sock", FakePlugin("Colour", f"c{number}", hang="get-info" if number % 2 else None))
        for _ in range(60):
            await trio.sleep(1.0)
            assert {health.condition for health in node.health().values()} == {Condition.OK}
        assert set(node.health()) >= {"status", "reconciler", "dial slots", "registrations", "handler Colour"}


async def test_no_actor_hangs_while_the_node_restarts_beside_a_handler_that_hangs(autojump_clock: MockClock) -> None:
    """Fault 85: the crash of a reconciler takes the grace of a stop, during which its inbox is emptied."""
    handler = FakeHandler()
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        node.plug("a.sock", FakePlugin("Colour", "red"))
        await node.settled()
        handler.always("deregister", Hangs())
        assert node.crash("reconciler")
        for number in range(60):
            node.plug(f"b{number}.sock", FakePlugin("Colour", f"b{number}"))
            await trio.sleep(0.5)
            assert {health.condition for health in node.health().values()} == {Condition.OK}

from __future__ import annotations

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.actors.status.api import StatusConfig
from plugind.protocol.messages.status import (
    HandlersChanged,
    Lagged,
    PluginChanged,
    RoleChanged,
    RootStatus,
    ScansAwaited,
    Snapshot,
    Subscribed,
    Unsubscribed,
    ViewMessage,
)
from plugind.protocol.plugins.status import PluginStatus, StateName, Watching
from plugind.tests.actors.status.bench import ROOT, bench, changed, drained


async def test_a_snapshot_is_the_whole_view_with_its_histories(autojump_clock: MockClock) -> None:
    async with bench() as node:
        report = RootStatus(ROOT, Watching.EVENTS, 0.0, ready=True)
        await node.take(
            report,
            HandlersChanged(("CSIPlugin",)),
            changed("a", StateName.DIALING),
            changed("a", StateName.WAITING, 1.0),
            changed("b", StateName.STALE),
        )
        snapshot = await node.snapshot()
    assert (snapshot.roots, snapshot.handlers) == ((report,), ("CSIPlugin",))
    assert [(p.socket, p.state, len(p.history)) for p in snapshot.plugins] == [
        ("/r/a.sock", StateName.WAITING, 2),
        ("/r/b.sock", StateName.STALE, 1),
    ]


async def test_a_subscriber_gets_the_present_view_and_then_each_change_once(autojump_clock: MockClock) -> None:
    async with bench() as node:
        await node.take(changed("a", StateName.DIALING))
        stream = await node.subscribe()
        await node.take(
            changed("a", StateName.REGISTERED, 2.0),
            RoleChanged("/r/a.sock", 1, active=False),
            RoleChanged("/r/a.sock", 1, active=False),
            changed("a", StateName.GONE, 3.0),
            changed("a", StateName.GONE, 3.0),
        )
        messages = drained(stream)
    first = messages.pop(0)
    assert isinstance(first, Snapshot)
    assert first.plugins == (PluginStatus("/r/a.sock", ROOT, 1, StateName.DIALING, 0.0),)
    registered = PluginStatus("/r/a.sock", ROOT, 1, StateName.REGISTERED, 2.0, active=True, serving=True)
    assert messages == [
        PluginChanged(2.0, registered),
        PluginChanged(0.0, attrs.evolve(registered, active=False)),
        PluginChanged(3.0, PluginStatus("/r/a.sock", ROOT, 1, StateName.GONE, 3.0)),
    ]


async def test_a_subscriber_that_lags_is_dropped_and_lagged_is_its_last_message(autojump_clock: MockClock) -> None:
    """Fault 86: a loss is never silent, and no actor waits for the reader."""
    async with bench() as node:
        slow, quick = await node.subscribe(size=3), await node.subscribe()
        for number in range(10):
            await node.take(changed(f"p{number}", StateName.DIALING))
        assert len(drained(quick)) == 11
        assert [type(message) for message in drained(slow)] == [Snapshot, PluginChanged, PluginChanged]
        await node.take(changed("late", StateName.DIALING))
        await node.take(changed("later", StateName.DIALING))
        assert drained(slow) == [Lagged()]
        assert len(drained(quick)) == 2


async def test_a_subscriber_that_closed_its_stream_is_removed(autojump_clock: MockClock) -> None:
    async with bench() as node:
        gone = await node.subscribe()
        subscriber, stream = trio.open_memory_channel[ViewMessage](10)
        await node.take(Subscribed(subscriber), Unsubscribed(subscriber))
        gone.close()
        await node.take(changed("a", StateName.DIALING))
        assert node.memory.audience.subscribers == []
        assert [type(message) for message in drained(stream)] == [Snapshot]


async def test_a_large_snapshot_lets_other_tasks_run(autojump_clock: MockClock) -> None:
    async with bench() as node:
        for number in range(1000):
            await node.inbox.send(changed(f"p{number}", StateName.WAITING))
        await wait_all_tasks_blocked()
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            snapshot = await node.snapshot()
            nursery.cancel_scope.cancel()
        assert len(snapshot.plugins) == 1000
        assert turns >= 7


async def test_a_caller_learns_when_a_scan_of_each_root_was_tried(autojump_clock: MockClock) -> None:
    """Behaviour 2: a root that cannot be read was tried, too."""
    async with bench(StatusConfig(roots=("/r", "/s"))) as node:
        replies = [trio.open_memory_channel[bool](1) for _ in range(3)]
        for reply, _ in replies[:2]:
            await node.take(ScansAwaited(reply))
        await node.take(RootStatus("/r", Watching.EVENTS, 0.0, ready=True))
        with pytest.raises(trio.WouldBlock):
            replies[0][1].receive_nowait()
        await node.take(RootStatus("/s", Watching.UNAVAILABLE, 0.0), ScansAwaited(replies[2][0]))
        assert [answer.receive_nowait() for _, answer in replies] == [True, True, True]

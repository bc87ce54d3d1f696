"""The calls of an embedding program, without a node: each test answers them or simulates the end of the node."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.actors.messaging.callers import Callers, Changes, LaggedError, NodeEndedError
from plugind.protocol.messages.status import Lagged, Snapshot, ViewMessage

SNAPSHOT = Snapshot(0.0, (), (), ())


def begun() -> Callers:
    """Return the calls of a node that runs."""
    callers = Callers()
    callers.begin()
    return callers


async def test_a_call_of_a_node_that_was_not_started_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="enter its block first"), Callers().asking("has no snapshot"):
        pytest.fail("the block must not begin")


async def ask(callers: Callers, what: str, ended_at: list[tuple[str, float]]) -> None:
    """Wait for an answer that never comes, and note the error and its time."""
    with pytest.raises(NodeEndedError) as caught, callers.asking(what):
        await trio.sleep_forever()
    ended_at.append((str(caught.value), trio.current_time()))


async def test_every_waiting_call_ends_with_the_node_and_names_the_missing_answer(autojump_clock: MockClock) -> None:
    callers = begun()
    ended_at: list[tuple[str, float]] = []
    async with trio.open_nursery() as nursery:
        for what in ("nothing was retried", "no handler was added"):
            nursery.start_soon(ask, callers, what, ended_at)
        await trio.sleep(3)
        assert ended_at == []
        callers.end()
    assert sorted(ended_at) == [
        ("the node ended, and no handler was added", 3.0),
        ("the node ended, and nothing was retried", 3.0),
    ]


async def test_a_call_after_the_end_of_the_node_raises_before_it_waits() -> None:
    callers = begun()
    callers.end()
    message = "the node ended, and has no snapshot"
    with pytest.raises(NodeEndedError, match=message), callers.asking("has no snapshot"):
        pytest.fail("the block must not begin")


async def test_an_answer_that_comes_before_the_end_in_the_same_step_is_kept() -> None:
    """When the node ends, the caller already has its answer, although its task has not run since."""
    callers = begun()
    send, receive = trio.open_memory_channel[str](0)
    answers: list[str] = []

    async def wait() -> None:
        with callers.asking("was never answered"):
            answers.append(await receive.receive())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        send.send_nowait("yes")
        callers.end()
    assert answers == ["yes"]


async def test_a_closed_inbox_means_that_the_node_ended() -> None:
    callers = begun()
    send, _receive = trio.open_memory_channel[str](0)
    send.close()
    message = "the node ended, and has no snapshot"
    with pytest.raises(NodeEndedError, match=message), callers.asking("has no snapshot"):
        send.send_nowait("snapshot?")


@pytest.mark.parametrize("end", [Callers.end, Callers.end_streams], ids=["end", "end_streams"])
async def test_a_stream_of_changes_ends_after_its_buffered_changes(end: Callable[[Callers], None]) -> None:
    callers = begun()
    send, receive = trio.open_memory_channel[ViewMessage](1)
    callers.streams.add(send)
    send.send_nowait(SNAPSHOT)
    end(callers)
    assert [change async for change in Changes(receive)] == [SNAPSHOT]


async def test_the_end_of_the_streams_leaves_other_calls_waiting(autojump_clock: MockClock) -> None:
    """A stop ends the streams first; a call may still be answered until the node has ended."""
    callers = begun()
    ended_at: list[tuple[str, float]] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, callers, "was never answered", ended_at)
        await wait_all_tasks_blocked()
        callers.end_streams()
        await trio.sleep(1)
        assert ended_at == []
        callers.end()


async def test_a_reader_that_was_dropped_gets_its_buffered_changes_and_then_an_error() -> None:
    """Fault 86."""
    send, receive = trio.open_memory_channel[ViewMessage](2)
    send.send_nowait(SNAPSHOT)
    send.send_nowait(Lagged())
    changes = Changes(receive)
    assert await changes.__anext__() == SNAPSHOT
    with pytest.raises(LaggedError):
        await changes.__anext__()

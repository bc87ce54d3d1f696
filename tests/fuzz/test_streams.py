"""Connections in memory, and the check for a livelock of a node."""

from __future__ import annotations

import os

import pytest
import trio

from plugind.actors.simulation.streams import memory_connection
from plugind.tests.fuzz.final_checks import FinalChecks
from plugind.tests.fuzz.run import simulate


async def test_bytes_sent_by_either_end_arrive_at_the_other() -> None:
    made = memory_connection()
    assert made.client.send(bytearray(b"ask")) == 3
    assert await made.server.receive_some() == b"ask"
    await made.server.send_all(b"answer")
    assert await made.client.receive(unsent=False) == b"answer"
    assert made.client.receive_now() is None


async def test_a_read_returns_at_most_as_many_bytes_as_asked_for() -> None:
    made = memory_connection()
    made.client.send(bytearray(b"abc"))
    assert [await made.server.receive_some(2), await made.server.receive_some(2)] == [b"ab", b"c"]


async def test_a_read_that_is_cancelled_loses_nothing() -> None:
    made = memory_connection()
    made.client.send(bytearray(b"abc"))
    with trio.CancelScope() as scope:
        scope.cancel()
        await made.server.receive_some()
    assert scope.cancelled_caught
    assert await made.server.receive_some() == b"abc"


async def test_wake_ends_a_wait_without_bytes(autojump_clock: trio.testing.MockClock) -> None:
    made = memory_connection()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def wake() -> None:
            await trio.sleep(1)
            made.client.wake()

        assert await made.client.receive(unsent=False) is None
    assert trio.current_time() == 1


async def test_closing_ends_the_bytes_to_the_peer_and_refuses_bytes_from_it() -> None:
    made = memory_connection()
    made.client.send(bytearray(b"last words"))
    made.client.close()
    assert [await made.server.receive_some(), await made.server.receive_some()] == [b"last words", b""]
    with pytest.raises(trio.BrokenResourceError):
        await made.server.send_all(b"too late")
    made.server.close()
    with pytest.raises(trio.ClosedResourceError):
        await made.server.receive_some()
    with pytest.raises(trio.ClosedResourceError):
        await made.server.send_all(b"too late")


async def test_a_half_closed_server_can_still_read() -> None:
    made = memory_connection()
    await made.server.send_eof()
    assert await made.client.receive(unsent=False) == b""
    made.client.send(bytearray(b"still here"))
    assert await made.server.receive_some() == b"still here"


async def test_a_reset_discards_bytes_in_flight_and_is_an_error_at_both_ends() -> None:
    made = memory_connection()
    made.client.send(bytearray(b"lost"))
    made.reset()
    with pytest.raises(trio.BrokenResourceError):
        await made.server.receive_some()
    with pytest.raises(ConnectionResetError):
        made.client.send(bytearray(b"too late"))
    with pytest.raises(ConnectionResetError):
        await made.client.receive(unsent=False)


async def test_a_slow_server_sends_byte_by_byte(autojump_clock: trio.testing.MockClock) -> None:
    """Fault 63."""
    made = memory_connection()
    made.server.seconds_per_byte = 0.5
    got: list[tuple[float, bytes | None]] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.server.send_all, b"abc")
        while len(got) < 3:
            data = await made.client.receive(unsent=False)
            got.append((trio.current_time(), data))
    assert got == [(0.5, b"a"), (1.0, b"b"), (1.5, b"c")]


def test_a_node_that_keeps_running_while_time_stands_still_is_a_livelock(monkeypatch: pytest.MonkeyPatch) -> None:
    async def spin(checks: object) -> None:
        del checks
        while True:
            await trio.lowlevel.checkpoint()

    monkeypatch.setattr(FinalChecks, "check", spin)
    outcome = simulate(0, events=1, faults=())
    assert [violation.oracle for violation in outcome.violations] == ["livelock"]


def test_a_descriptor_that_a_seed_leaves_open_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []

    async def leak(checks: object) -> None:
        del checks
        opened.append(os.dup(0))

    monkeypatch.setattr(FinalChecks, "check", leak)
    outcome = simulate(0, events=1, faults=())
    os.close(opened[0])
    assert [(violation.oracle, violation.text) for violation in outcome.violations] == [
        ("leak", "descriptors of this process: 1 more")
    ]

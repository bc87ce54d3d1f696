"""The thread for calls that may hang: their order, and what becomes of those that nobody waits for any more."""

from __future__ import annotations

import errno
import os
import threading
from functools import partial

import pytest
import trio
import trio.testing

from plugind.actors.io.worker_thread import WorkerThread


async def test_calls_are_made_one_at_a_time_in_order() -> None:
    worker, made = WorkerThread("worker"), list[tuple[int, str]]()

    async def ask(number: int) -> None:
        await worker.run(lambda: made.append((number, threading.current_thread().name)))

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(ask, number)
            await trio.testing.wait_all_tasks_blocked()
    assert made == [(number, "worker") for number in range(5)]
    worker.close()


async def test_a_call_that_fails_raises_where_it_was_asked_for() -> None:
    worker = WorkerThread("worker")
    with pytest.raises(ZeroDivisionError):
        await worker.run(lambda: 1 // 0)
    assert await worker.run(lambda: 7) == 7
    worker.close()


async def test_nothing_is_at_work_when_a_result_is_known() -> None:
    """Whoever has it may close what the call has used."""
    worker = WorkerThread("worker")
    for _ in range(100):
        await worker.run(lambda: None)
        assert not worker.is_at_work
    worker.close()


async def test_who_leaves_has_not_asked_for_what_has_not_begun_and_what_has_begun_goes_on() -> None:
    worker, begun, goes_on, made = WorkerThread("worker"), threading.Event(), threading.Event(), list[str]()

    def hang() -> None:
        begun.set()
        goes_on.wait()
        made.append("begun")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run, hang)
        await trio.to_thread.run_sync(begun.wait)
        nursery.start_soon(worker.run, partial(made.append, "not begun"))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert worker.is_at_work
    goes_on.set()
    await worker.run(lambda: made.append("after"))
    assert made == ["begun", "after"]
    worker.close()


async def test_a_result_after_the_end_of_the_loop_is_dropped() -> None:
    """The thread outlives the loop, and ends after the call."""
    worker, begun, goes_on, made = WorkerThread("left behind"), threading.Event(), threading.Event(), list[str]()

    def hang() -> None:
        begun.set()
        goes_on.wait()
        made.append("begun")

    async def ask_and_leave() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run, hang)
            await trio.to_thread.run_sync(begun.wait)
            nursery.cancel_scope.cancel()

    await trio.to_thread.run_sync(trio.run, ask_and_leave)
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "left behind"]
    worker.close()
    goes_on.set()
    await trio.to_thread.run_sync(thread.join)
    assert made == ["begun"]


async def test_calls_of_several_tasks_and_of_one_that_left_each_have_their_own_result() -> None:
    """Whether the end of a call is told by a descriptor, or by the loop's queue since another waits there."""
    worker, begun, goes_on = WorkerThread("worker"), threading.Event(), threading.Event()
    found: list[int] = []

    def hang() -> None:
        begun.set()
        goes_on.wait()

    async def ask(number: int) -> None:
        found.append(await worker.run(lambda: number))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run, hang)
        await trio.to_thread.run_sync(begun.wait)
        nursery.cancel_scope.cancel()
    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(ask, number)
            await trio.testing.wait_all_tasks_blocked()
        goes_on.set()
    assert sorted(found) == [0, 1, 2, 3]
    await ask(4)
    assert found[-1] == 4
    worker.close()


async def test_without_descriptors_the_loop_tells_of_the_end_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 46."""

    def none_left(*_: int) -> int:
        raise OSError(errno.EMFILE, "none are left")

    monkeypatch.setattr(os, "eventfd", none_left)
    worker = WorkerThread("worker")
    assert await worker.run(lambda: 7) == 7
    worker.close()

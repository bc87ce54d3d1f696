"""Crashes during a cancellation, and crashes without a pause."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.actors.node.supervision import Children, ChildSpec, Crashes, GaveUpError
from plugind.protocol.backoff import RestartIntensity
from plugind.protocol.errors import ConfigError

INTENSITY = RestartIntensity(restarts=3, period=10.0)


def crashing_as_it_is_cancelled(error: Exception) -> Callable[[], Awaitable[None]]:
    """Return a child whose nursery ends with a group of Cancelled and an error."""

    async def clean_up() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise error

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clean_up)
            nursery.start_soon(trio.sleep_forever)

    return run


async def test_a_crash_during_a_cancellation_is_reported_and_the_child_is_not_restarted(
    autojump_clock: MockClock,
) -> None:
    """Fault 85."""
    reported: list[tuple[str, str]] = []
    async with trio.open_nursery() as nursery:
        children = Children(nursery, Crashes(INTENSITY, lambda name, error: reported.append((name, repr(error)))))
        children.start(ChildSpec("a", crashing_as_it_is_cancelled(ValueError("late"))))
        await wait_all_tasks_blocked()
        with trio.fail_after(1):
            await children.stop("a")
    assert [name for name, _ in reported] == ["a"]
    assert "late" in reported[0][1]


@pytest.mark.parametrize("error", [ConfigError("name another"), GaveUpError("too many")])
async def test_an_error_that_a_restart_cannot_fix_is_also_raised_during_a_cancellation(
    error: Exception, autojump_clock: MockClock
) -> None:
    async def supervise() -> None:
        async with trio.open_nursery() as nursery:
            children = Children(nursery, Crashes(INTENSITY, lambda *_: None))
            children.start(ChildSpec("a", crashing_as_it_is_cancelled(error)))
            await wait_all_tasks_blocked()
            await children.stop("a")

    with pytest.raises(ExceptionGroup) as caught:
        await supervise()
    assert caught.value.exceptions == (error,)


async def test_a_keyboard_interrupt_beside_a_crash_is_raised() -> None:
    crashes = 0

    async def run() -> None:
        nonlocal crashes
        crashes += 1
        raise BaseExceptionGroup("both", [KeyboardInterrupt(), ValueError("x")])

    with pytest.raises(BaseExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            Children(nursery, Crashes(INTENSITY, lambda *_: None)).start(ChildSpec("a", run))
    kept, rest = caught.value.split(KeyboardInterrupt)
    assert kept is not None
    assert rest is None
    assert crashes == 1


async def test_other_tasks_run_between_the_crashes_of_a_child_that_never_waits() -> None:
    """Behaviour 22: a child that fails at once each time does not block the daemon."""
    turns = 0
    seen: list[int] = []

    async def others() -> None:
        nonlocal turns
        while len(seen) < 4:
            turns += 1
            await trio.lowlevel.checkpoint()

    async def run() -> None:
        seen.append(turns)
        raise ValueError("at once")

    async def supervise() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            Children(nursery, Crashes(INTENSITY, lambda *_: None)).start(ChildSpec("a", run))

    with pytest.raises(ExceptionGroup) as caught:
        await supervise()
    assert caught.group_contains(GaveUpError)
    assert len(set(seen)) >= len(seen) - 1, "no other task had a turn"

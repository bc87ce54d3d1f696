"""Children and crashes: restarts within the intensity, start in order, stop in reverse order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.actors.node.supervision import Children, ChildSpec, Crashes, GaveUpError, Restart
from plugind.protocol.backoff import RestartIntensity
from plugind.protocol.errors import ConfigError


@attrs.define
class Stage:
    intensity: RestartIntensity = RestartIntensity(restarts=3, period=10.0)
    reported: list[tuple[float, str, str]] = attrs.Factory(list)
    log: list[str] = attrs.Factory(list)

    def crashes(self) -> Crashes:
        return Crashes(self.intensity, self.report)

    def report(self, name: str, error: Exception) -> None:
        self.reported.append((trio.current_time(), name, str(error)))


async def test_children_stop_in_the_reverse_order_of_their_start(autojump_clock: MockClock) -> None:
    stage = Stage()

    def child(name: str) -> ChildSpec:
        async def run() -> None:
            try:
                await trio.sleep_forever()
            finally:
                stage.log.append(name)

        return ChildSpec(name, run)

    async with trio.open_nursery() as nursery:
        children = Children(nursery, stage.crashes())
        for name in "abc":
            children.start(child(name))
        with pytest.raises(ValueError, match="'a' runs already"):
            children.start(child("a"))
        await trio.testing.wait_all_tasks_blocked()
        await children.stop_all(but=("b",))
        assert stage.log == ["c", "a"]
        await children.stop("b")
        await children.stop("b")
        await children.wait("b")
    assert stage.log == ["c", "a", "b"]
    assert stage.reported == []


async def test_a_child_that_crashes_is_reported_and_started_again(autojump_clock: MockClock) -> None:
    """Fault 85: after a pause, which grows."""
    stage = Stage()
    runs = 0

    async def run() -> None:
        nonlocal runs
        runs += 1
        await trio.sleep(1.0)
        if runs < 4:
            raise OSError(f"crash {runs}")
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        children = Children(nursery, stage.crashes())
        children.start(ChildSpec("worker", run))
        await trio.sleep(100.0)
        await children.stop_all()
    assert stage.reported == [(1.0, "worker", "crash 1"), (2.05, "worker", "crash 2"), (3.15, "worker", "crash 3")]
    assert runs == 4


async def test_a_child_that_fails_at_once_each_time_does_not_end_the_supervisor_within_milliseconds(
    autojump_clock: MockClock,
) -> None:
    """Fault 85: a watcher that got EIO used up the default intensity, ten restarts, in 50 ms."""
    stage = Stage(RestartIntensity())

    async def run() -> None:
        raise OSError("Input/output error")

    with pytest.RaisesGroup(GaveUpError):
        async with trio.open_nursery() as nursery:
            Children(nursery, stage.crashes()).start(ChildSpec("watcher /r", run))
    times = [round(time, 6) for time, _, _ in stage.reported]
    assert times == [0.0, 0.05, 0.15, 0.35, 0.75, 1.55, 3.15, 6.35, 11.35, 16.35, 21.35]


async def test_a_crash_that_is_only_reported_never_ends_the_supervisor(autojump_clock: MockClock) -> None:
    """Fault 85: those of registrations are one plugin's, however many there are."""
    stage = Stage(RestartIntensity(restarts=0))
    crashes = stage.crashes()
    for _ in range(1000):
        crashes.report("registration /r/a", AssertionError("planted"))
    assert len(stage.reported) == 1000
    with pytest.raises(GaveUpError):
        crashes.count("watcher /r", OSError("once"))


async def test_a_permanent_child_that_ends_has_crashed_and_a_transient_one_is_done(autojump_clock: MockClock) -> None:
    """The terms are those of OTP."""
    stage = Stage()
    runs: list[str] = []

    def child(name: str, restart: Restart) -> ChildSpec:
        async def run() -> None:
            runs.append(name)
            await trio.sleep(6.0)

        return ChildSpec(name, run, restart)

    async with trio.open_nursery() as nursery:
        children = Children(nursery, stage.crashes())
        children.start(child("permanent", Restart.PERMANENT))
        children.start(child("transient", Restart.TRANSIENT))
        await children.wait("transient")
        assert trio.current_time() == 6.0
        await trio.sleep(1.0)
        await children.stop_all()
    assert sorted(runs) == ["permanent", "permanent", "transient"]
    assert stage.reported == [(6.0, "permanent", "it ended, and should not have")]


async def test_crashes_that_come_too_often_end_the_supervisor_with_the_last_as_the_cause(
    autojump_clock: MockClock,
) -> None:
    """Fault 85: a child is restarted within the intensity; one more crash is escalated."""
    stage = Stage()

    async def run() -> None:
        await trio.sleep(2.0)
        raise OSError("again")

    with pytest.raises(ExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            Children(nursery, stage.crashes()).start(ChildSpec("worker", run))
    (error,) = caught.value.exceptions
    assert isinstance(error, GaveUpError)
    assert str(error) == "actors crashed more often than 3 in 10 s, the last was worker: OSError('again')"
    assert isinstance(error.__cause__, OSError)
    assert [round(time, 6) for time, _, _ in stage.reported] == [2.0, 4.05, 6.15, 8.35]


@pytest.mark.parametrize("error", [GaveUpError("enough"), ConfigError("no root")])
@pytest.mark.parametrize("wrapped", [False, True])
async def test_an_error_that_a_restart_cannot_fix_ends_the_supervisor_at_once(
    autojump_clock: MockClock, error: Exception, wrapped: bool
) -> None:
    """Fault 85: it is escalated unchanged, even from a nursery of the child, and is not counted as a crash."""
    stage = Stage()

    async def run() -> None:
        raise ExceptionGroup("nursery", [error]) if wrapped else error

    with pytest.raises(ExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            Children(nursery, stage.crashes()).start(ChildSpec("worker", run))
    assert caught.value.exceptions == (error,)
    assert stage.reported == []


async def test_a_child_that_crashes_while_it_is_stopped_ends_alone(
    autojump_clock: MockClock,
) -> None:
    """Fault 85, seed 14: the crash is reported, and the other children end normally."""
    stage = Stage()

    async def fail_in_cleanup() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise OSError("while it was stopped")

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail_in_cleanup)
            await trio.sleep_forever()

    async def other() -> None:
        await trio.sleep(5.0)
        stage.log.append("ran to its end")

    async with trio.open_nursery() as nursery:
        children = Children(nursery, stage.crashes())
        children.start(ChildSpec("other", other, Restart.TRANSIENT))
        children.start(ChildSpec("worker", run))
        await trio.sleep(1.0)
        await children.stop("worker")

    assert stage.log == ["ran to its end"]
    assert [(time, name) for time, name, _ in stage.reported] == [(1.0, "worker")]


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


@pytest.mark.parametrize("error", [ConfigError("name another"), GaveUpError("too many")])
async def test_an_error_that_a_restart_cannot_fix_is_also_raised_during_a_cancellation(
    error: Exception, autojump_clock: MockClock
) -> None:
    async def supervise() -> None:
        async with trio.open_nursery() as nursery:
            children = Children(nursery, Stage().crashes())
            children.start(ChildSpec("a", crashing_as_it_is_cancelled(error)))
            await trio.testing.wait_all_tasks_blocked()
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
            Children(nursery, Stage().crashes()).start(ChildSpec("a", run))
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
            Children(nursery, Stage().crashes()).start(ChildSpec("a", run))

    with pytest.raises(ExceptionGroup) as caught:
        await supervise()
    assert caught.group_contains(GaveUpError)
    assert len(set(seen)) >= len(seen) - 1, "no other task had a turn"

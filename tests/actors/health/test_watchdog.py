"""The watchdog finds out what blocks the loop (fault 83). These tests block it for real, for a few milliseconds."""

from __future__ import annotations

import re
import sys
import threading
import time

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from plugind.actors.handlers.calls import CallConfig, HandlerCalls
from plugind.actors.handlers.served import Served
from plugind.actors.health import watchdog
from plugind.actors.health.stacks import StackTimer
from plugind.actors.health.watchdog import BlockedSteps, WatchdogConfig
from plugind.protocol.health.stacks import Frame
from plugind.protocol.messages.status import LoopBlocked, StatusMessage, StepBlocked
from plugind.protocol.plugins.info import Plugin
from plugind.tests.test_private_names import MODULES

LIMIT = 0.02
PLUGIN = Plugin("T", "x", "/reg/a.sock", ("1.0.0",), "/reg/a.sock", 1)


def block() -> None:
    time.sleep(4 * LIMIT)


class Blocking:
    """A handler whose register blocks the loop."""

    follow = None

    async def validate(self, plugin: Plugin) -> None:
        pass

    async def register(self, plugin: Plugin) -> None:
        await trio.lowlevel.checkpoint()
        block()

    async def deregister(self, plugin: Plugin) -> None:
        pass


def take_stack(timer: StackTimer) -> str:
    """Block until the timer has taken the stack, and return the functions in it."""
    stack = None
    while stack is None:
        timer.arm(LIMIT)
        block()
        stack = timer.disarm()
    return " ".join(frame.function for frame in stack)


def test_a_timer_takes_the_stack_of_a_thread_that_does_not_go_on() -> None:
    """Fault 83."""
    timer = StackTimer(threading.get_ident())
    try:
        assert take_stack(timer).startswith("block take_stack test_a_timer_takes")
        assert timer.disarm() is None
        assert take_stack(timer).startswith("block take_stack")
        timer.arm(60.0)
        assert timer.disarm() is None
    finally:
        timer.close()


def compute_deep(depth: int) -> int:
    """Compute in frames that come and go all the time."""
    return sum(compute_deep(depth - 1) for _ in range(2)) if depth else 1


def test_a_thousand_stacks_of_code_that_computes_are_taken() -> None:
    """Fault 83: a stack that was read while its frames changed crashed the daemon."""
    own = "test_a_thousand_stacks_of_code_that_computes_are_taken"
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    timer = StackTimer(threading.get_ident())
    try:
        for _ in range(1000):
            timer.arm(1e-4)
            while timer._stack is None:
                compute_deep(4)
            stack = timer.disarm()
            assert stack is not None
            # The interpreter may switch to this thread amid the reading, so frames are missing now and then.
            assert {frame.function for frame in stack} & {"compute_deep", "<genexpr>", own}
    finally:
        timer.close()
        sys.setswitchinterval(interval)


def cannot_start(*_: object, **__: object) -> None:
    raise RuntimeError("can't start new thread")


async def test_code_that_computes_is_reported_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 83: without the stack, but with its time. So is code in C that gives the timer no turn."""
    monkeypatch.setattr(threading.Thread, "start", cannot_start)
    to_status, reports = trio.open_memory_channel[StatusMessage](10)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watchdog.run, WatchdogConfig(LIMIT), BlockedSteps(), to_status)
            await trio.sleep(LIMIT)
            compute(5 * LIMIT)
            report = await reports.receive()
            nursery.cancel_scope.cancel()
    assert isinstance(report, LoopBlocked)
    assert (report.stack, report.step) == (None, None)
    assert min(report.seconds, report.cpu_seconds) >= LIMIT


def compute(seconds: float) -> None:
    """Take so many seconds of CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def test_a_handler_that_blocks_the_loop_is_named_with_its_plugin_and_the_stack() -> None:
    """Fault 83."""
    steps = BlockedSteps()
    to_status, reports = trio.open_memory_channel[StatusMessage](10)
    calls = HandlerCalls(Blocking(), CallConfig(1.0, watchdog=steps, blocked_after=LIMIT), "T")
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watchdog.run, WatchdogConfig(LIMIT), steps, to_status)
            await trio.sleep(2 * LIMIT)
            await Served(calls).register(PLUGIN, None, lambda: False)
            report = await reports.receive()
            # A machine under load may have held up the loop before.
            while not (isinstance(report, LoopBlocked) and report.step is not None):
                report = await reports.receive()
            nursery.cancel_scope.cancel()

    assert (report.step.type, report.step.call, report.step.plugin) == ("T", "register", PLUGIN)
    assert report.seconds >= LIMIT
    assert report.stack is not None
    assert report.stack.startswith("block (health/test_watchdog.py:")
    assert "register (health/test_watchdog.py:" in report.stack


async def test_the_watchdog_does_nothing_in_virtual_time(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 83: the time of a MockClock passes only while the loop waits."""
    made = list[int]()
    monkeypatch.setattr(watchdog, "StackTimer", made.append)
    to_status, _ = trio.open_memory_channel[StatusMessage](1)
    with trio.move_on_after(3600):
        await watchdog.run(WatchdogConfig(1.0), BlockedSteps(), to_status)
    assert made == []


def test_no_stack_is_taken_of_a_thread_that_goes_on_once_its_stopped_process_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fault 83: after SIGSTOP and SIGCONT the time is over for all threads; the watched one disarms the timer then."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    timer = StackTimer(threading.get_ident())
    try:
        timer.arm(60.0)
        waits: list[float | None] = []

        def wait(left: float | None) -> None:
            waits.append(left)
            now[0] += 3600.0 if len(waits) == 1 else left or 0.0
            timer._closed = len(waits) == 3

        # The timer's own thread sleeps for good; this one takes its turns.
        monkeypatch.setattr(timer._changed, "wait", wait)
        timer._run()
    finally:
        monkeypatch.undo()
        timer.close()
    assert waits[:2] == [50.0, 10.0], "it waits once more although the time is long over"
    assert timer.disarm() is not None, "it is taken of a thread that does not go on even then"


@pytest.mark.parametrize("step", [None, StepBlocked("T", "register", PLUGIN, 5.0)])
@pytest.mark.parametrize("stack", [None, (), (Frame("/opt/trio/_core/_io_epoll.py", "1", "get_events"),)])
async def test_a_loop_that_was_late_without_computing_was_stopped(
    stack: tuple[Frame, ...] | None, step: StepBlocked | None
) -> None:
    """Fault 83: also amid a step of a handler."""
    found = watchdog._blocked(stack, step, 5.0, 0.001, 1.0)
    assert (found is None) == (stack != ())


@pytest.mark.parametrize(("cpu", "stack"), [(1.1, None), (0.001, (Frame("/opt/a.py", "1", "f"),))])
async def test_a_handler_is_blamed_for_a_step_that_computes_or_is_found_waiting(
    cpu: float, stack: tuple[Frame, ...] | None
) -> None:
    """Fault 83: however late the loop was for the watchdog, which may have been about to sleep."""
    step = StepBlocked("T", "register", PLUGIN, 1.2)
    found = watchdog._blocked(stack, step, 0.7, cpu, 1.0)
    assert found is not None
    assert (found.step, found.seconds) == (step, 1.2)


@pytest.mark.parametrize(("cpu", "used"), [(0.2, 0.2), (2.7, 2.5)])
async def test_a_report_says_how_much_cpu_the_loop_used(cpu: float, used: float) -> None:
    """Fault 83: code was blamed where a busy machine gave the process no turn. The CPU time is of a longer period."""
    report = watchdog._blocked((Frame("/opt/a.py", "1", "f"),), None, 2.5, cpu, 1.0)
    assert report is not None
    assert (report.seconds, report.cpu_seconds) == (2.5, used)


def test_faulthandler_reads_the_stack_of_its_own_thread_alone() -> None:
    """The frames of another one change while it reads them without the interpreter's lock: that has crashed daemons."""
    source = "".join(path.read_text() for path in MODULES)
    calls = re.findall(r"faulthandler\.(?:enable|register|dump_\w+)\([^)]*\)", source)
    assert [call for call in calls if "all_threads=False" not in call] == []
    assert len(calls) == 2

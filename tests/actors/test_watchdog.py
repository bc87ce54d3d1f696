"""The watchdog finds out what blocks the loop (fault 83). These tests block it for real, for a few milliseconds."""

from __future__ import annotations

import errno
import faulthandler
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from plugind.actors import watchdog
from plugind.actors.handlers.actor import HandlerInbox, run
from plugind.actors.handlers.calls import CallConfig, Calls
from plugind.actors.io.stacks import FaulthandlerTimer, StackTimer, ThreadTimer, best_timer, thread_timer
from plugind.actors.watchdog import BlockedSteps, WatchdogConfig
from plugind.protocol import messages as m
from plugind.protocol.plugins import Plugin
from plugind.protocol.stacks import Frame, is_idle, parse, shown

LIMIT = 0.02
PLUGIN = Plugin("T", "x", "/reg/a.sock", ("1.0.0",), "/reg/a.sock", 1)
TIMERS = [FaulthandlerTimer, ThreadTimer]


def block() -> None:
    time.sleep(4 * LIMIT)


class Blocking:
    """A handler whose register blocks the loop."""

    async def validate(self, plugin: Plugin) -> None:
        pass

    async def register(self, plugin: Plugin) -> None:
        await trio.lowlevel.checkpoint()
        block()

    async def deregister(self, plugin: Plugin) -> None:
        pass


@attrs.frozen
class Answers:
    """The address of a registration, which waits for its answer."""

    answered: trio.Event = attrs.Factory(trio.Event)

    def send_nowait(self, _: m.HandlerAnswered, /) -> None:
        self.answered.set()


def take_stack(timer: StackTimer) -> str:
    """Block until the timer has taken the stack, and return the functions in it."""
    stack = None
    while stack is None:
        timer.arm(LIMIT)
        block()
        stack = timer.disarm()
    return " ".join(frame.function for frame in stack)


@pytest.mark.parametrize("make", TIMERS)
def test_a_timer_takes_the_stack_of_a_thread_that_does_not_go_on(make: Callable[[int], StackTimer]) -> None:
    """Fault 83."""
    timer = make(threading.get_ident())
    try:
        assert take_stack(timer).startswith("block take_stack test_a_timer_takes")
        assert timer.disarm() is None
        assert take_stack(timer).startswith("block take_stack")
        timer.arm(60.0)
        assert timer.disarm() is None
    finally:
        timer.close()


def fails(*_: object, **__: object) -> int:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def test_without_files_in_memory_the_c_timer_uses_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 83: memfd_create is missing in old kernels, and some sandboxes forbid it."""
    monkeypatch.setattr(os, "memfd_create", fails)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    timer = best_timer(threading.get_ident())
    try:
        assert isinstance(timer, FaulthandlerTimer)
        assert list(tmp_path.iterdir()) == []
        assert take_stack(timer).startswith("block take_stack test_without_files")
        assert timer.disarm() is None
    finally:
        timer.close()


@pytest.mark.parametrize("failing", ["files", "faulthandler"])
def test_where_the_c_timer_cannot_be_used_a_thread_takes_the_stack(
    monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """Fault 83."""
    if failing == "files":
        monkeypatch.setattr(os, "memfd_create", fails)
        monkeypatch.setattr(tempfile, "mkstemp", fails)
    else:
        monkeypatch.setattr(faulthandler, "dump_traceback_later", cannot_start)
    opened = len(os.listdir("/proc/self/fd"))
    timer = best_timer(threading.get_ident())
    try:
        assert isinstance(timer, ThreadTimer)
        assert take_stack(timer).startswith("block take_stack test_where_the_c_timer")
        assert len(os.listdir("/proc/self/fd")) == opened
    finally:
        timer.close()


def cannot_start(*_: object, **__: object) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("make", [best_timer, thread_timer])
async def test_without_any_timer_a_blocked_loop_is_still_reported(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[int], StackTimer]
) -> None:
    """Fault 83: without the stack, but with its time."""
    monkeypatch.setattr(faulthandler, "dump_traceback_later", cannot_start)
    monkeypatch.setattr(threading.Thread, "start", cannot_start)
    to_status, reports = trio.open_memory_channel[m.StatusMessage](10)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watchdog.run, WatchdogConfig(LIMIT, make), BlockedSteps(), to_status)
            await trio.sleep(LIMIT)
            block()
            report = await reports.receive()
            nursery.cancel_scope.cancel()
    assert isinstance(report, m.LoopBlocked)
    assert (report.stack, report.step) == (None, None)
    assert report.seconds >= LIMIT


@pytest.mark.parametrize("make", TIMERS)
async def test_a_handler_that_blocks_the_loop_is_named_with_its_plugin_and_the_stack(
    make: Callable[[int], StackTimer],
) -> None:
    """Fault 83: by the C timer of faulthandler, and by a thread where that is in use."""
    steps, inbox, answers = BlockedSteps(), HandlerInbox(), Answers()
    to_status, reports = trio.open_memory_channel[m.StatusMessage](10)
    calls = Calls(Blocking(), CallConfig(1.0, watchdog=steps, blocked_after=LIMIT), "T")
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watchdog.run, WatchdogConfig(LIMIT, make), steps, to_status)
            nursery.start_soon(run, calls, inbox)
            await trio.sleep(2 * LIMIT)
            inbox.send_nowait(m.Register(PLUGIN, 1, answers))
            report = await reports.receive()
            # A machine under load may have held up the loop before.
            while not (isinstance(report, m.LoopBlocked) and report.step is not None):
                report = await reports.receive()
            nursery.cancel_scope.cancel()

    assert (report.step.type, report.step.call, report.step.plugin) == ("T", "register", PLUGIN)
    assert report.seconds >= LIMIT
    assert report.stack is not None
    assert report.stack.startswith("block (actors/test_watchdog.py:")
    assert "register (actors/test_watchdog.py:" in report.stack


async def test_the_watchdog_does_nothing_in_virtual_time(autojump_clock: MockClock) -> None:
    """Fault 83: the time of a MockClock passes only while the loop waits."""

    def make(_thread: int) -> StackTimer:
        raise AssertionError("a timer was made")

    to_status, _ = trio.open_memory_channel[m.StatusMessage](1)
    with trio.move_on_after(3600):
        await watchdog.run(WatchdogConfig(1.0, make), BlockedSteps(), to_status)


async def test_a_process_that_was_stopped_is_not_blocked() -> None:
    """Fault 83: SIGSTOP, or a machine without a turn for the process, finds the loop where it waits for events."""
    frames = []
    ready, go_on = threading.Event(), threading.Event()
    loop = threading.get_ident()

    def look() -> None:
        ready.set()
        go_on.wait()
        timer, stack = ThreadTimer(loop), None
        # On a busy machine the loop takes a while to wait again; it waits for nothing but this thread then.
        for _ in range(1000):
            timer.arm(0.001)
            time.sleep(0.005)
            stack = timer.disarm() or stack
            if stack and is_idle(stack):
                break
        timer.close()
        assert stack is not None
        frames.append(stack)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, look)
        await trio.to_thread.run_sync(ready.wait)
        go_on.set()
    (stack,) = frames
    assert watchdog._blocked(stack, None, 5.0, 0.0) is None


@pytest.mark.parametrize(("cpu", "used"), [(0.2, 0.2), (2.7, 2.5)])
async def test_a_report_says_how_much_cpu_the_loop_used(cpu: float, used: float) -> None:
    """Fault 83: code was blamed where a busy machine gave the process no turn. The CPU time is of a longer period."""
    report = watchdog._blocked((Frame("/opt/a.py", "1", "f"),), None, 2.5, cpu)
    assert report is not None
    assert (report.seconds, report.cpu_seconds) == (2.5, used)


def test_of_several_steps_the_longest_is_reported() -> None:
    steps = BlockedSteps()
    for seconds in (1.5, 3.0, 2.0):
        steps.send_nowait(m.StepBlocked("T", "register", PLUGIN, seconds))
    step = steps.take()
    assert step is not None
    assert (step.seconds, steps.take()) == (3.0, None)


def test_the_stacks_of_other_threads_are_passed_over() -> None:
    text = (
        "Timeout (0:00:01)!\n"
        "Thread 0x00007f01 (most recent call first):\n"
        '  File "/usr/lib/python3.11/threading.py", line 320 in wait\n\n'
        "Thread 0x00007f02 (most recent call first):\n"
        '  File "/opt/my handler.py", line 12 in register\n'
        '  File "/opt/trio/_core/_run.py", line 2712 in unrolled_run\n'
    )
    stack = parse(text, 0x7F02)
    assert stack[0] == Frame("/opt/my handler.py", "12", "register")
    assert shown(stack) == "register (opt/my handler.py:12)"
    assert parse(text, 0x7F03) == ()

"""The watchdog: it finds what blocked the loop (fault 83).

No task runs while something blocks the loop, so a timer outside of the loop takes the stack of its thread. While the
loop turns, the watchdog restarts the timer before it runs out; after a block it reads the stack. Each step of a
handler's call is measured, and one that took too long is reported with the plugin.
"""

from __future__ import annotations

import threading
import time

import trio

from ...protocol.health.stacks import Stack, is_idle, shown
from ...protocol.messages.status import LoopBlocked, StatusMessage, StepBlocked
from ...protocol.values import value
from ..io.clocks import time_is_virtual
from ..messaging.mailbox import report
from .stacks import StackTimer


class BlockedSteps:
    """The inbox of the watchdog: the longest step of a handler since the last reading."""

    __slots__ = ("_longest",)

    def __init__(self) -> None:
        self._longest: StepBlocked | None = None

    def send_nowait(self, step: StepBlocked, /) -> None:
        """Keep ``step`` if it is the longest one."""
        if self._longest is None or step.seconds > self._longest.seconds:
            self._longest = step

    def take(self) -> StepBlocked | None:
        """Return the longest step and forget it."""
        step, self._longest = self._longest, None
        return step


@value
class WatchdogConfig:
    """The configuration of the watchdog."""

    #: Seconds without a turn of the loop after which a block is reported.
    blocked_after: float

    @property
    def period(self) -> float:
        """Seconds between two starts of the timer, of which two a second take 0.02 percent of a core."""
        return self.blocked_after / 2


async def run(config: WatchdogConfig, inbox: BlockedSteps, status: trio.MemorySendChannel[StatusMessage]) -> None:
    """Watch the loop of this thread until cancelled; do nothing in virtual time."""
    if time_is_virtual():
        await trio.sleep_forever()
    timer = StackTimer(threading.get_ident())
    try:
        while True:
            began, cpu_began = trio.current_time(), time.thread_time()
            # So the stack is taken after ``blocked_after`` to one and a half times that.
            timer.arm(config.blocked_after + config.period)
            await trio.sleep(config.period)
            seconds = trio.current_time() - began - config.period
            cpu = time.thread_time() - cpu_began
            blocked = _blocked(timer.disarm(), inbox.take(), seconds, cpu, config.blocked_after)
            if blocked is not None:
                await report(status, blocked)
    finally:
        timer.close()


def _blocked(
    stack: Stack | None, step: StepBlocked | None, seconds: float, cpu: float, limit: float
) -> LoopBlocked | None:
    """Return what to report about the time since the timer was started; None if nothing blocked the loop.

    ``seconds`` is the delay of the loop, and ``cpu`` the CPU time of the thread, which tells code that computes from a
    busy machine. Code that computes for ``limit`` without letting the timer run is reported without a stack.

    While the process itself was stopped, nothing computed, and no stack was taken; then ``step`` is not blamed for its
    time. A step that waits for less than the timer looks the same.
    """
    seconds = seconds if step is None else step.seconds
    if (stack is None or is_idle(stack)) and min(seconds, cpu) < limit:
        return None  # The loop turned, or the process itself was stopped.
    words = None if not stack or is_idle(stack) else shown(stack) or None
    seconds = round(seconds, 3)
    return LoopBlocked(trio.current_time(), seconds, words, step, round(min(cpu, seconds), 3))

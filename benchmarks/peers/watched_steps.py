"""``plugind`` that reports how long its loop was blocked, and whose disk may be slow.

    python -m benchmarks.peers.watched_steps OUT.json SECONDS run --root DIR ...

Each commit of the state file takes ``SECONDS`` longer, in the thread that makes it. The longest step of a task is
written to the file at the end, and on SIGUSR2, which also begins anew: by the clock, and by the CPU time of the loop's
thread, which does not count what other programs took on a busy machine.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, cast

import trio

from plugind.actors.console.commands import main
from plugind.actors.io import state_database


class Steps(trio.abc.Instrument):
    """The longest step so far."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._began = self._cpu_began = 0.0
        self._longest = self._longest_cpu = 0.0
        self._task = ""

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """See Trio."""
        self._began, self._cpu_began = time.perf_counter(), time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """See Trio."""
        self._longest = max(self._longest, time.perf_counter() - self._began)
        cpu = time.thread_time() - self._cpu_began
        if cpu > self._longest_cpu:
            self._longest_cpu, self._task = cpu, task.name

    def write(self) -> None:
        """Write what was longest, and begin anew."""
        found = {"ms": self._longest * 1000, "cpu_ms": self._longest_cpu * 1000, "task": self._task}
        temporary = self._path.with_suffix(".new")
        temporary.write_text(json.dumps(found))
        os.replace(temporary, self._path)
        self._longest = self._longest_cpu = 0.0

    def on_signal(self, _: int, __: FrameType | None) -> None:
        """Write now."""
        self.write()


def with_instrument(run: Callable[..., Any], instrument: trio.abc.Instrument) -> Callable[..., Any]:
    """Return ``trio.run`` with an instrument."""

    def instrumented(*args: Any, **options: Any) -> Any:
        return run(*args, **options, instruments=[instrument])

    return instrumented


def slow(write: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """Return ``write`` so that each call takes so many seconds longer."""

    def slowed(*args: Any) -> Any:
        time.sleep(seconds)
        return write(*args)

    return slowed


if __name__ == "__main__":
    steps = Steps(Path(sys.argv.pop(1)))
    state_database.write = slow(state_database.write, float(sys.argv.pop(1)))
    signal.signal(signal.SIGUSR2, steps.on_signal)
    trio.run = cast("Any", with_instrument(trio.run, steps))
    sys.argv[0] = "plugind"
    atexit.register(steps.write)
    sys.exit(main())

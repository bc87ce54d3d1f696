"""Runs the daemon and samples its stack a thousand times per second, to find where it spends CPU time.

    python -m benchmarks.report.sampler OUT.json run --root DIR --status PATH

cProfile makes calls expensive and so distorts the shares; a signal each millisecond does not. Timers of CPU time depend
on the kernel's tick, which is too coarse, so the timer counts real time, and samples of a waiting daemon are dropped. A
sample counts for the innermost function of plugind on the stack, and records whether the time was its own or that of a
library that it called. The time of the garbage collector is measured by its callbacks. Signals during a collection are
delivered after it, and these samples are dropped.
"""

from __future__ import annotations

import atexit
import gc
import json
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from types import FrameType

from plugind.benchmarks.peers import judging

INTERVAL = 0.001
_HOME = str(Path(__file__).resolve().parents[2])
_LIBRARIES = ("/trio/", "/grpclib/", "/google/protobuf/", "/h11/", "/outcome/", "/attr/", "/contextlib.py")


class Sampler:
    """Counts samples by function, and the seconds that the garbage collector takes."""

    def __init__(self) -> None:
        self.hits: Counter[tuple[str, str]] = Counter()
        self.collector_s = 0.0
        self.collections = 0
        self._collecting_since = 0.0
        self._collected = False

    def start(self) -> None:
        """Start the timer."""
        gc.callbacks.append(self._on_collection)
        signal.signal(signal.SIGALRM, self._on_signal)
        signal.setitimer(signal.ITIMER_REAL, INTERVAL, INTERVAL)

    def _on_collection(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._collecting_since = time.process_time()
            return
        self.collector_s += time.process_time() - self._collecting_since
        self.collections += 1
        self._collected = True

    def _on_signal(self, _: int, frame: FrameType | None) -> None:
        if self._collected:
            self._collected = False
            return
        if frame is None or frame.f_code.co_name == "get_events":
            return  # The daemon is waiting for events.
        where, library, in_trio = None, "own", False
        while frame is not None and where is None:
            code = frame.f_code
            if code.co_name == "unrolled_run":
                where, library = "the scheduler", "trio"
            elif code.co_filename.startswith(_HOME) and "site-packages" not in code.co_filename:
                where = f"{code.co_filename.removeprefix(_HOME)[1:-3].replace('/', '.')}:{code.co_qualname}"
            elif library == "own":
                library = next((name.strip("/") for name in _LIBRARIES if name in code.co_filename), "python")
            in_trio = in_trio or code.co_name == "unrolled_run"
            frame = frame.f_back
        while frame is not None and not in_trio:
            in_trio = frame.f_code.co_name == "unrolled_run"
            frame = frame.f_back
        if where is not None and in_trio:  # The frames outside of this one belong to the interpreter's start.
            self.hits[where, library] += 1

    def write(self, path: Path) -> None:
        """Stop, and write the counts."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        rows = [{"where": where, "in": library, "hits": hits} for (where, library), hits in self.hits.most_common()]
        seen = {"samples": rows, "collector_s": self.collector_s, "collections": self.collections}
        path.write_text(json.dumps(seen, indent=1) + "\n")


def main() -> int:
    """Run the daemon with the arguments that follow the file's name."""
    out = Path(sys.argv.pop(1))
    sys.argv[0] = "plugind"
    sampler = Sampler()
    atexit.register(sampler.write, out)
    sampler.start()
    return judging.main()


if __name__ == "__main__":
    sys.exit(main())

"""How far ``plugind simulate`` is, on the last line of a terminal; nothing where standard error is none."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Final

_LONGEST: Final = 40
_SHORTEST: Final = 8


def progress_line(done: int, seeds: int, broken: int, seconds: float, columns: int) -> str:
    """Return a line of at most ``columns``: a bar, what is done, how fast, how long still, and what was violated."""
    rate = done / seconds if seconds > 0 else 0.0
    left = _clock((seeds - done) / rate) if rate else "-:--"
    words = [f"{done}/{seeds} seeds", f"{broken} violated", f"{left} left", f"{rate:.1f}/s"]
    # What is said last is left out first, where the terminal is narrow.
    while len(words) > 1 and len("  ".join(words)) > columns:
        words.pop()
    text = "  ".join(words)
    room = min(_LONGEST, columns - len(text) - 2)
    if room < _SHORTEST:
        return text[:columns]
    full = room * done // seeds
    return f"{'━' * full}{'╌' * (room - full)}  {text}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Progress:
    """The last line of the terminal; :meth:`clear` it before anything else is printed."""

    def __init__(self, seeds: int) -> None:
        self._seeds = seeds
        self._shown = sys.stderr.isatty()
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began

    def show(self, done: int, broken: int) -> None:
        """So many seeds are done, and so many of them violated something."""
        if self._seeds > 1:
            self._write(lambda columns: progress_line(done, self._seeds, broken, self.seconds, columns))

    def say(self, text: str) -> None:
        """Show a text instead."""
        self._write(lambda columns: text[:columns])

    def clear(self) -> None:
        """Leave an empty line."""
        self._write(lambda _: "")

    def _write(self, line: Callable[[int], str]) -> None:
        if not self._shown:
            return
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
        # Room for the ^C that a terminal shows: on the next line, the rest of this one would stay.
        text = line(max(1, (columns or 80) - 3))
        sys.stderr.write(f"\r\x1b[K{self._plain(text)}")
        sys.stderr.flush()

    def _plain(self, text: str) -> str:
        try:
            text.encode(sys.stderr.encoding)
        except UnicodeEncodeError:
            return text.replace("━", "#").replace("╌", "-")
        return text

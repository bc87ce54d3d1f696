"""The trace of a script: what happened, its hash, and the rules that were violated."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import attrs
import trio


@attrs.frozen
class Violation:
    """A rule that was violated."""

    #: The rule, in a word.
    oracle: str
    #: Virtual seconds.
    time: float
    text: str


class Trace:
    """Lines about all that happens, hashed as they come; the same for one seed in every process.

    ``show`` gets each line, if it is given. Only the first few violations are kept: the others follow from them.
    """

    MOST = 20

    def __init__(self, show: Callable[[str], None] | None = None) -> None:
        self.violations: list[Violation] = []
        self._show = show
        self._hash = hashlib.sha256()

    def line(self, *words: object) -> None:
        """Add a line."""
        text = f"{trio.current_time():.6f} {' '.join(map(str, words))}"
        self._hash.update(text.encode("utf-8", "backslashreplace") + b"\n")
        if self._show is not None:
            self._show(text)

    def violated(self, oracle: str, text: str) -> None:
        """Record a violation."""
        self.line("VIOLATION", oracle, text)
        if len(self.violations) < self.MOST:
            self.violations.append(Violation(oracle, round(trio.current_time(), 6), text))

    @property
    def hash(self) -> str:
        """The hash of all lines so far, shortened."""
        return self._hash.hexdigest()[:16]

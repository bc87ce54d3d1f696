"""Verdicts on limits: what was measured, beside what is allowed."""

from __future__ import annotations

from collections.abc import Iterable

import attrs


@attrs.frozen
class Verdict:
    """Whether a limit is kept: its name, the case that was measured, what was measured and what is allowed.

    ``beside`` is what helps to judge the figure.
    """

    limit: str
    kind: str
    measured: float
    allowed: float
    unit: str
    beside: str = ""

    @property
    def kept(self) -> bool:
        """Whether the measured value is at most the allowed one."""
        return self.measured <= self.allowed

    def __str__(self) -> str:
        word = "kept  " if self.kept else "MISSED"
        beside = f" ({self.beside})" if self.beside else ""
        return f"{word}  {self.kind}: {self.limit}: {self.measured:.3g} {self.unit}, at most {self.allowed:.3g}{beside}"


def printed(verdicts: Iterable[Verdict]) -> int:
    """Print each verdict; return the exit code of a benchmark, 1 if a limit is missed."""
    missed = 0
    for verdict in verdicts:
        print(verdict)
        missed += not verdict.kept
    return 1 if missed else 0

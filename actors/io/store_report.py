"""Reports on a store that is retried until it works: the state, the leases, the CDI files."""

from __future__ import annotations

from ...protocol.backoff import Backoff
from ...protocol.logs.lines import Level, Logger

PAUSES = Backoff(initial=1.0, factor=2.0, cap=30.0, jitter=0.0)


class StoreReport:
    """Logs each problem of a store once, and that the store works again."""

    def __init__(self, log: Logger, wrong: str, right: str) -> None:
        """Log ``wrong``, with the reason, and later ``right``."""
        self._log = log
        self._wrong = wrong
        self._right = right
        self.problem: str | None = None
        self.failures = 0

    def fail(self, problem: str) -> None:
        """Note that an access has failed, or is late."""
        self.failures += 1
        if problem != self.problem:
            self.problem = problem
            self._log.event(Level.WARNING, self._wrong, reason=problem)

    def recover(self) -> None:
        """Note that an access has succeeded."""
        if self.problem is not None:
            self.problem = None
            self._log.event(Level.INFO, self._right)

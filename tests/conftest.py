"""The settings that all tests share."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Restore the default of SIGINT, so that the processes that tests start react to Ctrl-C.

    A shell without job control starts background jobs with SIGINT ignored, and child processes inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)

"""What all tests have in common."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Let the processes that tests start react to Ctrl-C.

    A shell without job control starts its background jobs with SIGINT ignored, and their children inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)

"""The first steps of a command, before it opens a descriptor, while any signal still ends it; and its modules.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Iterator
from typing import Final

#: The signals that request something of a running daemon. If they are not handled, they end a process.
REQUESTS: Final = (signal.SIGHUP, signal.SIGUSR1)


def open_standard_descriptors() -> None:
    """Open /dev/null at each of the descriptors 0 to 2 that is closed, and print to it.

    A socket would get the number otherwise, and whatever is printed would go to its other end. Python has no stream for
    a descriptor that was closed, and a line meant for standard error would go to standard output.
    """
    # Some containers have no /dev/null; then there is nothing else to open.
    with contextlib.suppress(OSError):
        while (lowest := os.open(os.devnull, os.O_RDWR)) <= 2:
            os.set_inheritable(lowest, True)  # noqa: FBT003 - it takes no keyword
        os.close(lowest)
        if sys.stdout is None:
            sys.stdout = os.fdopen(1, "w", closefd=False)
        if sys.stderr is None:
            sys.stderr = os.fdopen(2, "w", closefd=False)


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Import the modules of a process in the block.

    Modules make a hundred thousand objects and little garbage. To examine these objects time and again takes a seventh
    of the start of the daemon, so they are excluded from collections for ever.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def hold_requests() -> None:
    """Keep :data:`REQUESTS` pending until the daemon receives them, instead of being ended by one that comes early."""
    signal.pthread_sigmask(signal.SIG_BLOCK, REQUESTS)

"""The client of the status socket on Trio."""

from __future__ import annotations

from functools import partial
from typing import Final

import trio

from .backends import Tasks
from .client import ask as _ask

TRIO: Final = Tasks(
    now=trio.current_time,
    sleep=trio.sleep,
    scope=trio.CancelScope,
    readable=trio.lowlevel.wait_readable,
    writable=trio.lowlevel.wait_writable,
    closing=trio.lowlevel.notify_closing,
    closed=trio.ClosedResourceError,
)
#: :func:`.client.ask` on Trio.
ask = partial(_ask, TRIO)

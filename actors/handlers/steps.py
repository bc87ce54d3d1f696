"""Measures the steps of a handler's call: the time between two of its waits, in which no other task runs.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import time
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any


@types.coroutine
def measured(
    call: Coroutine[Any, Any, None], limit: float, blocked: Callable[[float], None]
) -> Generator[Any, Any, None]:
    """Await ``call``, and call ``blocked`` with the seconds of each step that took ``limit`` or longer."""
    value: Any = None
    error: BaseException | None = None
    while True:
        began = time.perf_counter()
        try:
            trap = call.send(value) if error is None else call.throw(error)
        except StopIteration:
            return
        finally:
            seconds = time.perf_counter() - began
            if seconds >= limit:
                blocked(seconds)
        try:
            value, error = (yield trap), None
        except BaseException as thrown:  # noqa: BLE001 - it is thrown into the call
            value, error = None, thrown

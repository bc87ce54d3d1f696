"""Which methods of a handler never wait, so that they can be called in the task of whoever asks.

A coroutine is suspended by one instruction alone, which stands for each ``await``, ``async with`` and ``async for``. A
function whose code has none of them ends in the step in which it begins, whatever it calls.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import dis
import inspect
from types import CodeType

#: What suspends a coroutine.
_SUSPENDS = "YIELD_VALUE"


def never_waits(method: object) -> bool:
    """Whether ``method`` is an ``async def`` that cannot wait; False where its code is not known."""
    code = getattr(method, "__code__", None)
    # Not isinstance: a mock has an attribute that claims to be of this class.
    if type(code) is not CodeType or not code.co_flags & inspect.CO_COROUTINE:
        return False
    return all(instruction.opname != _SUSPENDS for instruction in dis.get_instructions(code))

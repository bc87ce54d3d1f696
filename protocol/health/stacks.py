"""The stack of a thread, and its form in one line of the log."""

from __future__ import annotations

from ..values import value

SHOWN = 8
#: Trio's loop calls tasks from here; the frames that call it are always the same.
_LOOP = "trio/_core/_run.py"
#: The loop waits for events here.
_IDLE = "trio/_core/_io_epoll.py"


@value
class Frame:
    """One call of a stack."""

    file: str
    line: str
    function: str


#: The innermost frame first.
Stack = tuple[Frame, ...]


def is_idle(stack: Stack) -> bool:
    """Whether the loop was waiting for events, so that nothing blocked it and the process itself did not run."""
    return bool(stack) and stack[0].file.endswith(_IDLE)


def shown(stack: Stack) -> str:
    """Return ``stack`` for one line of the log, the innermost call first."""
    calls = []
    for frame in stack[:SHOWN]:
        if frame.file.endswith(_LOOP):
            break
        calls.append(f"{frame.function} ({'/'.join(frame.file.split('/')[-2:])}:{frame.line})")
    return " < ".join(calls)

"""The stack of a thread, and its form in one line of the log."""

from __future__ import annotations

from ..values import value

#: How many frames of a stack are shown: those in which the time was spent, and what called them.
SHOWN = 8
#: The loop of Trio calls tasks from here: what called it is the same for all of them.
_LOOP = "trio/_core/_run.py"
#: The loop waits here when nothing is to do.
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
    """Whether the loop was waiting for events: then nothing blocked it, and the process itself did not run."""
    return bool(stack) and stack[0].file.endswith(_IDLE)


def shown(stack: Stack) -> str:
    """Return ``stack`` for one line of the log, the innermost call first."""
    calls = []
    for frame in stack[:SHOWN]:
        if frame.file.endswith(_LOOP):
            break
        calls.append(f"{frame.function} ({'/'.join(frame.file.split('/')[-2:])}:{frame.line})")
    return " < ".join(calls)

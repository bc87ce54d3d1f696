"""The stack of a thread, from the text that ``faulthandler`` writes, and its form in one line of the log.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re

from .values import value

#: How many frames of a stack are shown: those in which the time was spent, and what called them.
SHOWN = 8
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)')
_THREAD = re.compile(r"(?:Current t|T)hread 0x(?P<id>[0-9a-f]+)")
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


def parse(text: str, thread: int) -> Stack:
    """Return the stack of ``thread`` from what ``faulthandler`` wrote; empty if it is not there."""
    frames: list[Frame] = []
    within = False
    for line in text.splitlines():
        if (head := _THREAD.match(line)) is not None:
            within = int(head["id"], 16) == thread
        elif within and (frame := _FRAME.fullmatch(line)) is not None:
            frames.append(Frame(frame["file"], frame["line"], frame["function"]))
    return tuple(frames)


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

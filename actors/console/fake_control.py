"""Commands to a fake plugin while it runs: lines on standard input, or in a named pipe.

Which commands there are, and what they do, is in the module of each type: :mod:`.fake_devices` and :mod:`.fake_csi`.
``answer CALL``, ``refuse CALL`` and ``hang CALL``, which all types have, say what becomes of later calls. Any shell
writes a line into a named pipe: ``echo unhealthy gpu-0 > PIPE``. ``--command`` has commands from the start.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import attrs
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ..grpc.server.serve import Service
from ..simulation.plugins import Call
from ..simulation.reactions import C, Reaction, react

#: Bytes of a command at most; a longer line is refused.
MAX_LINE = 64 * 1024
_PIECE = 4096
#: Seconds until the terminal is read again, after a moment in which it belonged to other processes.
_PAUSE = 1.0
_STANDARD_INPUT = 0
#: What becomes of calls, by the command for it, and in words.
REACTIONS = {
    "answer": (Reaction.ANSWERED, "answered"),
    "refuse": (Reaction.REFUSED, "refused"),
    "hang": (Reaction.HUNG, "not answered"),
}
#: The same for drivers, which may leave calls out.
DRIVER_REACTIONS = {**REACTIONS, "lack": (Reaction.REFUSED, "not implemented")}


def react_to(how: str, calls: Sequence[C], *, hangs: set[C], errors: dict[C, GRPCError]) -> str:
    """Change what becomes of later ``calls`` to a driver, and return what is said of it.

    ``how`` is a command of :data:`DRIVER_REACTIONS`.
    """
    reaction, words = DRIVER_REACTIONS[how]
    for call in calls:
        react(call, reaction, hangs=hangs, errors=errors)
        if how == "lack":
            errors[call] = GRPCError(Status.UNIMPLEMENTED, f"{call} is not implemented, as by a command")
    return f"{', '.join(calls)} {'is' if len(calls) == 1 else 'are'} {words} from now on"


#: Does what a command says, and returns what is said of it.
Obey = Callable[[str], str]


class Recorded(Service, Protocol):
    """A service that gives ``record`` each call as it comes, before the answer."""

    record: Callable[[Call], None]


@attrs.frozen
class Commanded:
    """What a fake plugin serves for its type, and what the commands to it do."""

    service: Recorded
    obey: Obey


class LineBuffer:
    """Joins pieces of bytes to lines."""

    def __init__(self) -> None:
        self._rest = b""
        self._skips = False

    def add(self, piece: bytes) -> Iterator[str]:
        """Yield the lines that are complete; what is too long to be a command is cut."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if not self._skips:
                yield line.decode(errors="backslashreplace")
            self._skips = False
        if len(self._rest) > MAX_LINE:
            yield self._rest[:80].decode(errors="backslashreplace")
            self._rest, self._skips = b"", True

    def end(self) -> Iterator[str]:
        """Yield the last line, if it has no end."""
        yield from self.add(b"\n") if self._rest else ()


async def follow_standard_input(obey: Obey, say: Callable[[str], None]) -> None:
    """Obey the lines on standard input until it ends. The end of the input ends nothing else."""
    if sys.stdin is None:
        return  # It was closed when the process started.
    # In the background, the terminal would stop the process when it reads.
    signal.signal(signal.SIGTTIN, signal.SIG_IGN)
    await _follow(_STANDARD_INPUT, obey, say)


async def follow_pipe(pipe: int, obey: Obey, say: Callable[[str], None]) -> None:
    """Obey the lines in a named pipe that :func:`named_pipe` has opened. It never ends."""
    await _follow(pipe, obey, say)


async def _follow(source: int, obey: Obey, say: Callable[[str], None]) -> None:
    lines = LineBuffer()
    while piece := await _read(source):
        for line in lines.add(piece):
            _take(line, obey, say)
    for line in lines.end():
        _take(line, obey, say)


def _take(line: str, obey: Obey, say: Callable[[str], None]) -> None:
    if line.strip():
        say(obey(line))


async def _read(source: int) -> bytes:
    """Return the next bytes; none at the end."""
    while True:
        try:
            await trio.lowlevel.wait_readable(source)
        except PermissionError:
            # A plain file or /dev/null, which is always readable.
            await trio.lowlevel.checkpoint()
        except OSError:
            return b""  # It is closed.
        try:
            return os.read(source, _PIECE)
        except BlockingIOError:
            continue
        except OSError as error:
            if error.errno != errno.EIO or not os.isatty(source) or _has_terminal(source):
                return b""
            await trio.sleep(_PAUSE)


def _has_terminal(source: int) -> bool:
    """Whether the terminal is there for this process now, and not for others."""
    try:
        return os.tcgetpgrp(source) == os.getpgrp()
    except OSError:
        return True


@contextmanager
def named_pipe(path: str) -> Iterator[int]:
    """Make a named pipe at ``path`` for the block, or take over one that nobody reads.

    Raises:
      OSError: EADDRINUSE where another process reads it, EEXIST where something else is, and what mkfifo(3) says.
    """
    try:
        os.mkfifo(path, 0o600)
    except FileExistsError:
        _check_unread(path)
    # It is open for writing too, so that it does not end with its writers.
    pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield pipe
    finally:
        _remove(path, pipe)
        os.close(pipe)


def _check_unread(path: str) -> None:
    if not stat.S_ISFIFO(os.lstat(path).st_mode):
        raise OSError(errno.EEXIST, "something that is no pipe is in the way", path)
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        if error.errno == errno.ENXIO:
            return
        raise
    raise OSError(errno.EADDRINUSE, "another process reads it", path)


def _remove(path: str, pipe: int) -> None:
    try:
        if os.path.samestat(os.lstat(path), os.fstat(pipe)):
            os.unlink(path)
    except OSError:
        return  # It is gone, or can stay.

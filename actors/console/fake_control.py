"""Commands to a running fake plugin: lines on standard input, or in a named pipe.

The modules of the types have the commands: :mod:`.fake_devices`, :mod:`.fake_csi` and :mod:`.fake_dra`. ``answer
CALL``, ``refuse CALL`` and ``hang CALL`` of all types set the reaction to later calls. A shell can write into a named
pipe: ``echo unhealthy gpu-0 > PIPE``. ``--command`` gives commands for the start.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import attrs
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ..grpc.server.serve import Service
from ..simulation.plugins import Call
from ..simulation.reactions import C, Reaction, react

#: The most bytes of a command; a longer line is refused.
MAX_LINE = 64 * 1024
_PIECE = 4096
#: Seconds until the terminal is read again, after other processes had it.
_PAUSE = 1.0
_STANDARD_INPUT = 0
#: The reactions to calls by their commands, with words for them.
REACTIONS = {
    "answer": (Reaction.ANSWERED, "answered"),
    "refuse": (Reaction.REFUSED, "refused"),
    "hang": (Reaction.HUNG, "not answered"),
}
#: The same for drivers, which can also lack a call.
DRIVER_REACTIONS = {**REACTIONS, "lack": (Reaction.REFUSED, "not implemented")}


def react_to(how: str, call: str, named: Mapping[str, C], *, hangs: set[C], errors: dict[C, GRPCError]) -> str:
    """Set the reaction to later calls of a driver, to the one that is ``named`` so or to all; return the reply's text.

    ``how`` is a command of :data:`DRIVER_REACTIONS`.
    """
    reaction, words = DRIVER_REACTIONS[how]
    calls = [*named.values()] if call == "all" else [named[call]]
    for each in calls:
        react(each, reaction, hangs=hangs, errors=errors)
        if how == "lack":
            errors[each] = GRPCError(Status.UNIMPLEMENTED, f"{each} is not implemented, as by a command")
    return f"{', '.join(calls)} {'is' if len(calls) == 1 else 'are'} {words} from now on"


#: Executes a command, and returns the text of the reply.
Obey = Callable[[str], str]


class Recorded(Service, Protocol):
    """A service that passes each call to ``record`` before the answer."""

    record: Callable[[Call], None]


@attrs.frozen
class Commanded:
    """The service of a fake plugin's type, and the function for its commands."""

    service: Recorded
    obey: Obey


class LineBuffer:
    """Joins pieces of bytes to lines."""

    def __init__(self) -> None:
        self._rest = b""
        self._skips = False

    def add(self, piece: bytes) -> Iterator[str]:
        """Yield the complete lines; cut a line that is too long for a command."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if not self._skips:
                yield line.decode(errors="backslashreplace")
            self._skips = False
        if len(self._rest) > MAX_LINE:
            yield self._rest[:80].decode(errors="backslashreplace")
            self._rest, self._skips = b"", True

    def end(self) -> Iterator[str]:
        """Yield the last line, if it is incomplete."""
        yield from self.add(b"\n") if self._rest else ()


async def follow_standard_input(obey: Obey, say: Callable[[str], None]) -> None:
    """Obey the lines on standard input until it ends. The plugin goes on after that."""
    if sys.stdin is None:
        return  # It was closed when the process started.
    # In the background, reading from the terminal would stop the process.
    signal.signal(signal.SIGTTIN, signal.SIG_IGN)
    await _follow(_STANDARD_INPUT, obey, say)


async def follow_pipe(pipe: int, obey: Obey, say: Callable[[str], None]) -> None:
    """Obey the lines in a named pipe of :func:`named_pipe`, forever."""
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
    """Return the next bytes; empty at the end."""
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
    """Whether this process has the terminal now."""
    try:
        return os.tcgetpgrp(source) == os.getpgrp()
    except OSError:
        return True


@contextmanager
def named_pipe(path: str) -> Iterator[int]:
    """Make a named pipe at ``path`` for the block, or take over one that nobody reads.

    Raises:
      OSError: EADDRINUSE if another process reads it, EEXIST if something else is there, or an error of mkfifo(3).
    """
    try:
        os.mkfifo(path, 0o600)
    except FileExistsError:
        _check_unread(path)
    # It is open for writing, too, so that it does not end with its writers.
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

"""Processes of ``python -m plugind`` that are forked from one that has imported plugind already.

Imports take most of the time of a short command. So the tests of a pytest process share a server, which imports
plugind once and forks each process. Such a process is like any other: it is a child of the process that started it,
has its own descriptors, environment, directory and blocked signals, and ends like ``python -m plugind``. Only the start
of the interpreter and the imports are left out, so a test that is about these uses the fixture ``real_processes``.

Run as a program, this module is the server.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import io
import json
import os
import pkgutil
import resource
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TextIO

import attrs

_PR_SET_CHILD_SUBREAPER: Final = 36
#: The beginnings of the variables that an interpreter and its libraries read when they start.
_READ_AT_START: Final = ("PYTHON", "LC_", "LANG", "TZ")
_END_TO_END: Final = Path(__file__).parent / "end_to_end"
#: Programs that change something in plugind and run it; their processes are forked as well.
SCRIPTS: Final = frozenset(_END_TO_END / name for name in ("blocking.py", "patient.py"))
_SIGNALS: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_LIMITS: Final = (resource.RLIMIT_NOFILE, resource.RLIMIT_AS)


@attrs.frozen
class Asked:
    """What the new process is to be: a script or ``-m plugind``, with arguments, and what it inherits."""

    words: Sequence[str]
    environment: Mapping[str, str]
    directory: str
    blocked: Sequence[int]
    ignored: Sequence[int]


def read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a forked process cannot have other than its server. Most count as unset if empty."""
    return {n: value for n, value in environment.items() if n.startswith(_READ_AT_START) and (value or n == "TZ")}


# --- the side of the tests ---


class ForkServer:
    """A process that has imported plugind, and the connection to it."""

    def __init__(self) -> None:
        self._at_start = self._inherited(os.environ)
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        command = [sys.executable, __file__, str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)

    def can_start(self, environment: Mapping[str, str]) -> bool:
        """Return whether a fork can be what a new process would be."""
        return self._inherited(environment) == self._at_start

    @staticmethod
    def _inherited(environment: Mapping[str, str]) -> tuple[object, ...]:
        return read_at_start(environment), [resource.getrlimit(which) for which in _LIMITS], _umask()

    def start(self, asked: Asked, descriptors: Sequence[int]) -> int:
        """Start a process with these descriptors as its standard input, output and error; return its pid."""
        line = json.dumps(attrs.asdict(asked)).encode() + b"\n"
        with self._lock, _adopting():
            socket.send_fds(self._socket, [line[:1]], list(descriptors))
            self._socket.sendall(line[1:])
            return int(_line(self._socket))

    def close(self) -> None:
        """Let it end."""
        self._socket.close()
        self._process.wait()


def _umask() -> str:
    status = Path("/proc/self/status").read_text()
    return status.partition("\nUmask:")[2].partition("\n")[0]


def _line(connection: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        piece = connection.recv(1 << 16)
        if not piece:
            raise EOFError("the fork server has ended")
        line += piece
    return line


@contextmanager
def _adopting() -> Iterator[None]:
    """A process whose parent ends becomes a child of this one for the duration of the block."""
    _adopt(1)
    try:
        yield
    finally:
        _adopt(0)


def _adopt(on: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, on, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "processes cannot be adopted")


class ForkingPopen(subprocess.Popen[Any]):
    """A ``Popen`` that has a fork server start ``python -m plugind``, and starts everything else itself."""

    #: The server; the first process that can be forked starts it.
    server: ForkServer | None = None

    def _execute_child(self, *given: Any) -> None:
        how = _HOW.bind(self, *given).arguments
        environment = _decoded(os.environ if how["env"] is None else how["env"])
        words = _words(how["args"]) if _is_usual(how) else []
        if not words or not (server := self._server()).can_start(environment):
            super()._execute_child(*given)  # type: ignore[misc]
            return
        directory = os.path.abspath(os.fsdecode(how["cwd"] or "."))
        ignored = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_IGN]
        blocked = [*signal.pthread_sigmask(signal.SIG_BLOCK, ())]
        ours = [how["p2cread"], how["c2pwrite"], how["errwrite"]]
        inherited = [number if descriptor == -1 else descriptor for number, descriptor in enumerate(ours)]
        self.pid = server.start(Asked(words, environment, directory, blocked, ignored), inherited)
        self._child_created = True
        self._close_pipe_fds(*(how[name] for name in _PIPES))  # type: ignore[attr-defined]

    @classmethod
    def _server(cls) -> ForkServer:
        if cls.server is None:
            cls.server = ForkServer()
        return cls.server

    @classmethod
    def close(cls) -> None:
        """End the server, if there is one."""
        if cls.server is not None:
            cls.server.close()
            cls.server = None


#: The parameters of the only method that starts a process, and what a fork can have for some of them.
_HOW: Final = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]
_PIPES: Final = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_USUAL: Final = {
    **dict.fromkeys(("executable", "preexec_fn", "gid", "gids", "uid")),
    "pass_fds": (),
    "shell": False,
    "umask": -1,
    "start_new_session": False,
    "process_group": -1,
}


def _is_usual(how: Mapping[str, Any]) -> bool:
    return all(how[name] == usual for name, usual in _USUAL.items())


def _decoded(environment: Mapping[Any, Any]) -> dict[str, str]:
    return {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()}


def _words(args: Any) -> list[str]:
    """Return the arguments of python for a process that can be forked, and nothing for any other."""
    if isinstance(args, str | bytes | os.PathLike):
        return []
    python, *words = map(os.fsdecode, args)
    of_ours = words[:2] == ["-m", "plugind"] or (bool(words) and Path(words[0]) in SCRIPTS)
    return words if python == sys.executable and of_ours else []


# --- the side of the server ---


def serve(connection: socket.socket) -> None:
    """Fork a process for each line. In such a process, run what was asked for, and return when that ends."""
    while (received := _receive(connection)) is not None:
        asked, descriptors = received
        if (pid := _fork_orphan()) == 0:
            connection.close()
            _become(asked, descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)
        connection.sendall(b"%d\n" % pid)


def _receive(connection: socket.socket) -> tuple[Asked, list[int]] | None:
    try:
        line, descriptors, _, _ = socket.recv_fds(connection, 1, 3)
    except KeyboardInterrupt:  # A terminal interrupts the tests and this process.
        return None
    return (Asked(**json.loads(line + _line(connection))), descriptors) if line else None


def _fork_orphan() -> int:
    """Fork a process that is no child of this one. Return its pid once it has another parent, and 0 in it."""
    pids, adopted = os.pipe(), os.pipe()
    pid = 0
    if between := os.fork():
        os.waitpid(between, 0)
        pid = int(os.read(pids[0], 20))
    elif child := os.fork():
        os.write(pids[1], b"%d" % child)
        os._exit(0)
    os.close(adopted[1])
    if not pid:
        # The end of the pipe comes when the process between has ended and the server has closed its side.
        os.read(adopted[0], 1)
    for descriptor in (*pids, adopted[0]):
        os.close(descriptor)
    return pid


def _become(asked: Asked, descriptors: Sequence[int]) -> None:
    """Be what ``python WORDS`` would be, and run it."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.closerange(3, max(descriptors) + 1)
    for number in _SIGNALS:
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in asked.ignored else usual)
    signal.pthread_sigmask(signal.SIG_SETMASK, asked.blocked)
    os.environ.clear()
    os.environ.update(asked.environment)
    os.chdir(asked.directory)
    sys.stdin, sys.stdout, sys.stderr = _opened(0, sys.stdin), _opened(1, sys.stdout), _opened(2, sys.stderr)
    if asked.words[0] == "-m":
        sys.path[0] = asked.directory
        sys.argv = [str(Path(__file__).parents[1] / "__main__.py"), *asked.words[2:]]
        runpy.run_module("plugind", run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(asked.words[0])
        sys.argv = [*asked.words]
        runpy.run_path(sys.argv[0], run_name="__main__")


def _opened(number: int, like: TextIO) -> TextIO:
    """Return a stream as an interpreter opens it when it starts."""
    assert isinstance(like, io.TextIOWrapper)
    unbuffered = like.write_through
    opened = open(number, "rb" if number == 0 else "wb", 0 if unbuffered and number else -1, closefd=False)  # noqa: SIM115
    at_lines = not unbuffered and (number == 2 or os.isatty(number))
    return io.TextIOWrapper(opened, like.encoding, like.errors, None, at_lines, unbuffered)


def import_plugind() -> None:
    """Import what the commands import, so that each fork has it."""
    from plugind.actors import console

    for module in pkgutil.iter_modules(console.__path__, f"{console.__name__}."):
        import_module(module.name)
    gc.freeze()


if __name__ == "__main__":
    import_plugind()
    serve(socket.socket(fileno=int(sys.argv[1])))

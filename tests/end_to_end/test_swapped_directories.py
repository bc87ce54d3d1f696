"""A directory below a root that is swapped with a symbolic link again and again, on a real daemon."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import trio

from plugind.tests.end_to_end.processes import DEADLINE, daemon

#: How often the daemon must have come to the socket that it may dial before the test ends.
_DIALS = 400
#: Nobody answers on these sockets, and they are new again and again: plugins in a crash loop are dialed once.
_AGAIN = ("--stable-after", "0")
#: How many sockets are in the directory, and of the same names where the link leads.
_SOCKETS = 10

#: A process that swaps two paths without a pause (renameat2 with ``RENAME_EXCHANGE``), and touches the socket in the
#: directory, so that the daemon looks at it and tries it again.
_SWAPPER = """
import ctypes, os, sys, time
one, other = map(os.fsencode, sys.argv[1:])
libc, directory = ctypes.CDLL(None), os.open(one, os.O_RDONLY)
names = os.listdir(directory)
while True:
    for name in names:
        os.chmod(name, 0o700, dir_fd=directory)
    libc.renameat2(-100, one, -100, other, 2)
    time.sleep(0.0002)
"""


@contextmanager
def swapping(one: Path, other: Path) -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", _SWAPPER, str(one), str(other)]) as process:
        try:
            yield
        finally:
            process.kill()


@contextmanager
def listening(directory: Path) -> Iterator[list[socket.socket]]:
    """Listen on some sockets in ``directory``."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(_SOCKETS)]
        for number, listener in enumerate(listeners):
            listener.bind(str(directory / f"{number}.sock"))
            listener.listen(4096)
            listener.setblocking(False)
        yield listeners


def accepted(listeners: Iterable[socket.socket]) -> int:
    """Hang up on every connection that is pending, and return how many there were."""
    return sum(1 for listener in listeners for _ in pending(listener))


def pending(listener: socket.socket) -> Iterator[None]:
    with suppress(BlockingIOError):
        while True:
            listener.accept()[0].close()
            yield


async def test_a_directory_that_is_swapped_with_a_link_leads_the_daemon_nowhere(tmp_path: Path) -> None:
    """Faults 3 and 41: the daemon dialed sockets in a directory that only root may enter, 2,527 times in 12 s."""
    root, secret = tmp_path / "root", tmp_path / "secret"
    swapped, link = root / "swapped", root / ".link"
    swapped.mkdir(parents=True)
    secret.mkdir(mode=0o700)
    link.symlink_to(secret)
    with listening(swapped) as ours, listening(secret) as theirs, daemon(tmp_path, *_AGAIN) as node:
        await node.ready()
        dialed = reached = 0
        with trio.fail_after(DEADLINE), swapping(swapped, link):
            while dialed < _DIALS:
                await trio.sleep(0.01)
                dialed += accepted(ours)
                reached += accepted(theirs)
        assert reached == 0

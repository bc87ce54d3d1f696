"""A ``/dev`` of its own for the command of ``plugind allocate --confine``: the standard nodes and the leased ones.

bubblewrap makes it, in a process that only waits. Then this process enters it, and becomes the command as it would
without. So no process stands between the command and the shell. bubblewrap itself passes no signal on, and its end
would end the lease while the command runs.

The rest of the file system is there as it is, but device nodes in it cannot be opened (``nodev``), since bubblewrap
binds it without devices.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import stat
import subprocess
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import PurePath
from typing import Final

BWRAP: Final = "bwrap"

#: Seconds that bubblewrap may take, and then its end.
SECONDS: Final = 30.0
#: What else of ``/dev`` is seen inside, if it is there: it is no device, or it is the terminal of the command.
_SHARED: Final = ("/dev/pts", "/dev/shm", "/dev/mqueue", "/dev/hugepages", "/dev/log")
#: The nodes that bubblewrap makes in each ``/dev``.
_STANDARD: Final = frozenset(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty"))
#: Of ioctl_ns(2): returns the user namespace that owns a namespace.
_NS_GET_USERNS: Final = 0xB701


class ConfineError(Exception):
    """The command cannot be confined; the text says why."""


def confine(bwrap: str, nodes: Collection[str]) -> None:
    """Enter a file system in which ``/dev`` has the standard nodes and ``nodes``, and no other node can be opened.

    Raises:
      ConfineError: if that is not possible, or a node that is not among these can be opened after all.
    """
    here = os.getcwd()
    with ExitStack() as stack:
        reading, writing = os.pipe()
        stack.callback(os.close, reading)
        with open(writing, "wb"):
            holder = stack.enter_context(_holder(bwrap, nodes, writing))
        try:
            child = _child_of(holder, reading)
            _enter(child)
            os.chdir(here)
            left = next(_left(nodes), None)
        except OSError as error:
            raise ConfineError(f"the /dev that {BWRAP} has made cannot be entered: {error.strerror}") from error
    if left is not None:
        raise ConfineError(f"the device node {left} was not leased, and is there all the same")


@contextmanager
def _holder(bwrap: str, nodes: Collection[str], info: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process with the file system. It writes what it reads, and ends with its input."""
    binds = [word for path in _SHARED for word in ("--dev-bind-try", path, path)]
    # bubblewrap makes directories that its own user alone may enter, and root may run the command as somebody else.
    made = sorted({str(above) for path in nodes for above in PurePath(path).parents if str(above).startswith("/dev/")})
    binds += [word for path in made for word in ("--perms", "0755", "--dir", path)]
    binds += [word for path in nodes for word in ("--dev-bind", path, path)]
    words = [bwrap, "--die-with-parent", "--bind", "/", "/", "--dev", "/dev", *binds, "--info-fd", str(info)]
    try:
        holder = subprocess.Popen(
            [*words, "--", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, pass_fds=(info,)
        )
    except OSError as error:
        raise ConfineError(f"{bwrap} cannot be run: {error.strerror}") from error
    try:
        yield holder
    except BaseException:
        holder.kill()
        raise
    finally:
        for pipe in filter(None, (holder.stdin, holder.stdout)):
            pipe.close()
        # One that hangs in the kernel is left to itself.
        with suppress(subprocess.TimeoutExpired):
            holder.wait(SECONDS)
        holder.kill()


def _child_of(holder: subprocess.Popen[bytes], info: int) -> int:
    """Return the process that has the file system, once that is complete."""
    assert holder.stdin is not None, "it is a pipe"
    assert holder.stdout is not None, "it is a pipe"
    deadline = time.monotonic() + SECONDS
    with suppress(BrokenPipeError):  # It has ended, and said why.
        holder.stdin.write(b"\n")
        # It has written who the process is before that begins.
        if _read(holder.stdout.fileno(), deadline):
            return int(json.loads(_read(info, deadline))["child-pid"])
    advice = "" if os.geteuid() == 0 else "; a user other than root needs user namespaces, which this kernel may forbid"
    raise ConfineError(f"{BWRAP} has made no /dev{advice}")


def _read(descriptor: int, deadline: float) -> bytes:
    """Return the next bytes of a pipe, or nothing at its end.

    Raises:
      ConfineError: if there is neither before the deadline.
    """
    if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
        raise ConfineError(f"{BWRAP} has made no /dev within {SECONDS:g} s")
    return os.read(descriptor, 4096)


def _enter(child: int) -> None:
    """Enter the mount namespace of a process, and the user namespace in which it is, if that is another one."""
    setns = ctypes.CDLL(None, use_errno=True).setns
    with ExitStack() as stack:

        def opened(path: str) -> int:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            return descriptor

        mounts, inner, own = (
            opened(path) for path in (f"/proc/{child}/ns/mnt", f"/proc/{child}/ns/user", "/proc/self/ns/user")
        )
        owner = fcntl.ioctl(mounts, _NS_GET_USERNS)
        stack.callback(os.close, owner)
        # bubblewrap mounts as the owner of one user namespace, and then enters another one, where the user is itself.
        last = own
        for descriptor in (owner, mounts, inner):
            if descriptor is not mounts and os.path.samestat(os.fstat(descriptor), os.fstat(last)):
                continue
            if setns(descriptor, 0):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
            last = last if descriptor is mounts else descriptor


def _left(nodes: Collection[str]) -> Iterator[str]:
    """Yield the device nodes in ``/dev``, and beside ``nodes``, that are not among these and can be opened."""
    kept = {*nodes, *_STANDARD}
    for directory in ("/dev", *{os.path.dirname(path) for path in nodes} - {"/dev"}):
        for place, names, files in os.walk(directory):
            names[:] = [name for name in names if f"{place}/{name}" not in (*_SHARED, *nodes)]
            if directory != "/dev":
                names.clear()
            for path in {f"{place}/{name}" for name in files} - kept:
                found = os.lstat(path).st_mode
                is_node = stat.S_ISCHR(found) or stat.S_ISBLK(found)
                if is_node and not os.statvfs(path).f_flag & os.ST_NODEV:
                    yield path

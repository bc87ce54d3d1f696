"""The identity of a process behind a pid."""

from __future__ import annotations

import errno
import functools
import os
from contextlib import suppress
from typing import Final

from ...protocol.leases.values import ContainerOwner, Lease, ProcessIdentity, ProcessOwner
from ...protocol.process_stat import command, has_ended, parent, start_ticks

_MOST: Final = 4096
#: The program that asks for leases.
_OWN: Final = "plugind"
#: The program that watches a container of Podman.
_MONITOR: Final = "conmon"
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


@functools.cache
def boot_id() -> str:
    """Return the id of this boot.

    Raises:
      OSError: if it cannot be read.
    """
    with open(_BOOT_ID, encoding="ascii") as file:
        return file.read().strip()


def known_boot_id() -> str:
    """Return the id of this boot; empty if it cannot be read."""
    with suppress(OSError):
        return boot_id()
    return ""


def identity_of(pid: int) -> ProcessIdentity | None:
    """Return the identity of process ``pid``; None if there is none, or if it is a zombie.

    Raises:
      OSError: if it cannot be read.
    """
    try:
        stat = read_small(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError):
        if _is_there(pid):
            raise OSError(errno.EACCES, "/proc does not show it (hidepid)") from None
        return None
    return None if has_ended(stat) else ProcessIdentity(pid, start_ticks(stat), boot_id())


def purpose_of(lease: Lease) -> str:
    """Return what a lease is for: the job, the command or the container; if none is known, the id of the lease.

    The command is that of this moment, since ``plugind allocate`` asks for a lease before it becomes the command. The
    name of a container is not known before its start, nor after its end.
    """
    if lease.job is not None:
        return f"job {lease.job}"
    match lease.owner:
        case ProcessOwner():
            return command_of(lease.owner.process) or lease.id
        case ContainerOwner(init=init) if init is not None:
            return container_of(init) or command_of(init) or lease.id
        case _:
            return lease.id


def command_of(process: ProcessIdentity) -> str | None:
    """Return the name of the program that a process runs; None if this process cannot find that out.

    Arguments can hold secrets, so they are not returned. ``plugind allocate`` has the name of what it is to run.
    """
    stat = _stat_of(process)
    name = "" if stat is None else command(stat)
    if name == _OWN:
        with suppress(OSError, ValueError):
            words = read_small(f"/proc/{process.pid}/cmdline").split(b"\0")
            name = os.fsdecode(os.path.basename(words[words.index(b"--") + 1]))
    return name or None


def container_of(init: ProcessIdentity) -> str | None:
    """Return the name of the Podman container whose first process is ``init``; None if it cannot be found out.

    The parent of ``init`` is conmon, which Podman starts for each container and gives the name.
    """
    stat = _stat_of(init)
    with suppress(OSError, ValueError, IndexError):
        monitor = 0 if stat is None else parent(stat)
        if monitor and command(read_small(f"/proc/{monitor}/stat")) == _MONITOR:
            words = read_small(f"/proc/{monitor}/cmdline").split(b"\0")
            return os.fsdecode(words[words.index(b"-n") + 1]) or None
    return None


def _stat_of(process: ProcessIdentity) -> bytes | None:
    """Return ``/proc/PID/stat`` of exactly this process; None if it cannot be read here, or has ended."""
    with suppress(OSError, ValueError):
        stat = read_small(f"/proc/{process.pid}/stat")
        if (start_ticks(stat), boot_id()) == (process.start_ticks, process.boot_id):
            return stat
    return None


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def read_small(path: str) -> bytes:
    """Return the content of a small file of ``/proc``, in half the time of a file object.

    Raises:
      OSError: if it cannot be read.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, _MOST)
    finally:
        os.close(file)

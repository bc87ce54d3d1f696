"""Real processes that own leases: who they are, and that they have ended."""

from __future__ import annotations

import errno
import math
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from plugind.actors.io import owner_processes
from plugind.actors.io.owner_processes import OwnerProcesses, may_run
from plugind.actors.io.process_identity import identity_of
from plugind.actors.leases.owners import Owners
from plugind.actors.simulation.lease_owners import MemoryBootClock
from plugind.protocol.leases.effects import WatchOwner
from plugind.protocol.leases.messages import OwnerEnded, PluginEnded
from plugind.protocol.leases.values import ProcessIdentity, ProcessOwner
from plugind.tests.actors.io.exhaustion import leaving_no_descriptor, no_descriptor_left


def watching(most: int = 2000) -> AbstractContextManager[OwnerProcesses]:
    return leaving_no_descriptor(lambda: OwnerProcesses(most))


@contextmanager
def children(count: int) -> Iterator[list[int]]:
    """So many processes that wait. A fork of this process would cost ten times as much."""
    pids: list[int] = []
    try:
        pids.extend(os.posix_spawnp("sleep", ["sleep", "600"], os.environ) for _ in range(count))
        yield pids
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def reaped(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_the_identity_of_a_process_is_its_pid_and_start_and_boot() -> None:
    with watching() as processes:
        own = processes.identity(os.getpid())
        assert own.pid == os.getpid()
        assert own.start_ticks > 0
        assert own.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        assert processes.runs(own)
        assert isinstance(processes.watch(own), int)


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot_id": "another"}, {"pid": 2**40}])
def test_another_process_with_the_pid_is_not_the_owner(change: dict[str, Any]) -> None:
    """A pid is used again within seconds, and a start time after a reboot."""
    with watching() as processes:
        other = attrs.evolve(processes.identity(os.getpid()), **change)
        assert not processes.runs(other)
        with pytest.raises(ProcessLookupError):
            processes.watch(other)


def test_a_process_that_nobody_has_waited_for_has_ended() -> None:
    """A zombie holds no device, though it has a pid and a start."""
    with watching() as processes, children(1) as [pid]:
        owner = processes.identity(pid)
        reaped(pid)
        assert not processes.runs(owner)
        with pytest.raises(ProcessLookupError):
            processes.watch(owner)


def test_without_descriptors_the_start_is_compared_all_the_same() -> None:
    """One is kept for that, so that another process with the pid is noticed."""
    with watching() as processes:
        own = processes.identity(os.getpid())
        with no_descriptor_left():
            assert processes.runs(own)
            assert processes.watch(own) is None
            assert not processes.runs(attrs.evolve(own, start_ticks=1))
            with pytest.raises(ProcessLookupError):
                processes.watch(attrs.evolve(own, start_ticks=1))
            assert processes.identity(os.getpid()) == own


async def test_a_thousand_owners_that_die_at_once_are_told() -> None:
    """All within the second in which they die, by one wait; they have a descriptor each."""
    with watching() as processes, children(1000) as pids:
        send, messages = trio.open_memory_channel[OwnerEnded | PluginEnded](math.inf)
        owners = Owners(processes, MemoryBootClock(), send)
        for pid in pids:
            owners.watch(WatchOwner(str(pid), ProcessOwner(processes.identity(pid))))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(owners.run)
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            with trio.fail_after(60):
                ended = [await messages.receive() for _ in pids]
            nursery.cancel_scope.cancel()
        assert {message.id for message in ended if isinstance(message, OwnerEnded)} == set(map(str, pids))


_HIDDEN = """
import codecs, os, sys
from plugind.actors.io.owner_processes import OwnerProcesses, may_run
from plugind.actors.io.process_identity import identity_of
from plugind.protocol.leases.values import ProcessIdentity

owner = ProcessIdentity(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
codecs.lookup("ascii")  # User 65534 may not be able to read the standard library, so it is loaded before.
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
assert not os.path.exists(f"/proc/{owner.pid}"), "it is not hidden"
processes = OwnerProcesses(10)
print(processes.runs(owner), processes.watch(owner))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts file systems")
async def test_a_process_that_is_hidden_is_still_there() -> None:
    """``hidepid=2`` hides the processes of other users: that nothing can be read is no sign of an end."""
    with watching() as processes:
        own: ProcessIdentity = processes.identity(os.getpid())
    script = 'mount -t proc -o hidepid=2 none /proc && exec "$0" -c "$@"'
    arguments = [_HIDDEN, str(own.pid), str(own.start_ticks), own.boot_id]
    command = ["unshare", "--mount", "sh", "-c", script, sys.executable, *arguments]
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert done.stdout.decode().split() == ["True", "1"], done.stderr


# --- to stop them -----------------------------------------------------------------------------------------------------


def test_a_process_is_stopped_by_sigterm_with_no_descriptor_left() -> None:
    with watching() as processes, children(1) as [pid]:
        owner = processes.identity(pid)
        number = processes.watch(owner)
        assert number is not None
        with no_descriptor_left():
            processes.stop(number, owner, os.getuid())
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        assert ended.si_status == signal.SIGTERM
        processes.stop(number, owner, os.getuid())  # It has ended, and nobody has waited for it.
        processes.forget(number)
        processes.stop(number, owner, os.getuid())


def test_a_process_of_another_user_is_not_stopped_for_a_user() -> None:
    """A lease of a user must not make a daemon of root end what that user may not end."""
    with watching() as processes, children(1) as [pid]:
        owner = processes.identity(pid)
        number = processes.watch(owner)
        assert number is not None
        with pytest.raises(PermissionError, match=f"it is a process of user {os.getuid()}"):
            processes.stop(number, owner, os.getuid() + 1)
        assert processes.runs(owner)
        reaped(pid)
        processes.stop(number, owner, os.getuid() + 1)


def test_a_process_that_somebody_else_names_may_run_here() -> None:
    """Its pid alone says nothing: in another pid namespace it is another process."""
    own = identity_of(os.getpid())
    assert own is not None
    assert may_run(own)
    assert not may_run(attrs.evolve(own, start_ticks=own.start_ticks + 1))
    assert not may_run(attrs.evolve(own, boot_id="another boot"))
    assert not may_run(attrs.evolve(own, pid=2**31 - 1))


def test_the_identity_of_a_process_that_proc_hides_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``hidepid`` there is no ``/proc/PID``, as if there was no such process; who names it must not hear so."""

    def hide(path: str, flags: int) -> int:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(os, "open", hide)
    with pytest.raises(PermissionError, match="/proc does not show it"):
        identity_of(os.getpid())
    assert identity_of(2**22 + 1) is None


def test_a_process_of_which_nothing_can_be_read_may_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    own = identity_of(os.getpid())
    assert own is not None
    monkeypatch.setattr(owner_processes, "known_boot_id", lambda: "")
    assert may_run(own)
    assert not may_run(attrs.evolve(own, start_ticks=own.start_ticks + 1))
    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert may_run(own)

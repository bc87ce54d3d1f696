"""Processes that listen on real sockets: whether anybody listens, and when a process has ended."""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import attrs
import pytest
import trio

from plugind.actors.io import processes as processes_module
from plugind.actors.io.pidfds import Pidfds
from plugind.actors.io.processes import Processes
from plugind.protocol.health.liveness import ConnectAnswer
from plugind.tests.actors.io.exhaustion import leaving_no_descriptor

#: Listens on each of its arguments, says so, and waits. A first argument ``hand-over`` makes it fork, and end at once.
PROGRAM = """
import os, signal, socket, sys
args = sys.argv[1:]
hand_over = args[0] == "hand-over"
kept = []
for path in args[hand_over:]:
    made = socket.socket(socket.AF_UNIX)
    made.bind(path)
    made.listen(1)
    kept.append(made)
print("listening", flush=True)
sys.stdin.readline()
if not hand_over or os.fork() == 0:
    signal.pause()
"""


@contextmanager
def listening(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process that listens on the paths; a line on its standard input lets it go on."""
    command = [sys.executable, "-c", PROGRAM, *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def watching(most: int = 10) -> AbstractContextManager[Processes]:
    return leaving_no_descriptor(lambda: Processes(most))


def asked(processes: Processes, path: Path) -> ConnectAnswer:
    return processes.look(str(path), None, take_process=False)[0]


def test_a_connect_shows_whether_anybody_listens(tmp_path: Path) -> None:
    """Faults 28 and 39: a file without a listener refuses; a socket that was refused is used again."""
    path = tmp_path / "a.sock"
    with watching() as processes, socket.socket(socket.AF_UNIX) as made:
        assert asked(processes, path) is ConnectAnswer.MISSING
        made.bind(str(path))
        assert [asked(processes, path) for _ in range(3)] == [ConnectAnswer.REFUSED] * 3
        made.listen(8)
        assert [asked(processes, path) for _ in range(3)] == [ConnectAnswer.ACCEPTED] * 3
        made.close()
        assert asked(processes, path) is ConnectAnswer.REFUSED
        path.unlink()
        assert asked(processes, path) is ConnectAnswer.MISSING
        assert asked(processes, path / "below") is ConnectAnswer.MISSING


def test_a_full_backlog_shows_that_somebody_listens(tmp_path: Path) -> None:
    """Fault 30."""
    path = tmp_path / "a.sock"
    with watching() as processes, socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
        made.listen(0)
        assert [asked(processes, path) for _ in range(5)] == [ConnectAnswer.ACCEPTED] * 5


def test_without_descriptors_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 46: it is no sign that nobody listens."""

    def exhausted() -> socket.socket:
        raise OSError(errno.EMFILE, "too many open files")

    with watching() as processes:
        monkeypatch.setattr(processes_module, "stream_socket", exhausted)
        assert asked(processes, tmp_path / "a.sock") is ConnectAnswer.EXHAUSTED


@attrs.frozen
class FullEpoll:
    """An epoll of a user that may watch nothing more (``fs.epoll.max_user_watches``)."""

    real: select.epoll = attrs.field(factory=select.epoll)

    def fileno(self) -> int:
        return self.real.fileno()

    def register(self, descriptor: int, flags: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def close(self) -> None:
        self.real.close()


def test_a_process_that_epoll_does_not_take_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 85: an error of epoll_ctl is one socket's; its pidfd is closed."""
    monkeypatch.setattr(select, "epoll", FullEpoll)
    with watching() as processes:
        assert processes.watch(os.getpid(), 0.0) is None


async def test_the_end_of_a_process_is_noticed_by_its_connection_and_by_its_pid(tmp_path: Path) -> None:
    """Fault 39: killed with SIGKILL, and the file stays."""
    first, second = tmp_path / "a.sock", tmp_path / "b.sock"
    with (
        watching() as processes,
        trio.fail_after(60),
        listening(str(first)) as killed,
        listening(str(second)) as other,
    ):
        answer, by_connection = processes.look(str(first), None, take_process=True)
        assert answer is ConnectAnswer.ACCEPTED
        by_pid = processes.watch(other.pid, age=0.0)
        assert None not in (by_connection, by_pid)
        killed.kill()
        assert await processes.ended() == [by_connection]
        assert asked(processes, first) is ConnectAnswer.REFUSED
        assert asked(processes, second) is ConnectAnswer.ACCEPTED
        other.kill()
        assert await processes.ended() == [by_pid]


def test_a_process_has_one_descriptor_however_many_sockets_it_has(tmp_path: Path) -> None:
    """Fault 39: pidfds of one process have one inode since Linux 6.9; the credentials tell before."""
    paths = [str(tmp_path / f"{number}.sock") for number in range(5)]
    with listening(*paths) as process, watching() as processes:
        numbers = [processes.look(path, None, take_process=True)[1] for path in paths]
        if os.fstat(pidfd := os.pidfd_open(process.pid)).st_dev != _anonymous_device():
            assert len({*numbers, processes.watch(process.pid, age=0.0)}) == 1
        os.close(pidfd)
        assert None not in numbers


def _anonymous_device() -> int:
    with select.epoll() as epoll:
        return os.fstat(epoll.fileno()).st_dev


def test_no_more_processes_are_watched_than_allowed(tmp_path: Path) -> None:
    """Fault 46: a quarter of the descriptors; the others are found by a connect once a minute."""
    paths = [tmp_path / f"{number}.sock" for number in range(3)]
    with listening(str(paths[0])), listening(str(paths[1])), listening(str(paths[2])), watching(2) as processes:
        numbers = [processes.look(str(path), None, take_process=True)[1] for path in paths]
        assert [number is None for number in numbers] == [False, False, True]
        assert numbers[0] is not None
        processes.forget(numbers[0])
        assert processes.look(str(paths[2]), None, take_process=True)[1] not in (None, *numbers)


def test_a_process_that_handed_its_listener_on_is_not_watched_again(tmp_path: Path) -> None:
    """Fault 39: the peer of a connection is the process that called listen(), also when that has ended."""
    path = tmp_path / "a.sock"
    with listening("hand-over", str(path)) as process, watching() as processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # It has ended, and is not reaped.
        assert processes.look(str(path), None, take_process=True) == (ConnectAnswer.ACCEPTED, None)
        assert processes.watch(process.pid, age=0.0) is None
        process.wait()
        assert processes.look(str(path), None, take_process=True) == (ConnectAnswer.ACCEPTED, None)
        assert processes.watch(process.pid, age=0.0) is None


def test_a_process_that_is_younger_than_its_listener_has_got_a_pid_that_was_used_before(tmp_path: Path) -> None:
    """Fault 39: a process id alone may mean another process by now."""
    with listening(str(tmp_path / "a.sock")) as process, watching() as processes:
        assert processes.watch(process.pid, age=3600.0) is None
        assert processes.watch(process.pid, age=0.0) is not None


def test_a_kernel_without_pidfds_of_peers_leaves_the_process_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 39: SO_PEERPIDFD is there since Linux 6.5; an older kernel answers ENOPROTOOPT."""
    path = tmp_path / "a.sock"
    monkeypatch.setattr(processes_module, "SO_PEERPIDFD", 30_000)
    with listening(str(path)) as process, watching() as processes:
        assert processes.look(str(path), None, take_process=True) == (ConnectAnswer.ACCEPTED, None)
        assert processes.watch(process.pid, age=0.0) is not None


def test_a_kernel_without_any_pidfd_leaves_the_connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 39: pidfd_open is there since Linux 5.3."""

    def missing(pid: int) -> int:
        raise OSError(errno.ENOSYS, f"no pidfd of {pid}")

    monkeypatch.setattr(os, "pidfd_open", missing)
    with listening(str(tmp_path / "a.sock")) as process, watching() as processes:
        assert processes.watch(process.pid, age=0.0) is None
        assert asked(processes, tmp_path / "a.sock") is ConnectAnswer.ACCEPTED


def test_without_inodes_of_their_own_each_pidfd_counts_as_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Linux 6.9 all pidfds share an inode: no two processes may be taken for one."""
    paths = [tmp_path / "a.sock", tmp_path / "b.sock"]
    with listening(str(paths[0])), listening(str(paths[1])), watching() as processes:
        monkeypatch.setattr(Pidfds, "_inode_of", lambda _self, _pidfd: None)
        numbers = [processes.look(str(path), None, take_process=True)[1] for path in paths]
        assert None not in numbers
        assert len(set(numbers)) == 2

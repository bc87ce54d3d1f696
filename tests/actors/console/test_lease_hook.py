"""The hook that binds a lease to a container, against a server of the test."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from plugind.actors.console import lease_hook
from plugind.actors.console.ending import CommandError
from plugind.actors.console.lease_hook import MAX_ANSWER, bind, init_of, read_state
from plugind.actors.io.process_identity import identity_of
from plugind.actors.leases.cdi_files import hook_command
from plugind.protocol.leases.values import ProcessIdentity
from plugind.tests.actors.console.lease_server import LeaseServer, answer, lease_server

INIT = ProcessIdentity(7, 1234, "boot")


def state_of(pid: int) -> bytes:
    content = {"ociVersion": "1.0.2", "id": "c1", "status": "creating", "pid": pid, "bundle": "/b", "annotations": {}}
    return json.dumps(content).encode()


# --- the whole command ------------------------------------------------------------------------------------------------


def hooked(status: Path, state: bytes, lease: str = "job-7") -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*hook_command(), "lease-hook", "--status", str(status), lease], input=state, capture_output=True, check=False
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def test_the_hook_tells_the_daemon_which_process_the_container_is(tmp_path: Path) -> None:
    with lease_server(tmp_path, answer(200, {"id": "job-7"})) as server:
        done = hooked(server.path, state_of(os.getpid()))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (asked,) = server.requests
    own = identity_of(os.getpid())
    assert own is not None
    assert asked.line == "POST /v1/leases/job-7/bind HTTP/1.1"
    assert asked.body == {"pid": own.pid, "start_ticks": own.start_ticks, "boot_id": own.boot_id}
    assert asked.uid == os.geteuid()


def test_a_refusal_is_one_line_for_the_engine_to_show(tmp_path: Path) -> None:
    with lease_server(tmp_path, answer(409, {"error": "it is bound to process 12", "problem": "usage"})) as server:
        done = hooked(server.path, state_of(os.getpid()))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "plugind: lease job-7 cannot be bound to this container: it is bound to process 12\n"


# --- the state of the container ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (b"", "it is not JSON"),
        (b"\xff\xfe", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b'{"pid": ' + b"9" * 10_000 + b"}", "it is not JSON"),
        (b"[]", "it does not name the process"),
        (b'{"status": "stopped"}', "it does not name the process"),
        (b'{"pid": true}', "it does not name the process"),
        (b'{"pid": "1"}', "it does not name the process"),
        (b'{"pid": 0}', "it does not name the process"),
        (b'{"pid": -1}', "it does not name the process"),
        (b'{"pid": 4294967297}', "it does not name the process"),
    ],
)
def test_a_state_that_cannot_be_used_keeps_the_container_from_starting(state: bytes, why: str) -> None:
    with pytest.raises(CommandError, match=why) as caught:
        init_of(state)
    assert "\n" not in caught.value.line
    assert caught.value.code == 1


def test_a_container_that_has_ended_is_not_bound() -> None:
    child = subprocess.Popen(["true"])
    # It has ended, and is not reaped: its pid is still its own.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(CommandError, match=f"the container's process {child.pid} has ended"):
        init_of(state_of(child.pid))
    child.wait()
    with pytest.raises(CommandError, match=f"the container's process {child.pid} has ended"):
        init_of(state_of(child.pid))


def test_a_process_that_cannot_be_read_is_not_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(pid: int) -> ProcessIdentity:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(lease_hook, "identity_of", unreadable)
    with pytest.raises(CommandError, match="process 5 cannot be read: Permission denied"):
        init_of(state_of(5))


def test_a_state_that_does_not_come_is_not_awaited_for_ever() -> None:
    reading, writing = os.pipe()
    os.write(writing, b'{"pid"')
    with pytest.raises(CommandError, match=r"it was not there within 0\.01 s"):
        read_state(reading, 0.01)
    os.close(writing)
    assert read_state(reading, 5.0) == b""
    os.close(reading)


# --- the daemon -------------------------------------------------------------------------------------------------------


def refusal(server: LeaseServer | Path, lease: str = "job-7") -> CommandError:
    path = server.path if isinstance(server, LeaseServer) else server
    with pytest.raises(CommandError) as caught:
        bind(lease, INIT, str(path), 5.0)
    assert caught.value.line.isprintable()
    return caught.value


@pytest.mark.parametrize("status", [200, 201, 204])
def test_each_success_is_one(tmp_path: Path, status: int) -> None:
    with lease_server(tmp_path, answer(status)) as server:
        bind("a b/c?\udcff", INIT, str(server.path), 5.0)
    assert server.requests[0].line == "POST /v1/leases/a%20b%2Fc%3F%FF/bind HTTP/1.1"


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ({"error": "one\ntwo\x1b[0m"}, r"one\ntwo\x1b[0m"),
        ({"error": "x" * 5000}, "x" * 1000 + "…(+4000)"),
        ({"error": 5}, "the daemon answers 404"),
        (["x"], "the daemon answers 404"),
        (None, "the daemon answers 404"),
    ],
)
def test_whatever_is_refused_is_shown_in_one_line(tmp_path: Path, content: object, shown: str) -> None:
    with lease_server(tmp_path, answer(404, content)) as server:
        error = refusal(server)
    assert error.line == f"lease job-7 cannot be bound to this container: {shown}"
    assert error.code == 1


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"", "it closed the connection"),
        (b"HTTP/1.1 200", "it closed the connection"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not whole or not HTTP"),
        (b"HTTP/1.1 2000 OK\r\n\r\n", "not whole or not HTTP"),
        (b"HTTP/1.1 200 OK\r\nPlugind-Status-Version: 2\r\nContent-Length: 5\r\n\r\n{}", "it closed the connection"),
        (b"HTTP/1.1 200 OK\r\nPlugind-Status-Version: 2\r\nTransfer-Encoding: gzip\r\n\r\n", "not whole or not HTTP"),
        (b"HTTP/1.1 200 OK\r\nPlugind-Status-Version: 2\r\n\r\n" + b"x" * (MAX_ANSWER + 1), f"over {MAX_ANSWER} bytes"),
    ],
)
def test_an_answer_that_is_none_keeps_the_container_from_starting(tmp_path: Path, sent: bytes, why: str) -> None:
    with lease_server(tmp_path, sent) as server:
        error = refusal(server)
    assert why in error.line
    assert error.code == 69


def test_no_daemon_keeps_the_container_from_starting(tmp_path: Path) -> None:
    with lease_server(tmp_path, b"") as server:
        pass
    gone = refusal(server)
    assert "(Connection refused); start it with 'plugind run', and then the container" in gone.line
    assert gone.code == 69
    assert "(No such file or directory)" in refusal(tmp_path / "none.sock").line


def test_a_daemon_that_is_silent_is_not_awaited_for_ever(tmp_path: Path) -> None:
    path = str(tmp_path / "status.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        with pytest.raises(CommandError, match=r"process \d+ sent nothing within 0\.01 s"):
            bind("a", INIT, path, 0.01)

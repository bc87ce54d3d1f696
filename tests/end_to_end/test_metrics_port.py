"""``plugind run --metrics``: a daemon that serves its metrics over TCP, and one that cannot."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path

import pytest
import trio

from plugind.tests.end_to_end.processes import DEADLINE, Daemon, daemon, run


async def served_at(node: Daemon) -> tuple[str, int]:
    """Return the host and the port that the log names."""
    (line,) = await node.logged("metrics are served")
    host, _, port = str(line["address"]).rpartition(":")
    return host.strip("[]"), int(port)


def get(host: str, port: int, target: str = "/metrics", name: str = "localhost") -> tuple[int, str]:
    connection = HTTPConnection(host, port, timeout=DEADLINE)
    try:
        connection.request("GET", target, headers={"Host": name})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def names_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("# TYPE ")]


async def test_the_port_has_the_metrics_of_the_status_socket_and_nothing_else(tmp_path: Path) -> None:
    with daemon(tmp_path, "--metrics", "0", "--metrics-host", "node1") as node:
        await node.ready()
        host, port = await served_at(node)
        assert host == "127.0.0.1"
        assert len(listening(node.process.pid)) == 1
        status, text = await trio.to_thread.run_sync(get, host, port)
        assert status == 200
        assert names_of(text) == names_of((await node.get("/metrics"))[1].decode())
        assert (await trio.to_thread.run_sync(get, host, port, "/metrics", "node1"))[0] == 200
        assert (await trio.to_thread.run_sync(get, host, port, "/metrics", "evil.example"))[0] == 421
        assert (await trio.to_thread.run_sync(get, host, port, "/plugins"))[0] == 404
        node.process.send_signal(signal.SIGTERM)
        assert await node.ended() == 0
        with pytest.raises(ConnectionRefusedError):
            await trio.to_thread.run_sync(get, host, port)


def listening(pid: int) -> list[str]:
    """Return the TCP sockets of a process, as the kernel lists them."""
    sockets = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # The process has closed it since it was listed.
            sockets.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    tables = [Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:] for table in ("tcp", "tcp6")]
    return [line for table in tables for line in table if f"socket:[{line.split()[9]}]" in sockets]


async def test_by_default_a_daemon_listens_on_no_port(tmp_path: Path) -> None:
    with daemon(tmp_path) as node:
        await node.ready()
        assert (await node.get("/metrics"))[0] == 200
        assert listening(node.process.pid) == []
        assert node.about("metrics are served") == []


def started(tmp_path: Path, *options: str) -> tuple[int, str]:
    done = run("run", "--root", str(tmp_path / "r"), "--status", str(tmp_path / "s" / "status.sock"), *options)
    return done.code, done.err.splitlines()[-1]


def test_a_port_that_another_process_has_ends_the_start_with_a_line_and_exit_code_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, line = started(tmp_path, "--metrics", str(port))
    assert code == 1
    said = f"cannot serve metrics at 127.0.0.1:{port}: Address already in use; give another address with --metrics"
    assert line == f"plugind: {said}"


def test_a_host_without_an_address_ends_the_start_with_a_line_and_exit_code_78(tmp_path: Path) -> None:
    code, line = started(tmp_path, "--metrics-host", "a")
    assert (code, (tmp_path / "r").exists()) == (78, False)
    assert line.startswith("plugind: --metrics-host is for the address of --metrics: add --metrics")

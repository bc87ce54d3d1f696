"""``--owner PID`` means a process of the daemon's pid namespace, or is refused."""

from __future__ import annotations

import os
import socket
import struct
import sys
from pathlib import Path

import pytest
import trio

from plugind.protocol.leases.asked_json import why_not_owner

_CLIENT = """
import os, socket, sys
client = socket.socket(socket.AF_UNIX)
client.connect(sys.argv[1])
client.sendall(str(os.getpid()).encode())
client.recv(1)
"""


async def pids_of_client(directory: Path, *unshare: str) -> tuple[int, int]:
    """Return the pid of a client as it knows it, and as the peer of its connection has it."""
    path = str(directory / "a.sock")
    with trio.socket.socket(socket.AF_UNIX) as listener:
        await listener.bind(path)
        listener.listen()
        async with trio.open_nursery() as nursery:
            command = [*unshare, sys.executable, "-c", _CLIENT, path]
            nursery.start_soon(trio.run_process, command)
            with trio.fail_after(30):
                connection, _ = await listener.accept()
                with connection:
                    own = int(await connection.recv(100))
                    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                    return own, struct.unpack("iII", peer)[0]


async def test_a_client_beside_the_daemon_has_one_pid(tmp_path: Path) -> None:
    own, peer = await pids_of_client(tmp_path)
    assert own == peer
    assert why_not_owner(own, peer) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes pid namespaces")
async def test_a_client_in_a_real_pid_namespace_is_refused(tmp_path: Path) -> None:
    """It calls itself 1, which is the init of the host for the daemon."""
    own, peer = await pids_of_client(tmp_path, "unshare", "--pid", "--fork")
    assert own == 1
    assert peer > 1
    assert why_not_owner(own, peer) is not None

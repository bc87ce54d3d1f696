"""Leases of processes, of connections and of nobody, over a kill of the daemon and its next start."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from plugind.client import Client, HeldLease, Lease, LeaseLostError
from plugind.tests.end_to_end.lease_scene import CONNECTION, GPU, Forks, Scene, open_scene, owning
from plugind.tests.end_to_end.processes import DEADLINE, plugin_process

HOLD = """
import sys, time
from plugind.client import SyncClient
with SyncClient(sys.argv[1]).hold({"example.com/gpu": 1}, id="theirs"):
    time.sleep(600)
"""


#: Asks for a lease as a user, prints the status and the answer, and as the owner goes on.
AS = """
import json, os, socket, sys, time
uid, path, owns = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "process"
os.setgroups([]); os.setgid(uid); os.setuid(uid)
owner = {"kind": "process", "pid": os.getpid()} if owns else {"kind": "none"}
asked = {"resources": {"example.com/gpu": 1}, "owner": owner, **({"client_pid": os.getpid()} if owns else {})}
body = json.dumps(asked)
there = socket.socket(socket.AF_UNIX)
there.connect(path)
there.sendall(f"POST /v1/leases HTTP/1.0\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n{body}".encode())
head, _, answer = b"".join(iter(lambda: there.recv(65536), b"")).decode().partition("\\r\\n\\r\\n")
print(json.dumps([int(head.split()[1]), json.loads(answer)]), flush=True)
time.sleep(600 if owns else 0)
"""


def begin(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@asynccontextmanager
async def asking_as(uid: int, scene: Scene, owner: str) -> AsyncIterator[tuple[subprocess.Popen[str], int, Any]]:
    """Ask for a lease as a user; yield the process of the user and the answer."""
    with begin([sys.executable, "-S", "-c", AS, str(uid), scene.status, owner]) as process:
        try:
            assert process.stdout is not None
            yield process, *json.loads(await trio.to_thread.run_sync(process.stdout.readline))
        finally:
            process.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be other users")
async def test_limits_of_two_users_hold_over_kills_of_the_daemon(forks: Forks) -> None:
    """What nobody is known to use ends with its longest time; a process goes on until the operator has it stopped."""
    alice, bob = 4711, 4712
    limits = "devices_per_user = 1, longest_lease = 2.0"
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o711)
        async with open_scene(Path(directory), forks, devices=3) as scene:

            async def start(more: str = "") -> None:
                users = f"--lease-uids={alice},{bob}"
                await scene.start(users, f'--set=resources={{ "{GPU}" = {{ {limits}{more} }} }}')

            await start()
            async with asking_as(alice, scene, "process") as (process, given, held):
                assert given == 201, held
                assert held["longest"]["overdue"] is False
                async with asking_as(bob, scene, "none") as (_, others, _):
                    assert others == 201
                for is_first in (True, False):
                    async with asking_as(alice, scene, "none") as (_, again, refused):
                        assert (again, refused["problem"]) == (429, "limit")
                        assert refused["limit"] == {
                            "name": "devices_per_user", "value": 1, "resource": GPU, "pool": None, "source": "--set"
                        }  # fmt: skip
                    if is_first:
                        await scene.kill()
                        await start()
                with trio.fail_after(DEADLINE):
                    while [lease["longest"]["overdue"] for lease in (await scene.leases()).values()] != [True]:  # noqa: ASYNC110 - it is in another process
                        await trio.sleep(0.02)
                assert process.poll() is None
                await scene.kill()
                await start(", stop_at_longest = true")
                assert await trio.to_thread.run_sync(process.wait, DEADLINE) == -signal.SIGTERM
            await scene.all_are_free()


async def test_leases_outlive_a_kill_of_the_daemon_and_connections_come_back(tmp_path: Path, forks: Forks) -> None:
    """A connection has a minute to show its token to the next daemon."""
    async with open_scene(tmp_path, forks) as scene:
        await scene.start()
        assert (await scene.lease(id="kept"))[0] == 201
        body = {"resources": {GPU: 1}, "owner": CONNECTION, "id": "mine"}
        async with owning(scene.status, "/v1/leases", body) as given:
            await scene.kill()
        await scene.start()
        assert [*await scene.leases()] == ["kept", "mine"]
        async with owning(scene.status, "/v1/leases/mine/resume", {"token": given["token"]}) as again:
            assert again == given
        await scene.until_states("held")
        assert [*await scene.leases()] == ["kept"]


@pytest.mark.parametrize("way", ["removed", "unmounted", "another"])
async def test_devices_of_a_lost_state_are_given_to_nobody_until_recovery(
    way: str, tmp_path: Path, forks: Forks
) -> None:
    """The state directory is removed, or its file system is gone, or another --state is used."""
    if way == "unmounted" and os.geteuid() != 0:
        pytest.skip("only root mounts file systems")
    async with open_scene(tmp_path, forks) as scene:
        await scene.start(mount="tiny" if way == "unmounted" else None)
        assert (await scene.lease(scene.devices))[0] == 201
        await scene.kill()  # The file system was mounted for this process alone.
        if way == "removed":
            shutil.rmtree(scene.state)
        await scene.start(*(("--state", str(tmp_path / "another")) if way == "another" else ()))
        status, failed = await scene.lease()
        assert (status, failed["problem"]) == (507, "storage")
        assert "all devices are withheld: leases were held that are not in" in failed["error"]
        status, _ = await scene.get("POST", "/v1/leases/recover", {"none_held": True})
        assert status == 200
        assert (await scene.lease(scene.devices))[0] == 201


async def test_after_a_kill_of_the_daemon_leases_end_with_their_processes(tmp_path: Path, forks: Forks) -> None:
    """Also with one that ends while no daemon runs; what the other one has, nobody else is given."""
    async with open_scene(tmp_path, forks) as scene:
        stays, ends = scene.owner(), scene.owner()
        await scene.start()
        for name, owner in (("stays", stays), ("ends", ends)):
            await scene.lease_of_process(owner, id=name)
        await scene.kill()
        ends.kill()
        ends.wait()
        await scene.start()
        await scene.until_states("held")
        status, failed = await scene.lease(2)
        assert (status, [lease["id"] for lease in failed["holders"]]) == (409, ["stays"])
        stays.kill()
        await scene.all_are_free()


async def test_clients_hold_leases_by_their_connections(tmp_path: Path, forks: Forks) -> None:
    """One that is killed holds no more. The others keep theirs over a restart, and hear of its release by others."""
    async with open_scene(tmp_path, forks, devices=1) as scene:
        await scene.start()
        async with plugin_process([sys.executable, "-c", HOLD, scene.status]) as program:
            await scene.until_states("held")
            program.process.kill()
            await scene.until_states()
        with pytest.raises(LeaseLostError, match="the lease mine has ended: it was released"):
            async with Client(scene.status).hold({GPU: 1}, id="mine") as mine:
                await restart_and_release(scene, mine)


async def restart_and_release(scene: Scene, mine: HeldLease) -> None:
    before = mine.lease
    await scene.kill()
    await scene.start()
    await until_shown_again(mine, before)
    assert ([*await scene.leases()], mine.lost) == (["mine"], None)
    await scene.get("DELETE", "/v1/leases/mine")
    await trio.sleep_forever()


async def until_shown_again(mine: HeldLease, before: Lease) -> None:
    with trio.fail_after(DEADLINE):
        while mine.lease is before:  # noqa: ASYNC110 - the client has a task that comes back
            await trio.sleep(0.02)
    assert mine.lease == before

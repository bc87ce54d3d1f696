"""Leases of processes, of connections and of nobody, over a kill of the daemon and its next start."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

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

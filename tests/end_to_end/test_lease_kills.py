"""SIGKILL of plugind at each step of a lease: no device leaks, none is in two leases, and what a caller was told holds.

The daemon ends itself at a step (``fault_points.py``); the next one has the same state, and the same plugin.
"""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
import trio

from plugind.actors.http.client import UnreachableError
from plugind.actors.io.process_identity import identity_of
from plugind.actors.simulation.device_plugins import AllocationCall
from plugind.tests.end_to_end.lease_scene import TOO_FEW, Forks, open_scene


def end(owner: subprocess.Popen[bytes]) -> None:
    owner.kill()
    owner.wait()


@pytest.mark.parametrize(
    ("point", "after"),
    [
        ("before pending is written", []),
        ("pending is written", ["uncertain"]),
        ("Allocate is under way", ["uncertain"]),
        ("Allocate is answered", ["uncertain"]),
        ("the file is written", ["uncertain"]),
        ("before held is written", ["uncertain"]),
        ("held is written", ["held"]),
        ("the reply is written", ["held"]),
    ],
)
async def test_a_daemon_that_is_killed_amid_an_allocation(
    point: str, after: list[str], tmp_path: Path, forks: Forks
) -> None:
    """Fault 88: what may be prepared is withheld until its plugin has had time; what is held stays with its owner."""
    async with open_scene(tmp_path, forks) as scene:
        owner, outside = scene.owner(), point in ("Allocate is under way", "the reply is written")
        await scene.start(point=None if outside else point)
        answered = None
        if point == "Allocate is under way":
            scene.plugin.hangs.add(AllocationCall.ALLOCATE)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(scene.lease_of_process, owner)
                while not scene.plugin.allocations:  # noqa: ASYNC110 - it counts what another process calls
                    await trio.sleep(0.01)
                await scene.kill()
            scene.plugin.hangs.clear()
        else:
            answered = await scene.lease_of_process(owner, container=True)
            if outside:
                await scene.kill()
            else:
                assert answered is None
                assert await scene.ended() == {"signal": signal.SIGKILL}
        await scene.start()
        found = [*(await scene.leases()).values()]
        assert [lease["state"] for lease in found] == after
        if point == "the reply is written":
            assert found[0] == answered
        assert len(scene.files()) == 1 if after == ["held"] else len(scene.files()) <= len(after)
        if after:
            status, refused = await scene.lease(2)
            assert (status, refused["error"]) == (409, TOO_FEW.format(2, 1)), "its device is handed out again"
        end(owner)
        if after == ["uncertain"]:
            await scene.kill()
            await scene.start(withheld=0.1)
        await scene.all_are_free()


@pytest.mark.parametrize("point", ["the owner's end is seen", "the file is removed", "before the row is deleted"])
async def test_a_daemon_that_is_killed_amid_the_end_of_an_owner(point: str, tmp_path: Path, forks: Forks) -> None:
    async with open_scene(tmp_path, forks) as scene:
        owner = scene.owner()
        await scene.start(point=point)
        await scene.lease_of_process(owner, container=True)
        end(owner)
        assert await scene.ended() == {"signal": signal.SIGKILL}
        await scene.start()
        await scene.all_are_free()


@pytest.mark.parametrize(
    ("point", "held"),
    [("a release is asked for", True), ("before the row is deleted", True), ("the row is deleted", False)],
)
async def test_a_daemon_that_is_killed_amid_a_release(point: str, held: bool, tmp_path: Path, forks: Forks) -> None:
    """Nobody is told that a lease is released before that is written: after the kill it would be there again."""
    async with open_scene(tmp_path, forks) as scene:
        owner = scene.owner()
        await scene.start(point=point)
        lease = await scene.lease_of_process(owner)
        with pytest.raises(UnreachableError):
            await scene.get("DELETE", f"/v1/leases/{lease['id']}")
        assert await scene.ended() == {"signal": signal.SIGKILL}
        await scene.start()
        assert await scene.leases() == ({lease["id"]: lease} if held else {})
        end(owner)
        await scene.all_are_free()


@pytest.mark.parametrize("point", ["the store is read", "the owner is watched", "the file is written"])
async def test_a_daemon_that_is_killed_amid_its_restart(point: str, tmp_path: Path, forks: Forks) -> None:
    """What is held stays held, with its file, however often it happens."""
    async with open_scene(tmp_path, forks) as scene:
        owner = scene.owner()
        await scene.start()
        lease = await scene.lease_of_process(owner, container=True)
        files = scene.files()
        await scene.kill()
        for path in scene.cdi.iterdir():
            path.unlink()
        await scene.start(point=point, offered=False)
        assert await scene.ended() == {"signal": signal.SIGKILL}
        await scene.start()
        assert await scene.leases() == {lease["id"]: lease}
        await scene.until_files(*files)
        end(owner)
        await scene.all_are_free()


async def test_a_daemon_that_is_killed_while_a_container_may_come_back(tmp_path: Path, forks: Forks) -> None:
    """The next daemon gives the container its time too, and then frees the lease."""
    async with open_scene(tmp_path, forks) as scene:
        init = scene.owner()
        await scene.start()
        status, lease = await scene.lease(owner={"kind": "container"}, container=True)
        assert status == 201
        identity = identity_of(init.pid)
        assert identity is not None
        bound = {"pid": identity.pid, "start_ticks": identity.start_ticks, "boot_id": identity.boot_id}
        status, _ = await scene.get("POST", f"/v1/leases/{lease['id']}/bind", bound)
        assert status == 200
        end(init)
        await scene.until_states("held")
        await scene.kill()
        await scene.start(withheld=0.2)
        await scene.all_are_free()

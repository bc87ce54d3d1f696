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
from plugind.tests.end_to_end.lease_scene import TOO_FEW, Forks, scene


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
    async with scene(tmp_path, forks) as it:
        owner, outside = it.owner(), point in ("Allocate is under way", "the reply is written")
        await it.start(point=None if outside else point)
        answered = None
        if point == "Allocate is under way":
            it.plugin.hangs.add(AllocationCall.ALLOCATE)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(it.lease_of_process, owner)
                while not it.plugin.allocations:  # noqa: ASYNC110 - it counts what another process calls
                    await trio.sleep(0.01)
                await it.kill()
            it.plugin.hangs.clear()
        else:
            answered = await it.lease_of_process(owner, container=True)
            if outside:
                await it.kill()
            else:
                assert answered is None
                assert await it.ended() == {"signal": signal.SIGKILL}
        await it.start()
        found = [*(await it.leases()).values()]
        assert [lease["state"] for lease in found] == after
        if point == "the reply is written":
            assert found[0] == answered
        assert len(it.files()) == 1 if after == ["held"] else len(it.files()) <= len(after)
        if after:
            status, refused = await it.lease(2)
            assert (status, refused["error"]) == (409, TOO_FEW.format(2, 1)), "its device is handed out again"
        end(owner)
        if after == ["uncertain"]:
            await it.kill()
            await it.start(withheld=0.1)
        await it.all_are_free()


@pytest.mark.parametrize("point", ["the owner's end is seen", "the file is removed", "before the row is deleted"])
async def test_a_daemon_that_is_killed_amid_the_end_of_an_owner(point: str, tmp_path: Path, forks: Forks) -> None:
    async with scene(tmp_path, forks) as it:
        owner = it.owner()
        await it.start(point=point)
        await it.lease_of_process(owner, container=True)
        end(owner)
        assert await it.ended() == {"signal": signal.SIGKILL}
        await it.start()
        await it.all_are_free()


@pytest.mark.parametrize(
    ("point", "held"),
    [("a release is asked for", True), ("before the row is deleted", True), ("the row is deleted", False)],
)
async def test_a_daemon_that_is_killed_amid_a_release(point: str, held: bool, tmp_path: Path, forks: Forks) -> None:
    """Nobody is told that a lease is released before that is written: after the kill it would be there again."""
    async with scene(tmp_path, forks) as it:
        owner = it.owner()
        await it.start(point=point)
        lease = await it.lease_of_process(owner)
        with pytest.raises(UnreachableError):
            await it.get("DELETE", f"/v1/leases/{lease['id']}")
        assert await it.ended() == {"signal": signal.SIGKILL}
        await it.start()
        assert await it.leases() == ({lease["id"]: lease} if held else {})
        end(owner)
        await it.all_are_free()


@pytest.mark.parametrize("point", ["the store is read", "the owner is watched", "the file is written"])
async def test_a_daemon_that_is_killed_amid_its_restart(point: str, tmp_path: Path, forks: Forks) -> None:
    """What is held stays held, with its file, however often it happens."""
    async with scene(tmp_path, forks) as it:
        owner = it.owner()
        await it.start()
        lease = await it.lease_of_process(owner, container=True)
        files = it.files()
        await it.kill()
        for path in it.cdi.iterdir():
            path.unlink()
        await it.start(point=point, offered=False)
        assert await it.ended() == {"signal": signal.SIGKILL}
        await it.start()
        assert await it.leases() == {lease["id"]: lease}
        await it.until_files(*files)
        end(owner)
        await it.all_are_free()


async def test_a_daemon_that_is_killed_while_a_container_may_come_back(tmp_path: Path, forks: Forks) -> None:
    """The next daemon gives the container its time too, and then frees the lease."""
    async with scene(tmp_path, forks) as it:
        init = it.owner()
        await it.start()
        status, lease = await it.lease(owner={"kind": "container"}, container=True)
        assert status == 201
        identity = identity_of(init.pid)
        assert identity is not None
        bound = {"pid": identity.pid, "start_ticks": identity.start_ticks, "boot_id": identity.boot_id}
        status, _ = await it.get("POST", f"/v1/leases/{lease['id']}/bind", bound)
        assert status == 200
        end(init)
        await it.until_states("held")
        await it.kill()
        await it.start(withheld=0.2)
        await it.all_are_free()

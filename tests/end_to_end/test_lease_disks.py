"""A daemon whose disk is full or read-only says why it gives no lease, and loses none."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from plugind.actors.http.on_trio import ask
from plugind.tests.end_to_end.lease_scene import Forks, Scene, open_scene
from plugind.tests.end_to_end.processes import DEADLINE

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts file systems")

LABELS = {str(number): "x" * 200 for number in range(16)}


def filler(scene: Scene) -> str:
    """Return the path of a file on the disk of the daemon, which no other process has."""
    return f"/proc/{scene.pid}/root{scene.state}/filler"


def fill(scene: Scene) -> None:
    with open(filler(scene), "wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(512)):
            pass


async def problem(scene: Scene) -> str | None:
    """Return what is wrong with the state."""
    _, answer = await scene.get("GET", "/v1/leases")
    found: str | None = answer.get("problem")
    return found


async def metric(scene: Scene, name: str) -> float:
    """Return the value of a metric without labels."""
    with trio.fail_after(DEADLINE):
        async with ask(scene.status, "GET", "/metrics") as reply:
            lines = (await reply.body()).decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


async def until_failures(scene: Scene, number: int) -> None:
    """Wait until so many reads and writes of the state have failed."""
    with trio.fail_after(DEADLINE):
        while await metric(scene, "plugind_state_failures_total") < number:  # noqa: ASYNC110 - it is in another process
            await trio.sleep(0.02)


async def test_on_a_full_disk_nothing_is_given_and_what_is_released_is_free(tmp_path: Path, forks: Forks) -> None:
    """Some leases need so little space that they succeed yet. A release is written when the disk has room again.

    Those who watch see that it fails, also while nobody asks for anything.
    """
    async with open_scene(tmp_path, forks, devices=40) as scene:
        await scene.start(mount="tiny")
        status, given = await scene.lease()
        held = [given["id"]]
        fill(scene)
        while status == 201:
            status, given = await scene.lease(labels=LABELS)
            held += [given["id"]] if status == 201 else []
        assert (status, given["problem"]) == (507, "storage")
        assert "database or disk is full; free space" in given["error"]
        assert sorted(await scene.leases()) == sorted(held)
        await until_failures(scene, 3)
        assert await metric(scene, "plugind_state_failing") == 1
        _, health = await scene.get("GET", "/healthz")
        (leases,) = [actor for actor in health["actors"] if actor["name"] == "leases"]
        assert leases["status"] == "degraded"
        assert "database or disk is full; free space" in leases["reason"]
        released = [await scene.get("DELETE", f"/v1/leases/{name}") for name in held]
        assert {status for status, _ in released} == {200}
        assert "database or disk is full; free space" in released[-1][1]["unwritten"]
        assert await scene.leases() == {}
        assert "the leases are kept again" not in (tmp_path / "log").read_text()
        os.unlink(filler(scene))
        with trio.fail_after(DEADLINE):
            while await problem(scene) is not None:  # noqa: ASYNC110 - it is in another process
                await trio.sleep(0.02)
        assert (tmp_path / "log").read_text().count("the leases are kept again") == 1
        await scene.all_are_free()


async def test_on_a_read_only_disk_leases_are_known_and_none_is_given(tmp_path: Path, forks: Forks) -> None:
    async with open_scene(tmp_path, forks) as scene:
        await scene.start()
        _, lease = await scene.lease(id="kept")
        await scene.kill()
        await scene.start(mount="read-only")
        assert await scene.leases() == {"kept": lease}
        status, failed = await scene.lease()
        assert (status, failed["problem"]) == (507, "storage")
        assert "its file system is read-only; mount it with rw, or use --state" in failed["error"]
        assert await scene.leases() == {"kept": lease}
        assert (await scene.get("DELETE", "/v1/leases/kept"))[0] == 200
        assert await scene.leases() == {}

"""A daemon whose disk is full or read-only says why it gives no lease, and loses none."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from plugind.tests.end_to_end.lease_scene import Forks, Scene, scene
from plugind.tests.end_to_end.processes import DEADLINE

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts file systems")


def filler(it: Scene) -> str:
    """Return the path of a file on the disk of the daemon, which no other process has."""
    return f"/proc/{it.pid}/root{it.state}/filler"


def fill(it: Scene) -> None:
    with open(filler(it), "wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(512)):
            pass


async def problem(it: Scene) -> str | None:
    """Return what is wrong with the state."""
    _, answer = await it.get("GET", "/v1/leases")
    found: str | None = answer.get("problem")
    return found


async def test_on_a_full_disk_nothing_is_given_and_what_is_released_is_free(tmp_path: Path, forks: Forks) -> None:
    """What is written needs little space, so some leases succeed yet. A release cannot be written either: it is written
    when the disk has room again.
    """
    labels = {str(number): "x" * 200 for number in range(16)}
    async with scene(tmp_path, forks, devices=40) as it:
        await it.start(mount="tiny")
        fill(it)
        status, given, held = 201, dict[str, Any](), list[str]()
        while status == 201:
            status, given = await it.lease(labels=labels)
            held += [given["id"]] if status == 201 else []
        assert (status, given["problem"]) == (507, "storage")
        assert "database or disk is full; free space" in given["error"]
        assert sorted(await it.leases()) == sorted(held)
        for name in held:
            assert (await it.get("DELETE", f"/v1/leases/{name}"))[0] == 200
        assert await it.leases() == {}
        os.unlink(filler(it))
        with trio.fail_after(DEADLINE):
            while await problem(it) is not None:  # noqa: ASYNC110 - it is in another process
                await trio.sleep(0.02)
        await it.all_are_free()


async def test_on_a_read_only_disk_leases_are_known_and_none_is_given(tmp_path: Path, forks: Forks) -> None:
    async with scene(tmp_path, forks) as it:
        await it.start()
        _, lease = await it.lease(id="kept")
        await it.kill()
        await it.start(mount="read-only")
        assert await it.leases() == {"kept": lease}
        status, failed = await it.lease()
        assert (status, failed["problem"]) == (507, "storage")
        assert "its file system is read-only; mount it with rw, or use --state" in failed["error"]
        assert await it.leases() == {"kept": lease}
        assert (await it.get("DELETE", "/v1/leases/kept"))[0] == 200
        assert await it.leases() == {}

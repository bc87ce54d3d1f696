"""What is out of service, with real daemons that are killed, and with the commands of operators."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import trio

from plugind.tests.end_to_end.lease_scene import GPU, TOO_FEW, Forks, Scene, open_scene
from plugind.tests.end_to_end.processes import DEADLINE, PLUGIND, Done


async def plugind(scene: Scene, *words: str) -> Done:
    with trio.fail_after(DEADLINE):
        command = [*PLUGIND, *words, "--status", scene.status]
        done = await trio.run_process(command, check=False, capture_stdout=True, capture_stderr=True)
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


async def test_a_drain_outlives_a_kill_and_the_loss_of_the_state(tmp_path: Path, forks: Forks) -> None:
    async with open_scene(tmp_path, forks) as scene:
        await scene.start()
        done = await plugind(scene, "drain", f"{GPU}:gpu-0", "--reason", "broken")
        assert (done.code, done.out) == (0, f"drained: {GPU}:gpu-0: broken\n")
        await scene.kill()
        shutil.rmtree(scene.state)
        await scene.start()
        await plugind(scene, "leases", "recover", "--none-held")
        status, failed = await scene.lease(2)
        assert (status, failed["error"]) == (409, TOO_FEW.format(2, 1) + f"; drained: {GPU}:gpu-0: broken")
        status, given = await scene.lease()
        assert (status, given["devices"]) == (201, {GPU: ["gpu-1"]})
        _, shown = await scene.get("GET", "/v1/devices")
        [resource] = shown["resources"]
        assert [device.get("drained") for device in resource["devices"]] == [shown["drains"][0], None]
        assert (resource["capacity"], resource["allocatable"]) == (2, 2)
        assert (await plugind(scene, "undrain", f"{GPU}:gpu-0")).code == 0
        assert (await scene.lease())[1]["devices"] == {GPU: ["gpu-0"]}


async def test_an_operator_waits_until_a_drained_resource_is_empty(tmp_path: Path, forks: Forks) -> None:
    """The daemon is killed and started again meanwhile. Holders keep their devices until they end."""
    async with open_scene(tmp_path, forks) as scene:
        owner = scene.owner()
        await scene.start()
        await scene.lease_of_process(owner, id="theirs")
        done = await plugind(scene, "drain", GPU, "--wait", "0.1", "-o", "json")
        said = json.loads(done.out)
        assert (done.code, said["empty"], said["leases"], said["resource"]) == (124, False, ["theirs"], GPU)
        assert f"some of {GPU} is still leased after 0.1 s" in done.err
        command = [sys.executable, "-m", "plugind", "drain", GPU, "--wait", "--status", scene.status]
        async with trio.open_nursery() as nursery:
            waiting = await nursery.start(partial(trio.run_process, command, stdout=subprocess.PIPE))
            with trio.fail_after(DEADLINE):
                assert await waiting.stdout.receive_some() == f"drained: {GPU}\n".encode()
            await scene.kill()
            await scene.start()
            assert [*await scene.leases()] == ["theirs"]
            assert waiting.poll() is None
            owner.kill()
            owner.wait()
            with trio.fail_after(DEADLINE):
                await waiting.wait()
        assert waiting.returncode == 0
        assert (await scene.lease())[0] == 409


async def test_a_damaged_file_is_named_in_health_and_log_and_its_copy_counts(tmp_path: Path, forks: Forks) -> None:
    async with open_scene(tmp_path, forks) as scene:
        await scene.start()
        await plugind(scene, "drain", "--node", "--until", "1h")
        await scene.kill()
        (scene.state / "drains.json").write_text("{")
        await scene.start()
        _, health = await scene.get("GET", "/healthz")
        [leases] = [actor for actor in health["actors"] if actor["name"] == "leases"]
        assert leases["status"] == "degraded"
        assert leases["reason"].startswith(f"{scene.state}/drains.json was set aside (")
        assert 'level=error msg="drains may be lost"' in (tmp_path / "log").read_text()
        assert (await scene.lease())[0] == 409
        assert (await plugind(scene, "undrain", "--node")).code == 0
        _, health = await scene.get("GET", "/healthz")
        assert [actor["status"] for actor in health["actors"] if actor["name"] == "leases"] == ["ok"]
        assert (await scene.lease())[0] == 201

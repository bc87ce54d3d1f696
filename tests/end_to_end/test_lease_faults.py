"""What goes wrong with leases on a real machine: owners and plugins that die, disks, lost state, hidden processes."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio

from plugind.actors.simulation.device_plugins import AllocationCall
from plugind.tests.end_to_end.lease_scene import GPU, TOO_FEW, Forks, open_scene
from plugind.tests.end_to_end.processes import DEADLINE, PLUGIND, plugin_process

NIC = "example.com/nic"
NOBODY = 65534
MISSING = (
    "leased and no longer listed: gpu-0; as many others are kept back, since they may be the same devices with other"
    " ids: ask with --ignore-missing if they are not"
)


async def test_the_end_of_an_owner_gives_its_devices_to_one_that_waits(tmp_path: Path, forks: Forks) -> None:
    async with open_scene(tmp_path, forks) as scene, trio.open_nursery() as nursery:
        await scene.start()
        owner, answers = scene.owner(), list[tuple[int, Any]]()
        await scene.lease_of_process(owner)
        await scene.lease_of_process(owner)

        async def wait() -> None:
            answers.append(await scene.lease(2, wait=60))

        nursery.start_soon(wait)
        await scene.until_states("held", "held", "queued")
        owner.send_signal(signal.SIGKILL)
        await scene.until_states("held")
        while not answers:  # noqa: ASYNC110 - the daemon has answered
            await trio.sleep(0.01)
        assert [(status, lease["devices"]) for status, lease in answers] == [(201, {GPU: ["gpu-0", "gpu-1"]})]


async def test_50_callers_for_4_devices(tmp_path: Path, forks: Forks) -> None:
    """Exactly 4 succeed, and all others are told the same."""
    async with open_scene(tmp_path, forks, devices=4) as scene:
        await scene.start()
        answers: list[tuple[int, Any]] = []

        async def call() -> None:
            answers.append(await scene.lease())

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(call)
        assert Counter(status for status, _ in answers) == {201: 4, 409: 46}
        assert {answer["error"] for status, answer in answers if status == 409} == {TOO_FEW.format(1, 0)}
        given = [lease["devices"][GPU] for status, lease in answers if status == 201]
        assert sorted(given) == [["gpu-0"], ["gpu-1"], ["gpu-2"], ["gpu-3"]]


async def test_a_plugin_that_hangs_delays_no_other(tmp_path: Path, forks: Forks) -> None:
    async with open_scene(tmp_path, forks) as scene, trio.open_nursery() as nursery:
        nic = await scene.plug(NIC, ["eth0", "eth1"])
        nic.devices.hangs.add(AllocationCall.ALLOCATE)
        await scene.start()
        await scene.offered(NIC, 2)
        nursery.start_soon(scene.abandon, NIC)
        while not nic.devices.allocations:  # noqa: ASYNC110 - it counts what another process calls
            await trio.sleep(0.01)
        assert (await scene.lease())[0] == 201
        assert sorted(lease["state"] for lease in (await scene.leases()).values()) == ["held", "pending"]
        nursery.cancel_scope.cancel()


async def test_a_plugin_that_renames_its_devices_has_no_leased_one_handed_out_again(
    tmp_path: Path, forks: Forks
) -> None:
    """A plugin that comes back with the same ids goes on; one with other ids has as many devices as are not leased."""
    async with open_scene(tmp_path, forks) as scene:
        await scene.start()
        _, lease = await scene.lease(id="kept")
        for ids in (["gpu-0", "gpu-1"], ["uuid-a", "uuid-b"]):
            await scene.plugs[GPU].stop()
            await scene.offered(GPU, 0)
            await scene.plug(GPU, ids)
            await scene.offered(GPU, 2)
            assert await scene.leases() == {"kept": lease}
            status, failed = await scene.lease(2)
            few, _, missing = failed["error"].partition("; ")
            assert (status, few) == (409, TOO_FEW.format(2, 1))
            # With the same ids none is missing, and with other ones the error says how to have them nevertheless.
            assert missing == ("" if "gpu-0" in ids else MISSING)
        assert (await scene.lease(2, ignore_missing=True))[0] == 201


async def test_a_command_is_stopped_when_a_fake_plugin_unplugs_its_device(tmp_path: Path, forks: Forks) -> None:
    pipe = tmp_path / "control"
    fake = [*PLUGIND, "fake", "--type", "DevicePlugin", "--name", NIC, "--socket", str(tmp_path / "root" / "nic.sock")]
    command = [*PLUGIND, "allocate", f"{NIC}=1", "--stop-on-unhealthy", "--id", "a", "--status"]
    async with open_scene(tmp_path, forks) as scene, plugin_process([*fake, "--same-paths", "--control", str(pipe)]):
        await scene.start("--log-format", "json", missing=0.5)
        await scene.offered(NIC, 4)
        process = scene.owner(*command, scene.status, "--", "sleep", "600")
        await scene.until_states("held")
        ((device,),) = (await scene.leases())["a"]["devices"].values()
        await trio.Path(pipe).write_text(f"unplug {device}\n")
        with trio.fail_after(DEADLINE):
            assert await trio.to_thread.run_sync(process.wait, abandon_on_cancel=True) == -signal.SIGTERM
        await scene.until_states()
    log = map(json.loads, (tmp_path / "log").read_text().splitlines())
    (why,) = (line["reason"] for line in log if line["msg"] == "owner is stopped")
    assert why.endswith(f"(no longer listed: {device})")


async def test_leases_of_another_boot_are_gone(tmp_path: Path, forks: Forks) -> None:
    async with open_scene(tmp_path, forks) as scene:
        await scene.start()
        assert (await scene.lease(container=True))[0] == 201
        await scene.kill()
        await scene.start(boot="another boot")
        await scene.all_are_free()


async def test_a_state_that_is_lost_while_a_lease_is_held_withholds_all_devices(tmp_path: Path, forks: Forks) -> None:
    async with open_scene(tmp_path, forks) as scene:
        await scene.start()
        assert (await scene.lease())[0] == 201
        await scene.kill()
        for path in scene.state.iterdir():
            path.unlink()
        for _ in range(2):
            await scene.start()
            status, failed = await scene.lease()
            assert (status, failed["problem"]) == (507, "storage")
            assert "all devices are withheld: " in failed["error"]
            assert failed["error"].count("plugind leases recover --none-held") == 1
            await scene.kill()
        await scene.start()
        assert await scene.get("POST", "/v1/leases/recover", {"none_held": True}) == (200, {"recovered": True})
        await scene.all_are_free()


async def test_a_damaged_state_is_set_aside_and_withholds_all_devices(tmp_path: Path, forks: Forks) -> None:
    async with open_scene(tmp_path, forks) as scene:
        await scene.start()
        assert (await scene.lease())[0] == 201
        await scene.kill()
        for path in scene.state.iterdir():
            path.write_bytes(b"no database" * 1000)
        await scene.start()
        assert [path.name for path in scene.state.iterdir() if path.name.endswith(".bad")]
        status, failed = await scene.lease()
        assert (status, failed["problem"]) == (507, "storage")
        assert "all devices are withheld: " in failed["error"]
        assert (await scene.get("POST", "/v1/leases/recover", {"none_held": True}))[0] == 200
        await scene.all_are_free()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts file systems, and becomes another user")
async def test_an_owner_that_proc_hides_keeps_its_lease_until_it_ends(forks: Forks) -> None:
    """With ``hidepid=2`` a daemon that is not root sees no process of others. It can watch one that it knows of."""
    # The directories of pytest are for one user.
    with tempfile.TemporaryDirectory() as name:
        async with open_scene(Path(name), forks) as scene:
            for path in (scene.directory, *scene.directory.iterdir()):
                os.chown(path, NOBODY, NOBODY)
            (scene.directory / "root" / "gpu.sock").chmod(0o666)
            await scene.start(uid=NOBODY)
            owner = scene.owner()
            kept = await scene.lease_of_process(owner, id="kept")
            await scene.kill()
            await scene.start(uid=NOBODY, mount="hidepid")
            process = {"kind": "process", "pid": owner.pid}
            status, failed = await scene.lease(owner=process, client_pid=os.getpid())
            assert (status, failed["problem"]) == (409, "unavailable")
            assert f"which process {owner.pid} is: /proc does not show it (hidepid); " in failed["error"]
            assert await scene.leases() == {"kept": kept}
            owner.send_signal(signal.SIGKILL)
            await scene.until_states()


#: Asks for a lease of the process 1, as a client that calls itself by the pid that it sees.
_ASK_FOR_INIT = """
import json, os, socket, sys
body = {"resources": {"example.com/gpu": 1}, "owner": {"kind": "process", "pid": 1}, "client_pid": os.getpid()}
raw = json.dumps(body).encode()
with socket.socket(socket.AF_UNIX) as client:
    client.connect(sys.argv[1])
    client.sendall(b"POST /v1/leases HTTP/1.1\\r\\nHost: plugind\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(raw) + raw)
    print(client.recv(65536).decode())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes pid namespaces")
async def test_a_client_of_another_pid_namespace_cannot_name_the_init_of_the_host(tmp_path: Path, forks: Forks) -> None:
    async with open_scene(tmp_path, forks) as scene:
        await scene.start()
        command = ["unshare", "--pid", "--fork", sys.executable, "-c", _ASK_FOR_INIT, scene.status]
        done = await trio.run_process(command, capture_stdout=True)
        assert done.stdout.startswith(b"HTTP/1.1 400 ")
        assert b"--owner PID cannot be used in another pid namespace than plugind's" in done.stdout
        assert await scene.leases() == {}

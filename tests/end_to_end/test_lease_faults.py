"""What goes wrong with leases on a real machine: owners and plugins that die, disks, lost state, hidden processes."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest
import trio

from plugind.tests.end_to_end.lease_scene import Forks, open_scene
from plugind.tests.end_to_end.processes import DEADLINE, PLUGIND, plugin_process

NIC = "example.com/nic"
NOBODY = 65534


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

"""``plugind slurm-config``: the lines for Slurm, of a daemon with a device plugin."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from plugind.protocol.proto import deviceplugin_v1beta1_pb2 as api
from plugind.testing import Device, FakeDevices, FakePlugin
from plugind.tests.end_to_end.leasing import allocate, leases, listed
from plugind.tests.end_to_end.processes import Daemon, Done, daemon, run
from plugind.tests.end_to_end.sockets import serving

GPU = "example.com/gpu"


class Nodes(FakeDevices):
    """Devices that have nodes, by their ids."""

    def __init__(self, **nodes: str) -> None:
        super().__init__(map(Device, nodes))
        self.nodes = nodes

    def allocate(self, ids: list[str]) -> api.ContainerAllocateResponse:
        paths = [self.nodes[name] for name in ids if self.nodes[name]]
        return api.ContainerAllocateResponse(
            devices=[api.DeviceSpec(host_path=path, container_path=path, permissions="rw") for path in paths]
        )


@asynccontextmanager
async def node(directory: Path, devices: FakeDevices) -> AsyncIterator[Daemon]:
    plugin = FakePlugin("DevicePlugin", GPU, ("v1beta1",), serves=[devices])
    with daemon(directory, "--state", str(directory / "state")) as started:
        await started.ready()
        async with serving(started.root / "gpu.sock", plugin):
            await listed(started, GPU)
            yield started


async def config(started: Daemon, *words: str) -> Done:
    command = ("slurm-config", "--node", "n1", *words)
    return await trio.to_thread.run_sync(lambda: run(*command, status=started.status))


def settings(lines: Iterable[str]) -> list[str]:
    return [line for line in lines if line and not line.startswith("#")]


async def test_the_lines_count_the_devices_of_each_resource(tmp_path: Path) -> None:
    async with node(tmp_path, Nodes(A="/dev/gpu0", B="/dev/gpu1")) as started:
        done = await config(started, "--parts", "/parts")
        assert (done.code, done.err) == (0, "")
        lines = settings(done.out.splitlines())
        assert {"GresTypes=gpu", "NodeName=n1 Gres=gpu:2", "TaskProlog=/parts/task-prolog"} < set(lines)
        # Nothing confines a job where Slurm only counts.
        assert "TaskPlugin=task/cgroup" not in lines
        assert lines[-2:] == ["NodeName=n1 Name=gpu Count=2", f"gpu {GPU} count=2"]


async def test_devices_are_in_the_order_of_their_nodes_and_are_free_again(tmp_path: Path) -> None:
    async with node(tmp_path, Nodes(A="/dev/gpu10", B="/dev/gpu9", C="/dev/gpu0")) as started:
        done = await config(started, f"card={GPU}", "--find-nodes")
        assert (done.code, done.err) == (0, "")
        files = [f"NodeName=n1 Name=card File=/dev/gpu{number}" for number in (0, 9, 10)]
        assert "TaskPlugin=task/cgroup" in settings(done.out.splitlines())
        assert settings(done.out.splitlines())[-4:] == [*files, f"card {GPU} count=3 ids=C,B,A"]
        assert await leases(started) == {}


async def test_what_slurm_could_not_know_is_refused(tmp_path: Path) -> None:
    devices = Nodes(A="/dev/gpu0", B="/dev/gpu0")
    async with node(tmp_path, devices) as started:
        for words, why in (
            ([f"a={GPU}", f"a={GPU}"], "more than one resource would be the GRES a: name them as GRES=RESOURCE"),
            (["a=b.example/c"], "b.example/c has no devices now: 'plugind devices' says why"),
            (["--find-nodes"], f"several devices of {GPU} have the same device node: leave out --find-nodes"),
        ):
            assert await config(started, *words) == Done(1, "", f"plugind: {why}\n")
        devices.nodes["A"] = "/dev/gpu[0]"
        unsafe = "/dev/gpu[0] has characters that Slurm or its map would take for something else"
        devices.nodes["B"] = "/dev/gpu1"
        assert await config(started, "--find-nodes") == Done(1, "", f"plugind: {unsafe}\n")
        devices.nodes["A"] = ""
        none = f"A of {GPU} has 0 device nodes, and not one: leave out --find-nodes"
        assert await config(started, "--find-nodes") == Done(1, "", f"plugind: {none}\n")
        # A device that somebody has cannot be looked at.
        devices.nodes["A"] = "/dev/gpu0"
        assert (await allocate(started, GPU, ids=["A"]))[0] == 201
        assert (await config(started, "--find-nodes")).code == 1
        assert (await config(started, "no")).code == 2

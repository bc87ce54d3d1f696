"""What the tests of leases have: a plugin in this process, and daemons that are killed and started again.

The daemons are forks of ``fault_points.py``, which says at which step one ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import trio

from plugind.actors.console.fake import FakeSpec, run_fake
from plugind.actors.http.client import UnreachableError
from plugind.actors.http.on_trio import ask
from plugind.actors.simulation.device_plugins import FakeDevices
from plugind.actors.simulation.plugins import FakePlugin
from plugind.protocol.plugins.devices import Device
from plugind.protocol.process_stat import has_ended
from plugind.tests.end_to_end.processes import DEADLINE

GPU = "example.com/gpu"
CONNECTION = {"kind": "connection"}
TOO_FEW = f"requested number of devices unavailable for {GPU}. Requested: {{}}, Available: {{}}"


@attrs.define
class Forks:
    """The process from which daemons are forked."""

    process: subprocess.Popen[str]

    def say(self, line: Mapping[str, object]) -> dict[str, int]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()
        answer: dict[str, int] = json.loads(self.process.stdout.readline())
        return answer


@contextmanager
def forks() -> Iterator[Forks]:
    """Start the process from which daemons are forked."""
    command = [sys.executable, str(Path(__file__).with_name("fault_points.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Forks(process)


@attrs.define(eq=False)
class Scene:
    """One node: its directory, its plugin, and the daemon that runs now."""

    directory: Path
    forks: Forks
    nursery: trio.Nursery
    devices: int
    #: The plugins, by resource.
    plugs: dict[str, Plug] = attrs.field(factory=dict)
    pid: int = 0
    #: Processes that own leases.
    owners: list[subprocess.Popen[bytes]] = attrs.field(factory=list)

    @property
    def plugin(self) -> FakeDevices:
        return self.plugs[GPU].devices

    @property
    def status(self) -> str:
        return str(self.directory / "status.sock")

    @property
    def cdi(self) -> Path:
        return self.directory / "cdi"

    @property
    def state(self) -> Path:
        return self.directory / "state"

    # --- plugins ---

    async def plug(self, resource: str, ids: list[str]) -> Plug:
        """Start a plugin."""
        made = self.plugs[resource] = Plug(FakeDevices(map(Device, ids)), trio.CancelScope(), trio.Event())
        await self.nursery.start(self._play, resource, made)
        return made

    async def _play(self, resource: str, plug: Plug, *, task_status: trio.TaskStatus[None]) -> None:
        plugin = FakePlugin("DevicePlugin", resource, ("v1beta1",), serves=[plug.devices])
        spec = FakeSpec(f"{self.directory}/root/{resource.partition('/')[2]}.sock", plugin)
        with plug.life:
            await run_fake(spec, on_call=lambda _: None, task_status=task_status)
        plug.ended.set()

    # --- daemons ---

    async def start(self, *arguments: str, offered: bool = True, **how: object) -> None:
        """Start a daemon, and wait until it offers the devices."""
        log, markers = str(self.directory / "log"), str(self.directory / "run")
        words = ["run", "--root", str(self.directory / "root"), "--state", str(self.state), "--status", self.status]
        places = {"log": log, "cdi": str(self.cdi), "markers": markers, "state": str(self.state)}
        line = {"arguments": [*words, *arguments], **places, **how}
        self.pid = self.forks.say(line)["pid"]
        if offered:
            await self.offered(GPU, self.devices)

    async def offered(self, resource: str, devices: int) -> None:
        """Wait until so many devices of a resource can be had."""
        with trio.fail_after(DEADLINE):
            while await self._allocatable(resource) != devices:  # noqa: ASYNC110 - it is in another process
                await trio.sleep(0.02)

    async def _allocatable(self, resource: str) -> int | None:
        try:
            _, answer = await self.get("GET", "/v1/devices")
        except UnreachableError:
            self._check_that_it_runs()
            return None
        return {row["resource"]: row["allocatable"] for row in answer["resources"]}.get(resource)

    def _check_that_it_runs(self) -> None:
        stat = Path(f"/proc/{self.pid}/stat").read_bytes()
        assert not has_ended(stat), (self.directory / "log").read_text()

    async def ended(self) -> dict[str, int]:
        """Wait for the end of the daemon, and return how it has ended."""
        with trio.fail_after(DEADLINE):
            pid, self.pid = self.pid, 0
            return await trio.to_thread.run_sync(self.forks.say, {"wait": pid})

    async def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert await self.ended() == {"signal": signal.SIGKILL}

    # --- callers ---

    async def get(self, method: str, target: str, body: object = None) -> tuple[int, Any]:
        raw = b"" if body is None else json.dumps(body).encode()
        with trio.fail_after(DEADLINE):
            async with ask(self.status, method, target, raw) as reply:
                return reply.status, json.loads(await reply.body())

    async def lease(self, devices: int = 1, *, of: str = GPU, **more: object) -> tuple[int, Any]:
        """Ask for a lease that is not bound to a process."""
        body = {"resources": {of: devices}, "owner": {"kind": "none"}, **more}
        return await self.get("POST", "/v1/leases", body)

    async def lease_of_process(self, owner: subprocess.Popen[bytes], **more: Any) -> Any:
        """Ask for a lease of a process; None if the daemon ends before it has answered."""
        process = {"kind": "process", "pid": owner.pid}
        try:
            status, answer = await self.lease(owner=process, client_pid=os.getpid(), **more)
        except UnreachableError:
            return None
        assert status == 201, answer
        return answer

    async def abandon(self, resource: str) -> None:
        """Ask for a lease that may not come before the end of the test."""
        with suppress(UnreachableError):
            await self.lease(of=resource)

    def owner(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a process that can own a lease."""
        self.owners.append(subprocess.Popen(command or ["sleep", "600"]))
        return self.owners[-1]

    async def leases(self) -> dict[str, Any]:
        _, answer = await self.get("GET", "/v1/leases")
        return {lease["id"]: lease for lease in answer["leases"]}

    async def until_states(self, *states: str) -> None:
        """Wait until the leases are in these states."""
        with trio.fail_after(DEADLINE):
            while sorted(lease["state"] for lease in (await self.leases()).values()) != [*states]:  # noqa: ASYNC110 - as above
                await trio.sleep(0.02)

    def files(self) -> list[str]:
        return sorted(os.listdir(self.cdi))

    async def until_files(self, *names: str) -> None:
        """Wait until the CDI directory has these files, which a daemon writes after its start."""
        with trio.fail_after(DEADLINE):
            while self.files() != [*names]:  # noqa: ASYNC110 - as above
                await trio.sleep(0.02)

    async def all_are_free(self) -> None:
        """Everything can be had at once, and nothing is left of other leases."""
        await self.until_states()
        await self.until_files()
        status, answer = await self.lease(self.devices)
        assert status == 201, answer


@asynccontextmanager
async def owning(status: str, target: str, body: object) -> AsyncIterator[Any]:
    """Own a lease by a connection for the block; yield the first line of the answer."""
    async with ask(status, "POST", target, json.dumps(body).encode()) as reply:
        assert reply.status == 201
        yield json.loads(await reply.piece())


@attrs.define(eq=False)
class Plug:
    """A plugin that serves in this process."""

    devices: FakeDevices
    life: trio.CancelScope
    ended: trio.Event

    async def stop(self) -> None:
        """Let it end, and remove its socket."""
        self.life.cancel()
        await self.ended.wait()


@asynccontextmanager
async def open_scene(directory: Path, forks: Forks, devices: int = 2) -> AsyncIterator[Scene]:
    """Make a node whose plugin has some devices; its daemon is still to be started."""
    for name in ("root", "cdi", "state"):
        (directory / name).mkdir(mode=0o700)
    async with trio.open_nursery() as nursery:
        made = Scene(directory, forks, nursery, devices)
        await made.plug(GPU, [f"gpu-{number}" for number in range(devices)])
        try:
            yield made
        finally:
            for owner in made.owners:
                owner.kill()
                owner.wait()
            if made.pid:
                with trio.CancelScope(shield=True):
                    await made.kill()
        nursery.cancel_scope.cancel()

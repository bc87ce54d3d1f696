"""plugind's device plugins beside the kubelet's own manager of device plugins: the same lists, the same numbers.

Each has a directory of its own and its own copies of the plugins, which are the kubelet's stub. The kubelet's directory
cannot be chosen, so its manager runs in a mount namespace. What is allocatable is compared after each act, with what it
has to be, and so is which devices an allocation gets and what the plugin was called with.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from plugind.tests.end_to_end.go_programs import peer
from plugind.tests.end_to_end.leasing import allocate, release
from plugind.tests.end_to_end.processes import DEADLINE, PATIENT, Daemon, PluginProcess, daemon, plugin_process

pytestmark = pytest.mark.extended

RESOURCES = {"example.com/gpu": 4, "example.com/nic": 2}
ACTS = 14
_PLACE = "/var/lib/kubelet/device-plugins"
#: ``$1`` is the directory that the program ``$2`` sees as the kubelet's.
_IN_NAMESPACE = f'set -e; mount -t tmpfs none /var/lib; mkdir -p {_PLACE}; mount --bind "$1" {_PLACE}; exec "$2"'
Numbers = Mapping[str, tuple[int, int]]


@attrs.frozen
class Ours:
    """plugind, with leases."""

    directory: Path
    daemon: Daemon

    async def numbers(self) -> Numbers:
        """Return how many devices of each resource there are, and how many are allocatable."""
        _, body = await self.daemon.get("/v1/devices")
        return {one["resource"]: (one["capacity"], one["allocatable"]) for one in json.loads(body)["resources"]}

    async def allocate(self, resource: str, number: int) -> tuple[str, list[str]]:
        """Return what ends it, and the devices; neither if there are too few."""
        status, lease = await allocate(self.daemon, resource, number)
        return (lease["id"], lease["devices"][resource]) if status == 201 else ("", [])

    async def end(self, allocation: str) -> None:
        await release(self.daemon, allocation)


@attrs.define
class Theirs:
    """The kubelet's manager, with pods."""

    directory: Path
    manager: PluginProcess
    pods: int = 0

    async def numbers(self) -> Numbers:
        """Return how many devices of each resource there are, and how many are allocatable."""
        await self.manager.command("capacity")
        said: dict[str, Any] = await self._next("capacity")
        return {name: (number, said["allocatable"].get(name, 0)) for name, number in said["capacity"].items()}

    async def allocate(self, resource: str, number: int) -> tuple[str, list[str]]:
        """Return what ends it, and the devices; neither if there are too few."""
        self.pods += 1
        await self.manager.command(f"allocate pod-{self.pods} {resource} {number}")
        said = await self._next("allocated")
        # The kubelet names devices in no certain order.
        assert sorted(filter(None, said["envs"].get("DP_STUB", "").split(","))) == said["ids"]
        return ("", []) if said["error"] else (said["allocated"], said["ids"])

    async def end(self, allocation: str) -> None:
        await self.manager.command(f"end {allocation}")

    async def _next(self, key: str) -> dict[str, Any]:
        while key not in (said := await self.manager.line()):
            pass
        return said


@attrs.define
class Resource:
    """What is to be true of a resource on both sides, and its plugins."""

    name: str
    number: int
    was_listed: bool = False
    plugins: list[PluginProcess] = attrs.Factory(list)
    healthy: set[str] = attrs.Factory(set)
    #: The allocations of both sides, with their devices.
    taken: list[tuple[tuple[str, str], list[str]]] = attrs.Factory(list)

    @property
    def ids(self) -> list[str]:
        return [f"{self.name.partition('/')[2]}-{index}" for index in range(self.number)]

    @property
    def free(self) -> int:
        """How many devices can be allocated now."""
        return len(self.healthy.difference(*(devices for _, devices in self.taken)))


@attrs.define
class Beside:
    """Both sides, and what was done."""

    ours: Ours
    theirs: Theirs
    stack: AsyncExitStack
    resources: list[Resource]
    done: list[str] = attrs.Factory(list)

    async def act(self, chance: random.Random) -> None:
        """Let something happen on both sides, and wait until both show it."""
        one = chance.choice(self.resources)
        if not one.plugins:
            await self._start(one)
        else:
            kind = chance.choice(
                ("unhealthy", "unhealthy", "healthy", "end", "allocate", "allocate", "allocate", "free")
            )
            self.done.append(f"{kind} {one.name}")
            match kind:
                case "unhealthy" | "healthy":
                    await self._change(one, kind, chance.choice(one.ids))
                case "end":
                    await self._end(one, chance.choice((signal.SIGTERM, signal.SIGKILL)))
                case "allocate":
                    await self._allocate(one, chance.randint(1, one.number))
                case _ if one.taken:
                    ends, _ = one.taken.pop(chance.randrange(len(one.taken)))
                    await self.ours.end(ends[0])
                    await self.theirs.end(ends[1])
                case _:
                    pass
        await self._agree()

    async def _start(self, one: Resource) -> None:
        self.done.append(f"start {one.name}")
        one.was_listed, one.healthy = True, set(one.ids)
        for side in (self.ours, self.theirs):
            socket, kubelet = side.directory / f"{one.ids[0]}.sock", side.directory / "kubelet.sock"
            command = [peer("dp-stub"), "--preferred", f"--devices={one.number}", f"--kubelet={kubelet}"]
            plugin = await self.stack.enter_async_context(plugin_process([*command, str(socket), one.name]))
            one.plugins.append(plugin)
            await plugin.line(call="Register", registered=True)

    async def _change(self, one: Resource, health: str, device: str) -> None:
        (one.healthy.add if health == "healthy" else one.healthy.discard)(device)
        for plugin in one.plugins:
            await plugin.command(f"{health} {device}")

    async def _end(self, one: Resource, number: signal.Signals) -> None:
        one.healthy = set()
        for plugin in one.plugins:
            await plugin.end(number)
        one.plugins = []

    async def _allocate(self, one: Resource, number: int) -> None:
        ours, theirs = [await side.allocate(one.name, number) for side in (self.ours, self.theirs)]
        assert (ours[1], len(ours[1])) == (theirs[1], number if number <= one.free else 0), self.done
        if ours[1]:
            one.taken.append(((ours[0], theirs[0]), ours[1]))
            for plugin in one.plugins:
                assert [sorted(ids) for ids in await _asked(plugin)] == [ours[1]], self.done

    async def _agree(self) -> None:
        wanted = {one.name: (one.number, len(one.healthy)) for one in self.resources if one.was_listed}
        found: list[Numbers] = []
        with trio.move_on_after(DEADLINE):
            while found != [wanted, wanted]:
                await trio.sleep(0.02)
                found = [await side.numbers() for side in (self.ours, self.theirs)]
        assert found == [wanted, wanted], self.done


async def _asked(plugin: PluginProcess) -> list[list[str]]:
    """Return the devices of each container that its next Allocate is about."""
    ids = (await plugin.line(call="Allocate"))["ids"]
    assert isinstance(ids, list)
    return ids


@asynccontextmanager
async def both(place: Path) -> AsyncIterator[Beside]:
    """Run both."""
    command = [*_unshared(), "sh", "-c", _IN_NAMESPACE, "sh", str(place / "theirs"), peer("kubelet-dm")]
    for name in ("ours", "theirs"):
        (place / name).mkdir()
    with daemon(place, "--device-plugins", str(place / "ours"), timeouts=PATIENT) as node:
        await node.ready()
        async with AsyncExitStack() as stack:
            manager = await stack.enter_async_context(plugin_process(command))
            await manager.line(ready=f"{_PLACE}/")
            resources = [Resource(name, number) for name, number in RESOURCES.items()]
            yield Beside(Ours(place / "ours", node), Theirs(place / "theirs", manager), stack, resources)


def _unshared() -> list[str]:
    if (program := shutil.which("unshare")) is None:
        pytest.skip("needs unshare of the package util-linux")
    command = [program, "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    if subprocess.run([*command, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no mount namespace can be made here")
    return command


@pytest.mark.parametrize("seed", range(5))
async def test_the_numbers_and_the_allocations_are_those_of_the_kubelets_manager(place: Path, seed: int) -> None:
    """Such as in TestUpdateCapacityAllocatable and TestGetAllocatableDevicesHealthTransition."""
    chance = random.Random(seed)
    async with both(place) as beside:
        for _ in range(ACTS):
            await beside.act(chance)

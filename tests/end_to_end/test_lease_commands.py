"""The commands of leases, and the clients, against a daemon with a device plugin."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import attrs
import pytest
import trio

from plugind.client import Client, LeaseFailedError, LeaseState, Problem, SyncClient
from plugind.testing import Device, FakeDevices, FakePlugin
from plugind.tests.end_to_end.leasing import ended, leases, listed
from plugind.tests.end_to_end.processes import DEADLINE, PLUGIND, Daemon, Done, daemon, run
from plugind.tests.end_to_end.sockets import serving

GPU = "example.com/gpu"


@attrs.frozen
class Node:
    daemon: Daemon
    devices: FakeDevices

    async def plugind(self, *words: str) -> Done:
        environment = {"PLUGIND_STATUS": self.daemon.status}
        return await trio.to_thread.run_sync(lambda: run(*words, environment=environment))

    @contextmanager
    def started(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """Start a command that is not waited for; kill it at exit if it still runs."""
        environment = {**os.environ, "PLUGIND_STATUS": self.daemon.status}
        with subprocess.Popen([*PLUGIND, *words], env=environment) as process:
            try:
                yield process
            finally:
                process.kill()

    async def until(self, **states: str) -> None:
        """Wait until leases, by id, are in these states, and there are no others."""
        with trio.fail_after(DEADLINE):
            while {name: lease["state"] for name, lease in (await leases(self.daemon)).items()} != states:  # noqa: ASYNC110
                await trio.sleep(0.02)  # It is in another process.


@asynccontextmanager
async def running_node(
    directory: Path,
    *ids: str,
    options: Sequence[str] = (),
    timeouts: Mapping[str, float] | None = None,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Node]:
    devices = FakeDevices(map(Device, ids))
    plugin = FakePlugin("DevicePlugin", GPU, ("v1beta1",), serves=[devices])
    state = ["--state", str(directory / "state")]
    with daemon(directory, *state, *options, timeouts=timeouts, environment=environment) as started:
        await started.ready()
        async with serving(started.root / "gpu.sock", plugin):
            await listed(started, GPU)
            yield Node(started, devices)


async def code_of(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> int:
    with trio.fail_after(DEADLINE):
        return await trio.to_thread.run_sync(process.wait, abandon_on_cancel=True)


@pytest.mark.usefixtures("real_processes")
async def test_a_command_has_its_device_until_it_is_killed_and_a_waiter_is_next(tmp_path: Path) -> None:
    async with running_node(tmp_path, "GPU-0") as node:
        with node.started("allocate", f"{GPU}=1", "--id", "first", "--", "sleep", "600") as first:
            await node.until(first="held")
            assert (await leases(node.daemon))["first"]["owner"]["pid"] == first.pid
            refused = await node.plugind("allocate", f"{GPU}=1", "--", "true")
            assert refused.code == 125
            assert refused.err.splitlines()[0] == (
                f"plugind: requested number of devices unavailable for {GPU}. Requested: 1, Available: 0"
            )
            assert refused.err.splitlines()[1].startswith(f"  GPU-0: first, pid {first.pid} of ")
            words = 'test "$PLUGIND_LEASE $PLUGIND_DEVICES" = "second example.com/gpu=GPU-0" && exit 7'
            with node.started(
                "allocate", f"{GPU}=1", "--wait", "1m", "--id", "second", "--", "sh", "-c", words
            ) as next_:
                await node.until(first="held", second="queued")
                first.kill()
                assert await code_of(next_) == 7
        await node.until()


async def test_an_interrupted_wait_is_withdrawn(tmp_path: Path) -> None:
    async with running_node(tmp_path, "GPU-0") as node:
        assert (await node.plugind("allocate", f"{GPU}=1", "--until-release", "--id", "a")).code == 0
        with node.started("allocate", f"{GPU}=1", "--wait", "1m", "--ttl", "9", "--id", "b") as waiting:
            await node.until(a="held", b="queued")
            waiting.send_signal(signal.SIGINT)
            assert await code_of(waiting) == 130
        await node.until(a="held")
        late = await node.plugind("allocate", f"{GPU}=1", "--wait", "0.1", "--ttl", "9")
        assert (late.code, late.out) == (124, "")
        assert [(await node.plugind("release", "a")).code for _ in range(2)] == [0, 1]
        await node.until()


@pytest.mark.usefixtures("real_processes")
async def test_a_lease_for_a_time_is_given_again_by_its_name_and_renewed(tmp_path: Path) -> None:
    async with running_node(tmp_path, "GPU-0", "GPU-1") as node:
        asking = ("allocate", f"{GPU}=1", "--ttl", "1h", "--id", "bench", "-o", "env")
        first = await node.plugind(*asking)
        assert first.out.splitlines()[1:3] == ['PLUGIND_LEASE="bench"', f'PLUGIND_DEVICES="{GPU}=GPU-0"']
        assert (await node.plugind(*asking)).out == first.out
        other = await node.plugind("allocate", f"{GPU}=2", "--ttl", "1h", "--id", "bench")
        assert (other.code, other.err) == (2, "plugind: lease bench exists with another request\n")
        before = (await leases(node.daemon))["bench"]["owner"]["expires_boottime_ns"]
        assert (await node.plugind("renew", "bench")).out == "bench ends in 3600 s\n"
        assert (await leases(node.daemon))["bench"]["owner"]["expires_boottime_ns"] > before
        assert (await node.plugind("allocate", f"{GPU}=1", "--ttl", "0.1", "--id", "short")).code == 0
        await ended(node.daemon, "short")
        table = (await node.plugind("devices")).out.splitlines()
        assert ["bench" in line for line in table[1:3]] == [True, False]
        described = (await node.plugind("describe", GPU)).out
        assert "\nLeases:     1: bench (root, GPU-0, 00:00:" in described


async def test_the_clients_lease_of_a_daemon(tmp_path: Path) -> None:
    async with running_node(tmp_path, "GPU-0", "GPU-1") as node:
        client, other = Client(node.daemon.status), SyncClient(node.daemon.status)
        async with client.watch_leases() as changes, client.allocate({GPU: 2}) as lease:
            assert lease.devices == {GPU: ("GPU-0", "GPU-1")}
            assert await client.leases() == await trio.to_thread.run_sync(other.leases) == (lease,)
            with pytest.raises(LeaseFailedError) as caught:
                await client.take({GPU: 1}, seconds=60)
            assert (caught.value.problem, caught.value.holders[0].id) == (Problem.UNAVAILABLE, lease.id)
            with trio.move_on_after(0.1) as scope:
                await client.take({GPU: 1}, seconds=60, wait=60)
            assert scope.cancelled_caught
            # Once the daemon has noticed, nobody waits for what is released.
            await node.until(**{lease.id: "held"})
            with trio.fail_after(DEADLINE):
                while (await anext(changes)).state is not LeaseState.HELD:
                    pass
        assert await client.leases() == ()

        def block() -> None:
            with other.allocate({GPU: 1}, id="mine") as lease:
                assert [listed.id for listed in other.leases("mi")] == [lease.id] == ["mine"]

        await trio.to_thread.run_sync(block)
        taken = await client.take({GPU: 1}, seconds=60)
        assert (await client.renew(taken.id)).id == taken.id
        await client.release(taken.id)
        assert other.leases() == ()

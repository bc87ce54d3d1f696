"""Leases over the status socket of a real daemon, with the fake device plugin."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from plugind.actors.http.client import ask
from plugind.tests.end_to_end.processes import DEADLINE, PLUGIND, Daemon, daemon, plugin_process

GPU = "example.com/gpu"
NONE = {"kind": "none"}
CONNECTION = {"kind": "connection"}


@asynccontextmanager
async def leasing(directory: Path, *arguments: str, devices: int = 1) -> AsyncIterator[Daemon]:
    """Run a daemon that offers devices of the fake device plugin."""
    plugins = directory / "d"
    fake = [
        *PLUGIND,
        "fake",
        "--type",
        "DevicePlugin",
        "--name",
        GPU,
        f"--device-plugins={plugins}",
        "--devices",
        str(devices),
    ]
    state = str(directory / "state")
    with daemon(directory, f"--device-plugins={plugins}", "--state", state, *arguments) as started:
        await started.ready()
        async with plugin_process([*fake, f"--device-plugins={plugins}"]):
            await offered(started, devices)
            yield started


async def offered(started: Daemon, devices: int) -> None:
    with trio.fail_after(DEADLINE):
        while await allocatable(started) != [devices]:  # noqa: ASYNC110 - it is in another process
            await trio.sleep(0.02)


async def allocatable(started: Daemon) -> list[int]:
    _, body = await started.get("/v1/devices")
    return [resource["allocatable"] for resource in json.loads(body)["resources"]]


async def asked(started: Daemon, method: str, target: str, body: object = None) -> tuple[int, Any]:
    raw = b"" if body is None else json.dumps(body).encode()
    status, answer = await started.get(target, method=method, body=raw)
    return status, json.loads(answer)


async def lease(started: Daemon, **more: object) -> tuple[int, Any]:
    return await asked(started, "POST", "/v1/leases", {"resources": {GPU: 1}, "owner": NONE} | more)


@asynccontextmanager
async def owning(status: str, target: str, body: object) -> AsyncIterator[Any]:
    """Own a lease by a connection for the block; yield the first line of the answer."""
    async with ask(status, "POST", target, json.dumps(body).encode()) as reply:
        assert reply.status == 201
        pieces = reply.pieces()
        assert isinstance(pieces, AsyncGenerator)
        async with aclosing(pieces):
            yield json.loads(await anext(pieces))


async def held(started: Daemon) -> list[str]:
    return [row["id"] for row in (await asked(started, "GET", "/v1/leases"))[1]["leases"] if row["state"] == "held"]


async def until_held(started: Daemon, *names: str) -> None:
    with trio.fail_after(DEADLINE):
        while await held(started) != [*names]:  # noqa: ASYNC110 - it is in another process
            await trio.sleep(0.02)


async def test_a_lease_over_http_ends_with_its_release_its_process_or_its_connection(tmp_path: Path) -> None:
    async with leasing(tmp_path) as started:
        status, given = await lease(started, id="first")
        assert (status, given["devices"], given["uid"]) == (201, {GPU: ["gpu-0"]}, os.geteuid())
        status, failed = await lease(started)
        text = f"requested number of devices unavailable for {GPU}. Requested: 1, Available: 0"
        assert (status, failed["error"], [holder["id"] for holder in failed["holders"]]) == (409, text, ["first"])
        assert (await asked(started, "DELETE", "/v1/leases/first"))[0] == 200

        async with plugin_process(["sleep", "600"]) as owner:
            process = {"kind": "process", "pid": owner.process.pid}
            assert (await lease(started, owner=process, client_pid=os.getpid(), id="second"))[0] == 201
            wrong = await lease(started, owner=process, client_pid=1)
            assert (wrong[0], wrong[1]["problem"]) == (400, "usage")
        await until_held(started)

        await started.metric('plugind_leases{resource_name="example.com/gpu"} 0.0')
        async with owning(started.status, "/v1/leases", {"resources": {GPU: 1}, "owner": CONNECTION, "id": "third"}):
            assert await held(started) == ["third"]
            await started.metric('plugind_leases{resource_name="example.com/gpu"} 1.0')
        await until_held(started)

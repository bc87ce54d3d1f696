"""Leases of a daemon, asked for over HTTP as any client does, for the tests that are about something else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import trio

from plugind.tests.end_to_end.processes import DEADLINE, Daemon


async def allocate(started: Daemon, resource: str, count: int = 1, **more: object) -> tuple[int, dict[str, Any]]:
    """Ask for a lease without an owner, unless ``more`` names one; return the status and the answer."""
    asked = {"resources": {resource: count}, "owner": {"kind": "none"}, **more}
    status, body = await started.get("/v1/leases", method="POST", body=json.dumps(asked).encode())
    return status, json.loads(body)


async def release(started: Daemon, lease: str) -> None:
    status, body = await started.get(f"/v1/leases/{quote(lease, safe='')}", method="DELETE")
    assert status == 200, body


async def leases(started: Daemon) -> dict[str, dict[str, Any]]:
    """Return all leases, by id."""
    _, body = await started.get("/v1/leases")
    return {lease["id"]: lease for lease in json.loads(body)["leases"]}


async def capacity(started: Daemon) -> Mapping[str, int]:
    """Return how many devices of each resource are healthy."""
    _, body = await started.get("/v1/devices")
    return {resource["resource"]: resource["allocatable"] for resource in json.loads(body)["resources"]}


async def listed(started: Daemon, *resources: str) -> None:
    """Wait until each of the resources has healthy devices."""
    with trio.fail_after(DEADLINE):
        while not _all_healthy(await capacity(started), resources):  # noqa: ASYNC110 - another process
            await trio.sleep(0.02)


def _all_healthy(healthy: Mapping[str, int], resources: Sequence[str]) -> bool:
    return all(healthy.get(name) for name in resources)


async def ended(started: Daemon, lease: str) -> None:
    """Wait until there is no such lease."""
    with trio.fail_after(DEADLINE):
        while lease in await leases(started):  # noqa: ASYNC110 - it is in another process
            await trio.sleep(0.02)

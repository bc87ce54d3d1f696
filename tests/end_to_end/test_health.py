"""What a daemon says of its health while something is wrong with it, over its real status socket."""

from __future__ import annotations

import json
import os
from contextlib import AsyncExitStack
from pathlib import Path

import trio

from plugind.actors.io.http_client import ask
from plugind.tests.end_to_end.processes import DEADLINE, Daemon, daemon


async def health(node: Daemon) -> tuple[int, dict[str, object]]:
    """The status of /healthz, and its report."""
    status, body = await node.get("/healthz")
    report: dict[str, object] = json.loads(body)
    return status, report


async def watchable(node: Daemon) -> bool:
    async with ask(node.status, "GET", "/watch") as reply:
        return reply.status == 200


async def test_watchers_that_hold_all_streams_and_idle_clients_do_not_keep_health_from_being_answered(
    tmp_path: Path,
) -> None:
    """Fault 93: with 64 watchers /healthz answered 503, and with 128 clients not at all."""
    with daemon(tmp_path) as node, trio.fail_after(DEADLINE):
        await node.ready()
        async with AsyncExitStack() as stack:
            for _ in range(64):
                await stack.enter_async_context(node.watch())
            assert (await node.get("/watch"))[0] == 503
            for _ in range(150):
                await stack.enter_async_context(await trio.open_unix_socket(os.path.join(tmp_path, "status.sock")))
            for target in ("/healthz", "/readyz", "/metrics", "/plugins"):
                assert (await node.get(target))[0] == 200, target
        # The places of the watchers that left are free again.
        while not await watchable(node):  # noqa: ASYNC110 - it is in another process
            await trio.sleep(0.02)

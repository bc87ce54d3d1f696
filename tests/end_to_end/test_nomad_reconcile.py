"""``plugind nomad-device --reconcile`` as a process, with a daemon and a server that answers as an agent's API does.

The process has a quarter of a second in the place of the minute between two looks.
"""

from __future__ import annotations

import json
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio

from plugind.tests.end_to_end.certificates import Certificate, certificate
from plugind.tests.end_to_end.leasing import leases
from plugind.tests.end_to_end.processes import DEADLINE
from plugind.tests.end_to_end.test_lease_commands import Node, node
from plugind.tests.end_to_end.test_nomad_device import POOL, plugin
from plugind.tests.protocol.test_nomad_allocations import shown

NODE = "f7476465-4d6e-c0de-26d0-e383c49be941"
SECRET = "5b2a0d0c-9d5f-4f0b"
NAME = "client.global.nomad"
#: What the process runs: the command with other times.
FASTER = """
from plugind.actors.console import commands, nomad_device, nomad_reconciler
nomad_device.JITTER, nomad_reconciler.APART = 0.05, 0.25
raise SystemExit(commands.main())
"""


@attrs.define
class Api:
    """The part of the API of an agent that is asked for."""

    #: Each allocation, by its id.
    shown: dict[str, Any] = attrs.field(factory=dict)
    #: Another status in the place of an answer.
    failing: str | None = None
    #: How many times the allocations have been asked for.
    looks: int = 0
    wrong: list[str] = attrs.field(factory=list)

    def show(self, name: str, status: str, *ids: str) -> None:
        state, end = ("running", None) if status == "running" else ("dead", "2999-01-01T00:00:00Z")
        self.shown[name] = shown(status, *ids, state=state, finished=end, ID=name)

    def answer(self, request: str) -> tuple[str, object]:
        path = request.split()[1]
        if f"\r\nX-Nomad-Token: {SECRET}\r\n" not in request:
            self.wrong.append(request)
        if path == "/v1/agent/self":
            return "200 OK", {"stats": {"client": {"node_id": NODE}}}
        if path != f"/v1/node/{NODE}/allocations":
            self.wrong.append(request)
        self.looks += 1
        return ("200 OK", [*self.shown.values()]) if self.failing is None else (self.failing, "no")

    async def serve(self, stream: trio.SocketStream, context: ssl.SSLContext | None) -> None:
        talking = stream if context is None else trio.SSLStream(stream, context, server_side=True)
        status, content = self.answer((await talking.receive_some(65536)).decode())
        await talking.send_all(f"HTTP/1.1 {status}\r\n\r\n{json.dumps(content)}".encode())
        await trio.aclose_forcefully(stream)

    async def looked_at(self, times: int) -> None:
        """Wait until there were so many more looks, the first of which may have begun already."""
        await self.until(self.looks + times + 1)

    async def until(self, looks: int) -> None:
        with trio.fail_after(DEADLINE):
            while self.looks < looks:  # noqa: ASYNC110 - another process looks
                await trio.sleep(0.02)


@asynccontextmanager
async def api(context: ssl.SSLContext | None = None) -> AsyncIterator[tuple[Api, int]]:
    served = Api()
    async with trio.open_nursery() as nursery:
        serve = partial(served.serve, context=context)
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        yield served, listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()
    assert served.wrong == []


async def until_leased(it: Node, *names: str) -> None:
    with trio.fail_after(DEADLINE):
        while set(await leases(it.daemon)) != set(names):  # noqa: ASYNC110 - another process
            await trio.sleep(0.02)


async def play(directory: Path, served: Api, *options: str, environment: dict[str, str]) -> None:
    """Let two allocations end, one after the other, the second while the API fails."""
    async with node(directory, "GPU-0", "GPU-1", options=POOL) as it:
        command = [sys.executable, "-c", FASTER]
        with plugin(it.daemon.status, "--reconcile", *options, command=command, more=environment) as agent:
            first, second = [(await agent.reserve(name)).envs["PLUGIND_LEASE"] for name in ("GPU-0", "GPU-1")]
            served.show("x", "running", "GPU-0")
            served.show("y", "running", "GPU-1")
            await served.looked_at(2)
            await until_leased(it, first, second)
            served.show("x", "complete", "GPU-0")
            await until_leased(it, second)
            served.failing = "500 Internal Server Error"
            served.show("y", "failed", "GPU-1")
            await served.looked_at(2)
            await until_leased(it, second)
            served.failing = None
            await until_leased(it)
            # It still gives devices.
            third = (await agent.reserve("GPU-0")).envs["PLUGIND_LEASE"]
            served.show("z", "running", "GPU-0")
            await served.looked_at(2)
            await until_leased(it, third)


async def test_the_leases_of_tasks_that_have_ended_are_released(tmp_path: Path) -> None:
    async with api() as (served, port):
        environment = {"NOMAD_ADDR": f"http://127.0.0.1:{port}", "NOMAD_TOKEN": SECRET}
        await play(tmp_path, served, environment=environment)


async def test_the_api_may_be_asked_over_tls_with_a_certificate_and_a_token_of_files(tmp_path: Path) -> None:
    own, callers = (certificate(tmp_path, name) for name in (NAME, "cli.global.nomad"))
    token = tmp_path / "token"
    token.write_text(f"{SECRET}\n")
    async with api(_context(own, callers)) as (served, port):
        options = {
            "--address": f"https://127.0.0.1:{port}",
            "--token-file": str(token),
            "--ca-cert": own.file,
            "--client-cert": callers.file,
            "--client-key": callers.key,
            "--tls-server-name": NAME,
        }
        words = [word for pair in options.items() for word in pair]
        await play(tmp_path, served, *words, environment={"NOMAD_ADDR": "http://127.0.0.1:1", "NOMAD_TOKEN": "no"})


def _context(own: Certificate, callers: Certificate) -> ssl.SSLContext:
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    made.load_cert_chain(own.file, own.key)
    made.load_verify_locations(callers.file)
    made.verify_mode = ssl.CERT_REQUIRED
    return made

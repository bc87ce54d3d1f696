"""A status actor that is started again, and cannot make its socket: the node goes on without it (fault 85)."""

from __future__ import annotations

import json
import os
import stat
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import trio
from trio.testing import MockClock

from plugind import Supervisor
from plugind.actors.http.server import HttpRequest
from plugind.actors.node.node import Node
from plugind.actors.node.ports import Ports
from plugind.actors.simulation.faults import PoisonMessage
from plugind.actors.simulation.processes import MemoryProcesses
from plugind.actors.status.actor import Memory
from plugind.actors.status.api import Api, StatusConfig
from plugind.protocol.messages.reconciler import ReconcilerMessage
from plugind.protocol.status.metrics import Metrics
from plugind.supervisor import NodeSupervisor
from plugind.testing import FakeHandler, FakePlugin, SimulatedNode
from plugind.tests.actors.status.bench import RecordingLogger, body_of

FAILED = "status socket was closed by a restart of its actor and cannot be made again"


def embedded(node: SimulatedNode, socket: Path, log: RecordingLogger) -> Supervisor:
    """A node on simulated ports, with a real status socket."""
    ports = Ports(
        node.network.dial,
        lambda _root: node.directory,
        lambda: MemoryProcesses(node.network),
        users=lambda _trust: node.users,
    )
    return NodeSupervisor(Node(node.config, {"Colour": FakeHandler()}, ports, StatusConfig(str(socket)), log))


def crash_status(node: Supervisor) -> None:
    poison: Any = PoisonMessage()
    node.internals.status.address.send_nowait(poison)


async def states(node: Supervisor) -> dict[str | None, str]:
    return {plugin.name: plugin.state.value for plugin in (await node.snapshot()).plugins}


async def test_a_restart_that_cannot_make_the_socket_costs_only_the_socket(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """It ended the whole node. The plugins stay registered, and the socket is made again once it can be."""
    path, log = tmp_path / "run" / "status.sock", RecordingLogger()
    path.parent.mkdir(mode=0o755)
    async with AsyncExitStack() as stack:
        simulated = await stack.enter_async_context(SimulatedNode())
        await simulated.stop()  # Its plugins run on, for the daemon with the status socket.
        simulated.plug("a.sock", FakePlugin("Colour", "red"))
        node = await stack.enter_async_context(embedded(simulated, path, log))
        await trio.sleep(1)
        assert stat.S_ISSOCK(path.stat().st_mode)
        os.chmod(path.parent, 0o777)
        crash_status(node)
        await trio.sleep(25)
        assert not path.exists()
        assert await states(node) == {"red": "registered"}
        simulated.plug("b.sock", FakePlugin("Colour", "blue"))
        await trio.sleep(1)
        assert await states(node) == {"red": "registered", "blue": "registered"}
        (said,) = [event for event in log.events if "cannot be made again" in event[1]]
        assert said[1] == FAILED
        assert f"run 'chmod o-w {path.parent}'" in str(said[2]["reason"])
        os.chmod(path.parent, 0o755)
        await trio.sleep(10)
        assert stat.S_ISSOCK(path.stat().st_mode)
        assert [plugin.generation for plugin in (await node.snapshot()).plugins] == [1, 2]
    assert not path.exists()


async def test_health_and_metrics_show_the_failures_for_a_while(autojump_clock: MockClock) -> None:
    to_reconciler, asked = trio.open_memory_channel[ReconcilerMessage](1)
    memory = Memory(metrics=Metrics())
    api = Api(StatusConfig(), memory, to_reconciler)
    with to_reconciler, asked:
        assert await socket_health(api) == []
        for seconds in (10, 2):
            memory.note_unmade("no room")
            await trio.sleep(seconds)
        (shown,) = await socket_health(api)
        assert (shown["status"], shown["restarts"]) == ("degraded", 0)
        reason = "it could not be made again (failures in all: 2), the last time 2 s ago: no room"
        assert shown["reason"] == reason
        await trio.sleep(300)
        assert [(shown["status"], shown["reason"]) for shown in await socket_health(api)] == [("ok", None)]
        metrics = (await body_of(await api(request("/metrics")))).decode()
    assert "plugind_status_socket_failures_total 2.0\n" in metrics


def request(path: str) -> HttpRequest:
    return HttpRequest("GET", path, {}, b"")


async def socket_health(api: Api) -> list[dict[str, object]]:
    health = json.loads(await body_of(await api(request("/healthz"))))
    return [actor for actor in health["actors"] if actor["name"] == "status socket"]

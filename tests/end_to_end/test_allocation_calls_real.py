"""The calls with which devices are leased, to device plugins on other implementations of gRPC, some of which misbehave.

The plugins are programs of their own, and the connection is a real one; what is missing is the daemon around it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from plugind.actors.devices import calls as device_calls
from plugind.actors.devices.calls import PluginCalls
from plugind.actors.grpc.client.channel import Channel
from plugind.actors.grpc.client.dial import dial
from plugind.actors.handlers.link import Link
from plugind.protocol.leases.messages import (
    AllocateAsked,
    Allocated,
    AllocationLost,
    AllocationRefused,
    CallMessage,
    PreferenceAsked,
    Preferred,
)
from plugind.protocol.leases.values import Answer, Node
from plugind.protocol.plugins.info import Plugin
from plugind.tests.end_to_end.device_clients import running
from plugind.tests.end_to_end.device_plugins import ALL, GRPCIO, DevicePluginProgram
from plugind.tests.end_to_end.processes import DEADLINE

GPU = "example.com/gpu"


@attrs.define
class Connected:
    """As much of a link as calls use."""

    channel: Channel


@attrs.define(eq=False)
class Caller:
    """The lease actor: it asks for one thing at a time, and waits for the answer."""

    calls: PluginCalls
    _replies: trio.MemoryReceiveChannel[CallMessage] = attrs.field(init=False)
    _reply: trio.MemorySendChannel[CallMessage] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._reply, self._replies = trio.open_memory_channel[CallMessage](8)

    async def allocate(self, *devices: str, pre_start: bool = False) -> CallMessage:
        self.calls.send_nowait(AllocateAsked("a lease", GPU, devices, pre_start, self._reply))
        return await self._answer()

    async def prefer(self, available: tuple[str, ...], include: tuple[str, ...], size: int) -> CallMessage:
        self.calls.send_nowait(PreferenceAsked("a lease", GPU, available, include, size, self._reply))
        return await self._answer()

    async def _answer(self) -> CallMessage:
        with trio.fail_after(DEADLINE):
            return await self._replies.receive()


@asynccontextmanager
async def calling(program: DevicePluginProgram, directory: Path, *options: str) -> AsyncIterator[Caller]:
    """Run a plugin, connect to it, and make its calls."""
    path = str(directory / "a.sock")
    with running(program.command(directory, "a.sock", GPU, "--route", "socket", *options)) as plugin:
        await trio.to_thread.run_sync(lambda: plugin.line(listening=path))
        async with await dial(path, timeout=DEADLINE) as channel, trio.open_nursery() as nursery:
            calls = PluginCalls(Plugin("DevicePlugin", GPU, path, ("v1beta1",), path, 1))
            nursery.start_soon(calls.run, cast(Link, Connected(channel)))
            await wait_all_tasks_blocked()
            yield Caller(calls)
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("program", ALL, ids=lambda program: program.label)
async def test_a_plugin_prepares_devices_for_a_process(program: DevicePluginProgram, tmp_path: Path) -> None:
    async with calling(program, tmp_path, "--plain") as caller:
        assert await caller.allocate("gpu-1", "gpu-0", pre_start=True) == Allocated(
            "a lease", GPU, Answer({"VISIBLE_DEVICES": "gpu-1,gpu-0"}, nodes=(Node("/dev/null", "/dev/null"),))
        )
        preferred = await caller.prefer(("gpu-0", "gpu-1", "gpu-2"), ("gpu-2",), 2)
        assert preferred == Preferred("a lease", GPU, ("gpu-2", "gpu-0"))


@pytest.mark.parametrize("program", ALL, ids=lambda program: program.label)
async def test_a_plugin_is_called_as_often_as_leases_are_asked_for(
    program: DevicePluginProgram, tmp_path: Path
) -> None:
    """Fault 54: a server of grpc-go sends a PING for each request. They are no flood: the connection stays."""
    async with calling(program, tmp_path) as caller:
        for _ in range(150):
            assert isinstance(await caller.allocate("gpu-0"), Allocated)


async def test_a_plugin_prefers_devices_of_one_numa_node(tmp_path: Path) -> None:
    """The devices with even numbers are near to node 0, and the others to node 1."""
    async with calling(GRPCIO, tmp_path, "--preferred", "--by-numa") as caller:
        available = ("gpu-0", "gpu-1", "gpu-2", "gpu-3")
        assert await caller.prefer(available, ("gpu-3",), 2) == Preferred("a lease", GPU, ("gpu-3", "gpu-1"))
        assert await caller.prefer(available, (), 2) == Preferred("a lease", GPU, ("gpu-0", "gpu-2"))


@pytest.mark.parametrize("call", ["Allocate", "PreStartContainer"])
async def test_what_a_plugin_that_hangs_may_hold_is_uncertain(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_calls, f"{'ALLOCATE' if call == 'Allocate' else 'PRE_START'}_TIMEOUT", 0.2)
    async with calling(GRPCIO, tmp_path, "--hang", call) as caller:
        lost = await caller.allocate("gpu-0", pre_start=True)
        assert isinstance(lost, AllocationLost)
        assert lost.reason.endswith("no answer within 0.2 s")
        assert isinstance(await caller.prefer(("gpu-0",), (), 1), Preferred)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("none", "no containers return in allocation response"),
        ("count", "2 containers return in allocation response, and one was asked for"),
        ("relative", 'the host path "null" is not absolute'),
        ("control", r'the host path "/dev/nu\nll" has a control character'),
        ("large", "limit of 4194304 (limit message_bytes)"),
        ("garbage", "the response is no valid AllocateResponse"),
    ],
)
async def test_a_plugin_that_answers_nonsense_holds_nothing(kind: str, text: str, tmp_path: Path) -> None:
    async with calling(GRPCIO, tmp_path, "--nonsense", kind) as caller:
        refused = await caller.allocate("gpu-0")
        assert isinstance(refused, AllocationRefused)
        assert text in refused.reason
        assert isinstance(await caller.prefer(("gpu-0",), (), 1), Preferred)


async def test_a_plugin_that_dies_amid_a_call_leaves_the_allocation_uncertain(tmp_path: Path) -> None:
    async with calling(GRPCIO, tmp_path, "--nonsense", "die") as caller:
        assert isinstance(await caller.allocate("gpu-0"), AllocationLost)

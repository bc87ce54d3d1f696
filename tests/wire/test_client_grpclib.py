"""Our client against grpclib's own asyncio server, in a process of its own: asyncio never runs in ours."""

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from plugind.actors.grpc.client.channel import Channel
from plugind.actors.grpc.client.dial import dial
from plugind.protocol.proto.deviceplugin_v1beta1_grpc import DevicePluginStub
from plugind.protocol.proto.deviceplugin_v1beta1_pb2 import Device, Empty, ListAndWatchResponse
from plugind.protocol.proto.example_v1beta1_grpc import ExampleStub
from plugind.protocol.proto.example_v1beta1_pb2 import ExampleRequest
from plugind.protocol.wire.hpack_cache import CACHE
from plugind.protocol.wire.limits import REGISTRATION_LIMITS, UNLIMITED


@asynccontextmanager
async def connected(path: Path) -> AsyncIterator[Channel]:
    name = str(path / "a.sock")
    command = [sys.executable, "-m", "plugind.tests.wire.grpclib_plugin", name]
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            start = partial(trio.run_process, command, stdout=subprocess.PIPE, check=False)
            process: trio.Process = await nursery.start(start)
            assert process.stdout is not None
            assert await process.stdout.receive_some() == b"ready\n"
            async with await dial(name, timeout=60) as channel:
                yield channel
            process.terminate()


async def test_calls_streams_and_errors_behave_as_with_the_client_of_grpclib(tmp_path: Path) -> None:
    """On one connection: sizes around those of frames and windows in both directions, a stream, and every status."""
    CACHE.clear()  # A response that is recognized whole is not counted.
    async with connected(tmp_path) as channel:
        example = channel.stub(ExampleStub)
        for size in (0, 1, 16_383, 16_384, 16_385, 65_535, 65_536, 65_537, 4 * 1024 * 1024 - 64):
            text = "x" * size
            assert (await example.GetExampleInfo(ExampleRequest(request=text))).error == text
            # Where the answer is small, it takes a tenth of a registration's budgets at most.
            used = UNLIMITED - channel.connection.budgets.frames_left
            assert size > 1 or 0 < used < (REGISTRATION_LIMITS.call_frames or 0) / 10
        devices = await channel.stub(DevicePluginStub).ListAndWatch(Empty())
        for status in Status:
            if status is Status.OK:
                continue
            with pytest.raises(GRPCError) as caught:
                await example.GetExampleInfo(ExampleRequest(v1beta1_field=status.name), timeout=60)
            assert (caught.value.status, caught.value.message) == (status, "für %41 ✓")
    assert devices == [ListAndWatchResponse(devices=[Device(ID=str(number) * 1000)]) for number in range(50)]

"""Our server and grpclib's own client, in a process of its own, since it runs on asyncio."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import trio

from plugind.tests.wire.server_helpers import served

CLIENT = """
import asyncio, json, sys
from google.protobuf.wrappers_pb2 import BytesValue, Int32Value
from grpclib.client import Channel, StreamStreamMethod, UnaryStreamMethod, UnaryUnaryMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError

SIZES = [0, 1, 16383, 16384, 16385, 65535, 65536, 65537, 4 * 1024 * 1024 - 16]

async def failure(call):
    try:
        await call
    except GRPCError as error:
        return [error.status.value, error.message]

async def main():
    seen = {}
    async with Channel(path=sys.argv[1]) as channel:
        unary = UnaryUnaryMethod(channel, "/test.Echo/unary", BytesValue, BytesValue)
        size = UnaryUnaryMethod(channel, "/test.Echo/size", BytesValue, Int32Value)
        make = UnaryUnaryMethod(channel, "/test.Echo/make", Int32Value, BytesValue)
        count = UnaryStreamMethod(channel, "/test.Echo/count", Int32Value, Int32Value)
        both = StreamStreamMethod(channel, "/test.Echo/both", BytesValue, BytesValue)
        status = UnaryUnaryMethod(channel, "/test.Echo/status", Int32Value, Int32Value)
        hang = UnaryUnaryMethod(channel, "/test.Echo/hang", BytesValue, BytesValue)
        nothing = UnaryUnaryMethod(channel, "/test.Echo/nothing", BytesValue, BytesValue)
        metadata = UnaryUnaryMethod(channel, "/test.Echo/metadata", BytesValue, BytesValue)
        seen["up"] = [(await size(BytesValue(value=b"u" * n))).value for n in SIZES]
        seen["down"] = [len((await make(Int32Value(value=n))).value) for n in SIZES]
        seen["count"] = [m.value for m in await count(Int32Value(value=100))]
        seen["both"] = [m.value.decode() for m in await both([BytesValue(value=v) for v in (b"a", b"b")])]
        seen["statuses"] = [await failure(status(Int32Value(value=n))) for n in range(1, 17)]
        seen["nothing"] = await failure(nothing(BytesValue()))
        try:
            await hang(BytesValue(), timeout=0.05)
        except asyncio.TimeoutError:
            seen["hang"] = "timeout"
        except GRPCError as error:  # The server may be the first to find that the deadline has passed.
            seen["hang"] = "timeout" if error.status is Status.DEADLINE_EXCEEDED else repr(error)
        async with metadata.open(metadata=[("a", "b"), ("c-bin", b"\\x00\\xff")]) as stream:
            await stream.send_message(BytesValue(), end=True)
            seen["metadata"] = (await stream.recv_message()).value.decode()
            await stream.recv_trailing_metadata()
            seen["initial"] = repr(stream.initial_metadata["first-bin"])
            seen["trailing"] = repr(stream.trailing_metadata["last-bin"])
        many = await asyncio.gather(*(unary(BytesValue(value=b"%d" % n)) for n in range(250)))
        seen["many"] = [int(m.value) for m in many]
    print(json.dumps(seen))

asyncio.run(main())
"""
SIZES = [0, 1, 16383, 16384, 16385, 65535, 65536, 65537, 4 * 1024 * 1024 - 16]


async def test_every_kind_of_call_of_grpclibs_own_client_is_served(tmp_path: Path) -> None:
    async with served(tmp_path / "s") as server:
        done = await trio.run_process([sys.executable, "-c", CLIENT, server.path], capture_stdout=True)
        assert json.loads(done.stdout) == {
            "up": SIZES,
            "down": SIZES,
            "count": list(range(100)),
            "both": ["a", "b"],
            "statuses": [[n, f"100 % ✓ of {n}\n"] for n in range(1, 17)],
            "nothing": [12, "unknown method /test.Echo/nothing"],
            "hang": "timeout",
            "metadata": repr([("a", "b"), ("c-bin", b"\x00\xff")]),
            "initial": repr(b"\x00\xff"),
            "trailing": repr(b"\xff\x00\x01"),
            "many": list(range(250)),
        }
        assert server.reports.failures == []

"""A client and a node on grpcio for the tests of device plugins: neither is ours."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import grpc
from google.protobuf.message import Message

from plugind.protocol.proto import deviceplugin_v1beta1_pb2 as device
from plugind.tests.end_to_end.processes import DEADLINE

#: What the names of the methods of a device plugin begin with.
SERVICE = "/v1beta1.DevicePlugin/"


@attrs.frozen
class Running:
    """A device plugin as a process."""

    process: subprocess.Popen[bytes]

    def line(self, **wanted: object) -> dict[str, object]:
        """Return the next line that has all of ``wanted``."""
        assert self.process.stdout is not None
        for text in self.process.stdout:
            said: dict[str, object] = json.loads(text)
            if wanted.items() <= said.items():
                return said
        raise AssertionError(f"the plugin ended before it said {wanted}")


@contextmanager
def running(command: list[str], *, stdin: int = subprocess.PIPE) -> Iterator[Running]:
    """Start a device plugin; kill it at exit."""
    with subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE) as process:
        try:
            yield Running(process)
        finally:
            process.kill()


def call(channel: grpc.Channel, method: str, request: Message, reply: type[Message]) -> Message:
    called = channel.unary_unary(method, type(request).SerializeToString, reply.FromString)
    answer: Message = called(request, timeout=DEADLINE, wait_for_ready=True)
    return answer


def watch(channel: grpc.Channel) -> Iterator[device.ListAndWatchResponse]:
    called = channel.unary_stream(
        f"{SERVICE}ListAndWatch", device.Empty.SerializeToString, device.ListAndWatchResponse.FromString
    )
    stream: Iterator[device.ListAndWatchResponse] = called(device.Empty(), timeout=DEADLINE, wait_for_ready=True)
    return stream


def health(answer: device.ListAndWatchResponse) -> dict[str, str]:
    return {one.ID: one.health for one in answer.devices}

"""A kind that calls Register, in the directory of device plugins beside the root."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle

import hpack

from plugind.benchmarks.peers.hostile.server import HostileServer, Kind
from plugind.benchmarks.plugins.cheap_protocol import PREFACE, SETTINGS, frame
from plugind.protocol.proto.deviceplugin_v1beta1_pb2 import RegisterRequest

#: Where device plugins call, from the directory of the peers.
KUBELET_SOCKET = "../device-plugins/kubelet.sock"
#: Connections that are left open at once.
_OPEN = 64
_DATA, _HEADERS = 0, 1


class Callers(Kind):
    """Calls Register 1,000 times a second in all, for names that are bad or no socket's, and never reads an answer."""

    rate = 1000

    def __init__(self) -> None:
        self._requests: Iterator[bytes] = cycle([*map(_request, ("../x", "x" * 300, "kubelet.sock", "missing", "a/b"))])
        self._open: deque[socket.socket] = deque()

    def act(self, server: HostileServer, number: int) -> None:
        """Call once more, and close the oldest connection if many are open."""
        caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        with suppress(OSError):  # Its backlog may be full, or nobody may serve it.
            caller.connect(KUBELET_SOCKET)
            caller.send(next(self._requests))
        self._open.append(caller)
        if len(self._open) > _OPEN:
            self._open.popleft().close()


def _request(endpoint: str) -> bytes:
    """Return a call of Register as bytes, from the preface on."""
    path = "/v1beta1.Registration/Register"
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost")]
    fields += [("content-type", "application/grpc"), ("te", "trailers")]
    message = RegisterRequest(version="v1beta1", endpoint=endpoint, resource_name="vendor.com/gpu").SerializeToString()
    body = b"\0" + len(message).to_bytes(4, "big") + message
    call = frame(_HEADERS, 0x4, 1, hpack.Encoder().encode(fields)) + frame(_DATA, 0x1, 1, body)
    return PREFACE + SETTINGS + call

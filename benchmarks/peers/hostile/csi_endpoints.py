"""Kinds that register as CSI drivers do, and are hostile where the daemon asks them about the node."""

from __future__ import annotations

import struct

from plugind.benchmarks.peers.hostile.server import Connection, HostileServer
from plugind.benchmarks.peers.hostile.speaking import Speaking
from plugind.benchmarks.plugins.cheap_protocol import DeviceCall, failure, frame, response_head, success
from plugind.protocol.proto.csi_v1_pb2 import GetPluginInfoResponse, NodeGetInfoResponse

_DATA, _HEADERS, _CONTINUATION, _UNAVAILABLE = 0, 1, 9, 14


class CSIDriver(Speaking):
    """A good CSI driver."""

    def device_call(self, server: HostileServer, connection: Connection, call: DeviceCall) -> bytes:
        """Answer each call that a daemon makes."""
        if call.method == "GetPluginInfo":
            return self.plugin_info(server, connection, call.stream)
        if call.method == "NodeGetInfo":
            return self.node_info(call.stream)
        return success(call.stream, b"")

    def plugin_info(self, server: HostileServer, connection: Connection, stream: int) -> bytes:
        """Return the answer to GetPluginInfo: the name in the answer to GetInfo."""
        name = f"{server.name}-{connection.owner.index:05d}.example.com"
        return success(stream, GetPluginInfoResponse(name=name, vendor_version="1").SerializeToString())

    def node_info(self, stream: int) -> bytes:
        """Return the answer to NodeGetInfo."""
        return success(stream, NodeGetInfoResponse(node_id="node-1").SerializeToString())


class HangingDriver(CSIDriver):
    """A CSI driver that never says who it is."""

    def plugin_info(self, server: HostileServer, connection: Connection, stream: int) -> bytes:
        """Answer nothing."""
        return b""


class RefusingDriver(CSIDriver):
    """A CSI driver that refuses to say where the node is."""

    def node_info(self, stream: int) -> bytes:
        """Refuse, with as many words as a header has room for here."""
        return failure(stream, _UNAVAILABLE, "x" * 100)


class HugeDriver(CSIDriver):
    """A CSI driver that begins an answer of 20 MB about the node."""

    def node_info(self, stream: int) -> bytes:
        """Return the beginning."""
        return response_head(stream) + frame(_DATA, 0, stream, struct.pack(">BI", 0, 20_000_000) + bytes(16_000))


class NonsenseDriver(CSIDriver):
    """A CSI driver whose answer about the node is no message of that type."""

    def node_info(self, stream: int) -> bytes:
        """Return a text of 16 bytes, of which there is one."""
        return success(stream, b"\x0a\x10x")


class EndlessHeadersDriver(CSIDriver):
    """A CSI driver whose answer about the node begins with 64 KB of headers that have no end."""

    def node_info(self, stream: int) -> bytes:
        """Return the beginning of the headers."""
        field = b"\x00\x01x\x7f\x00" + bytes(127)
        block = field * (16_000 // len(field))
        return frame(_HEADERS, 0, stream, b"\x88" + block) + frame(_CONTINUATION, 0, stream, block) * 3

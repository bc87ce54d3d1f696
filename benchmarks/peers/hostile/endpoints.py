"""Kinds that register as device plugins do, and are hostile where the daemon follows their devices."""

from __future__ import annotations

import struct
from functools import cache

from plugind.benchmarks.peers.hostile.endless import EndlessStream, framed
from plugind.benchmarks.peers.hostile.server import Connection, HostileServer
from plugind.benchmarks.peers.hostile.speaking import Speaking
from plugind.benchmarks.plugins.cheap_protocol import DeviceCall, frame, plugin_info, response_head, success, trailers
from plugind.protocol.proto.deviceplugin_v1beta1_pb2 import Device, ListAndWatchResponse, NUMANode, TopologyInfo

_DATA, _GOAWAY = 0, 7


def _listed(count: int) -> bytes:
    devices = [Device(ID=f"device-{number}", health="Healthy") for number in range(count)]
    return framed(ListAndWatchResponse(devices=devices).SerializeToString())


class DevicePlugin(Speaking):
    """A good device plugin, with two devices."""

    def info(self, server: HostileServer, connection: Connection, stream: int) -> bytes:
        """Return the info of a device plugin whose endpoint is its own socket."""
        name = f"hostile.example.com/{server.name}-{connection.owner.index}"
        return success(stream, plugin_info("DevicePlugin", name, "", ("v1beta1",)))

    def device_call(self, server: HostileServer, connection: Connection, call: DeviceCall) -> bytes:
        """Answer each call that a daemon makes."""
        if call.method == "GetDevicePluginOptions":
            return self.options(call.stream)
        if call.method == "ListAndWatch":
            return response_head(call.stream) + self.lists(connection, call.stream)
        return super().device_call(server, connection, call)

    def options(self, stream: int) -> bytes:
        """Return the answer to GetDevicePluginOptions."""
        return success(stream, b"")

    def lists(self, connection: Connection, stream: int) -> bytes:
        """Return what ListAndWatch sends at once."""
        return frame(_DATA, 0, stream, _listed(2))


def _near(count: int, nodes: int, prefix: str) -> bytes:
    """Return a list of ``count`` devices, each of which is near to one node that it names again and again."""
    topology = TopologyInfo(nodes=[NUMANode()] * nodes)
    one = ListAndWatchResponse(devices=[Device(ID=f"{prefix}0000", health="Healthy", topology=topology)])
    sent = one.SerializeToString()
    return framed(b"".join(sent.replace(b"0000", b"%04d" % number, 1) for number in range(count)))


class NoOptions(DevicePlugin):
    """A device plugin that never answers GetDevicePluginOptions."""

    def options(self, stream: int) -> bytes:
        """Answer nothing."""
        return b""


class ManyDevices(DevicePlugin):
    """A device plugin that begins to list a million devices."""

    def lists(self, connection: Connection, stream: int) -> bytes:
        """Return the beginning of a list of 20 MB."""
        return frame(_DATA, 0, stream, struct.pack(">BI", 0, 20_000_000) + bytes(16_000))


class EndingStreams(DevicePlugin):
    """A device plugin that ends each stream after one list."""

    def lists(self, connection: Connection, stream: int) -> bytes:
        """Return a list and the end."""
        return super().lists(connection, stream) + trailers(stream)


class GoingAway(DevicePlugin):
    """A device plugin that sends GOAWAY instead of its devices, and keeps the connection open."""

    def device_call(self, server: HostileServer, connection: Connection, call: DeviceCall) -> bytes:
        """Go away when ListAndWatch is called."""
        if call.method == "ListAndWatch":
            return frame(_GOAWAY, 0, 0, bytes(8))
        return super().device_call(server, connection, call)


class ListFlood(EndlessStream, DevicePlugin):
    """A device plugin that sends lists of two devices as fast as the client's window allows."""

    def lists(self, connection: Connection, stream: int) -> bytes:
        """Return nothing: the lists follow, as many in each frame as it has room for."""
        self.begin(connection, stream, _listed(2) * (16_000 // len(_listed(2))))
        return b""


class ManyNodes(EndlessStream, DevicePlugin):
    """A device plugin that sends lists of 4 MB, which have as many fields as the daemon takes, without end."""

    def lists(self, connection: Connection, stream: int) -> bytes:
        """Return nothing: the lists follow, of which no two have a device in common."""
        self.begin(connection, stream, _many_nodes())
        return b""


@cache
def _many_nodes() -> bytes:
    return _near(4800, 400, "a") + _near(4800, 400, "b")

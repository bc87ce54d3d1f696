"""Kinds that register as device plugins do, and are hostile where the daemon follows their devices."""

from __future__ import annotations

import struct

import attrs

from plugind.benchmarks.peers.hostile.server import Connection, HostileServer
from plugind.benchmarks.peers.hostile.speaking import Speaking
from plugind.benchmarks.plugins.cheap_protocol import DeviceCall, frame, plugin_info, response_head, success, trailers
from plugind.protocol.proto.deviceplugin_v1beta1_pb2 import Device, ListAndWatchResponse

_DATA, _GOAWAY = 0, 7
#: A frame of a client that lets a stream send more; the number of the stream follows.
_WINDOW_UPDATE = b"\x00\x00\x04\x08\x00"
#: Bytes that are sent whenever the client allows more: it does so at half of its window, of which the first is 256 KiB.
_BURST = 128 * 1024


def _listed(count: int) -> bytes:
    devices = [Device(ID=f"device-{number}", health="Healthy") for number in range(count)]
    message = ListAndWatchResponse(devices=devices).SerializeToString()
    return struct.pack(">BI", 0, len(message)) + message


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


@attrs.define
class _Flood:
    """The stream of a flood, and what is to be sent on it."""

    stream: int
    waiting: bytes = b""


class ListFlood(DevicePlugin):
    """A device plugin that sends lists of two devices as fast as the client's window allows."""

    #: As many as one frame has room for.
    _flood = _listed(2) * (16_000 // len(_listed(2)))

    def lists(self, connection: Connection, stream: int) -> bytes:
        """Return nothing: the lists follow."""
        connection.state = _Flood(stream)
        return b""

    def received(self, server: HostileServer, connection: Connection, data: bytes) -> None:
        """Send lists once they are asked for, and more of them for each frame that allows it."""
        if isinstance(connection.state, _Flood):
            allowed = data.count(_WINDOW_UPDATE + struct.pack(">I", connection.state.stream))
        else:
            super().received(server, connection, data)
            allowed = 1
        if isinstance(connection.state, _Flood):
            flood = connection.state
            flood.waiting += frame(_DATA, 0, flood.stream, self._flood) * (_BURST // len(self._flood)) * allowed
            self.writable(server, connection)

    def writable(self, server: HostileServer, connection: Connection) -> None:
        """Send what the socket takes."""
        flood = connection.state
        assert isinstance(flood, _Flood)
        if flood.waiting:
            flood.waiting = flood.waiting[server.send(connection, flood.waiting) :]
        server.want_room(connection, wanted=bool(flood.waiting))

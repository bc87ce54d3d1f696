"""A kind that registers as DRA drivers do, and is hostile where it tells the health of its devices."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from plugind.benchmarks.peers.hostile.endless import EndlessStream, framed
from plugind.benchmarks.peers.hostile.server import Connection, HostileServer
from plugind.benchmarks.plugins.cheap_protocol import DeviceCall, plugin_info, response_head, success
from plugind.protocol.proto import dra_health_v1_pb2 as api

#: Seconds that a device may be told to last: for ever, and not at all.
_FOR_EVER, _NO_TIME = 2**62, 0


def _device(pool: str, name: str, *, healthy: bool = True, said: str = "", lasts: int = _FOR_EVER) -> api.DeviceHealth:
    return api.DeviceHealth(
        device=api.DeviceIdentifier(pool_name=pool, device_name=name),
        health=api.HEALTHY if healthy else api.UNHEALTHY,
        health_check_timeout_seconds=lasts,
        message=said,
    )


def _message(*devices: api.DeviceHealth) -> bytes:
    return framed(api.NodeWatchResourcesResponse(devices=devices).SerializeToString())


def flood() -> bytes:
    """Return messages of a device that is healthy and unhealthy in turn."""
    turns = [_message(_device("pool-0", "gpu-0", healthy=odd, said=f"it is {odd}")) for odd in (True, False)]
    return b"".join(turns) * 100


@cache
def huge() -> bytes:
    """Return two messages with 4,096 devices each, all others, with the longest names and as much text as has room."""
    return b"".join(map(_huge_message, "ab"))


def _huge_message(letter: str) -> bytes:
    text, lasts = "x" * 470 + "\U0001f600", _FOR_EVER if letter == "a" else _NO_TIME
    names = (f"{number:04d}{letter * 249}" for number in range(4096))
    return _message(*(_device(letter * 253, name, healthy=False, said=text, lasts=lasts) for name in names))


@cache
def many() -> bytes:
    """Return a message with 10,000 devices."""
    return _message(*(_device("pool-0", f"gpu-{number}") for number in range(10_000)))


def unnamed() -> bytes:
    """Return a message with devices without names."""
    return _message(_device("", ""), _device("pool-0", ""))


def not_text() -> bytes:
    """Return a message with a name that is no UTF-8."""
    return _message(_device("pool-0", "gpu-?")).replace(b"?", b"\xff")


def no_message() -> bytes:
    """Return the beginning of a device."""
    return framed(b"\x0a\x10x")


#: What the drivers report, in turn.
REPORTS: tuple[Callable[[], bytes], ...] = (flood, huge, many, unnamed, not_text, no_message)


class HostileHealth(EndlessStream):
    """A DRA driver that floods, or tells of too many devices, in too long texts, or nonsense."""

    def info(self, server: HostileServer, connection: Connection, stream: int) -> bytes:
        """Return the info of a driver whose endpoint is its own socket."""
        name = f"{server.name}-{connection.owner.index:05d}.example.com"
        return success(stream, plugin_info("DRAPlugin", name, "", ("v1.DRAPlugin", "v1.DRAResourceHealth")))

    def device_call(self, server: HostileServer, connection: Connection, call: DeviceCall) -> bytes:
        """Tell the health of devices without end."""
        if call.method != "NodeWatchResources":
            return super().device_call(server, connection, call)
        self.begin(connection, call.stream, REPORTS[connection.owner.index % len(REPORTS)]())
        return response_head(call.stream)

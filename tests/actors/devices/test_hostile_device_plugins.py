"""Device plugins whose endpoints are hostile, byte by byte: each ends in a reason that is told, and harms no other.

Their registration sockets are good; what is asked of an endpoint is judged by budgets of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.actors.simulation.device_plugins import FakeDevices
from plugind.actors.simulation.streams import ServerEnd
from plugind.protocol.plugins.devices import Device
from plugind.protocol.plugins.health import Health
from plugind.protocol.proto import deviceplugin_v1beta1_pb2 as api
from plugind.protocol.wire.frames import CONTINUATION, HEADERS, frame
from plugind.testing import DEFAULT_CONFIG, FakePlugin, SimulatedNode
from plugind.tests.actors.handlers.raw_endpoints import (
    ENDPOINT,
    LIST_AND_WATCH,
    Answer,
    Endpoint,
    lists,
    says_nothing,
    sends,
)
from plugind.tests.wire.hostile import RESPONSE, data, fields, goaway, headers


async def floods(peer: ServerEnd, stream: int) -> None:
    """Send frames of no bytes for ever."""
    await peer.send_all(headers(stream))
    while True:
        await peer.send_all(data(stream, b""))


async def never_ends_headers(peer: ServerEnd, stream: int) -> None:
    """Send header fields for ever."""
    await peer.send_all(frame(HEADERS, 0, stream, RESPONSE))
    while True:
        await peer.send_all(frame(CONTINUATION, 0, stream, fields(("x", "y" * 1000))))


def response(*pairs: tuple[str, str]) -> Callable[[int], bytes]:
    return lambda stream: headers(stream, fields(*pairs))


@attrs.define
class Judged:
    """What has become of the hostile plugin, and what was asked of it."""

    state: str | None
    reason: str | None
    health: Health | None
    health_reason: str | None
    calls: list[str]
    #: How many connections it has had, and how many it has now.
    accepted: int
    connections: int

    @property
    def lists(self) -> int:
        """How often ListAndWatch was called."""
        return self.calls.count(LIST_AND_WATCH)


async def judged(endpoint: Endpoint, seconds: float) -> Judged:
    """Run the hostile plugin beside a good one, which must not notice."""
    async with SimulatedNode(DEFAULT_CONFIG) as node, trio.open_nursery() as nursery:
        good = FakeDevices([Device("0"), Device("1")])
        node.plug("good.sock", FakePlugin("DevicePlugin", "vendor.com/good", ("v1beta1",), serves=[good]))
        listener = endpoint.listen(node)
        nursery.start_soon(listener.run)
        node.plug("bad.sock", FakePlugin("DevicePlugin", "vendor.com/bad", ("v1beta1",), ENDPOINT))
        await trio.sleep(seconds)
        status, other = node.status("bad.sock"), node.status("good.sock")
        assert status is not None
        assert other is not None
        assert (other.state, other.health, other.generation) == ("registered", Health.HEALTHY, other.generation)
        assert (len(good.streamed), good.streams) == (1, 1)
        made = Judged(
            status.state,
            status.reason,
            status.health,
            status.health_reason,
            endpoint.calls,
            listener.accepted,
            len(listener.connections),
        )
        nursery.cancel_scope.cancel()
    return made


NOT_OPEN = "ListAndWatch is not open: "
LOST = "ListAndWatch has ended: "
ENDED, REFUSED = NOT_OPEN, f"{NOT_OPEN}the list of devices is refused: "
LATE = "no device list after 10s"
HTML = (":status", "200"), ("content-type", "text/html")
NOT_GRPC = "UNKNOWN: the peer answered with content-type text/html, not application/grpc"
FIVE_MIB = "a message of 5242880 bytes over the limit of 4194304 (limit message_bytes)"
NO_END = "RESOURCE_EXHAUSTED: CONTINUATION frames of one block over the limit of 16 (limit continuations)"
FLOOD = "RESOURCE_EXHAUSTED: empty DATA frames over the limit of 100 (limit empty_data)"


def five_mib(stream: int) -> bytes:
    return headers(stream) + data(stream, struct.pack(">BI", 0, 5 << 20))


@pytest.mark.parametrize(
    ("list_and_watch", "health", "reason", "times"),
    [
        pytest.param(sends(response(*HTML)), "unhealthy", ENDED + NOT_GRPC, 8, id="content-type"),
        pytest.param(sends(five_mib), "unhealthy", REFUSED + FIVE_MIB, 8, id="5-mib"),
        pytest.param(
            lists(*(api.Device(ID=str(number)) for number in range(10_001))),
            "unhealthy",
            f"{REFUSED}it has more than 10000 devices",
            8,
            id="10001-devices",
        ),
        pytest.param(
            sends(lambda stream: goaway(0, 0)),
            "unhealthy",
            f"{ENDED}UNAVAILABLE: the peer is going away (NO_ERROR)",
            8,
            id="goaway",
        ),
        pytest.param(never_ends_headers, "disconnected", LOST + NO_END, 8, id="endless-headers"),
        pytest.param(floods, "disconnected", LOST + FLOOD, 8, id="empty-frames"),
        pytest.param(says_nothing, "unhealthy", LATE, 1, id="silent"),
    ],
)
async def test_a_hostile_list_ends_in_a_reason_and_harms_no_other_plugin(
    list_and_watch: Answer, health: str, reason: str, times: int, autojump_clock: MockClock
) -> None:
    """Faults 50, 51, 53, 56 and 60. The plugin stays registered; in two minutes it is asked eight times at most."""
    found = await judged(Endpoint(list_and_watch=list_and_watch), 120.5)
    assert (found.state, found.health, found.health_reason) == ("registered", health, reason)
    assert (found.lists, found.connections) == (times, found.health != "disconnected")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        pytest.param(sends(five_mib), f"RESOURCE_EXHAUSTED: {FIVE_MIB}", id="5-mib"),
        pytest.param(never_ends_headers, NO_END, id="endless-headers"),
        pytest.param(floods, FLOOD, id="empty-frames"),
        pytest.param(says_nothing, "no answer within 5 s", id="silent"),
    ],
)
async def test_a_hostile_answer_about_options_is_a_refusal_with_a_reason(
    options: Answer, reason: str, autojump_clock: MockClock
) -> None:
    """In the kubelet's words (faults 50, 53, 56 and 60). ListAndWatch is never called, and no connection is left."""
    found = await judged(Endpoint(options=options), 5.2)
    assert (found.state, found.reason) == (
        "waiting",
        f"RegisterPlugin error -- plugin registration failed with err: failed to get device plugin options: {reason}",
    )
    assert (found.lists, found.connections) == (0, 0)

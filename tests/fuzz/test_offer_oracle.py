"""The oracle of device plugins that are consumed, and the lists that a scripted one sends."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.actors.simulation.device_plugins import FakeDevices
from plugind.protocol.plugins.devices import HEALTHY, Device, DeviceList, ResourceState, ResourceStatus
from plugind.protocol.proto import deviceplugin_v1beta1_pb2 as api
from plugind.testing import PluggedIn
from plugind.tests.fuzz.offer_oracle import GRACE, Offer, OfferedDevices, OfferOracle

if TYPE_CHECKING:
    from grpclib.server import Stream as ServerStream

GPU = "maker.com/gpu"


@attrs.define
class Bench:
    """One plugin, what it lists, and what the oracle says of what is shown."""

    found: list[str] = attrs.field(factory=list)
    oracle: OfferOracle = attrs.field(init=False)
    offer: Offer = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.oracle = OfferOracle(lambda rule, _: self.found.append(rule))
        plugged = cast("PluggedIn", attrs.make_class("Plugged", {"path": attrs.field(default="/found/a")})())
        self.offer = Offer(GPU, False, 1, plugged, OfferedDevices())

    def send(self, count: int) -> int:
        """Let the plugin list so many healthy devices, and return the number of the list."""
        self.oracle.send_list(self.offer, random.Random(1), count=count, well=True)
        return self.offer.newest

    def shows(
        self, devices: Iterable[Device], time: float = 1.0, state: ResourceState = ResourceState.LISTED
    ) -> list[str]:
        """Show these devices, and return which rules that violates."""
        self.found.clear()
        listed = DeviceList(devices)
        lost = None if state is ResourceState.LISTED else time
        since = dict.fromkeys(listed.devices, 0.0)
        self.oracle.look(
            ResourceStatus(GPU, state, time, None, None, (), "/found/a", listed, since, lost_since=lost), time
        )
        return self.found


def devices(number: int, count: int, health: str = HEALTHY) -> list[Device]:
    return [Device(f"d{index}", health, (number,)) for index in range(count)]


def test_only_what_was_listed_is_shown_and_never_an_older_list() -> None:
    bench = Bench()
    first, second = bench.send(2), bench.send(3)
    assert bench.shows(devices(first, 2)) == []
    assert bench.shows(devices(second, 2)) == ["devices"]
    assert bench.shows(devices(second, 3, "Sick")) == ["devices"]
    assert bench.shows([*devices(first, 1), *devices(second, 3)[1:]]) == ["devices"]
    assert bench.shows(devices(second, 3)) == []
    assert bench.shows(devices(first, 2)) == ["devices"]


def test_a_resource_is_empty_only_when_it_is_gone_and_gone_only_after_its_grace() -> None:
    """Behaviour of the kubelet that is kept: the grace of 5 minutes."""
    bench = Bench()
    number = bench.send(2)
    assert bench.shows(devices(number, 2), 1.0) == []
    assert bench.shows([], 2.0, ResourceState.LOST) == ["surge"]
    assert bench.shows(devices(number, 2), 3.0) == []
    assert bench.shows(devices(number, 2), 4.0, ResourceState.LOST) == []
    assert bench.shows([], 4.0 + GRACE - 1, ResourceState.GONE) == ["grace"]
    assert bench.shows(devices(number, 2), 400.0) == []
    assert bench.shows(devices(number, 2), 401.0, ResourceState.LOST) == []
    assert bench.shows([], 401.0 + GRACE, ResourceState.GONE) == []


def test_nothing_falls_below_what_must_stay() -> None:
    bench = Bench()
    number = bench.send(2)
    bench.oracle.floors = {GPU: 2}
    assert bench.shows(devices(number, 2)) == []
    assert bench.shows(devices(number, 2), 2.0, ResourceState.LOST) == []
    bench.oracle.all_healthy = True
    assert bench.shows(devices(number, 2), 3.0, ResourceState.LOST) == ["surge"]


class Stream:
    """The server's end of a call, which writes down what is sent."""

    def __init__(self) -> None:
        self.sent: list[int] = []

    async def recv_message(self) -> None:
        await trio.lowlevel.checkpoint()

    async def send_message(self, message: api.ListAndWatchResponse) -> None:
        self.sent += [node.ID for device in message.devices for node in device.topology.nodes]
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("delay", [0.0, 3.0])
@pytest.mark.parametrize("ends", [False, True])
async def test_a_scripted_plugin_sends_no_older_list_after_a_newer_one(
    autojump_clock: MockClock, delay: float, ends: bool
) -> None:
    """Seeds 162 and 178: what was shown while a stream had not begun was sent after the newest list."""
    service, stream = FakeDevices(devices(1, 1)), Stream()
    service.list_delay = delay
    with trio.move_on_after(10.0) as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(service.ListAndWatch, cast("ServerStream[api.Empty, api.ListAndWatchResponse]", stream))
            await trio.sleep(1.0)
            for number in (2, 3):
                service.show(*devices(number, 1))
            if ends:
                service.end()
    assert stream.sent == ([1, 2, 3] if delay == 0.0 else [3])
    assert scope.cancelled_caught is not ends

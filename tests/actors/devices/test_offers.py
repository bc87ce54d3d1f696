"""What the lease actor is told of devices: what can be leased, and which plugins have left."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.actors.devices.offers import OfferMessage
from plugind.actors.devices.state import MemoryStore
from plugind.actors.devices.unit import Devices
from plugind.protocol.devices.messages import InstanceAdded, InstanceRemoved, InstanceRole, ListLost, ListReceived
from plugind.protocol.devices.resources import GRACE
from plugind.protocol.leases.messages import DeviceCall, Offer, OfferChanged, OfferEnded
from plugind.protocol.logs.lines import SILENT
from plugind.protocol.plugins.devices import Device, DeviceList, DeviceOptions
from plugind.protocol.plugins.info import Plugin

GPU = "vendor.com/gpu"
LISTED = DeviceList([Device("gpu-0"), Device("gpu-1")])
OPTIONS = DeviceOptions(pre_start_required=True)


@attrs.define(eq=False)
class Heard:
    """The lease actor: it keeps what it is told."""

    messages: list[OfferMessage] = attrs.Factory(list)

    def send_nowait(self, message: OfferMessage, /) -> None:
        self.messages.append(message)

    def take(self) -> list[OfferMessage]:
        taken, self.messages = self.messages, []
        return taken


class Calls:
    """The address of the calls of a plugin."""

    def send_nowait(self, call: DeviceCall, /) -> None:
        raise AssertionError("nobody calls here")


@asynccontextmanager
async def running(devices: Devices) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(devices.run)
        await wait_all_tasks_blocked()
        yield
        nursery.cancel_scope.cancel()


def added(calls: Calls, socket: str = "/a.sock") -> InstanceAdded:
    plugin = Plugin("DevicePlugin", GPU, socket, ("v1beta1",), socket, 1)
    return InstanceAdded(plugin, OPTIONS, "a test", 0.0, calls)


async def test_the_lease_actor_is_told_what_can_be_leased_whenever_that_changes(autojump_clock: MockClock) -> None:
    heard, calls = Heard(), Calls()
    devices = Devices(MemoryStore(), SILENT, heard)
    await devices.open()

    async def heard_of(*messages: object) -> list[OfferMessage]:
        for message in messages:
            devices.inbox.send_nowait(message)  # type: ignore[arg-type]  # a test's list of messages
            await wait_all_tasks_blocked()
        return heard.take()

    async with running(devices):
        assert await heard_of(added(calls)) == [
            OfferChanged(Offer(GPU, DeviceList(), reason="its plugin has not listed its devices yet"))
        ]
        offer = Offer(GPU, LISTED, ("/a.sock", 1), OPTIONS, calls)
        assert await heard_of(ListReceived("/a.sock", 1, LISTED, 1.0)) == [OfferChanged(offer)]
        # Nothing of interest: the plugin repeats itself, and becomes what it was taken for.
        assert await heard_of(ListReceived("/a.sock", 1, LISTED, 2.0), InstanceRole("/a.sock", 1, True)) == []
        turned = LISTED.replacing([Device("gpu-1", "Unhealthy")])
        assert await heard_of(ListReceived("/a.sock", 1, turned, 3.0)) == [
            OfferChanged(attrs.evolve(offer, devices=turned))
        ]
        assert await heard_of(ListLost("/a.sock", 1, "it has crashed", 4.0)) == [
            OfferChanged(Offer(GPU, turned, reason="it has crashed"))
        ]
        # That it is deregistered is no sign that its process has ended.
        assert await heard_of(InstanceRemoved("/a.sock", 1, 5.0)) == [
            OfferChanged(Offer(GPU, turned, reason="its plugin was deregistered"))
        ]
        await trio.sleep(GRACE + 10)
        assert heard.take() == [OfferEnded(GPU)]


async def test_another_plugin_takes_the_calls_once_its_list_counts(autojump_clock: MockClock) -> None:
    """While a plugin is updated, calls go to the one whose devices are shown."""
    heard, old, new = Heard(), Calls(), Calls()
    devices = Devices(MemoryStore(), SILENT, heard)
    await devices.open()
    async with running(devices):
        for message in (
            added(old),
            InstanceRole("/a.sock", 1, True),
            ListReceived("/a.sock", 1, LISTED, 1.0),
            added(new, "/b.sock"),
            InstanceRole("/a.sock", 1, False),
            InstanceRole("/b.sock", 1, True),
        ):
            devices.inbox.send_nowait(message)
        await wait_all_tasks_blocked()
        (last,) = heard.take()
        assert isinstance(last, OfferChanged)
        assert last.offer.calls is old
        devices.inbox.send_nowait(ListReceived("/b.sock", 1, LISTED, 2.0))
        await wait_all_tasks_blocked()
        assert heard.take() == [OfferChanged(Offer(GPU, LISTED, ("/b.sock", 1), OPTIONS, new))]


async def test_a_restarted_devices_actor_tells_what_was_not_told(autojump_clock: MockClock) -> None:
    """A plugin left while the actor was away: that nothing is offered is told first, so that nobody is called."""
    heard, calls = Heard(), Calls()
    devices = Devices(MemoryStore(), SILENT, heard)
    await devices.open()
    async with running(devices):
        devices.inbox.send_nowait(added(calls))
        devices.inbox.send_nowait(ListReceived("/a.sock", 1, LISTED, 1.0))
        await wait_all_tasks_blocked()
        heard.take()
    devices.inbox.send_nowait(InstanceRemoved("/a.sock", 1, 2.0))
    async with running(devices):
        await wait_all_tasks_blocked()
        assert heard.take() == [OfferChanged(Offer(GPU, LISTED, reason="its plugin was deregistered"))]
    async with running(devices):
        assert heard.take() == []

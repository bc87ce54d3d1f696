"""What must be shown of the devices that real streams list, as whoever reads ``plugind devices`` sees it.

Each list that a plugin sends has a number of its own, which all its devices carry as their NUMA node. So whatever is
shown tells which list of which plugin it is.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import attrs
import trio

from plugind.actors.simulation.device_plugins import FakeDevices
from plugind.actors.simulation.plugins import PluggedIn
from plugind.actors.simulation.scheduling import EPSILON
from plugind.protocol.backoff import RESTART_PAUSE
from plugind.protocol.plugins.devices import HEALTHY, UNHEALTHY, Device, DeviceStatus, ResourceState, ResourceStatus
from plugind.protocol.proto import deviceplugin_v1beta1_pb2 as api

if TYPE_CHECKING:
    from grpclib.server import Stream

#: Seconds for which a resource is kept without a plugin.
GRACE: Final = 300.0
#: What plugins say of devices.
_HEALTHS: Final = (HEALTHY, HEALTHY, UNHEALTHY, "Sick")


class OfferedDevices(FakeDevices):
    """The service of one plugin, which knows when it has said its options."""

    def __init__(self) -> None:
        super().__init__()
        #: When it was asked for its options that it said last, and when it said them.
        self.asked_at = self.answered_at = -math.inf

    async def GetDevicePluginOptions(self, stream: Stream[api.Empty, api.DevicePluginOptions]) -> None:  # noqa: N802
        """See :class:`FakeDevices`."""
        asked_at = trio.current_time()
        await super().GetDevicePluginOptions(stream)
        self.asked_at, self.answered_at = asked_at, trio.current_time()


@attrs.define(eq=False)
class Offer:
    """One device plugin: its process, and the lists that it has sent."""

    resource: str
    #: Whether it registers by a call.
    called: bool
    pid: int
    plugged: PluggedIn
    service: OfferedDevices
    #: When it called Register last.
    called_at: float = -math.inf
    #: Whether connections to it may send byte by byte.
    trickles: bool = False
    #: The number of its newest list, and of the newest one that was shown.
    newest: int = 0
    shown: int = 0

    @property
    def path(self) -> str:
        """Where its socket is."""
        return self.plugged.path


@attrs.frozen(eq=False)
class _List:
    """One list of a plugin."""

    offer: Offer
    healths: Mapping[str, str]


@attrs.define
class _Shown:
    """What is shown of one resource."""

    status: ResourceStatus | None = None
    #: Since when it is not kept up to date by any plugin, as far as is known; None while it is.
    lost: float | None = 0.0


class OfferOracle:
    """Each resource shows one list that one of its plugins has sent, none older than before, and none twice.

    Once it has devices, it has some until it is gone; and it goes when its plugins are lost for five minutes.
    """

    def __init__(self, violated: Callable[[str, str], None]) -> None:
        self._violated = violated
        self._lists: dict[int, _List] = {}
        self._numbers: Iterator[int] = itertools.count(1)
        self._shown: dict[str, _Shown] = {}
        #: The capacity below which no resource may fall now, and whether all of that must be healthy.
        self.floors: dict[str, int] = {}
        self.all_healthy = False

    def forget(self, now: float) -> None:
        """The daemon ended."""
        self._shown = {name: _Shown(lost=now) for name in self._shown}

    def send_list(self, offer: Offer, chance: random.Random, *, count: int, well: bool = False) -> None:
        """Let a plugin list so many devices; all of them are healthy if it is ``well``."""
        number = next(self._numbers)
        healths = {f"d{index}": HEALTHY if well else chance.choice(_HEALTHS) for index in range(count)}
        self._lists[number] = _List(offer, healths)
        offer.newest = number
        offer.service.show(*(Device(name, health, (number,)) for name, health in healths.items()))

    def newest(self, offer: Offer) -> int:
        """Return how many devices the newest list of a plugin has."""
        return len(self._lists[offer.newest].healths)

    def status(self, resource: str) -> ResourceStatus | None:
        """Return what is shown of a resource."""
        return self._shown.get(resource, _Shown()).status

    # --- what is shown ------------------------------------------------------------------------------------------------

    def look(self, status: ResourceStatus, time: float) -> None:
        """A resource is shown."""
        shown = self._shown.setdefault(status.name, _Shown(lost=time))
        devices = list(status.devices())
        self._check_devices(status, devices)
        self._check_fall(status, shown.status, devices)
        if status.state is ResourceState.GONE:
            if shown.lost is None or time < shown.lost + GRACE - EPSILON:
                self._violated("grace", f"{status.name} is gone at {time:g}, and was lost at {shown.lost}")
        elif status.state is ResourceState.LISTED:
            shown.lost = None
        elif shown.lost is None:
            # An actor that has crashed just then knows it, and shows it later.
            lost = time if status.lost_since is None else status.lost_since
            shown.lost = max(lost, time - RESTART_PAUSE.cap)
        shown.status = status

    def _check_devices(self, status: ResourceStatus, devices: list[DeviceStatus]) -> None:
        numbers = {device.numa for device in devices}
        ids = [device.id for device in devices]
        if len(set(ids)) != len(ids) or len(ids) != status.capacity or len(numbers) > 1:
            self._violated("devices", f"{status.name} is shown with {status.capacity} devices, which are {devices}")
        elif devices:
            self._check_list(status, {device.id: device.health for device in devices}, devices[0].numa[0])

    def _check_list(self, status: ResourceStatus, shown: Mapping[str, str], number: int) -> None:
        sent = self._lists[number]
        offer, healths = sent.offer, sent.healths
        lost = {name: UNHEALTHY if health == HEALTHY else health for name, health in healths.items()}
        if shown != (healths if status.lost_since is None else lost):
            self._violated("devices", f"{status.name} is shown with {shown}, and list {number} has {healths}")
        if (offer.resource, offer.path) != (status.name, status.socket):
            self._violated("devices", f"{status.name} is shown with list {number}, which {offer.path} has sent")
        if number < offer.shown:
            self._violated("devices", f"{status.name} is shown with list {number} after list {offer.shown}")
        offer.shown = number

    def _check_fall(self, status: ResourceStatus, before: ResourceStatus | None, devices: list[DeviceStatus]) -> None:
        if before is not None and before.capacity and not devices and status.state is not ResourceState.GONE:
            self._violated("surge", f"{status.name} had {before.capacity} devices, and has none: {status.state}")
        floor = self.floors.get(status.name, 0)
        healthy = sum(device.healthy for device in devices) if self.all_healthy else len(devices)
        if healthy < floor:
            what = "healthy devices" if self.all_healthy else "devices"
            self._violated("surge", f"{status.name} is shown with {healthy} {what}, and has {floor}: {status.reason}")

"""Values for the tests of leases, in few words."""

from __future__ import annotations

from collections.abc import Iterable

from plugind.protocol.leases.messages import DeviceCall, Offer
from plugind.protocol.leases.values import Request, Wanted
from plugind.protocol.plugins.devices import Device, DeviceList, DeviceOptions, Key

GPU = "vendor.com/gpu"
NIC = "vendor.com/nic"
PLUGIN: Key = ("/r/gpu.sock", 1)
UNHEALTHY = "Unhealthy"


class Calls:
    """The calls that a plugin is asked to make."""

    def __init__(self) -> None:
        self.calls: list[DeviceCall] = []

    def send_nowait(self, message: DeviceCall, /) -> None:
        self.calls.append(message)


def devices(*words: str) -> list[Device]:
    """Return devices from words: ``GPU-0``, ``GPU-0@1`` near to NUMA node 1, ``GPU-0@0+1``, ``GPU-0!`` is unhealthy."""
    found = []
    for word in words:
        name, _, nodes = word.removesuffix("!").partition("@")
        numa = tuple(int(node) for node in nodes.split("+") if node)
        found.append(Device(name, UNHEALTHY, numa) if word.endswith("!") else Device(name, numa=numa))
    return found


def offer(
    words: Iterable[str],
    resource: str = GPU,
    *,
    key: Key | None = PLUGIN,
    reason: str | None = None,
    preferred: bool = False,
) -> Offer:
    """Return an offer of devices from words; without a ``key`` its plugin is lost."""
    options = DeviceOptions(get_preferred_allocation_available=preferred)
    return Offer(resource, DeviceList(devices(*words)), key, options, None if key is None else Calls(), reason)


def request(
    *wanted: tuple[str, int], ids: str = "", include: str = "", pool: str | None = None, ignore_missing: bool = False
) -> Request:
    """Return a request; ``ids`` and ``include`` are words."""
    return Request(
        tuple(Wanted(*pair) for pair in wanted),
        tuple(ids.split()),
        tuple(include.split()),
        pool,
        ignore_missing=ignore_missing,
    )

"""The devices that can be taken: by the NUMA nodes that they are near to, and among these in natural order.

A resource may have ten thousand devices, and each lease takes or gives back a few of them. So nothing here looks at all
of them, except for the first choice from a new list: only then are they put in order.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import lru_cache
from heapq import merge
from itertools import groupby
from typing import Any

from ..plugins.devices import Device

#: NUMA nodes.
Nodes = frozenset[int]

_DIGITS = re.compile(r"([0-9]+)")


@lru_cache(4096)  # Each lease takes the place of a device in the order, and gives it back.
def natural(device_id: str) -> str:
    """Return the key that orders ids as people do: ``GPU-2`` is before ``GPU-10``."""
    parts = _DIGITS.split(device_id)
    for at in range(1, len(parts), 2):
        # Numbers of thousands of digits are compared as text: to read one as an integer is an error.
        digits = parts[at].lstrip("0")
        parts[at] = f"{len(digits):08}{digits}"
    # Ids have no NUL, so this orders as a tuple of the parts would, and strings are compared faster.
    return "\0".join((*parts, device_id))


class Near:
    """The devices that are near to the same NUMA nodes, in natural order."""

    __slots__ = ("_devices", "_order")

    def __init__(self, devices: Iterable[Device] = ()) -> None:
        """Begin with ``devices``, each of which has another id."""
        self._devices: dict[str, Device] = {device.id: device for device in devices}
        #: None until somebody asks for the order. Keys are unique, so that devices are never compared.
        self._order: list[tuple[str, Device]] | None = None

    def __len__(self) -> int:
        return len(self._devices)

    def __iter__(self) -> Iterator[tuple[str, Device]]:
        """Yield the devices in order, with their keys."""
        if self._order is None:
            self._order = sorted((natural(name), device) for name, device in self._devices.items())
        return iter(self._order)

    def add(self, device: Device) -> None:
        """Add a device that is not here."""
        self._devices[device.id] = device
        if self._order is not None:
            insort(self._order, (natural(device.id), device))

    def remove(self, device_id: str) -> None:
        """Remove a device that is here."""
        del self._devices[device_id]
        if self._order is not None:
            # A tuple is less than a longer one that begins with it, so this finds the entry itself.
            del self._order[bisect_left(self._order, (natural(device_id),))]


class FreeDevices(Mapping[str, Device]):
    """Devices by id."""

    __slots__ = ("_devices", "_near")

    def __init__(self, devices: Iterable[Device] = ()) -> None:
        """Begin with ``devices``, each of which has another id."""
        self._devices: dict[str, Device] = {device.id: device for device in devices}
        near = defaultdict[Nodes, list[Device]](list)
        for device in self._devices.values():
            near[frozenset(device.numa)].append(device)
        self._near = {nodes: Near(found) for nodes, found in near.items()}

    def __len__(self) -> int:
        return len(self._devices)

    def __iter__(self) -> Iterator[str]:
        return iter(self._devices)

    def __contains__(self, device_id: object) -> bool:
        return device_id in self._devices

    def __getitem__(self, device_id: str) -> Device:
        return self._devices[device_id]

    def add(self, device: Device) -> None:
        """Add a device, in the place of one with its id."""
        self.discard(device.id)
        self._devices[device.id] = device
        nodes = frozenset(device.numa)
        if (near := self._near.get(nodes)) is None:
            near = self._near[nodes] = Near()
        near.add(device)

    def discard(self, device_id: str) -> None:
        """Remove a device, if it is here."""
        device = self._devices.pop(device_id, None)
        if device is not None:
            nodes = frozenset(device.numa)
            self._near[nodes].remove(device_id)
            if not self._near[nodes]:
                del self._near[nodes]

    def number_near(self, without: Iterable[str] = ()) -> Counter[Nodes]:
        """Return how many devices are near to each set of NUMA nodes that is not empty, those ``without`` left out."""
        number = Counter({nodes: len(near) for nodes, near in self._near.items()})
        number.subtract(frozenset(self._devices[device_id].numa) for device_id in without if device_id in self._devices)
        del number[frozenset()]
        return +number

    def in_order(self, rank: Callable[[Nodes], Any], without: Container[str] = ()) -> Iterator[Device]:
        """Yield the devices by the rank of their NUMA nodes, those of equal rank in natural order."""
        for _, equal in groupby(sorted(self._near, key=rank), key=rank):
            for _, device in merge(*(self._near[nodes] for nodes in equal)):
                if device.id not in without:
                    yield device

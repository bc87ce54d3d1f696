"""What there is to lease: the devices of each resource, which of them are taken and by whom, and pools.

A plugin may give its devices other ids, after its own restart for example. Then a device that is leased by its old id
is listed by a new one, which nobody has taken. So each leased id that is not listed any more makes one device less
available. A request may ask to ignore that: if such a device was taken out of the machine, for example.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import attrs

from ..devices import Device, DeviceOptions
from ..messages import Address
from .messages import DeviceCall, Offer
from .values import Pool, Request, Wanted

#: The name of a resource, and of a pool of it.
Place = tuple[str, str | None]


@attrs.define(eq=False)
class Resource:
    """The devices of one resource."""

    offer: Offer
    #: Whether it is offered; one that is not, and is here, is so because devices of it are taken.
    registered: bool = False
    #: The lease of each device that is taken; some may not be listed any more.
    taken: dict[str, str] = attrs.field(factory=dict)
    #: The healthy devices, by pool; none while nothing can be leased.
    healthy: dict[str | None, dict[str, Device]] = attrs.field(factory=dict)
    #: Those of them that are not taken.
    free: dict[str | None, dict[str, Device]] = attrs.field(factory=dict)
    #: How many devices are taken by ids that the plugin does not list.
    unlisted: int = 0

    @property
    def offered(self) -> bool:
        """Whether a plugin is there that can be asked for devices."""
        return self.offer.calls is not None and self.offer.key is not None


class Pools:
    """The pools, by resource and name; no device is in two."""

    def __init__(self, pools: Iterable[Pool] = ()) -> None:
        """Take the pools.

        Raises:
            ValueError: A device is in two of ``pools``.
        """
        self._pools: dict[str, dict[str, Pool]] = {}
        for pool in pools:
            beside = self._pools.setdefault(pool.resource, {})
            for other in beside.values():
                if not (pool.ids and other.ids) or not pool.ids.isdisjoint(other.ids):
                    raise ValueError(
                        f"the pools {other.name} and {pool.name} have devices of {pool.resource} in common"
                    )
            beside[pool.name] = pool

    def find(self, resource: str, name: str) -> Pool | None:
        """Return the pool of a resource, or None."""
        return self._pools.get(resource, {}).get(name)

    def of(self, resource: str, device: str) -> str | None:
        """Return the name of the pool that has the device, or None."""
        pools = self._pools.get(resource)
        return None if pools is None else next((it.name for it in pools.values() if it.has(device)), None)


class Stock:
    """The devices of all resources."""

    def __init__(self, pools: Iterable[Pool] = ()) -> None:
        """Begin without any device.

        Raises:
            ValueError: A device is in two of ``pools``.
        """
        self.pools = Pools(pools)
        self._resources: dict[str, Resource] = {}

    # --- to inspect ---

    def find(self, name: str) -> Resource | None:
        """Return a resource that is known, or None."""
        resource = self._resources.get(name)
        return resource if resource is not None and resource.registered else None

    def is_offered(self, name: str) -> bool:
        """Whether a plugin is there that can be asked for devices of the resource."""
        resource = self._resources.get(name)
        return resource is not None and resource.offered

    def calls(self, name: str) -> Address[DeviceCall]:
        """Return the address of the calls to that plugin.

        Raises:
            LookupError: There is none.
        """
        calls = self._resources[name].offer.calls
        if calls is None:
            raise LookupError(f"{name} has no plugin")
        return calls

    def options(self, name: str) -> DeviceOptions:
        """Return the options of that plugin."""
        return self._resources[name].offer.options

    def is_healthy(self, name: str, ids: Iterable[str]) -> bool:
        """Whether the plugin is there, and these devices of it are healthy."""
        listed = self._resources[name].offer.devices.devices
        return self.is_offered(name) and all(it in listed and listed[it].healthy for it in ids)

    def healthy(self, place: Place) -> Mapping[str, Device]:
        """Return the healthy devices of a resource and pool, taken or not."""
        resource = self._resources.get(place[0])
        return {} if resource is None else resource.healthy.get(place[1], {})

    def free(self, place: Place) -> Mapping[str, Device]:
        """Return those that nobody has taken."""
        resource = self._resources.get(place[0])
        return {} if resource is None else resource.free.get(place[1], {})

    def unlisted(self, name: str) -> int:
        """Return how many devices are taken by ids that the plugin does not list any more."""
        resource = self._resources.get(name)
        return 0 if resource is None else resource.unlisted

    def could(self, request: Request) -> bool:
        """Return whether the healthy devices were enough for the request if nobody had any."""
        return all(self._could(request, wanted) for wanted in request.wanted)

    def _could(self, request: Request, wanted: Wanted) -> bool:
        healthy = self.healthy((wanted.resource, request.pool))
        named = request.ids or request.include
        return len(healthy) >= wanted.count and all(device_id in healthy for device_id in named)

    def holders(self, names: Iterable[str]) -> Iterator[str]:
        """Yield the leases that have devices of these resources, each once."""
        found = (resource for name in names if (resource := self._resources.get(name)))
        yield from dict.fromkeys(lease for resource in found for lease in resource.taken.values())

    # --- to change ---

    def offer(self, offer: Offer) -> None:
        """Take another offer of a resource."""
        resource = self._resources.setdefault(offer.resource, Resource(offer))
        resource.offer, resource.registered = offer, True
        self._sort(resource)

    def end(self, name: str) -> None:
        """Forget the offer of a resource; what is taken of it stays taken."""
        resource = self._resources.pop(name, None)
        if resource is not None and resource.taken:
            self._resources[name] = Resource(Offer(name), taken=resource.taken, unlisted=len(resource.taken))

    def take(self, lease: str, name: str, ids: Collection[str]) -> None:
        """Give devices of a resource to a lease.

        Raises:
            ValueError: One of them is taken.
        """
        resource = self._resources.setdefault(name, Resource(Offer(name)))
        for device_id in ids:
            holder = resource.taken.get(device_id)
            if holder is not None:
                raise ValueError(f"{device_id} of {name} is already taken by the lease {holder}")
        for device_id in ids:
            resource.taken[device_id] = lease
            resource.free.get(self.pools.of(name, device_id), {}).pop(device_id, None)
            resource.unlisted += device_id not in resource.offer.devices.devices

    def give_back(self, name: str, ids: Collection[str]) -> None:
        """Take devices of a resource from their lease."""
        resource = self._resources[name]
        for device_id in ids:
            del resource.taken[device_id]
            pool = self.pools.of(name, device_id)
            resource.unlisted -= device_id not in resource.offer.devices.devices
            if (device := resource.healthy.get(pool, {}).get(device_id)) is not None:
                resource.free.setdefault(pool, {})[device_id] = device
        if not resource.registered and not resource.taken:
            del self._resources[name]

    def _sort(self, resource: Resource) -> None:
        listed = resource.offer.devices.devices
        resource.healthy, resource.free = {}, {}
        resource.unlisted = sum(device_id not in listed for device_id in resource.taken)
        if not resource.offered:
            return
        for device_id, device in listed.items():
            if device.healthy:
                pool = self.pools.of(resource.offer.resource, device_id)
                resource.healthy.setdefault(pool, {})[device_id] = device
                if device_id not in resource.taken:
                    resource.free.setdefault(pool, {})[device_id] = device

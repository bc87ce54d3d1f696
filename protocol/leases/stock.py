"""What there is to lease: the devices of each resource, which of them are taken and by whom, and pools.

A plugin may give its devices other ids, after its own restart for example. Then a device that is leased by its old id
is listed by a new one, which nobody has taken. So each leased id that is not listed any more makes one device less
available. A request may ask to ignore that: if such a device was taken out of the machine, for example.

A static device has an identity, whatever its id. One that is leased is not free under another id or in another
resource, which a reload may have given it, or a replug.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice

import attrs

from ..messages.addresses import Address
from ..plugins.devices import HEALTHY, Device, DeviceList, DeviceOptions, Difference
from .drains import Drain, Drains, drain_of, unshared
from .free import FreeDevices
from .messages import DeviceCall, Offer
from .values import Lease, Pool, Request, UserLimits, identity_key

#: The name of a resource, and of a pool of it.
Place = tuple[str, str | None]

_NONE = FreeDevices()
_NO_IDENTITIES: Mapping[str, str] = {}
#: Seconds for which a plugin must leave a leased device out of its lists until the device counts as unhealthy.
MISSING = 10.0


@attrs.define(eq=False)
class Missing:
    """A device that is leased, and that its plugin does not list any more."""

    #: From when on it counts as unhealthy; infinity while no plugin is there to list it.
    due: float = math.inf
    #: Whether ids that nobody knew came meanwhile: it may have one of these by now.
    renamed: bool = False
    #: Whether it counts as unhealthy.
    is_clear: bool = False

    def listed_without(self, now: float, *, is_offered: bool, renamed: bool) -> None:
        """Take note of an offer that does not have it."""
        self.renamed |= renamed
        self.due = min(self.due, now + MISSING) if is_offered else math.inf


@attrs.define(eq=False)
class StockedResource:
    """The devices of one resource."""

    offer: Offer
    #: Whether it is offered; one that is not, and is here, is so because devices of it are taken.
    registered: bool = False
    #: The lease of each device that is taken; some may not be listed any more.
    taken: dict[str, str] = attrs.field(factory=dict)
    #: The devices that are listed as healthy and not drained, by pool.
    healthy: dict[str | None, dict[str, Device]] = attrs.field(factory=dict)
    #: Those of them that are not taken.
    free: dict[str | None, FreeDevices] = attrs.field(factory=dict)
    #: The devices that are taken by ids that the plugin does not list.
    missing: dict[str, Missing] = attrs.field(factory=dict)

    @property
    def offered(self) -> bool:
        """Whether a plugin is there that can be asked for devices."""
        return self.offer.calls is not None and self.offer.key is not None

    @property
    def has_healthy(self) -> bool:
        """Whether a device could be leased if nobody had any, and none were drained."""
        return self.offered and any(device.healthy for device in self.offer.devices.devices.values())

    def place_all(self, healthy: Mapping[str | None, Mapping[str, Device]]) -> None:
        """Take other devices in the place of all."""
        self.healthy = {pool: {**devices} for pool, devices in healthy.items()}
        self.free = {
            pool: FreeDevices(device for device_id, device in devices.items() if device_id not in self.taken)
            for pool, devices in healthy.items()
        }

    def place(self, device: Device, pool: str | None) -> None:
        """Sort in a device that is listed as it is now, and not drained."""
        if not device.healthy:
            self.drop(device.id, pool)
            return
        self.healthy.setdefault(pool, {})[device.id] = device
        if device.id not in self.taken:
            if pool not in self.free:
                self.free[pool] = FreeDevices()
            self.free[pool].add(device)

    def drop(self, device_id: str, pool: str | None) -> None:
        """Forget a device that is not healthy, not listed any more, or drained."""
        if self.healthy.get(pool, {}).pop(device_id, None) is not None and pool in self.free:
            self.free[pool].discard(device_id)


class Pools:
    """The pools, by resource and name; no device is in two."""

    def __init__(self, pools: Iterable[Pool] = ()) -> None:
        """Take the pools.

        Raises:
            ValueError: A device is in two of ``pools``, or two of a resource have the same name.
        """
        self._pools: dict[str, dict[str, Pool]] = {}
        for pool in pools:
            beside = self._pools.setdefault(pool.resource, {})
            if pool.name in beside:
                raise ValueError(f"two pools of {pool.resource} are called {pool.name}")
            for other in beside.values():
                if not (pool.ids and other.ids) or not pool.ids.isdisjoint(other.ids):
                    raise ValueError(
                        f"the pools {other.name} and {pool.name} have devices of {pool.resource} in common"
                    )
            beside[pool.name] = pool

    def find(self, resource: str, name: str) -> Pool | None:
        """Return the pool of a resource, or None."""
        return self._pools.get(resource, {}).get(name)

    def admitting(self, resource: str, uid: int) -> Iterator[str]:
        """Yield the names of the pools of a resource from which a user may take devices."""
        return (pool.name for pool in self._pools.get(resource, {}).values() if pool.admits(uid))

    def pool_of(self, resource: str, device: str) -> str | None:
        """Return the name of the pool that has the device, or None."""
        pools = self._pools.get(resource)
        return None if pools is None else next((pool.name for pool in pools.values() if pool.has(device)), None)

    def sorted(self, resource: str, devices: Iterable[Device]) -> Mapping[str | None, Mapping[str, Device]]:
        """Return devices of a resource by pool and id."""
        if resource not in self._pools:
            return {None: {device.id: device for device in devices}}
        found = defaultdict[str | None, dict[str, Device]](dict)
        for device in devices:
            found[self.pool_of(resource, device.id)][device.id] = device
        return found


class _StaticHolds:
    """What static devices are leased, whatever their resource and their id are now."""

    def __init__(self) -> None:
        self._identities: dict[tuple[str, str], str] = {}
        #: For each of them the names under which it is leased, and how often: a device can be shared.
        self._names: dict[str, Counter[tuple[str, str]]] = {}

    def add(self, resource: str, device_id: str, identity: str) -> None:
        """A device with this identity is leased."""
        self._identities[resource, device_id] = identity
        self._names.setdefault(identity, Counter())[resource, unshared(device_id)] += 1

    def remove(self, resource: str, device_id: str) -> str | None:
        """A device is leased no more; return its identity, or None if it has none."""
        identity = self._identities.pop((resource, device_id), None)
        if identity is None:
            return None
        names = self._names[identity]
        names[resource, unshared(device_id)] -= 1
        names += Counter()
        if not names:
            del self._names[identity]
        return identity

    def held(self) -> Iterator[tuple[str, str]]:
        """Yield the resource and the id of each device that is leased."""
        return iter(self._identities)

    def is_elsewhere(self, resource: str, device: Device) -> bool:
        """Whether the device is leased under another name."""
        names = self._names.get(device.identity)
        return names is not None and names.keys() != {(resource, unshared(device.id))}


class Stock:
    """The devices of all resources."""

    def __init__(self, pools: Iterable[Pool] = ()) -> None:
        """Begin without any device.

        Raises:
            ValueError: A device is in two of ``pools``.
        """
        self.pools = Pools(pools)
        self._resources: dict[str, StockedResource] = {}
        self._static = _StaticHolds()
        #: What users may have, and how many devices each has by a request for that place.
        self.limits: Mapping[Place, UserLimits] = {}
        self.had: Counter[tuple[int, Place]] = Counter()
        #: What is out of service.
        self.drains: Drains = {}
        #: When :meth:`pass_time` may have something to do.
        self.next_missing = math.inf

    # --- to inspect ---

    def find(self, name: str) -> StockedResource | None:
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
        return self.is_offered(name) and all(device_id in listed and listed[device_id].healthy for device_id in ids)

    def healthy(self, place: Place) -> Mapping[str, Device]:
        """Return the healthy devices of a resource and pool that are not drained, taken or not.

        There are none while nothing can be leased.
        """
        resource = self._resources.get(place[0])
        return {} if resource is None or not resource.offered else resource.healthy.get(place[1], {})

    def free(self, place: Place) -> FreeDevices:
        """Return those that nobody has taken."""
        resource = self._resources.get(place[0])
        return _NONE if resource is None or not resource.offered else resource.free.get(place[1], _NONE)

    def missing(self, name: str) -> Mapping[str, Missing]:
        """Return the devices that are taken by ids that the plugin does not list any more."""
        resource = self._resources.get(name)
        return {} if resource is None else resource.missing

    def free_numbers(self) -> Iterator[tuple[str, int]]:
        """Yield how many devices of each resource can be taken; those of pools that are closed do not count."""
        for name, resource in self._resources.items():
            open_to_users = (
                len(free)
                for pool, free in resource.free.items()
                if pool is None or (found := self.pools.find(name, pool)) is None or not found.is_closed
            )
            yield name, max(0, sum(open_to_users) - len(resource.missing)) if resource.offered else 0

    def drained_numbers(self) -> Iterator[tuple[str, int]]:
        """Yield how many devices of each resource are listed and drained."""
        for name, resource in self._resources.items():
            devices = resource.offer.devices.devices.values() if self.drains else ()
            yield name, sum(bool(self._drain_of(name, device)) for device in devices)

    def drains_of(self, place: Place) -> list[Drain]:
        """Return the drains that keep healthy devices of a resource and pool from being given, each once."""
        resource = self._resources.get(place[0])
        if not self.drains or resource is None:
            return []
        kept_back = (
            self._drain_of(place[0], device)
            for device in resource.offer.devices.devices.values()
            if device.healthy and self.pools.pool_of(place[0], device.id) == place[1]
        )
        return list(dict.fromkeys(filter(None, kept_back)))

    def could(self, request: Request) -> bool:
        """Return whether the healthy devices that are not drained were enough for the request if nobody had any."""
        named = request.ids or request.include
        for wanted in request.wanted:
            healthy = self.healthy((wanted.resource, request.pool))
            if len(healthy) < wanted.count or not all(device_id in healthy for device_id in named):
                return False
        return True

    def names(self) -> Iterator[str]:
        """Yield the resources that are known."""
        return (name for name, resource in self._resources.items() if resource.registered)

    def is_leased_elsewhere(self, name: str, device: Device) -> bool:
        """Whether a static device is leased under another name, and therefore not free."""
        return self._static.is_elsewhere(name, device)

    def static_holders(self) -> Iterator[str]:
        """Yield the leases that have static devices; one may come more than once."""
        return (self._resources[name].taken[device_id] for name, device_id in self._static.held())

    def holders(self, names: Iterable[str]) -> Iterator[str]:
        """Yield the leases that have devices of these resources, each once."""
        seen = set[str]()
        for resource in filter(None, map(self._resources.get, names)):
            for lease in resource.taken.values():
                if lease not in seen:
                    seen.add(lease)
                    yield lease

    # --- to change ---

    def sort_into(self, pools: Iterable[Pool]) -> None:
        """Sort all devices into other pools; what is taken stays taken.

        Raises:
            ValueError: A device is in two of ``pools``.
        """
        self.pools = Pools(pools)
        for name, resource in self._resources.items():
            self._place_all(name, resource)

    def drain(self, drains: Drains) -> None:
        """Let nothing else than ``drains`` be out of service; what is taken stays taken."""
        changed, self.drains = self.drains.keys() ^ drains.keys(), drains
        for name, resource in self._resources.items():
            if any(target.resource in (None, name) for target in changed):
                self._place_all(name, resource)

    def offer(self, offer: Offer, now: float = 0.0) -> set[str]:
        """Take another offer of a resource; return the leases whose devices were missing for long, or may be others."""
        resource = self._resources.setdefault(offer.resource, StockedResource(Offer(offer.resource)))
        before, resource.offer, resource.registered = resource.offer.devices, offer, True
        leases = {
            resource.taken[device_id]
            for device_id, missing_device in resource.missing.items()
            if missing_device.is_clear
        }
        difference = self._sort(resource, before, now)
        leases |= {
            resource.taken[device.id]
            for device in difference.changed
            if device.identity and device.id in resource.taken
        }
        return leases

    def pass_time(self, now: float) -> set[str]:
        """Let devices count as unhealthy that are missing for long enough; return the leases that have them."""
        leases = set[str]()
        if self.next_missing > now:
            return leases
        self.next_missing = math.inf
        for resource in self._resources.values():
            for device_id, missing in resource.missing.items():
                if missing.due <= now and not missing.is_clear:
                    missing.is_clear = True
                    leases.add(resource.taken[device_id])
                elif not missing.is_clear:
                    self.next_missing = min(self.next_missing, missing.due)
        return leases

    def end(self, name: str) -> None:
        """Forget the offer of a resource; what is taken of it stays taken."""
        resource = self._resources.pop(name, None)
        if resource is not None and resource.taken:
            missing = {device_id: resource.missing.get(device_id) or Missing() for device_id in resource.taken}
            for missing_device in missing.values():
                missing_device.due = math.inf
            self._resources[name] = StockedResource(Offer(name), taken=resource.taken, missing=missing)

    def take(self, lease: str, name: str, ids: Collection[str], identities: Mapping[str, str] = _NO_IDENTITIES) -> None:
        """Give devices of a resource to a lease; ``identities`` are those that it was given, after a restart.

        Raises:
            ValueError: One of them is taken.
        """
        resource = self._resources.setdefault(name, StockedResource(Offer(name)))
        for device_id in ids:
            holder = resource.taken.get(device_id)
            if holder is not None:
                raise ValueError(f"{device_id} of {name} is already taken by the lease {holder}")
        found = set[str]()
        for device_id in ids:
            known = resource.offer.devices.devices.get(device_id)
            given = identities.get(identity_key(name, device_id)) if identities else None
            if identity := given or ("" if known is None else known.identity):
                self._static.add(name, device_id, identity)
                found.add(identity)
            resource.taken[device_id] = lease
            if (free := resource.free.get(self.pools.pool_of(name, device_id))) is not None:
                free.discard(device_id)
            if known is None:
                # It was leased before a restart. If a plugin is there, nobody knows which ids it had listed then.
                resource.missing[device_id] = Missing(renamed=resource.offered)
        self._withhold_all(found)

    def take_lease(self, lease: Lease) -> None:
        """Give a lease the devices that it has by its own account."""
        identities = _NO_IDENTITIES if lease.answer is None else lease.answer.identities
        for name, ids in lease.devices.items():
            self.take(lease.id, name, ids, identities)
            self.had[lease.uid, (name, lease.request.pool)] += len(ids)

    def give_lease_back(self, lease: Lease) -> None:
        """Take all devices of a lease from it."""
        for name, ids in lease.devices.items():
            self.give_back(name, ids)
            key = lease.uid, (name, lease.request.pool)
            self.had[key] -= len(ids)
            if not self.had[key]:
                del self.had[key]

    def give_back(self, name: str, ids: Collection[str]) -> None:
        """Take devices of a resource from their lease."""
        resource = self._resources[name]
        found = set[str]()
        for device_id in ids:
            del resource.taken[device_id]
            pool = self.pools.pool_of(name, device_id)
            resource.missing.pop(device_id, None)
            if (device := resource.healthy.get(pool, {}).get(device_id)) is not None:
                resource.place(device, pool)
            if (identity := self._static.remove(name, device_id)) is not None:
                found.add(identity)
        self._withhold_all(found)
        if not resource.registered and not resource.taken:
            del self._resources[name]

    def _withhold_all(self, identities: Collection[str]) -> None:
        """Judge anew the static devices of all resources that have one of these identities."""
        if identities:
            for name, resource in self._resources.items():
                self._withhold(name, resource, identities)

    def _withhold(self, name: str, resource: StockedResource, identities: Collection[str] | None = None) -> None:
        """Sort out of the free devices those that are static and leased under another name, and sort in the others.

        Only those with some ``identities`` are looked at, if these are given.
        """
        devices = resource.offer.devices.devices
        if not any(device.identity for device in islice(devices.values(), 1)):  # All of a resource are, or none is.
            return
        for device in devices.values():
            if identities is not None and device.identity not in identities:
                continue
            pool = self.pools.pool_of(name, device.id)
            if self._static.is_elsewhere(name, device):
                if pool in resource.free:
                    resource.free[pool].discard(device.id)
            elif device.healthy and device.id not in resource.taken and not self._drain_of(name, device):
                resource.place(device, pool)

    def _sort(self, resource: StockedResource, before: DeviceList, time: float) -> Difference:
        now, name = resource.offer.devices, resource.offer.resource
        difference = now.compared(before)
        self._miss(resource, before, difference, time)
        if 2 * (len(difference.changed) + len(difference.removed)) > len(now):
            # To put all devices in order anew takes less time than to find the place of each one.
            self._place_all(name, resource)
            return difference
        for device_id in difference.removed:
            resource.drop(device_id, self.pools.pool_of(name, device_id))
        for device in difference.changed:
            pool = self.pools.pool_of(name, device.id)
            if self._drain_of(name, device):
                resource.drop(device.id, pool)
            else:
                resource.place(device, pool)
        self._withhold(name, resource)
        return difference

    def _place_all(self, name: str, resource: StockedResource) -> None:
        listed = resource.offer.devices.devices.values()
        usable = (device for device in listed if device.health == HEALTHY and not self._drain_of(name, device))
        resource.place_all(self.pools.sorted(name, usable))
        self._withhold(name, resource)

    def _drain_of(self, name: str, device: Device) -> Drain | None:
        return drain_of(self.drains, name, device.id)

    def _miss(self, resource: StockedResource, before: DeviceList, difference: Difference, now: float) -> None:
        """Note which devices are missing since an offer, in which ``difference`` is not as it was ``before``."""
        missing = resource.missing
        missing.update({device_id: Missing() for device_id in difference.removed if device_id in resource.taken})
        if not missing:
            return
        for device in difference.changed:
            missing.pop(device.id, None)
        unknown = (device.id not in before.devices and device.id not in resource.taken for device in difference.changed)
        renamed = any(unknown)
        for missing_device in missing.values():
            missing_device.listed_without(now, is_offered=resource.offered, renamed=renamed)
            self.next_missing = min(self.next_missing, missing_device.due)

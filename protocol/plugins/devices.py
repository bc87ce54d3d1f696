"""Devices as values: the lists of device plugins, and what is shown of the resources that their devices make up."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping

import attrs

from ..values import value

#: One device plugin: its socket and its generation.
Key = tuple[str, int]

#: The only word of the API that means healthy; every other word means unhealthy.
HEALTHY = "Healthy"
#: Shown for a device that was healthy when its plugin was lost.
UNHEALTHY = "Unhealthy"
#: Shown as the health of a device whose id a lease was given for another static device.
OTHER_DEVICE = "another device has the id by now"


@value
class Device:
    """One device of a list, in the plugin's words."""

    id: str
    health: str = HEALTHY
    #: The NUMA nodes of the device; most devices have one or none.
    numa: tuple[int, ...] = ()
    #: What the device is, whatever its id: the number and place of the node of a static device; empty for others.
    identity: str = ""

    @property
    def healthy(self) -> bool:
        """Whether the plugin reported exactly ``Healthy``."""
        return self.health == HEALTHY


@value
class DeviceOptions:
    """The answer of a device plugin to GetDevicePluginOptions."""

    pre_start_required: bool = False
    get_preferred_allocation_available: bool = False


def differing_options(called: DeviceOptions | None, answered: DeviceOptions) -> str | None:
    """Describe how the options of a call of Register differ from those ``answered`` later, which count.

    None if they are equal, or if the call had none. The kubelet ignores the options of the call.
    """
    if called is None or called == answered:
        return None
    differing = [
        f"{name} is {_word(in_call)} in the call of Register and {_word(in_answer)} in the answer to"
        " GetDevicePluginOptions, which counts"
        for (name, in_call), in_answer in zip(_fields(called), attrs.astuple(answered), strict=True)
        if in_call != in_answer
    ]
    return "; ".join(differing)


def _fields(options: DeviceOptions) -> Iterable[tuple[str, bool]]:
    return attrs.asdict(options).items()


def _word(option: bool) -> str:
    return "true" if option else "false"


class _Token:
    """Identifies a list without keeping it."""

    __slots__ = ()


@value
class Difference:
    """The difference between two lists."""

    #: Devices that are new or have changed.
    changed: tuple[Device, ...] = ()
    #: The ids of the devices that are only in the other list.
    removed: tuple[str, ...] = ()


_NO_DIFFERENCE = Difference()


class DeviceList:
    """All devices that a plugin has listed, by id, in the order of its message. A list never changes.

    A list made by :meth:`replacing` keeps its differences, so making and comparing it costs little, however long it is.
    """

    __slots__ = ("_base", "_difference", "_token", "devices", "healthy")

    def __init__(self, devices: Iterable[Device] = ()) -> None:
        """Make a list of ``devices``; of two with one id the last is kept, at the place of the first."""
        self.devices: Mapping[str, Device] = {device.id: device for device in devices}
        self.healthy = sum(device.health == HEALTHY for device in self.devices.values())
        self._token = _Token()
        #: The list from which this one was made, and the differences.
        self._base: _Token | None = None
        self._difference = _NO_DIFFERENCE

    def replacing(self, devices: Iterable[Device]) -> DeviceList:
        """Return a list in which ``devices`` replace those with their ids; new ids come last."""
        given = tuple(devices)
        if not given:
            return self
        now = dict(self.devices)
        healthy = self.healthy
        for device in given:
            before = now.get(device.id)
            now[device.id] = device
            healthy += (device.health == HEALTHY) - (before is not None and before.health == HEALTHY)
        made = DeviceList.__new__(DeviceList)
        made.devices, made.healthy, made._token = now, healthy, _Token()
        made._base, made._difference = self._token, Difference(given)
        return made

    def compared(self, before: DeviceList) -> Difference:
        """Return how this list differs from ``before``; that is fast if it was made from ``before``."""
        if self._token is before._token:
            return _NO_DIFFERENCE
        if self._base is before._token:
            return self._difference
        old = before.devices
        # Most devices are the same objects, and identity is faster to check than equality.
        changed = tuple(
            device
            for device in self.devices.values()
            if (earlier := old.get(device.id)) is not device and earlier != device
        )
        removed = tuple(name for name in old if name not in self.devices)
        return Difference(changed, removed) if changed or removed else _NO_DIFFERENCE

    def __len__(self) -> int:
        return len(self.devices)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeviceList):
            return NotImplemented
        return list(self.devices.values()) == list(other.devices.values())

    def __hash__(self) -> int:
        return hash((len(self.devices), self.healthy))

    def __repr__(self) -> str:
        return f"DeviceList({list(self.devices.values())!r})"


# --- what is shown ----------------------------------------------------------------------------------------------------


class ResourceState(enum.StrEnum):
    """The states of a resource, by the names that users see."""

    #: Known from before a restart; no plugin has registered for it.
    AWAITED = "awaited"
    #: A plugin has registered, and has not listed its devices yet.
    STARTING = "starting"
    #: A plugin keeps the list of its devices up to date.
    LISTED = "listed"
    #: No plugin updates the list; its devices count as unhealthy, and it goes when the grace is over.
    LOST = "lost"
    GONE = "gone"


@value
class KnownResource:
    """A resource that was known before a restart, and how many devices it had last."""

    name: str
    capacity: int


@value
class DeviceStatus:
    """One device, as it is shown."""

    id: str
    health: str
    #: When its health changed last: ``trio.current_time()``, or Unix seconds from a client.
    since: float
    numa: tuple[int, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether the device can be leased."""
        return self.health == HEALTHY


@value
class InstanceStatus:
    """One device plugin, as it is shown with its resource.

    Times are ``trio.current_time()`` in seconds, or Unix seconds from a client.
    """

    socket: str
    generation: int
    endpoint: str
    #: How it registered, in words.
    source: str
    options: DeviceOptions
    #: Whether its list is the one that counts.
    active: bool
    #: How many lists have come, and when the last one came.
    lists: int = 0
    last_list: float | None = None
    #: How many devices its last list has, and how many of them are healthy.
    devices: int = 0
    healthy: int = 0
    #: Since when no lists come, and why.
    lost_since: float | None = None
    reason: str | None = None
    #: The warning about its options.
    warning: str | None = None


@value
class ResourceStatus:
    """One resource, as it is shown; times are ``trio.current_time()`` in seconds, or Unix seconds from a client."""

    name: str
    state: ResourceState
    #: When it entered this state.
    since: float
    #: The reason for the states ``lost``, ``awaited`` and ``gone``, or why static devices are ``listed`` and none is.
    reason: str | None = None
    #: When it goes, unless its plugin is back.
    until: float | None = None
    #: The plugins that have registered for it, in order.
    instances: tuple[InstanceStatus, ...] = ()
    #: The socket of the plugin whose list counts; it is kept while the resource is lost.
    socket: str | None = None
    listed: DeviceList = attrs.field(factory=DeviceList)
    changed: Mapping[str, float] = attrs.field(factory=dict, hash=False)
    #: Since when all devices count as unhealthy.
    lost_since: float | None = None
    #: How many devices it had last, while it is ``awaited``.
    last_capacity: int | None = None

    @property
    def capacity(self) -> int:
        """The number of its devices."""
        return len(self.listed)

    @property
    def allocatable(self) -> int:
        """The number of its healthy devices."""
        return self.listed.healthy if self.lost_since is None else 0

    def devices(self) -> Iterator[DeviceStatus]:
        """Yield its devices, in the order of the plugin's list."""
        for device in self.listed.devices.values():
            yield shown(device, self.changed[device.id], self.lost_since)


def shown(device: Device, since: float, lost_since: float | None) -> DeviceStatus:
    """Return ``device`` as it is shown: if it was healthy, it is unhealthy since its plugin was lost."""
    if lost_since is None or not device.healthy:
        return DeviceStatus(device.id, device.health, since, device.numa)
    return DeviceStatus(device.id, UNHEALTHY, lost_since, device.numa)


@value
class DevicesSnapshot:
    """All resources at one moment, ordered by name."""

    time: float
    resources: tuple[ResourceStatus, ...] = ()
    #: The problem with the file of known resources; None if there is none.
    problem: str | None = None
    #: How often that file could not be read or written.
    state_failures: int = 0
    #: For metrics: how many devices are healthy and unhealthy, and how often the stream of a plugin has ended. By the
    #: name of the resource; all but the first 64 resources count as ``other``.
    counts: Mapping[str, tuple[int, int]] = attrs.field(factory=dict, hash=False)
    streams_ended: Mapping[str, int] = attrs.field(factory=dict, hash=False)

    def find(self, name: str) -> ResourceStatus | None:
        """Return the resource of this name, or None."""
        return next((resource for resource in self.resources if resource.name == name), None)

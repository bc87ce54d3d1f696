"""The messages to the devices actor, and what it tells those that asked.

The follower of a device plugin sends its messages in order: ``InstanceAdded``, then lists and losses, its role whenever
that changes, and ``InstanceRemoved`` at the end. Messages of an instance that is not known are dropped.
"""

from __future__ import annotations

from ..leases.messages import DeviceCall
from ..messages.addresses import Address
from ..messages.config import ExpectationChanged
from ..messages.status import Lagged
from ..plugins.devices import DeviceList, DeviceOptions, DevicesSnapshot, KnownResource, ResourceStatus
from ..plugins.info import Plugin
from ..values import value

# --- from the followers of device plugins -----------------------------------------------------------------------------


@value
class InstanceAdded:
    """A device plugin has registered for the resource that is its name; its first list may be on the way."""

    plugin: Plugin
    options: DeviceOptions
    #: How it has registered, in words, for people: ``Register call of pid 812`` or ``socket PATH``.
    source: str
    #: ``trio.current_time()``, here and below.
    time: float
    #: Where it takes the calls with which devices are leased.
    calls: Address[DeviceCall] | None = None


@value
class ListReceived:
    """The plugin has sent a list: its devices are exactly these."""

    socket: str
    generation: int
    devices: DeviceList
    time: float


@value
class ListLost:
    """The stream of lists has ended, or no first list has come: the devices can no longer be relied on."""

    socket: str
    generation: int
    reason: str
    time: float


@value
class InstanceRole:
    """Whether the plugin is the active one of its resource, as the world has decided."""

    socket: str
    generation: int
    active: bool


@value
class InstanceRemoved:
    """The plugin was deregistered."""

    socket: str
    generation: int
    time: float


#: What a follower says of its instance.
InstanceMessage = InstanceAdded | ListReceived | ListLost | InstanceRole | InstanceRemoved

# --- from the store ---------------------------------------------------------------------------------------------------


@value
class ResourcesRead:
    """The store, which could not be read at the start, has been read: it has the resources known before the restart."""

    resources: tuple[KnownResource, ...]


# --- from readers -----------------------------------------------------------------------------------------------------


@value
class DevicesAsked:
    """Somebody asks for all resources."""

    reply: Address[DevicesSnapshot]


@value
class ResourceChanged:
    """A resource is not as it was: the whole of it, as it is now."""

    time: float
    resource: ResourceStatus


#: What a subscriber gets: the snapshot first, then changes.
DevicesViewMessage = DevicesSnapshot | ResourceChanged | Lagged


@value
class DevicesSubscribed:
    """Somebody asks for all resources, and for each change from then on."""

    subscriber: Address[DevicesViewMessage]


@value
class DevicesUnsubscribed:
    """A subscriber wants no more."""

    subscriber: Address[DevicesViewMessage]


DevicesMessage = (
    InstanceMessage | ResourcesRead | ExpectationChanged | DevicesAsked | DevicesSubscribed | DevicesUnsubscribed
)

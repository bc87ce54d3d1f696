"""The messages to the devices actor, and its answers.

The follower of a device plugin sends its messages in order: ``InstanceAdded``, then lists and losses, its role whenever
it changes, and ``InstanceRemoved`` at the end. Messages about unknown instances are dropped.
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
    """A device plugin has registered for the resource that is its name; its first list can be on the way."""

    plugin: Plugin
    options: DeviceOptions
    #: How it registered, for people: ``Register call of pid 812`` or ``socket PATH``.
    source: str
    #: ``trio.current_time()``, here and below.
    time: float
    #: The address of its calls for leases.
    calls: Address[DeviceCall] | None = None


@value
class ListReceived:
    """The plugin has sent a list of all its devices."""

    socket: str
    generation: int
    devices: DeviceList
    time: float


@value
class ListLost:
    """The stream of lists has ended, or the first list is late: the devices can no longer be relied on."""

    socket: str
    generation: int
    reason: str
    time: float


@value
class InstanceRole:
    """Whether the plugin is the active one of its resource, by the world's decision."""

    socket: str
    generation: int
    active: bool


@value
class InstanceRemoved:
    """The plugin was deregistered."""

    socket: str
    generation: int
    time: float


#: The messages of a follower about its instance.
InstanceMessage = InstanceAdded | ListReceived | ListLost | InstanceRole | InstanceRemoved

# --- from the store ---------------------------------------------------------------------------------------------------


@value
class ResourcesRead:
    """The store, which could not be read at the start, was read: these are the resources known before the restart."""

    resources: tuple[KnownResource, ...]


# --- from readers -----------------------------------------------------------------------------------------------------


@value
class DevicesAsked:
    """A reader asks for all resources."""

    reply: Address[DevicesSnapshot]


@value
class ResourceChanged:
    """A resource has changed; this is its new status."""

    time: float
    resource: ResourceStatus


#: The messages to a subscriber: the snapshot first, then changes.
DevicesViewMessage = DevicesSnapshot | ResourceChanged | Lagged


@value
class DevicesSubscribed:
    """A reader asks for all resources, and for each change from then on."""

    subscriber: Address[DevicesViewMessage]


@value
class DevicesUnsubscribed:
    """A subscriber leaves."""

    subscriber: Address[DevicesViewMessage]


DevicesMessage = (
    InstanceMessage | ResourcesRead | ExpectationChanged | DevicesAsked | DevicesSubscribed | DevicesUnsubscribed
)

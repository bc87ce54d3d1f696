"""The devices of one device plugin by its lists so far, and the time of each device's last change."""

from __future__ import annotations

import attrs

from ..leases.messages import DeviceCall
from ..messages.addresses import Address
from ..plugins.devices import HEALTHY, DeviceList, DeviceOptions, Difference, InstanceStatus, differing_options
from ..plugins.info import Plugin
from ..values import record, value


@value
class Turned:
    """The ids of the devices that have changed since the list before. The first list has no changes."""

    #: Listed devices whose health has changed. Added and removed ones are not included.
    unhealthy: tuple[str, ...] = ()
    healthy: tuple[str, ...] = ()
    #: Devices that are newly listed, and devices that are no longer listed.
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.unhealthy or self.healthy or self.added or self.removed)


NOTHING_TURNED = Turned()


@record(eq=False)
class Followed:
    """One device plugin, with its last list. The time to take a list depends on its differences."""

    plugin: Plugin
    options: DeviceOptions
    source: str
    #: The address of its calls for leases.
    calls: Address[DeviceCall] | None = None
    #: Whether it is the active one, and the number of that decision for its resource.
    active: bool = False
    decided: int = 0
    #: Whether it was deregistered. Its list can still count, with all devices unhealthy.
    removed: bool = False
    listed: DeviceList = attrs.field(factory=DeviceList)
    #: Since when each device has its health, by id.
    changed: dict[str, float] = attrs.field(factory=dict)
    lists: int = 0
    last_list: float | None = None
    lost_since: float | None = None
    reason: str | None = None

    @property
    def warning(self) -> str | None:
        """How its options differ from those of its call of Register; None if they are equal."""
        return differing_options(self.plugin.called_with, self.options)

    @property
    def live(self) -> bool:
        """Whether its last list is up to date."""
        return self.lists > 0 and self.lost_since is None

    def take(self, listed: DeviceList, time: float) -> tuple[bool, Turned]:
        """Apply a list; return whether the shown state has changed, and which devices have."""
        if listed is self.listed and time == self.last_list:
            return False, NOTHING_TURNED  # The list is repeated after a crash of the actor.
        difference = listed.compared(self.listed)
        lost_since, self.lost_since, self.reason = self.lost_since, None, None
        news = self.lists == 0 or lost_since is not None or bool(difference.changed or difference.removed)
        self.lists += 1
        self.last_list = time
        turned = self._note(difference, lost_since, time)
        self.listed = listed
        if lost_since is not None:
            self._find_again(time)
        return news, turned

    def _note(self, difference: Difference, lost_since: float | None, time: float) -> Turned:
        unhealthy: list[str] = []
        healthy: list[str] = []
        added: list[str] = []
        for device in difference.changed:
            before = self.listed.devices.get(device.id)
            if before is None:
                self.changed[device.id] = time
                if self.lists > 1:
                    added.append(device.id)
            elif before.health != device.health:
                self.changed[device.id] = time if lost_since is None or not before.healthy else lost_since
                if device.health == HEALTHY:
                    healthy.append(device.id)
                elif before.health == HEALTHY:
                    unhealthy.append(device.id)
        for device_id in difference.removed:
            self.changed.pop(device_id, None)
        return Turned(tuple(unhealthy), tuple(healthy), tuple(added), difference.removed)

    def _find_again(self, time: float) -> None:
        """Set the time of each healthy device, since all devices were shown as unhealthy."""
        for device in self.listed.devices.values():
            if device.healthy:
                self.changed[device.id] = time

    def lose(self, reason: str, time: float) -> bool:
        """Note that its list is outdated; return whether it was up to date before."""
        self.reason = reason
        if self.lost_since is not None:
            return False
        self.lost_since = time
        return True

    def status(self) -> InstanceStatus:
        """Return what is shown of the plugin."""
        return InstanceStatus(
            self.plugin.socket,
            self.plugin.generation,
            self.plugin.endpoint,
            self.source,
            self.options,
            self.active,
            self.lists,
            self.last_list,
            len(self.listed),
            self.listed.healthy if self.lost_since is None else 0,
            self.lost_since,
            self.reason,
            self.warning,
        )

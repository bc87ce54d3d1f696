"""What one device plugin has said of its devices so far, and since when each of them is as it is."""

from __future__ import annotations

import attrs

from ..leases.messages import DeviceCall
from ..messages.addresses import Address
from ..plugins.devices import HEALTHY, DeviceList, DeviceOptions, Difference, InstanceStatus, differing_options
from ..plugins.info import Plugin
from ..values import record, value


@value
class Turned:
    """The devices, by id, that are not as they were in the list before: of the first list, none."""

    #: Those whose health has turned; those that came or went are not among them.
    unhealthy: tuple[str, ...] = ()
    healthy: tuple[str, ...] = ()
    #: Those that are listed now and were not, and the other way round.
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.unhealthy or self.healthy or self.added or self.removed)


NOTHING_TURNED = Turned()


@record(eq=False)
class Followed:
    """One device plugin, with its last list. To take a list costs what is different in it."""

    plugin: Plugin
    options: DeviceOptions
    source: str
    #: Where it takes the calls with which devices are leased.
    calls: Address[DeviceCall] | None = None
    #: The world's decision, and which decision of its resource that was.
    active: bool = False
    decided: int = 0
    #: Whether it was deregistered. Its list may count on, all unhealthy.
    removed: bool = False
    listed: DeviceList = attrs.field(factory=DeviceList)
    #: Since when each device has the health that its plugin said, by id.
    changed: dict[str, float] = attrs.field(factory=dict)
    lists: int = 0
    last_list: float | None = None
    lost_since: float | None = None
    reason: str | None = None

    @property
    def warning(self) -> str | None:
        """In what its options differ from those of its call of Register, if in anything."""
        return differing_options(self.plugin.called_with, self.options)

    @property
    def live(self) -> bool:
        """Whether its last list is up to date."""
        return self.lists > 0 and self.lost_since is None

    def take(self, listed: DeviceList, time: float) -> tuple[bool, Turned]:
        """Take a list; return whether anything is different from what was shown, and what has turned."""
        if listed is self.listed and time == self.last_list:
            return False, NOTHING_TURNED  # It comes again, after a crash of the actor.
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
        """All devices were shown as unhealthy, so each that is healthy is so from now on."""
        for device in self.listed.devices.values():
            if device.healthy:
                self.changed[device.id] = time

    def lose(self, reason: str, time: float) -> bool:
        """Its list is not up to date any more; return whether it was until now."""
        self.reason = reason
        if self.lost_since is not None:
            return False
        self.lost_since = time
        return True

    def status(self) -> InstanceStatus:
        """Return what is shown of it."""
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

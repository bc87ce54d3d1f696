"""What must be shown of devices, at each moment: judged by what a script has let device plugins say.

It has a model of its own, in which a message takes effect at once. The devices actor may be later, and may skip what is
out of date: so each thing that it shows must be one that the model had since the actor was last up to date; and once it
is up to date, what it has shown last must be what the model has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import attrs

from plugind.actors.simulation.scheduling import EPSILON
from plugind.protocol.plugins.devices import HEALTHY, UNHEALTHY, DeviceStatus, ResourceState, ResourceStatus

#: Seconds for which a resource is kept without a plugin.
GRACE: Final = 300.0
#: What is shown of a resource: its devices, each with its health. Since when is compared apart from it.
Shown = tuple[tuple[str, str], ...]


@attrs.define(eq=False)
class Instance:
    """One device plugin of the model."""

    name: str
    socket: str
    generation: int
    #: The healths of its devices by id; None until it has listed them.
    listed: dict[str, str] | None = None
    #: The times since when each device may be shown to have its health.
    since: dict[str, set[float]] = attrs.field(factory=dict)
    #: The list that the actor has taken for certain and those after it, each with the times since when each of its
    #: devices may be shown so.
    lists: list[tuple[dict[str, str], dict[str, set[float]]]] = attrs.field(factory=list)
    lost_since: float | None = None
    #: The times since when it may be shown as lost.
    lost_times: set[float] = attrs.field(factory=set)
    active: bool = False
    #: Which of the roles of its resource was the last that it got.
    decided: int = 0

    @property
    def live(self) -> bool:
        """Whether its list is up to date."""
        return self.listed is not None and self.lost_since is None

    def shown(self) -> Shown:
        """Return what is to be shown of its devices."""
        healths = (self.listed or {}).items()
        if self.lost_since is None:
            return tuple(healths)
        return tuple((device, UNHEALTHY if health == HEALTHY else health) for device, health in healths)


@attrs.define(eq=False)
class _Resource:
    #: The plugins that are there, the first one first.
    present: list[Instance] = attrs.field(factory=list)
    #: Whose list counts; it may have left.
    serving: Instance | None = None
    roles: int = 0
    state: ResourceState | None = None
    #: When it goes, and how many seconds later it may.
    due: float | None = None
    late: float = EPSILON
    #: What may be shown: the present last.
    recent: list[Shown] = attrs.field(factory=lambda: [()])
    #: What was shown last.
    last: ResourceStatus | None = None


class DeviceOracle:
    """Capacity never falls in a surge, no device is there twice, and each change is shown as it is."""

    def __init__(self, violated: Callable[[str, str], None]) -> None:
        self._violated = violated
        self._resources: dict[str, _Resource] = {}
        #: Whether the actor is behind, so that it may skip what comes now.
        self.behind = False
        #: When the actor runs again for certain after its last crash.
        self._down_until = -math.inf

    def present(self, name: str) -> list[Instance]:
        """Return the plugins of a resource, the first one first."""
        return list(self._resource(name).present)

    def forget(self, now: float) -> None:
        """The daemon ended, and with it all that followed plugins; resources that were listed may be awaited."""
        self._down_until, self.behind = -math.inf, False
        self._resources = {name: _Resource(state=ResourceState.AWAITED, due=now + GRACE) for name in self._resources}

    def crashed(self, now: float, pause: float) -> None:
        """The actor crashes, and is started again after ``pause`` seconds at the latest."""
        self.behind = True
        self._down_until = now + pause + EPSILON

    # --- what plugins say ---------------------------------------------------------------------------------------------

    def added(self, instance: Instance, now: float) -> None:
        """A plugin has registered."""
        resource = self._resource(instance.name)
        if resource.state is ResourceState.GONE and not resource.present:
            # What is gone is kept for the plugins that it still has; without any it is forgotten, and begins anew.
            resource.state = None
        resource.present.append(instance)
        self._update(instance.name, now)

    def listed(self, instance: Instance, healths: Mapping[str, str], now: float) -> None:
        """A plugin has listed its devices."""
        before, lost_since = instance.listed or {}, instance.lost_since
        since: dict[str, set[float]] = {}
        for device, health in healths.items():
            old = before.get(device)
            if old is not None and not (old != health or (lost_since is not None and health == HEALTHY)):
                # An actor that is behind may not have seen the list before this one.
                since[device] = instance.since[device] | ({now} if self.behind else set())
                continue
            was_lost = old == HEALTHY and health != HEALTHY and lost_since is not None
            begun = instance.lost_times if was_lost else {now}
            since[device] = begun | (instance.since.get(device, set()) if self.behind else set())
            if self.behind:
                # Nor that its plugin was well for a while.
                since[device] |= {now, *instance.lost_times}
                # Nor every list since the one that it has taken: the device may have been as it is now in the last of
                # those that it has seen.
                since[device].update(*(times[device] for seen, times in instance.lists if seen.get(device) == health))
        instance.listed, instance.since, instance.lost_since = dict(healths), since, None
        instance.lists.append((instance.listed, since))
        self._update(instance.name, now)

    def lost(self, instance: Instance, now: float) -> None:
        """The stream of a plugin has ended."""
        self._lose(instance, now)
        self._update(instance.name, now)

    def _lose(self, instance: Instance, now: float) -> None:
        if instance.lost_since is None:
            instance.lost_since, instance.lost_times = now, {now}
        elif self.behind:
            # An actor that is down takes the last of several losses.
            instance.lost_times.add(now)

    def decided(self, instance: Instance, now: float, *, active: bool) -> None:
        """The world has decided the role of a plugin."""
        resource = self._resource(instance.name)
        resource.roles += 1
        instance.active, instance.decided = active, resource.roles
        self._update(instance.name, now)

    def removed(self, instance: Instance, now: float) -> None:
        """A plugin was deregistered."""
        instance.active = False
        self._lose(instance, now)
        self._resource(instance.name).present.remove(instance)
        self._update(instance.name, now)

    def _resource(self, name: str) -> _Resource:
        return self._resources.setdefault(name, _Resource())

    def _update(self, name: str, now: float) -> None:
        resource = self._resource(name)
        listed = [instance for instance in resource.present if instance.listed is not None]
        active = sorted((instance for instance in listed if instance.active), key=lambda instance: instance.decided)
        serving = resource.serving
        if active:
            serving = active[-1]
        elif (serving is None or serving not in resource.present) and listed:
            serving = ([instance for instance in listed if instance.live] or listed)[-1]
        if serving is not None and (serving.live or resource.state is not ResourceState.GONE):
            resource.serving = serving
        self._enter(resource, now)
        resource.recent.append(() if resource.serving is None else resource.serving.shown())

    def _enter(self, resource: _Resource, now: float) -> None:
        state = _state(resource)
        if state is resource.state:
            return
        resource.state = state
        resource.due = now + GRACE if state is ResourceState.LOST else None
        # An actor that is down begins the grace of some losses when it runs again.
        resource.late = self._down_until - now + EPSILON if now < self._down_until else EPSILON

    # --- what is shown ------------------------------------------------------------------------------------------------

    def shown(self, status: ResourceStatus, time: float) -> None:
        """A resource is shown."""
        resource = self._resource(status.name)
        devices = list(status.devices())
        ids = [device.id for device in devices]
        if len(set(ids)) != len(ids) or status.capacity != len(ids):
            self._violated("devices", f"{status.name} is shown with {status.capacity} devices, which are {ids}")
        if status.state is ResourceState.GONE:
            self._check_gone(status.name, resource, time)
        self._check(status, resource, _shown(devices))
        resource.last = status

    def _check_gone(self, name: str, resource: _Resource, time: float) -> None:
        due = resource.due
        if due is None or not due - EPSILON <= time <= max(due + resource.late, self._down_until):
            self._violated("grace", f"{name} is gone at {time:g}, and was to go at {due}")
        resource.serving, resource.due, resource.state = None, None, ResourceState.GONE
        resource.recent.append(())

    def _check(self, status: ResourceStatus, resource: _Resource, shown: Shown) -> None:
        if shown not in resource.recent:
            least = min(len(devices) for devices in resource.recent)
            if len(shown) < least:
                self._violated("surge", f"{status.name} is shown with {len(shown)} devices, and has {least} at least")
            self._violated("devices", f"{status.name} is shown with {shown}, and had {resource.recent}")

    def up_to_date(self, now: float) -> None:
        """The actor has taken all messages, and nothing that it has shown waits to be read."""
        self.behind = now < self._down_until
        if self.behind:
            return
        for name, resource in self._resources.items():
            del resource.recent[:-1]
            for instance in resource.present:
                del instance.lists[:-1]
            self._check_last(name, resource)
            if resource.state is ResourceState.AWAITED and resource.last is None:
                continue  # It was listed for too short a time to be kept.
            if resource.due is not None and now > max(resource.due + resource.late, self._down_until):
                self._violated("grace", f"{name} is there at {now:g}, and was to go at {resource.due:g}")

    def _check_last(self, name: str, resource: _Resource) -> None:
        if resource.last is None:
            return
        devices = list(resource.last.devices())
        if _shown(devices) != resource.recent[-1]:
            self._violated("devices", f"{name} is shown with {_shown(devices)}, and has {resource.recent[-1]}")
        elif resource.serving is not None:
            self._check_since(name, resource.serving, devices)

    def _check_since(self, name: str, serving: Instance, devices: Iterable[DeviceStatus]) -> None:
        for device in devices:
            expected = serving.since[device.id]
            if serving.lost_since is not None and (serving.listed or {})[device.id] == HEALTHY:
                expected = serving.lost_times
            if not any(abs(device.since - time) <= EPSILON for time in expected):
                self._violated(
                    "devices", f"{name}: {device.id} is shown since {device.since}, and is so since {expected}"
                )


def _state(resource: _Resource) -> ResourceState:
    if resource.serving is not None:
        return ResourceState.LISTED if resource.serving.live else ResourceState.LOST
    if resource.state is ResourceState.GONE:
        return ResourceState.GONE
    waits = any(instance.lost_since is None for instance in resource.present)
    return ResourceState.STARTING if waits else ResourceState.LOST


def _shown(devices: Iterable[DeviceStatus]) -> Shown:
    return tuple((device.id, device.health) for device in devices)

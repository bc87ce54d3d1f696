"""The resources that device plugins make up: pure decisions about lists, roles, losses and time.

The list of the active plugin is the resource. Another plugin's list replaces it only when that list has come. So the
update of a plugin, in which an old and a new instance run side by side, never lowers the capacity, in whatever order
their messages come. When the plugin is lost, all devices count as unhealthy at once and the capacity stays, as in the
kubelet; the resource goes when no list has come for :data:`GRACE` seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import assert_never

import attrs

from ..plugins.devices import DeviceList, Key, KnownResource, ResourceState, ResourceStatus
from ..plugins.info import MAX_INSTANCES
from ..plugins.static_devices import SOURCE
from ..values import record, value
from .followed import Followed, Turned
from .messages import InstanceAdded, InstanceMessage, InstanceRemoved, InstanceRole, ListLost, ListReceived

#: Seconds for which a resource is kept without a plugin, and for which a restarted daemon waits for a known one.
GRACE = 300.0
#: How many resources there can be. A further one replaces the one that was lost first, if any is lost.
MAX_RESOURCES = 1024
NO_PLUGIN = "no plugin for 5m"
_AWAITED = "neither a plugin nor the configuration offers it since the restart"
_REMOVED = "its plugin was deregistered"
_NOT_CONFIGURED = "the configuration no longer names it"
_EMPTY = DeviceList()


# --- effects ----------------------------------------------------------------------------------------------------------


@value
class Changed:
    """The shown state of this resource has changed."""

    name: str


@value
class Remember:
    """Store the resource, so that a restarted daemon waits for it."""

    name: str
    capacity: int


@value
class Forget:
    """Remove the resource from the store."""

    name: str


@value
class Serves:
    """The list of this plugin is the resource from now on."""

    name: str
    socket: str
    capacity: int
    allocatable: int
    #: How many devices it had before a restart, if there were more.
    had: int | None = None


@value
class DevicesTurned:
    """Devices of the resource have changed their health, or were added or removed."""

    name: str
    socket: str
    turned: Turned


@value
class OptionsDiffer:
    """A plugin has answered with other options than it named in its call of Register."""

    name: str
    socket: str
    reason: str


@value
class StreamEnded:
    """A plugin stopped sending lists."""

    name: str
    socket: str
    reason: str


@value
class Gone:
    """The grace of a resource is over, or another resource has replaced it."""

    name: str
    reason: str


@value
class Refused:
    """There are too many resources, or too many plugins of one: this plugin's devices are not shown."""

    name: str
    socket: str
    reason: str


Effect = Changed | Remember | Forget | Serves | DevicesTurned | OptionsDiffer | StreamEnded | Gone | Refused


# --- decisions --------------------------------------------------------------------------------------------------------


@record(eq=False)
class Resource:
    """One resource, with its plugins."""

    name: str
    #: When it entered its state.
    since: float
    state: ResourceState = ResourceState.STARTING
    instances: dict[Key, Followed] = attrs.field(factory=dict)
    #: The plugin whose list is the resource; it may have left since.
    serving: Followed | None = None
    #: When it goes; infinity while a plugin keeps its list up to date, or its first list is awaited.
    until: float = math.inf
    #: How many roles the world has decided for its plugins.
    decisions: int = 0
    #: How many devices it had before a restart.
    last_capacity: int | None = None

    def choose(self) -> Followed | None:
        """Return the plugin whose list counts: the active one with a list, or else the one that counted last."""
        listed = [instance for instance in self.instances.values() if instance.lists]
        if active := [instance for instance in listed if instance.active]:
            return max(active, key=lambda instance: instance.decided)
        if self.serving is not None and not self.serving.removed:
            return self.serving
        # The world is about to make another plugin active: choose as it will.
        return max(
            reversed(listed), key=lambda instance: (instance.plugin.privileged, instance.live), default=self.serving
        )

    def judge(self) -> ResourceState:
        """Return its state now."""
        if self.serving is not None:
            return ResourceState.LISTED if self.serving.live else ResourceState.LOST
        if self.state is ResourceState.GONE:
            return ResourceState.GONE
        if any(instance.lost_since is None for instance in self.instances.values()):
            return ResourceState.STARTING
        return ResourceState.LOST

    def status(self) -> ResourceStatus:
        """Return what is shown of the resource."""
        serving = self.serving
        return ResourceStatus(
            self.name,
            self.state,
            self.since,
            self.reason,
            None if self.until == math.inf else self.until,
            tuple(instance.status() for instance in self.instances.values()),
            None if serving is None else serving.plugin.socket,
            _EMPTY if serving is None else serving.listed,
            {} if serving is None else dict(serving.changed),
            None if serving is None else serving.lost_since,
            self.last_capacity if self.state is ResourceState.AWAITED else None,
        )

    @property
    def reason(self) -> str | None:
        """The reason for its state, if there is one."""
        match self.state:
            case ResourceState.AWAITED:
                return _AWAITED
            case ResourceState.GONE:
                return NO_PLUGIN
            case ResourceState.LOST if self.serving is not None:
                return self.serving.reason
            case ResourceState.LOST:
                return next((instance.reason for instance in self.instances.values() if instance.reason), _REMOVED)
            case ResourceState.LISTED if (serving := self.serving) is not None and serving.source == SOURCE:
                return None if serving.listed.devices else f"no node matches {serving.plugin.endpoint}"
            case _:
                return None


class Resources:
    """All resources of a node, owned by the devices actor."""

    def __init__(
        self, before: Iterable[KnownResource] = (), *, now: float = 0.0, max_resources: int = MAX_RESOURCES
    ) -> None:
        """Begin with the resources that were known before a restart, and wait for them for :data:`GRACE` seconds."""
        self._resources: dict[str, Resource] = {}
        self._names: dict[Key, str] = {}
        #: The stored capacity of each resource; None if it was stored before the restart.
        self._remembered: dict[str, int | None] = {}
        #: When resources go that no plugin keeps up to date.
        self._ends: dict[str, float] = {}
        self._max = max_resources
        self._effects: list[Effect] = []
        self.expect(before, now)

    # --- to inspect ---

    @property
    def next_end(self) -> float:
        """When :meth:`pass_time` has something to do; infinity if never."""
        return min(self._ends.values(), default=math.inf)

    @property
    def instances(self) -> frozenset[Key]:
        """All plugins."""
        return frozenset(self._names)

    def status(self, name: str) -> ResourceStatus | None:
        """Return one resource, or None if it is not known."""
        resource = self._resources.get(name)
        return None if resource is None else resource.status()

    def healthy(self, name: str) -> int:
        """Return how many healthy devices a resource has; an unknown one has none."""
        resource = self._resources.get(name)
        serving = None if resource is None else resource.serving
        return serving.listed.healthy if serving is not None and serving.live else 0

    @property
    def names(self) -> frozenset[str]:
        """The names of all resources."""
        return frozenset(self._resources)

    def resource(self, name: str) -> Resource | None:
        """Return one resource, which must not be changed; None if it is not known."""
        return self._resources.get(name)

    def shown(self) -> Iterator[ResourceStatus]:
        """Yield all resources, ordered by name. Those that are gone have plugins that send no list."""
        for name in sorted(self._resources):
            yield self._resources[name].status()

    def counts(self) -> Mapping[str, tuple[int, int]]:
        """Return how many devices of each resource are healthy, and how many are not."""
        counts = {}
        for name, resource in self._resources.items():
            serving = resource.serving
            if serving is not None:
                healthy = serving.listed.healthy if serving.live else 0
                counts[name] = healthy, len(serving.listed) - healthy
            elif resource.state is not ResourceState.GONE:
                counts[name] = 0, 0
        return counts

    # --- to drive ---

    def handle(self, message: InstanceMessage, now: float) -> list[Effect]:
        """Apply one message of a follower; return the effects in order. ``now`` is ``trio.current_time()``."""
        self._effects = []
        match message:
            case InstanceAdded():
                self._add(message)
            case ListReceived():
                self._list(message)
            case ListLost():
                self._lose(message)
            case InstanceRole():
                self._decide(message, now)
            case InstanceRemoved():
                self._remove((message.socket, message.generation), message.time)
            case _:
                assert_never(message)
        return self._effects

    def keep_only(self, present: Iterable[Key], now: float) -> list[Effect]:
        """Remove all plugins but ``present`` ones, because messages may be lost in a crash."""
        self._effects = []
        for key in self._names.keys() - set(present):
            self._remove(key, now)
        return self._effects

    def expect(self, before: Iterable[KnownResource], now: float) -> list[Effect]:
        """Wait from ``now`` on for the resources of ``before`` the restart that do not exist."""
        self._effects = []
        for resource in before:
            if resource.name not in self._resources and len(self._resources) < self._max:
                self._remembered[resource.name] = None
                end = self._ends[resource.name] = now + GRACE
                self._resources[resource.name] = Resource(
                    resource.name, now, ResourceState.AWAITED, until=end, last_capacity=resource.capacity
                )
                self._effects.append(Changed(resource.name))
        return self._effects

    def pass_time(self, now: float) -> list[Effect]:
        """Drop the resources whose grace is over; return the effects in order."""
        self._effects = []
        for name in [name for name, end in self._ends.items() if end <= now]:
            self._let_go(self._resources[name], NO_PLUGIN, now)
        return self._effects

    # --- the messages ---

    def _add(self, message: InstanceAdded) -> None:
        plugin = message.plugin
        key = plugin.socket, plugin.generation
        if key in self._names:
            return
        resource = self._resources.get(plugin.name) or self._new_resource(message)
        if resource is None:
            return
        if len(resource.instances) >= MAX_INSTANCES:
            reason = f"{MAX_INSTANCES} device plugins have registered for {plugin.name} already"
            self._effects.append(Refused(plugin.name, plugin.socket, reason))
            return
        self._names[key] = plugin.name
        followed = resource.instances[key] = Followed(plugin, message.options, message.source, message.calls)
        if followed.warning is not None:
            self._effects.append(OptionsDiffer(plugin.name, plugin.socket, followed.warning))
        self._update(resource, message.time)

    def _new_resource(self, message: InstanceAdded) -> Resource | None:
        name = message.plugin.name
        if len(self._resources) >= self._max:
            without = [resource for resource in self._resources.values() if not resource.instances]
            if not without:
                reason = f"{self._max} resources have device plugins already"
                self._effects.append(Refused(name, message.plugin.socket, reason))
                return None
            oldest = min(without, key=lambda resource: resource.until)
            self._let_go(oldest, f"another resource has taken its place, since there may be {self._max}", message.time)
        resource = self._resources[name] = Resource(name, message.time)
        return resource

    def _list(self, message: ListReceived) -> None:
        found = self._find(message.socket, message.generation)
        if found is None:
            return
        resource, followed = found
        news, turned = followed.take(message.devices, message.time)
        if turned and followed is resource.serving:
            self._effects.append(DevicesTurned(resource.name, message.socket, turned))
        self._update(resource, message.time, news=news)

    def _lose(self, message: ListLost) -> None:
        found = self._find(message.socket, message.generation)
        if found is None:
            return
        resource, followed = found
        if followed.lose(message.reason, message.time):
            self._effects.append(StreamEnded(resource.name, message.socket, message.reason))
        self._update(resource, message.time)

    def _decide(self, message: InstanceRole, now: float) -> None:
        found = self._find(message.socket, message.generation)
        if found is None:
            return
        resource, followed = found
        if followed.active is message.active:
            return
        resource.decisions += 1
        followed.active, followed.decided = message.active, resource.decisions
        self._update(resource, now)

    def _remove(self, key: Key, time: float) -> None:
        found = self._find(*key)
        if found is None:
            return
        resource, followed = found
        del self._names[key], resource.instances[key]
        followed.removed, followed.active = True, False
        followed.lose(_NOT_CONFIGURED if followed.source == SOURCE else _REMOVED, time)
        if resource.state is ResourceState.GONE and not resource.instances:
            del self._resources[resource.name]
        else:
            self._update(resource, time)

    def _find(self, socket: str, generation: int) -> tuple[Resource, Followed] | None:
        name = self._names.get((socket, generation))
        if name is None:
            return None
        resource = self._resources[name]
        return resource, resource.instances[socket, generation]

    def _update(self, resource: Resource, now: float, *, news: bool = True) -> None:
        """Choose the list that counts, and enter the state that follows."""
        before = resource.serving if resource.state is ResourceState.LISTED else None
        chosen, shown = resource.choose(), resource.serving
        # A resource that is gone comes back only with an up-to-date list.
        if chosen is not None and (chosen.live or resource.state is not ResourceState.GONE):
            resource.serving = chosen
        state = resource.judge()
        if state is not resource.state:
            self._enter(resource, state, now)
        if state is ResourceState.LISTED and resource.serving is not None:
            self._remember(resource.name, resource.serving.listed)
            if resource.serving is not before:
                self._serve(resource, resource.serving, shown)
        if news and state is not ResourceState.GONE:
            self._effects.append(Changed(resource.name))

    def _serve(self, resource: Resource, serving: Followed, before: Followed | None) -> None:
        """Report that the list of ``serving`` counts from now on, and which devices only the list ``before`` had."""
        name, socket, listed = resource.name, serving.plugin.socket, serving.listed
        had, resource.last_capacity = resource.last_capacity, None
        fewer = had if had is not None and had > len(listed) else None
        self._effects.append(Serves(name, socket, len(listed), listed.healthy, fewer))
        removed = () if before is None else listed.compared(before.listed).removed
        if removed:
            self._effects.append(DevicesTurned(name, socket, Turned(removed=removed)))

    def _enter(self, resource: Resource, state: ResourceState, now: float) -> None:
        resource.state, resource.since = state, now
        self._ends.pop(resource.name, None)
        resource.until = math.inf
        if state is ResourceState.LOST:
            self._ends[resource.name] = resource.until = now + GRACE

    def _remember(self, name: str, listed: DeviceList) -> None:
        if self._remembered.get(name) != len(listed):
            self._remembered[name] = len(listed)
            self._effects.append(Remember(name, len(listed)))

    def _let_go(self, resource: Resource, reason: str, now: float) -> None:
        name = resource.name
        if resource.instances:
            self._enter(resource, ResourceState.GONE, now)
            resource.serving = None
        else:
            del self._resources[name]
            self._ends.pop(name, None)
        self._effects.append(Gone(name, reason))
        if name in self._remembered:
            del self._remembered[name]
            self._effects.append(Forget(name))

"""Resources: lists, roles, losses and time become capacity and allocatable.

Names such as ``TestUpdateCapacityAllocatable`` are those of the kubelet's tests that assert the same: the file
``manager_test.go`` of its device manager, and the node tests in ``device_plugin_failures_test.go``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import pytest

from plugind.protocol.devices import resources as r
from plugind.protocol.devices.followed import Turned
from plugind.protocol.devices.messages import InstanceAdded, InstanceRemoved, InstanceRole, ListLost, ListReceived
from plugind.protocol.plugins.devices import (
    HEALTHY,
    UNHEALTHY,
    Device,
    DeviceList,
    DeviceOptions,
    DeviceStatus,
    KnownResource,
    ResourceState,
    ResourceStatus,
)
from plugind.protocol.plugins.info import DEVICE, Plugin

GPU = "vendor.com/gpu"
SICK = "Sick"


def devices(*healths: str) -> DeviceList:
    return DeviceList(Device(f"d{number}", health) for number, health in enumerate(healths))


@attrs.define
class Script:
    """Drives resources by short sentences, at a time of its own."""

    resources: r.Resources = attrs.field(factory=r.Resources)
    now: float = 0.0
    effects: list[r.Effect] = attrs.field(factory=list)

    def add(self, socket: str, name: str = GPU, *, privileged: bool = True) -> None:
        plugin = Plugin(DEVICE, name, socket, ("v1beta1",), socket, 1, privileged=privileged)
        message = InstanceAdded(plugin, DeviceOptions(), f"socket {socket}", self.now)
        self.effects += self.resources.handle(message, self.now)

    def list(self, socket: str, *healths: str) -> None:
        self.give(socket, devices(*healths))

    def give(self, socket: str, listed: DeviceList) -> None:
        self.effects += self.resources.handle(ListReceived(socket, 1, listed, self.now), self.now)

    def lose(self, socket: str, reason: str = "the stream ended") -> None:
        self.effects += self.resources.handle(ListLost(socket, 1, reason, self.now), self.now)

    def role(self, socket: str, *, active: bool) -> None:
        self.effects += self.resources.handle(InstanceRole(socket, 1, active), self.now)

    def remove(self, socket: str) -> None:
        self.effects += self.resources.handle(InstanceRemoved(socket, 1, self.now), self.now)

    def wait(self, seconds: float) -> None:
        """Let time pass as the actor does: it wakes at each end that is due."""
        until = self.now + seconds
        while (end := self.resources.next_end) <= until:
            self.now = end
            self.effects += self.resources.pass_time(end)
        self.now = until

    def register(self, socket: str, *healths: str, name: str = GPU) -> None:
        """A plugin registers, is made active, and lists its devices."""
        self.add(socket, name)
        self.role(socket, active=True)
        self.list(socket, *healths)

    def succeed(self, old: str, new: str, *healths: str) -> None:
        """A newer plugin of the name takes over, in the order in which the node reports it."""
        self.add(new)
        self.list(new, *healths)
        self.role(old, active=False)
        self.role(new, active=True)

    def shown(self, name: str = GPU) -> ResourceStatus:
        status = self.resources.status(name)
        assert status is not None
        return status

    def healthy(self) -> Sequence[str]:
        return [device.id for device in self.shown().devices() if device.healthy]

    def counts(self, name: str = GPU) -> tuple[int, int]:
        """Return capacity and allocatable; nothing of a resource that is not known."""
        status = self.resources.status(name)
        return (0, 0) if status is None else (status.capacity, status.allocatable)


@pytest.fixture
def script() -> Script:
    return Script()


def test_each_resource_has_the_devices_of_its_own_plugins(script: Script) -> None:
    """TestGetAllocatableDevicesMultipleResources: sets by resource; an id may be in several of them."""
    script.register("/a", HEALTHY, SICK, name="v.com/a")
    script.register("/b", HEALTHY, HEALTHY, HEALTHY, name="v.com/b")
    script.lose("/a")
    assert (script.counts("v.com/a"), script.counts("v.com/b")) == ((2, 0), (3, 3))
    assert script.resources.counts() == {"v.com/a": (0, 2), "v.com/b": (3, 0)}


def test_each_list_replaces_the_one_before(script: Script) -> None:
    """TestUpdateCapacityAllocatable: 3/2, 2/2, 3/1, 2/0, one list after the other."""
    script.register("/a", HEALTHY, HEALTHY, UNHEALTHY)
    seen = [script.counts()]
    for healths in ((HEALTHY, HEALTHY), (HEALTHY, UNHEALTHY, UNHEALTHY), (UNHEALTHY, UNHEALTHY)):
        script.list("/a", *healths)
        seen.append(script.counts())
    assert seen == [(3, 2), (2, 2), (3, 1), (2, 0)]


def test_a_stopped_plugin_has_unhealthy_devices_until_its_resource_goes(script: Script) -> None:
    """TestUpdateCapacityAllocatable and the node test: n/0 at once, after the grace of 5 minutes 0/0."""
    script.register("/a", HEALTHY, HEALTHY, UNHEALTHY)
    script.wait(10.0)
    script.lose("/a", "the plugin ended the stream")
    assert script.counts() == (3, 0)
    assert (script.shown().state, script.shown().reason) == (ResourceState.LOST, "the plugin ended the stream")
    assert script.shown().until == 310.0
    script.wait(math.nextafter(300.0, 0.0))
    assert script.counts() == (3, 0)
    script.effects.clear()
    script.wait(0.001)
    assert script.counts() == (0, 0)
    assert script.effects == [r.Gone(GPU, "no plugin for 5m"), r.Forget(GPU)]


def test_a_stream_that_comes_back_within_the_grace_restores_the_resource(script: Script) -> None:
    """The node test of a plugin that restarts: its devices are healthy again with its next list."""
    script.register("/a", HEALTHY, UNHEALTHY)
    script.lose("/a")
    script.wait(299.0)
    script.list("/a", HEALTHY, UNHEALTHY)
    assert script.counts() == (2, 1)
    assert script.shown().state is ResourceState.LISTED
    script.wait(1000.0)
    assert script.counts() == (2, 1)


def test_a_resource_that_went_comes_back_with_a_list(script: Script) -> None:
    """Its plugin may still be registered, and lists again after the grace."""
    script.register("/a", HEALTHY)
    script.lose("/a")
    script.wait(400.0)
    assert script.shown().state is ResourceState.GONE
    script.effects.clear()
    script.lose("/a", "the endpoint refuses connections")
    assert (script.shown().state, script.effects) == (ResourceState.GONE, []), "that it is gone is told once"
    script.list("/a", HEALTHY, HEALTHY)
    assert script.counts() == (2, 2)
    assert script.effects == [r.Remember(GPU, 2), r.Serves(GPU, "/a", 2, 2), r.Changed(GPU)]


def test_a_resource_without_a_list_is_known_with_no_devices(script: Script) -> None:
    """The node test of ListAndWatch that fails at once: 0/0."""
    script.add("/a")
    assert (script.counts(), script.shown().state) == ((0, 0), ResourceState.STARTING)
    script.lose("/a", "no device list after 10s")
    assert (script.shown().state, script.shown().reason) == (ResourceState.LOST, "no device list after 10s")
    script.wait(300.0)
    assert script.shown().state is ResourceState.GONE


def test_the_grace_begins_with_the_first_loss_and_not_with_each_try(script: Script) -> None:
    """A plugin that is tried again each 30 s and fails each time is not kept for ever."""
    script.register("/a", HEALTHY)
    script.lose("/a", "the stream ended")
    for _ in range(9):
        script.wait(30.0)
        script.lose("/a", "the endpoint refuses connections")
    assert script.shown().reason == "the endpoint refuses connections"
    assert sum(isinstance(effect, r.StreamEnded) for effect in script.effects) == 1
    script.wait(30.0)
    assert script.shown().state is ResourceState.GONE


# --- replacement ------------------------------------------------------------------------------------------------------


def test_a_newer_plugin_of_the_resource_replaces_the_devices(script: Script) -> None:
    """TestDevicePluginReRegistration: 2 devices; a newer plugin with the same: still 2; a third with 1 device: 1."""
    script.register("/a", HEALTHY, HEALTHY)
    seen = [script.counts()]
    script.succeed("/a", "/b", HEALTHY, HEALTHY)
    seen.append(script.counts())
    script.succeed("/b", "/c", HEALTHY)
    seen.append(script.counts())
    assert seen == [(2, 2), (2, 2), (1, 1)]
    assert [device.id for device in script.shown().devices()] == ["d0"]


def test_the_old_plugin_serves_until_the_new_one_has_sent_a_list(script: Script) -> None:
    """In a surge the capacity never falls, although the new plugin registered long before its first list."""
    script.register("/a", *[HEALTHY] * 4)
    script.add("/b")
    script.role("/a", active=False)
    script.role("/b", active=True)
    assert script.counts() == (4, 4)
    assert script.shown().socket == "/a"
    script.list("/b", *[HEALTHY] * 4)
    assert script.counts() == (4, 4)
    assert script.shown().socket == "/b"


def test_the_older_plugin_serves_again_when_the_newer_one_has_left(script: Script) -> None:
    """Also before the world has said so: there is no moment without devices."""
    script.register("/a", HEALTHY, HEALTHY)
    script.succeed("/a", "/b", HEALTHY, HEALTHY)
    script.remove("/b")
    assert script.counts() == (2, 2)
    script.role("/a", active=True)
    assert (script.counts(), script.shown().socket) == ((2, 2), "/a")


def test_of_two_that_could_follow_the_privileged_one_does(script: Script) -> None:
    """A plugin of another user takes no name from one of root's, not even for a moment (fault 80)."""
    script.register("/a", HEALTHY, HEALTHY)
    script.add("/theirs", privileged=False)
    script.list("/theirs", HEALTHY)
    script.add("/ours")
    script.list("/ours", HEALTHY, HEALTHY)
    script.remove("/a")
    assert script.shown().socket == "/ours"


def test_the_devices_of_a_plugin_that_left_stay_known_until_its_successor_lists(script: Script) -> None:
    """A plugin that restarts with a new socket: n/0 until its first list, and never fewer devices."""
    script.register("/a", HEALTHY, HEALTHY)
    script.remove("/a")
    assert script.counts() == (2, 0)
    script.add("/b")
    script.role("/b", active=True)
    assert script.counts() == (2, 0)
    assert script.shown().reason == "its plugin was deregistered"
    script.list("/b", HEALTHY, HEALTHY)
    assert script.counts() == (2, 2)


# --- since when -------------------------------------------------------------------------------------------------------


def test_each_device_shows_since_when_its_health_is_what_it_is(script: Script) -> None:
    """TestGetAllocatableDevicesHealthTransition: unhealthy ones leave, and return."""
    script.register("/a", HEALTHY, HEALTHY)
    assert script.healthy() == ["d0", "d1"]
    script.wait(5.0)
    script.list("/a", HEALTHY, SICK)
    assert script.healthy() == ["d0"]
    script.wait(5.0)
    script.list("/a", HEALTHY, SICK)
    assert list(script.shown().devices()) == [DeviceStatus("d0", HEALTHY, 0.0), DeviceStatus("d1", SICK, 5.0)]
    script.list("/a", HEALTHY, HEALTHY)
    assert script.healthy() == ["d0", "d1"]
    assert [device.since for device in script.shown().devices()] == [0.0, 10.0]
    turned = [effect.turned for effect in script.effects if isinstance(effect, r.DevicesTurned)]
    assert turned == [Turned(unhealthy=("d1",)), Turned(healthy=("d1",))]


def test_all_devices_turn_unhealthy_together_and_stay_in_step(script: Script) -> None:
    """TestEndpointSyncOnDisconnect: after a disconnect no device is healthy; later all go together."""
    script.register("/a", HEALTHY, SICK, HEALTHY)
    script.wait(7.0)
    script.lose("/a")
    assert [(device.health, device.since) for device in script.shown().devices()] == [
        (UNHEALTHY, 7.0),
        (SICK, 0.0),
        (UNHEALTHY, 7.0),
    ]
    script.wait(1.0)
    script.list("/a", HEALTHY, HEALTHY, SICK)
    assert [(device.health, device.since) for device in script.shown().devices()] == [
        (HEALTHY, 8.0),
        (HEALTHY, 8.0),
        (SICK, 7.0),
    ]
    script.lose("/a")
    script.wait(300.0)
    assert list(script.shown().devices()) == []


# --- a restart of the daemon ------------------------------------------------------------------------------------------


def test_a_known_resource_is_awaited_for_five_minutes_with_no_devices() -> None:
    """TestCheckpoint and TestUpdateCapacityAllocatable: registered resources survive, 0/0 but known."""
    script = Script(r.Resources([KnownResource(GPU, 4)], now=50.0), now=50.0)
    assert (script.counts(), script.shown().state) == ((0, 0), ResourceState.AWAITED)
    assert script.shown().last_capacity == 4
    assert script.resources.next_end == 350.0
    script.wait(300.0)
    assert script.resources.status(GPU) is None
    assert script.effects == [r.Gone(GPU, "no plugin for 5m"), r.Forget(GPU)]


def test_a_known_resource_whose_plugin_is_back_stays() -> None:
    """TestCheckpoint: it registers again, as it does after each restart."""
    script = Script(r.Resources([KnownResource(GPU, 4)]))
    script.wait(200.0)
    script.register("/a", HEALTHY)
    script.wait(200.0)
    assert (script.counts(), script.shown().state) == ((1, 1), ResourceState.LISTED)
    assert script.shown().last_capacity is None


def test_resources_that_become_known_late_are_awaited_from_then_on() -> None:
    """The store could not be read at the start. What has registered meanwhile stays as it is."""
    script = Script(r.Resources())
    script.register("/a", HEALTHY)
    effects = script.resources.expect([KnownResource(GPU, 4), KnownResource("vendor.com/nic", 2)], 50.0)
    assert effects == [r.Changed("vendor.com/nic")]
    assert [(resource.name, resource.state, resource.until) for resource in script.resources.shown()] == [
        (GPU, ResourceState.LISTED, None),
        ("vendor.com/nic", ResourceState.AWAITED, 350.0),
    ]
    assert script.resources.pass_time(350.0) == [r.Gone("vendor.com/nic", r.NO_PLUGIN), r.Forget("vendor.com/nic")]


def test_a_capacity_is_remembered_once_for_each_value(script: Script) -> None:
    """The file is not written for each list."""
    script.register("/a", HEALTHY, HEALTHY)
    for _ in range(5):
        script.list("/a", HEALTHY, UNHEALTHY)
    script.list("/a", HEALTHY)
    remembered = [effect for effect in script.effects if isinstance(effect, r.Remember)]
    assert remembered == [r.Remember(GPU, 2), r.Remember(GPU, 1)]


def test_a_crash_of_the_actor_loses_nothing_when_all_plugins_say_again_what_they_said(script: Script) -> None:
    """The same resources take the present messages again; what left meanwhile is removed."""
    script.register("/a", HEALTHY, SICK)
    script.register("/b", HEALTHY, name="vendor.com/nic")
    before = script.shown()
    script.wait(9.0)
    script.effects += script.resources.keep_only([("/a", 1)], script.now)
    script.add("/a")
    script.role("/a", active=True)
    script.list("/a", HEALTHY, SICK)
    after = script.shown()
    assert (list(after.devices()), after.since, after.state) == (list(before.devices()), before.since, before.state)
    assert script.shown("vendor.com/nic").state is ResourceState.LOST


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_one_resource_too_many_is_refused_and_one_without_a_plugin_makes_room() -> None:
    """There are at most so many resources, whatever registers (fault 92)."""
    script = Script(r.Resources(max_resources=2))
    script.register("/a", HEALTHY, name="v.com/a")
    script.register("/b", HEALTHY, name="v.com/b")
    script.register("/c", HEALTHY, name="v.com/c")
    assert r.Refused("v.com/c", "/c", "2 resources have device plugins already") in script.effects
    script.remove("/b")
    script.effects.clear()
    script.register("/d", HEALTHY, name="v.com/d")
    assert [status.name for status in script.resources.shown()] == ["v.com/a", "v.com/d"]
    assert script.effects[0] == r.Gone("v.com/b", "another resource has taken its place, since there may be 2")


def test_one_plugin_too_many_of_a_resource_is_refused(script: Script) -> None:
    """64 are taken, and the messages of another one change nothing."""
    for number in range(65):
        script.register(f"/{number}", HEALTHY)
    assert len(script.shown().instances) == 64
    assert isinstance(script.effects[-1], r.Refused)


def test_messages_of_an_instance_that_is_not_known_are_dropped(script: Script) -> None:
    """They come after its removal, or it was refused."""
    script.list("/a", HEALTHY)
    script.lose("/a")
    script.role("/a", active=True)
    script.remove("/a")
    assert script.effects == []


# --- lists ------------------------------------------------------------------------------------------------------------


def test_a_list_made_from_another_is_the_list_made_anew() -> None:
    """And says in what it differs, as a comparison of the two does."""
    before = devices(HEALTHY, HEALTHY, UNHEALTHY)
    changed = [Device("d1", UNHEALTHY), Device("d2"), Device("new", SICK)]
    after = before.replacing(changed)
    assert after == DeviceList([Device("d0"), *changed])
    assert after.healthy == DeviceList([Device("d0"), *changed]).healthy
    assert after.compared(before) == DeviceList(after.devices.values()).compared(before)
    assert after.compared(devices(HEALTHY)).removed == ()
    assert devices(HEALTHY).compared(before).removed == ("d1", "d2")


def test_a_list_that_was_skipped_is_not_missed(script: Script) -> None:
    """The inbox keeps only the newest waiting list, which was made from one that the resources have not seen."""
    first = devices(HEALTHY, HEALTHY)
    skipped = first.replacing([Device("d0", SICK)])
    script.register("/a")
    script.give("/a", first)
    script.wait(1.0)
    script.give("/a", skipped.replacing([Device("d1", SICK)]))
    assert [(device.health, device.since) for device in script.shown().devices()] == [(SICK, 1.0), (SICK, 1.0)]


class _Counted(dict[str, Device]):
    """Counts how many devices are looked at one by one."""

    looks = 0

    def get(self, key: str, default: object = None) -> Device | None:  # type: ignore[override]
        type(self).looks += 1
        return super().get(key)


def test_a_list_is_applied_in_time_proportional_to_what_is_different(script: Script) -> None:
    """One device of 1,000 has changed: only that one is looked at."""
    first = devices(*[HEALTHY] * 1000)
    first.devices = _Counted(first.devices)
    script.register("/a")
    script.give("/a", first)
    _Counted.looks = 0
    script.give("/a", first.replacing([Device("d7", SICK)]))
    assert script.counts() == (1000, 999)
    assert _Counted.looks == 1

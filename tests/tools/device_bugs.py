"""Bugs in what is shown of devices, put in on purpose; see ``plugind.tests.tools.planted_bugs``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import trio

from plugind.actors.devices import actor as devices_actor
from plugind.actors.devices.inbox import DevicesInbox
from plugind.actors.devices.state import Writer
from plugind.protocol import devices, resources
from plugind.protocol.device_messages import ListLost
from plugind.protocol.devices import DeviceStatus, ResourceState, ResourceStatus
from plugind.protocol.followed import Followed
from plugind.protocol.logs import Logger


@contextmanager
def let_the_newest_plugin_serve_at_once() -> Iterator[None]:
    """A device plugin that takes over counts before it has listed a device."""

    def hasty(resource: resources._Resource) -> Followed | None:
        active = [it for it in resource.instances.values() if it.active]
        return active[-1] if active else resource.serving

    with patch.object(resources._Resource, "choose", hasty):
        yield


@contextmanager
def count_the_devices_of_all_plugins() -> Iterator[None]:
    """The capacity of a resource is the sum of what its plugins list."""

    def summed(status: ResourceStatus) -> int:
        return max(len(status.listed), sum(instance.devices for instance in status.instances))

    with patch.object(ResourceStatus, "capacity", property(summed)):
        yield


@contextmanager
def leave_lost_devices_healthy() -> Iterator[None]:
    """The devices of a plugin whose stream has ended are shown as they were."""
    with patch.object(devices, "shown", lambda device, since, _lost: DeviceStatus(device.id, device.health, since)):
        yield


@contextmanager
def begin_the_grace_again() -> Iterator[None]:
    """Each try in vain begins the grace of a resource anew."""
    lose = resources.Resources._lose

    def again(self: resources.Resources, message: ListLost) -> None:
        found = self._find(message.socket, message.generation)
        if found is not None and found[0].state is ResourceState.LOST:
            self._enter(found[0], ResourceState.LOST, message.time)
        lose(self, message)

    with patch.object(resources.Resources, "_lose", again):
        yield


@contextmanager
def forget_resources_in_a_crash() -> Iterator[None]:
    """A devices actor that is started again begins with empty resources."""
    run = devices_actor.run

    async def forgetful(inbox: DevicesInbox, writer: Writer, memory: devices_actor.Memory, log: Logger) -> None:
        memory.resources = resources.Resources(now=trio.current_time())
        await run(inbox, writer, memory, log)

    with patch.object(devices_actor, "run", forgetful):
        yield


@contextmanager
def tell_nothing_after_a_crash() -> Iterator[None]:
    """What a devices actor had taken and not told its readers when it crashed is never told."""
    run = devices_actor.run

    async def silent(inbox: DevicesInbox, writer: Writer, memory: devices_actor.Memory, log: Logger) -> None:
        memory.changed.clear()
        await run(inbox, writer, memory, log)

    with patch.object(devices_actor, "run", silent):
        yield

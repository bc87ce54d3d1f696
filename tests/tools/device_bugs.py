"""Bugs in what is shown of devices, put in on purpose; see ``plugind.tests.tools.planted_bugs``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import trio

from plugind.actors.devices import actor as devices_actor
from plugind.actors.devices.inbox import DevicesInbox
from plugind.actors.devices.state import ResourceWriter
from plugind.protocol.devices import resources
from plugind.protocol.devices.followed import Followed
from plugind.protocol.logs.lines import Logger
from plugind.protocol.plugins import devices
from plugind.protocol.plugins.devices import DeviceStatus, ResourceStatus


@contextmanager
def let_the_newest_plugin_serve_at_once() -> Iterator[None]:
    """A device plugin that takes over counts before it has listed a device."""

    def hasty(resource: resources.Resource) -> Followed | None:
        active = [instance for instance in resource.instances.values() if instance.active]
        return active[-1] if active else resource.serving

    with patch.object(resources.Resource, "choose", hasty):
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
def let_no_resource_go() -> Iterator[None]:
    """The devices actor does not wake when a grace is over."""
    with patch.object(resources.Resources, "next_end", property(lambda _: math.inf)):
        yield


@contextmanager
def forget_resources_in_a_crash() -> Iterator[None]:
    """A devices actor that is started again begins with empty resources."""
    run = devices_actor.run

    async def forgetful(
        inbox: DevicesInbox, writer: ResourceWriter, memory: devices_actor.DevicesMemory, log: Logger
    ) -> None:
        memory.resources = resources.Resources(now=trio.current_time())
        await run(inbox, writer, memory, log)

    with patch.object(devices_actor, "run", forgetful):
        yield


@contextmanager
def tell_nothing_after_a_crash() -> Iterator[None]:
    """What a devices actor had taken and not told its readers when it crashed is never told."""
    run = devices_actor.run

    async def silent(
        inbox: DevicesInbox, writer: ResourceWriter, memory: devices_actor.DevicesMemory, log: Logger
    ) -> None:
        memory.changed.clear()
        await run(inbox, writer, memory, log)

    with patch.object(devices_actor, "run", silent):
        yield

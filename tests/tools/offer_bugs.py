"""Bugs in how device plugins are consumed, put in on purpose; see ``plugind.tests.tools.planted_bugs``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import trio

from plugind.actors.devices import follower as device_follower
from plugind.actors.devices import server as device_server
from plugind.actors.devices.follower import DeviceFollower
from plugind.protocol.devices.lists import DeviceListReader, ReadList
from plugind.protocol.devices.messages import InstanceMessage, InstanceRemoved, ListLost
from plugind.protocol.messages.addresses import Address
from plugind.protocol.messages.discovery import ScanCompleted, SocketAppeared, SocketVanished
from plugind.protocol.messages.reconciler import ReconcilerMessage
from plugind.protocol.plugins.devices import DeviceList
from plugind.protocol.plugins.info import Plugin
from plugind.protocol.world.effects import Effect
from plugind.protocol.world.worlds import World
from plugind.tests.fuzz.offers import DIRECTORY, FOUND


def _say_after_a_crash(words: Callable[[Plugin], InstanceMessage]) -> AbstractContextManager[object]:
    """Tell the devices actor ``words`` when a follow has crashed."""

    class Follower(DeviceFollower):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._followed: Plugin = args[0]
            self._address: Address[InstanceMessage] = args[2]

        async def run(self) -> None:
            try:
                await super().run()
            finally:
                self._address.send_nowait(words(self._followed))

    return patch.object(device_follower, "DeviceFollower", Follower)


@contextmanager
def lose_devices_when_a_follow_crashes() -> Iterator[None]:
    """Once a follow has crashed, its devices count as lost until it runs again."""
    with _say_after_a_crash(lambda plugin: ListLost(plugin.socket, plugin.generation, "planted", trio.current_time())):
        yield


@contextmanager
def remove_devices_when_a_follow_crashes() -> Iterator[None]:
    """Once a follow has crashed, its plugin counts as deregistered."""
    with _say_after_a_crash(lambda plugin: InstanceRemoved(plugin.socket, plugin.generation, trio.current_time())):
        yield


@contextmanager
def let_go_of_all_when_another_process_serves() -> Iterator[None]:
    """When a server yields, the device plugins that were found by their sockets are let go as well."""
    handle, found = World.handle, dict[str, int]()

    def let_go(self: World, message: ReconcilerMessage, now: float) -> list[Effect]:
        if isinstance(message, SocketAppeared) and message.path.startswith(FOUND):
            found[message.path] = message.generation
        effects = handle(self, message, now)
        if isinstance(message, ScanCompleted) and message.root == DIRECTORY:
            for path, generation in found.items():
                effects += handle(self, SocketVanished(path, generation), now)
        return effects

    with patch.object(World, "handle", let_go):
        yield


@contextmanager
def make_no_socket_anew() -> Iterator[None]:
    """A ``kubelet.sock`` that was removed is not made again."""
    with patch.object(device_server, "REMAKE", math.inf):
        yield


@contextmanager
def keep_devices_that_are_listed_no_more() -> Iterator[None]:
    """A device that a plugin once had is shown for as long as the plugin is followed."""
    steps = DeviceListReader.steps

    def keep(self: DeviceListReader, message: bytes) -> Iterator[None]:
        before = self.newest.devices.devices
        yield from steps(self, message)
        found = self.newest
        kept = [device for name, device in before.items() if name not in found.devices.devices]
        self.newest = ReadList(DeviceList([*found.devices.devices.values(), *kept]), found.warning)

    with patch.object(DeviceListReader, "steps", keep):
        yield

"""Bugs of DRA drivers, put in on purpose; see ``plugind.tests.tools.planted_bugs``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

from plugind.actors.grpc.client.channel import Channel
from plugind.actors.handlers.dra import calls as dra_calls
from plugind.actors.handlers.dra import driver as dra_driver
from plugind.actors.handlers.dra.driver import DRAFollower
from plugind.actors.handlers.dra.handler import DRAHandler
from plugind.actors.handlers.link import Link
from plugind.actors.handlers.open_link import OpenLink
from plugind.protocol.backoff import Backoff
from plugind.protocol.errors import NoConnectionError
from plugind.protocol.handlers.dra import DriverGone, Drivers
from plugind.protocol.plugins.info import Plugin


@contextmanager
def use_the_newest_whether_connected_or_not() -> Iterator[None]:
    """The newest instance is used, though it is not connected and an older one is."""
    role = OpenLink.role

    def pretend(self: OpenLink, *, usable: bool) -> None:
        role(self, usable=usable or self.plugin.type == "DRAPlugin")

    with patch.object(OpenLink, "role", pretend):
        yield


@contextmanager
def call_an_instance_that_is_not_used() -> Iterator[None]:
    """Claims are prepared by the oldest instance that can be connected to."""
    begin, connect = DRAFollower.__init__, DRAFollower.connect
    followers: dict[str, list[DRAFollower]] = {}

    def keep(self: DRAFollower, plugin: Plugin, *more: Any) -> None:
        begin(self, plugin, *more)
        followers.setdefault(plugin.name, []).append(self)

    async def oldest(self: DRAFollower) -> Channel:
        for other in followers[self.plugin.name]:
            with suppress(NoConnectionError):
                return await connect(other)
        return await connect(self)

    with patch.object(DRAFollower, "__init__", keep), patch.object(DRAFollower, "connect", oldest):
        yield


@contextmanager
def never_say_that_a_driver_is_gone() -> Iterator[None]:
    """Nobody is told that a driver is gone."""

    def nothing(self: Drivers, now: float) -> list[DriverGone]:
        take(self, now)
        return []

    take = Drivers.take_gone
    with patch.object(Drivers, "take_gone", nothing):
        yield


@contextmanager
def forget_that_a_driver_was_lost() -> Iterator[None]:
    """An instance that registers begins the 30 s anew."""
    add = Drivers.add

    def anew(self: Drivers, plugin: Plugin, now: float) -> None:
        add(self, plugin, now)
        self.connected(plugin, now)
        self.disconnected(plugin, now)

    with patch.object(Drivers, "add", anew):
        yield


@contextmanager
def connect_only_once() -> Iterator[None]:
    """An endpoint that does not listen when its driver registers, or not any more, is not connected to again."""
    with patch.object(dra_driver, "RETRIES", Backoff(initial=1e6, cap=1e6, jitter=0.0)):
        yield


@contextmanager
def wait_for_the_endpoint_in_register() -> Iterator[None]:
    """A driver is registered only once its endpoint listens."""
    register = DRAHandler.register

    async def wait(self: DRAHandler, plugin: Plugin, link: Link) -> None:
        await link.connect(timeout=40.0)
        await register(self, plugin, link)

    with patch.object(DRAHandler, "register", wait):
        yield


@contextmanager
def count_an_instance_that_was_lost() -> Iterator[None]:
    """A driver counts as usable by instances whose connection has ended, as long as another one is connected."""
    note = Drivers.disconnected

    def keep(self: Drivers, plugin: Plugin, now: float) -> None:
        if self.usable_by(plugin.name) < 2:
            note(self, plugin, now)

    with patch.object(Drivers, "disconnected", keep):
        yield


@contextmanager
def let_a_call_hang() -> Iterator[None]:
    """A call to a driver has no deadline."""
    with patch.object(dra_calls, "CALL_TIMEOUT", 1e6):
        yield

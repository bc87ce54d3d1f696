"""Bugs of links, to be found by simulation; ``plugind.tests.tools.planted_bugs`` lists the events that find them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import trio

from plugind.actors.handlers.calls import HandlerCalls
from plugind.actors.handlers.link import Link
from plugind.actors.handlers.links import Links
from plugind.protocol.messages.discovery import SocketVanished
from plugind.protocol.messages.reconciler import PluginGone, ReconcilerMessage
from plugind.protocol.messages.status import LinkMessage
from plugind.protocol.plugins.health import HealthReports, Report
from plugind.protocol.plugins.info import Plugin
from plugind.protocol.world.effects import Effect
from plugind.protocol.world.worlds import World


@contextmanager
def keep_links_of_what_is_deregistered() -> Iterator[None]:
    """A link does not end before Deregister, or at all."""

    async def end(self: Links, plugin: Plugin) -> None:
        await trio.lowlevel.checkpoint()

    with patch.object(Links, "end", end):
        yield


@contextmanager
def deregister_what_cannot_be_followed() -> Iterator[None]:
    """A plugin whose follow fails is deregistered."""
    follow = HandlerCalls.follow

    async def give_up(self: HandlerCalls, plugin: Plugin, link: Link) -> str | None:
        error = await follow(self, plugin, link)
        if error is not None:
            link.gone(error)
        return error

    handle = World.handle

    def let_go(self: World, message: ReconcilerMessage, now: float) -> list[Effect]:
        vanished = isinstance(message, PluginGone) and SocketVanished(message.path, message.generation)
        return handle(self, vanished or message, now)

    with patch.object(HandlerCalls, "follow", give_up), patch.object(World, "handle", let_go):
        yield


@contextmanager
def follow_no_more_after_an_error() -> Iterator[None]:
    """A follow that fails is not started again."""
    follow = HandlerCalls.follow

    async def once(self: HandlerCalls, plugin: Plugin, link: Link) -> str | None:
        if await follow(self, plugin, link) is not None:
            await trio.sleep_forever()
        return None

    with patch.object(HandlerCalls, "follow", once):
        yield


@contextmanager
def lose_delayed_reports() -> Iterator[None]:
    """A report that comes too soon after the one before is not sent later."""
    put = HealthReports.put

    def dropping(self: HealthReports, report: Report) -> None:
        before = self.newest
        put(self, report)
        if 0 < self.due - trio.current_time() < 2:
            put(self, before)

    with patch.object(HealthReports, "put", dropping):
        yield


@contextmanager
def tell_links_no_role() -> Iterator[None]:
    """The role that the world decides does not reach the link."""

    def ignore(self: Links, message: LinkMessage, /) -> None:
        pass

    with patch.object(Links, "send_nowait", ignore):
        yield

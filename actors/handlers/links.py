"""The links of all handlers: their follows, their channels, and the reports through them.

:class:`Links` is a child of the supervisor, so a crash of a registration or of the node ends no link. Reports go up as
messages: health to the status actor, roles and farewells to the reconciler. Reports that come faster than they can be
sent are joined, so at most one of each kind waits for each link. The world's decisions about the role of an instance
come down as ``RoleChanged`` and ``PluginDisplaced``.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Set
from typing import Protocol, assert_never

import attrs
import trio

from ...protocol.backoff import Backoff, chance_of
from ...protocol.devices.messages import InstanceMessage
from ...protocol.errors import NoConnectionError
from ...protocol.identity import Identity
from ...protocol.logs.lines import SILENT, Level, Logger
from ...protocol.messages.addresses import Address, Nobody
from ...protocol.messages.config import PausesChanged
from ...protocol.messages.reconciler import PluginGone, ReconcilerMessage, UsableChanged
from ...protocol.messages.status import (
    FollowEnded,
    HealthReported,
    LinkMessage,
    PluginDisplaced,
    RoleChanged,
    StatusMessage,
)
from ...protocol.plugins.health import Health
from ...protocol.plugins.info import Plugin
from ...protocol.values import value
from ..grpc.client.channel import Channel
from ..grpc.endpoints import EndpointRefusedError
from ..health.endpoint_checks import EndpointChecks
from ..messaging.mailbox import report
from .link import Follow, Link
from .open_link import OpenLink, Outbox, no_connection


class Loser(Protocol):
    """Is notified when a channel has ended."""

    def lose(self, channel: Channel) -> None:
        """Close a channel that has ended."""


class Readers:
    """The tasks that read the channels of all links, so that keep-alive is answered and the end of a channel is
    noticed.

    A task that waits for something on a channel also reads it. Many channels are in use from the start, so a channel
    gets its own task only when no other task has waited on it for a moment. A task that starts only to find that others
    read would cost more than a call.
    """

    def __init__(self) -> None:
        #: The channels on which no task waited when they were last looked at.
        self._idle: dict[Channel, Loser] = {}
        self._wake = trio.Event()

    def attend(self, channel: Channel, link: Loser) -> None:
        """Read a channel from now on whenever no other task waits on it; notify ``link`` of its end."""
        channel.on_idle = lambda: self._note(channel, link)
        self._note(channel, link)

    def _note(self, channel: Channel, link: Loser) -> None:
        self._idle[channel] = link
        self._wake.set()

    async def serve(self) -> None:
        """Start the tasks, forever."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._wake.wait()
                self._wake = trio.Event()
                idle, self._idle = self._idle, {}
                # Another task may start to use the channel in the next passes. After Register that is the task of
                # follow, which begins in the next pass, and can be scheduled after this task there.
                await trio.lowlevel.checkpoint()
                await trio.lowlevel.checkpoint()
                for channel, link in idle.items():
                    if channel.needs_reader and channel not in self._idle:
                        nursery.start_soon(_read, channel, link)


async def _read(channel: Channel, link: Loser) -> None:
    try:
        await channel.wait_closed()
    except trio.ClosedResourceError:
        return
    finally:
        link.lose(channel)


#: Seconds that a cancelled follow has to end.
END_GRACE = 5.0
#: The pauses before a follow is started again. A follow that ran longer than the longest pause begins with the first.
RESTARTS = Backoff(initial=1.0, cap=30.0)

#: The errors of an endpoint that does not serve yet.
_NOT_YET = (FileNotFoundError, ConnectionRefusedError, BlockingIOError)

#: Connects to the endpoint of a plugin whose socket is the given file.
Connect = Callable[[Plugin, Identity | None], Channel]


@value
class LinksConfig:
    """What all links share."""

    connect: Connect
    reconciler: trio.MemorySendChannel[ReconcilerMessage]
    status: trio.MemorySendChannel[StatusMessage]
    checks: EndpointChecks
    #: The seed of the jitter of pauses.
    seed: int
    restarts: Backoff = RESTARTS
    #: The devices actor.
    devices: Address[InstanceMessage] = attrs.field(factory=Nobody)
    log: Logger = SILENT
    #: Of which resources the configuration names the devices.
    is_static: Callable[[str], bool] = lambda _: False


#: A socket and its generation.
_Key = tuple[str, int]


def _key_of(plugin: Plugin) -> _Key:
    return plugin.socket, plugin.generation


class Links:
    """All links of one supervisor."""

    def __init__(self, config: LinksConfig) -> None:
        self.config = config
        self._links: dict[_Key, OpenLink] = {}
        #: The links whose follow did not end in time.
        self._overdue: dict[OpenLink, None] = {}
        #: The nursery of all follows; None while :meth:`serve` does not run.
        self._nursery: trio.Nursery | None = None
        #: The node stops: no follow is started, and nothing is reported.
        self._stopping = False
        #: The scope of all reports. It is cancelled once all links are closed, because the inboxes are closed next.
        self._reporting = trio.CancelScope()
        self._readers = Readers()
        self.outbox = Outbox()
        self.checks, self.devices, self.is_static = config.checks, config.devices, config.is_static

    def __len__(self) -> int:
        return len(self._links)

    @property
    def instances(self) -> Set[tuple[str, int]]:
        """The socket and the generation of each instance that has a link."""
        return self._links.keys()

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Describe the follows that were cancelled and have not ended."""
        ending = {link: None for link in self._links.values() if link.scope.cancel_called and not link.ended.is_set()}
        return tuple(map(str, self._overdue | ending))

    # --- for the calls of handlers: see LinkPort ---

    def open(self, plugin: Plugin, file: Identity | None) -> Link:
        """Open the link to an instance whose socket is ``file``."""
        link = self._links[_key_of(plugin)] = OpenLink(plugin, file, self)
        self.outbox.put(link)
        return link

    def start(self, plugin: Plugin, follow: Follow) -> None:
        """Run ``follow`` until the link ends, and start it again each time it returns."""
        link = self._links[_key_of(plugin)]
        link.follow = follow
        self._start(link)

    def give_way(self, plugin: Plugin) -> None:
        """Note that another plugin of the name waits until the Register of this one has ended."""
        link = self._links.get(_key_of(plugin))
        if link is not None:
            link.wanted = True

    async def end(self, plugin: Plugin) -> None:
        """End the link to an instance, if there is one."""
        link = self._links.get(_key_of(plugin))
        if link is None:
            return
        link.scope.cancel()
        with trio.move_on_after(END_GRACE):
            await link.ended.wait()
        self._close(link)

    def drop(self, plugin: Plugin) -> None:
        """End the link to an instance at once, if there is one; cancel its follow, and do not wait for it."""
        link = self._links.pop(_key_of(plugin), None)
        if link is not None:
            link.scope.cancel()
            link.close()

    # --- for the reconciler and for callers ---

    def send_nowait(self, message: LinkMessage | PausesChanged, /) -> None:
        """Take a message about the role of an instance; ignore it if the instance has no link."""
        if isinstance(message, PausesChanged):
            self.config = attrs.evolve(self.config, restarts=message.pauses)
            return
        link = self._links.get((message.socket, message.generation))
        if link is None:
            return
        match message:
            case RoleChanged():
                link.set_active(active=message.active)
            case PluginDisplaced():
                link.set_displaced(message.reason)
            case _:
                assert_never(message)

    def refresh_facts(self, socket: str, generation: int) -> bool:
        """Have the handler of an instance refresh its facts (``plugind retry --facts``); return whether it does."""
        link = self._links.get((socket, generation))
        return link is not None and link.ask_for_facts()

    # --- for the supervisor ---

    async def serve(self) -> None:
        """Run the follows and send the reports, until cancelled. After a restart, all follows begin again."""
        try:
            async with trio.open_nursery() as self._nursery:
                for link in self._links.values():
                    link.reset()
                    self._start(link)
                self._nursery.start_soon(self.checks.serve)
                self._nursery.start_soon(self._readers.serve)
                with trio.CancelScope() as self._reporting:
                    await self._send_all()
        finally:
            self._nursery = None
            for link in self._links.values():
                link.hang_up()

    def cancel_all(self) -> None:
        """Cancel all follows and start no more, because the node stops."""
        self._stopping = True
        for link in self._links.values():
            link.scope.cancel()

    async def close_all(self) -> None:
        """Wait until the cancelled follows have ended, for a few seconds at most, and close all links."""
        with trio.move_on_after(END_GRACE):
            for link in tuple(self._links.values()):
                await link.ended.wait()
        for link in tuple(self._links.values()):
            self._close(link)
        self._reporting.cancel()

    def _close(self, link: OpenLink) -> None:
        link.close()
        self._links.pop(_key_of(link.plugin), None)
        if not link.ended.is_set():
            self._overdue[link] = None
            plugin = link.plugin
            self.config.log.event(
                Level.ERROR,
                "follow does not end",
                socket=plugin.socket,
                type=plugin.type,
                name=plugin.name,
                generation=plugin.generation,
                seconds=END_GRACE,
                advice="let the cancellation through, which a shield or an except clause keeps from it",
            )

    # --- follows ---

    def _start(self, link: OpenLink) -> None:
        if self._nursery is not None and link.follow is not None and not self._stopping:
            link.ended = trio.Event()
            self._nursery.start_soon(self._follow, link, link.follow)

    async def _follow(self, link: OpenLink, follow: Follow) -> None:
        """Run a follow again each time it returns, until the link ends."""
        count, ended = 0, link.ended
        try:
            with link.scope:
                while True:
                    began = trio.current_time()
                    error = await follow()
                    # A follow can suppress its cancellation.
                    await trio.lowlevel.checkpoint_if_cancelled()
                    lasted = trio.current_time() - began
                    count = 1 if lasted >= self.config.restarts.cap else count + 1
                    await self._pause(link, error, count)
        finally:
            ended.set()
            self._overdue.pop(link, None)

    async def _pause(self, link: OpenLink, error: str | None, count: int) -> None:
        chance = chance_of(self.config.seed, link.plugin.socket, link.plugin.generation, count)
        pause = self.config.restarts.delay(count, chance)
        if error is not None:
            link.report(Health.UNKNOWN, f"its handler failed to follow it: {error}")
        await report(self.config.status, FollowEnded(link.plugin, error, count, pause))
        await trio.sleep(pause)

    # --- channels ---

    def dial(self, link: OpenLink) -> Channel | None:
        """Connect to the endpoint of a link's plugin, and start to read the channel; None if nobody listens there yet.

        Raises:
          NoConnectionError: if the endpoint may not be used, or connecting fails in a way that does not pass.
        """
        if self._nursery is None or link.closed:
            raise NoConnectionError(no_connection(link.plugin, "the link has ended"))
        if link.displaced is not None:
            raise NoConnectionError(link.displaced)
        try:
            channel = self.config.connect(link.plugin, link.file)
        except _NOT_YET as error:
            link.problem, link.is_absent = _words(error), isinstance(error, FileNotFoundError)
            return None
        except OSError as error:
            gone = error.errno == errno.ESTALE
            raise NoConnectionError(no_connection(link.plugin, _words(error)), gone=gone) from error
        except EndpointRefusedError as error:
            raise NoConnectionError(str(error)) from error
        self._readers.attend(channel, link)
        return channel

    # --- reports ---

    def report_again(self) -> None:
        """Report the health of all plugins again, because a restarted status actor may have lost it."""
        for link in self._links.values():
            link.reports.put_again()
            self.outbox.put(link)

    async def _send_all(self) -> None:
        while True:
            await self._send(await self.outbox.next())

    async def _send(self, link: OpenLink) -> None:
        if link.closed:
            return
        path, generation = _key_of(link.plugin)
        usable, reason = link.take_usable(), link.take_gone()
        if usable is not None:
            await report(self.config.reconciler, UsableChanged(path, generation, usable))
        if reason is not None:
            await report(self.config.reconciler, PluginGone(path, generation, reason))
        now = trio.current_time()
        said = link.reports.take(now)
        if said is not None:
            reported = HealthReported(
                path, generation, said.health, said.reason, said.facts, now, said.warnings, said.failed_checks
            )
            await report(self.config.status, reported)
        self.outbox.put(link)


def _words(error: OSError) -> str:
    return error.strerror or str(error)

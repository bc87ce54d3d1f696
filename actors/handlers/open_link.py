"""One link, as :class:`~plugind.actors.handlers.links.Links` uses it, and the outbox of all links."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import trio

from ...protocol.devices.messages import InstanceAdded, InstanceMessage, InstanceRemoved, InstanceRole, ListReceived
from ...protocol.errors import NoConnectionError
from ...protocol.health.checks import Checked, disconnected
from ...protocol.identity import Identity
from ...protocol.leases.messages import AllocateAsked, Allocated, CallWithdrawn, DeviceCall, Preferred
from ...protocol.leases.values import Answer
from ...protocol.messages.addresses import Address
from ...protocol.plugins.devices import Device, DeviceList, DeviceOptions
from ...protocol.plugins.health import MAX_REASON, Health, HealthReports, Report, bounded
from ...protocol.plugins.info import Plugin, wrong_with_resource
from ...protocol.words import DEVICE
from ..grpc.client.channel import Channel
from ..health.endpoint_checks import Check, EndpointChecks, Note
from ..messaging.timed_queue import TimedQueue
from .link import Follow

#: Seconds between two attempts to connect to an endpoint at which nobody listens yet.
CONNECT_PAUSE = 0.1


class Outbox:
    """The links that have something to send, each once, in the order in which their reports are due."""

    def __init__(self) -> None:
        self._ready: deque[OpenLink] = deque()
        #: The links that will be ready later. A link that was ready earlier may have nothing left by then.
        self._later = TimedQueue[OpenLink]()

    def put(self, link: OpenLink) -> None:
        """Add a link that may have something to send."""
        due = link.due
        if due <= trio.current_time():
            if not link.is_ready:
                link.is_ready = True
                self._ready.append(link)
                self._later.wake()
        elif due < link.waits_until:
            link.waits_until = due
            self._later.put(due, link)

    async def next(self) -> OpenLink:
        """Return the next link, once its reports are due."""
        while not self._ready:
            for link in await self._later.due():
                link.waits_until = math.inf
                self.put(link)
        link = self._ready.popleft()
        link.is_ready = False
        return link


class LinkOwner(Protocol):
    """What a link needs of :class:`~plugind.actors.handlers.links.Links`."""

    checks: EndpointChecks
    #: The devices actor.
    devices: Address[InstanceMessage]
    #: Of which resources the configuration names the devices.
    is_static: Callable[[str], bool]

    @property
    def outbox(self) -> Outbox:
        """The outbox of all links."""

    def dial(self, link: OpenLink) -> Channel | None:
        """Connect to the endpoint of a link's plugin, and start to read the channel; None if nobody listens there yet.

        Raises:
          NoConnectionError: if connecting cannot succeed.
        """


class HandlerOffer:
    """The devices that a handler offers for a plugin. It is the address of the calls that leases need, and grants all.

    To the devices actor it is one more device plugin.
    """

    def __init__(self, plugin: Plugin, devices: Address[InstanceMessage], *, active: bool) -> None:
        self._plugin = plugin
        self._key = plugin.socket, plugin.generation
        self._devices = devices
        devices.send_nowait(InstanceAdded(plugin, DeviceOptions(), plugin.source, trio.current_time(), self))
        self.decide(active=active)

    def decide(self, *, active: bool) -> None:
        """Pass on whether the plugin is the active one of its name."""
        self._devices.send_nowait(InstanceRole(*self._key, active=active))

    def show(self, devices: Iterable[Device]) -> None:
        """Pass on the devices."""
        self._devices.send_nowait(ListReceived(*self._key, DeviceList(devices), trio.current_time()))

    def end(self) -> None:
        """Withdraw the devices."""
        self._devices.send_nowait(InstanceRemoved(*self._key, trio.current_time()))

    def send_nowait(self, call: DeviceCall, /) -> None:
        """Answer ``call``."""
        match call:
            case AllocateAsked():
                call.reply.send_nowait(Allocated(call.lease, call.resource, Answer(), 0.0, self._plugin.uid))
            case CallWithdrawn():  # It was answered.
                pass
            case _:
                call.reply.send_nowait(Preferred(call.lease, call.resource))


class OpenLink:
    """A :class:`~plugind.actors.handlers.link.Link`, with what :class:`~plugind.actors.handlers.links.Links` uses."""

    __slots__ = (
        "_active",
        "_channel",
        "_checks",
        "_dialing",
        "_facts_asked",
        "_fading",
        "_gone",
        "_has_dialed",
        "_is_new",
        "_links",
        "_offer",
        "_on_end",
        "_on_facts_asked",
        "_role_changed",
        "_seen",
        "_usable",
        "_usable_sent",
        "closed",
        "displaced",
        "ended",
        "file",
        "follow",
        "is_absent",
        "is_ready",
        "plugin",
        "problem",
        "reports",
        "scope",
        "waits_until",
        "wanted",
    )

    def __init__(self, plugin: Plugin, file: Identity | None, links: LinkOwner) -> None:
        self.plugin = plugin
        self.file = file
        self._links = links
        self.closed = False
        #: Set while no follow runs.
        self.ended = trio.Event()
        self.ended.set()
        self.follow: Follow | None = None
        #: The scope of the follow: cancelled when the link ends.
        self.scope = trio.CancelScope()
        self._channel: Channel | None = None
        #: The previous channel, whose server has sent GOAWAY, while calls are under way on it.
        self._fading: Channel | None = None
        self._dialing = trio.Lock()
        self._has_dialed = False
        #: Whether the next check is the first one and must be made at once. A device plugin has just answered the same
        #: call.
        self._is_new = plugin.type != DEVICE
        #: Called with the reason when the link loses its channel.
        self._on_end: Callable[[str], None] | None = None
        #: The scopes of running checks, each with the channel at whose end it is cancelled.
        self._checks: dict[trio.CancelScope, Channel] = {}
        #: Why the last try to connect failed.
        self.problem = ""
        #: Whether there was no file at the endpoint in that attempt.
        self.is_absent = False
        #: Whether another plugin of the name waits until the Register of this one has ended.
        self.wanted = False
        self._active = False
        #: Why the plugin may not use its endpoint, which another plugin has; None if it may.
        self.displaced: str | None = None
        #: The last role that the handler has read.
        self._seen = False
        self._role_changed = trio.Event()
        #: Set when somebody asks for the facts; None until the handler waits for that.
        self._facts_asked: trio.Event | None = None
        self._on_facts_asked: Callable[[], None] | None = None
        self._usable: bool | None = None
        self._usable_sent: bool | None = None
        self._gone: str | None = None
        self._offer: HandlerOffer | None = None
        self.reports = HealthReports()
        self.reports.put(Report())
        #: The places of the link in the outbox.
        self.is_ready = False
        self.waits_until = math.inf

    def __str__(self) -> str:
        plugin = self.plugin
        return f"follow of {plugin.name} ({plugin.socket}) in the handler for {plugin.type}"

    # --- for the handler: see Link ---

    @property
    def active(self) -> bool:
        """See :class:`~plugind.actors.handlers.link.Link`."""
        self._seen = self._active and self.displaced is None
        return self._seen

    async def role_changed(self) -> bool:
        """See :class:`~plugind.actors.handlers.link.Link`."""
        seen = self._seen
        await trio.lowlevel.checkpoint()
        while self.active == seen:
            await self._role_changed.wait()
        return self._seen

    async def connect(self, *, timeout: float = 10.0, gives_way: bool = False) -> Channel:
        """See :class:`~plugind.actors.handlers.link.Link`."""
        self.problem, self.is_absent = "", False
        is_tried = not timeout or not self._dialing.locked()
        if is_tried:
            await self._let_others_run()
            if (channel := self._connected()) is not None:
                return channel
            if not timeout:
                raise NoConnectionError(no_connection(self.plugin, self.problem), gone=self.is_absent)
        # No deadline here: each holder of the lock has its own.
        with trio.move_on_after(timeout or math.inf):
            async with self._dialing:
                while True:
                    if not is_tried and (channel := self._connected()) is not None:
                        return channel
                    if gives_way and self.wanted:
                        raise self._given_way()
                    is_tried = False
                    await trio.sleep(CONNECT_PAUSE)
        lasting = no_connection(self.plugin, self.problem or "another call of connect was under way")
        raise NoConnectionError(f"{lasting} (tried for {timeout:g} s)", gone=self.is_absent, lasting=lasting)

    def _given_way(self) -> NoConnectionError:
        problem = f"{self.problem} (another socket of the name waits, so this was not tried for longer)"
        return NoConnectionError(no_connection(self.plugin, problem), gone=self.is_absent)

    async def _let_others_run(self) -> None:
        """Take a pass of Trio's loop, since a handler may connect in a loop to an endpoint that ends each connection at
        once.
        """
        if self._has_dialed and not self._is_open:
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()

    @property
    def _is_open(self) -> bool:
        return self._channel is not None and self._channel.takes_calls

    def _connected(self) -> Channel | None:
        """Return the open channel, or dial; None if nobody listens at the endpoint yet."""
        if not self._is_open:
            self._retire()
            self._has_dialed = True
            self._channel = self._links.dial(self)
        return self._channel

    @property
    def channel(self) -> Channel:
        """See :class:`~plugind.actors.handlers.link.Link`."""
        if self._channel is None or not self._is_open:
            raise NoConnectionError(self.displaced or no_connection(self.plugin, "it is not open; connect again"))
        return self._channel

    def when_disconnected(self, note: Callable[[str], None]) -> None:
        """See :class:`~plugind.actors.handlers.link.Link`."""
        self._on_end = note

    async def check(self, check: Check, note: Note | None = None) -> None:
        """See :class:`~plugind.actors.handlers.link.Link`."""
        channel, note = self.channel, note or self._report_checked
        checks, plugin_type = self._links.checks, self.plugin.type
        if checks.are_off(plugin_type):
            await checks.run(plugin_type, channel, check, note)
            if not channel.closed:
                self.lose(channel)
        else:
            with trio.CancelScope() as scope:
                self._checks[scope] = channel
                try:
                    is_new, self._is_new = self._is_new, False
                    await checks.run(plugin_type, channel, check, note, at_once=is_new)
                finally:
                    del self._checks[scope]
        note(disconnected(self._why_ended(channel)))

    def _why_ended(self, channel: Channel) -> str:
        failure = channel.connection.failure
        why = "it was closed" if failure is None else failure.message
        return self.displaced or no_connection(self.plugin, why)

    def _report_checked(self, checked: Checked) -> None:
        self.report(checked.health, checked.reason, failed_checks=checked.failures)

    def report(
        self,
        health: Health,
        reason: str = "",
        facts: Mapping[str, str] | None = None,
        *,
        failed_checks: int = 0,
        warnings: Iterable[str] = (),
    ) -> None:
        """See :class:`~plugind.actors.handlers.link.Link`."""
        self.reports.put(bounded(health, reason, facts, self.reports.newest, failed_checks, warnings))
        self._links.outbox.put(self)

    async def facts_asked(self) -> None:
        """See :class:`~plugind.actors.handlers.link.Link`."""
        if self._facts_asked is None:
            self._facts_asked = trio.Event()
        await self._facts_asked.wait()
        self._facts_asked = trio.Event()

    def when_facts_asked(self, note: Callable[[], None] | None) -> None:
        """See :class:`~plugind.actors.handlers.link.Link`."""
        self._on_facts_asked = note
        if self._facts_asked is None:
            self._facts_asked = trio.Event()
        elif note is not None and self._facts_asked.is_set():
            note()

    def role(self, *, usable: bool) -> None:
        """See :class:`~plugind.actors.handlers.link.Link`."""
        self._usable = usable
        self._links.outbox.put(self)

    def offer(self, devices: Iterable[Device]) -> None:
        """See :class:`~plugind.actors.handlers.link.Link`."""
        name = self.plugin.name
        wrong = wrong_with_resource(name)
        if wrong is None and self._offer is None and self._links.is_static(name):
            wrong = "the configuration has devices of that name: remove it from [devices], or rename the plugin"
        if wrong is not None:
            raise ValueError(f"the plugin {name} can offer no devices: {wrong}")
        if self.closed:
            return
        if self._offer is None:
            self._offer = HandlerOffer(self.plugin, self._links.devices, active=self._active)
        self._offer.show(devices)

    def gone(self, reason: str) -> None:
        """See :class:`~plugind.actors.handlers.link.Link`."""
        self._gone = reason[:MAX_REASON]
        self._links.outbox.put(self)

    # --- for Links ---

    def ask_for_facts(self) -> bool:
        """Note that the facts are asked for; return whether the handler waits for that."""
        if self._facts_asked is None:
            return False
        self._facts_asked.set()
        if self._on_facts_asked is not None:
            self._on_facts_asked()
        return True

    def set_active(self, *, active: bool) -> None:
        """Note whether the instance is the active one of its name."""
        self._active = active
        if self._offer is not None:
            self._offer.decide(active=active)
        self._wake()

    def set_displaced(self, reason: str | None) -> None:
        """Set why the plugin may not use its endpoint, or None if it may; with a reason, close its connection."""
        self.displaced = reason
        if reason is not None:
            self.hang_up()
        self._wake()

    def _wake(self) -> None:
        changed, self._role_changed = self._role_changed, trio.Event()
        changed.set()

    @property
    def due(self) -> float:
        """When the next report is to be sent; infinity if there is none."""
        if self.closed:
            return math.inf
        if self._gone is not None or self._usable is not self._usable_sent:
            return -math.inf
        return self.reports.due

    def take_usable(self) -> bool | None:
        """Return whether the plugin can be used, if that is to be reported."""
        if self._usable is self._usable_sent:
            return None
        self._usable_sent = self._usable
        return self._usable

    def take_gone(self) -> str | None:
        """Return why the plugin has left, if that is to be reported."""
        reason, self._gone = self._gone, None
        return reason

    def lose(self, channel: Channel) -> None:
        """Close a channel that has ended, and end its checks."""
        for scope in [scope for scope, checked in self._checks.items() if checked is channel]:
            scope.cancel()
        channel.close()
        if self._channel is channel:
            self._give_up(channel)
        if self._fading is channel:
            self._fading = None

    def _retire(self) -> None:
        """Leave the channel, whose server takes no more calls, to the calls under way on it.

        The server may never close the channel. It is closed when the next channel is retired.
        """
        channel = self._channel
        if channel is not None and channel.is_idle:
            self.lose(channel)
        elif channel is not None:
            if self._fading is not None:
                self.lose(self._fading)
            self._give_up(channel)
            self._fading = channel

    def _give_up(self, channel: Channel) -> None:
        self._channel = None
        if self._on_end is not None:
            self._on_end(self._why_ended(channel))

    def hang_up(self) -> None:
        """Close the channels, if there are any."""
        for channel in (self._channel, self._fading):
            if channel is not None:
                self.lose(channel)

    def reset(self) -> None:
        """Prepare a new start of the follow, which a crash has ended."""
        self.scope = trio.CancelScope()

    def close(self) -> None:
        """End the link: nothing is reported from now on."""
        self.closed = True
        if self._offer is not None:
            self._offer.end()
        self.hang_up()


def no_connection(plugin: Plugin, why: str) -> str:
    """Return the error text for a plugin without a connection."""
    return f"no connection to the endpoint {plugin.endpoint}: {why}"

"""One link, with what :class:`~plugind.actors.links.Links` needs of it; and the outbox of all links.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Protocol

import trio

from ..protocol.errors import NoConnectionError
from ..protocol.health_checks import Checked, disconnected
from ..protocol.identity import Identity
from ..protocol.plugin_health import MAX_REASON, Health, Report, Reports, bounded
from ..protocol.plugins import Plugin
from .endpoint_checks import Check, EndpointChecks, Note
from .handlers.link import Follow
from .io.grpc_client.channel import Channel


class Outbox:
    """The links that have something to send, in the order in which it is due; each of them once."""

    def __init__(self) -> None:
        self._ready: deque[OpenLink] = deque()
        #: Those that will be ready, by the time of that. One that was ready earlier may have nothing left by then.
        self._later: list[tuple[float, int, OpenLink]] = []
        self._numbers = itertools.count()
        self._wake = trio.Event()

    def put(self, link: OpenLink) -> None:
        """Put in a link that may have news."""
        due = link.due
        if due <= trio.current_time():
            if not link.is_ready:
                link.is_ready = True
                self._ready.append(link)
                self._wake.set()
        elif due < link.waits_until:
            link.waits_until = due
            heapq.heappush(self._later, (due, next(self._numbers), link))
            if self._later[0][2] is link:
                self._wake.set()

    async def next(self) -> OpenLink:
        """Return the next link, once its news are due."""
        while not self._ready:
            self._wake = trio.Event()
            with trio.move_on_at(self._later[0][0] if self._later else math.inf):
                await self._wake.wait()
            self._take_due(trio.current_time())
        link = self._ready.popleft()
        link.is_ready = False
        return link

    def _take_due(self, now: float) -> None:
        while self._later and self._later[0][0] <= now:
            link = heapq.heappop(self._later)[2]
            link.waits_until = math.inf
            self.put(link)


class Owner(Protocol):
    """What a link needs of :class:`~plugind.actors.links.Links`."""

    checks: EndpointChecks

    @property
    def outbox(self) -> Outbox:
        """Where links are put that have something to send."""

    async def dial(self, link: OpenLink, *, once: bool) -> Channel:
        """Connect to the endpoint of a link's plugin, once or as often as necessary; read the channel from then on.

        Raises:
          NoConnectionError: if that cannot succeed.
        """


class OpenLink:
    """A :class:`~plugind.actors.handlers.link.Link`, with what :class:`~plugind.actors.links.Links` needs of it."""

    __slots__ = (
        "_active",
        "_channel",
        "_checks",
        "_dialing",
        "_displaced",
        "_facts_asked",
        "_fading",
        "_gone",
        "_links",
        "_role_changed",
        "_seen",
        "_usable",
        "_usable_sent",
        "closed",
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
    )

    def __init__(self, plugin: Plugin, file: Identity | None, links: Owner) -> None:
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
        #: The channel before, whose peer goes away, while calls are under way on it.
        self._fading: Channel | None = None
        self._dialing = trio.Lock()
        #: The scopes of the checks that are made, each with the channel at whose end it is cancelled.
        self._checks: dict[trio.CancelScope, Channel] = {}
        #: Why the last try to connect failed.
        self.problem = ""
        #: Whether nothing was at the endpoint then.
        self.is_absent = False
        #: Whether it is the active one of its name, and whether another plugin has its endpoint.
        self._active = self._displaced = False
        #: The role that the handler has seen.
        self._seen = False
        self._role_changed = trio.Event()
        #: Set once somebody has asked for the facts; None as long as the handler has not waited for that.
        self._facts_asked: trio.Event | None = None
        self._usable: bool | None = None
        self._usable_sent: bool | None = None
        self._gone: str | None = None
        self.reports = Reports()
        self.reports.put(Report())
        #: Its places in the outbox.
        self.is_ready = False
        self.waits_until = math.inf

    def __str__(self) -> str:
        plugin = self.plugin
        return f"follow of {plugin.name} ({plugin.socket}) in the handler for {plugin.type}"

    # --- for the handler: see Link ---

    @property
    def active(self) -> bool:
        """See :class:`~plugind.actors.handlers.link.Link`."""
        self._seen = self._active and not self._displaced
        return self._seen

    async def role_changed(self) -> bool:
        """See :class:`~plugind.actors.handlers.link.Link`."""
        seen = self._seen
        await trio.lowlevel.checkpoint()
        while self.active == seen:
            await self._role_changed.wait()
        return self._seen

    async def connect(self, *, timeout: float = 10.0) -> Channel:
        """See :class:`~plugind.actors.handlers.link.Link`."""
        self.problem, self.is_absent = "", False
        # Without a deadline for the lock: who has it has one.
        with trio.move_on_after(timeout or math.inf):
            async with self._dialing:
                if self._channel is None or not self._channel.takes_calls:
                    self._retire()
                    self._channel = await self._links.dial(self, once=not timeout)
                return self._channel
        problem = f"{self.problem or 'another call of connect was under way'} (tried for {timeout:g} s)"
        raise NoConnectionError(no_connection(self.plugin, problem), gone=self.is_absent)

    @property
    def channel(self) -> Channel:
        """See :class:`~plugind.actors.handlers.link.Link`."""
        if self._channel is None or not self._channel.takes_calls:
            raise NoConnectionError(no_connection(self.plugin, "it is not open; connect again"))
        return self._channel

    async def check(self, check: Check, note: Note | None = None) -> None:
        """See :class:`~plugind.actors.handlers.link.Link`."""
        channel, note = self.channel, note or self._report_checked
        with trio.CancelScope() as scope:
            self._checks[scope] = channel
            try:
                await self._links.checks.run(self.plugin.type, channel, check, note)
            finally:
                del self._checks[scope]
        failure = channel.connection.failure
        note(disconnected(no_connection(self.plugin, "it was closed" if failure is None else failure.message)))

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

    def role(self, *, usable: bool) -> None:
        """See :class:`~plugind.actors.handlers.link.Link`."""
        self._usable = usable
        self._links.outbox.put(self)

    def gone(self, reason: str) -> None:
        """See :class:`~plugind.actors.handlers.link.Link`."""
        self._gone = reason[:MAX_REASON]
        self._links.outbox.put(self)

    # --- for Links ---

    def ask_for_facts(self) -> bool:
        """Note that the facts are asked for; return whether the handler heeds that."""
        if self._facts_asked is None:
            return False
        self._facts_asked.set()
        return True

    def set_active(self, *, active: bool) -> None:
        """Note whether it is the active one of its name."""
        self._active = active
        self._wake()

    def set_displaced(self, *, displaced: bool) -> None:
        """Note whether another plugin has its endpoint."""
        self._displaced = displaced
        self._wake()

    def _wake(self) -> None:
        changed, self._role_changed = self._role_changed, trio.Event()
        changed.set()

    @property
    def due(self) -> float:
        """When the next of its reports is to be sent; infinity if there is none."""
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
            self._channel = None
        if self._fading is channel:
            self._fading = None

    def _retire(self) -> None:
        """Leave the channel to the calls under way on it: its peer takes no others, and may never close it."""
        if self._fading is not None:
            self.lose(self._fading)
        fading, self._channel = self._channel, None
        if fading is not None and not fading.is_idle:
            self._fading = fading
        elif fading is not None:
            self.lose(fading)

    def hang_up(self) -> None:
        """Close the channels, if there are any."""
        for channel in (self._channel, self._fading):
            if channel is not None:
                self.lose(channel)

    def reset(self) -> None:
        """Get ready for the follow to be started again, after a crash that ended it."""
        self.scope = trio.CancelScope()

    def close(self) -> None:
        """End the link: nothing is reported any more."""
        self.closed = True
        self.hang_up()


def no_connection(plugin: Plugin, why: str) -> str:
    """Return the words for a plugin without a connection."""
    return f"no connection to the endpoint {plugin.endpoint}: {why}"

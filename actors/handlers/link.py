"""Links: what connects a handler to one registered instance of a plugin.

A handler that has a method ``follow``, or whose ``register`` has a second parameter, gets a :class:`Link` for each
instance. The link is open from Register until just before Deregister. ``plugind.actors.handlers.links`` implements it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

from ...protocol.identity import Identity
from ...protocol.plugins.devices import Device
from ...protocol.plugins.health import Health
from ...protocol.plugins.info import Plugin
from ..grpc.client.channel import Channel
from ..health.endpoint_checks import Check, Note

#: Runs a handler's ``follow`` once; returns its error, or None if it returned.
Follow = Callable[[], Awaitable[str | None]]


class Link(Protocol):
    """Connects a handler to one registered instance of a plugin: a channel to its endpoint, its role, its health.

    A link can be used in Trio's loop only, not in a thread. None of its methods changes the registration.
    """

    @property
    def plugin(self) -> Plugin:
        """The instance."""

    @property
    def active(self) -> bool:
        """Whether the instance is the active one of its name, and no plugin of another name has its endpoint.

        It is False until plugind has decided.
        """

    async def role_changed(self) -> bool:
        """Wait until :attr:`active` differs from the value last returned, and return the new value. No change is
        missed.
        """

    async def connect(self, *, timeout: float = 10.0, gives_way: bool = False) -> Channel:
        """Return the open channel to the endpoint, or connect if there is none.

        If the server of a channel has sent GOAWAY, a new channel is made, and the old one serves the calls under way.

        While nothing is at the endpoint, or nobody listens there, an attempt is made every 100 ms; with a ``timeout``
        of 0 there is one attempt. With ``gives_way``, which is for ``register``, the attempts also end while another
        plugin of the name with another endpoint waits to be registered or deregistered.

        There is one channel at a time. It is read all the time, so its end is noticed at once and keep-alive is
        answered; plugind sends no PING. The link closes it.

        Raises:
          NoConnectionError: if there is no connection within ``timeout`` seconds, or the endpoint may not be used, for
            example because another plugin has it now. In the latter case an open channel is closed, too.
        """

    def when_disconnected(self, note: Callable[[str], None]) -> None:
        """Call ``note`` with the reason each time a channel that :meth:`connect` returned has ended.

        ``note`` is called at once, also while no ``follow`` runs, and must neither wait nor raise. A later call of this
        method replaces ``note``. A GOAWAY from the server is noted when :meth:`connect` is called next.
        """

    @property
    def channel(self) -> Channel:
        """The open channel to the endpoint.

        Raises:
          NoConnectionError: if there is none.
        """

    async def check(self, check: Check, note: Note | None = None) -> None:
        """Check the plugin over :attr:`channel` repeatedly, and return once the connection has ended.

        ``check`` is called with the channel, by the rule for all plugins (``Config.health_checks``): every 30 s, with a
        deadline of 3 s. It returns if all is well, and raises ``GRPCError`` or :exc:`PluginError` if not. After three
        failures in a row the plugin is unhealthy, and after one success healthy; at the end of the connection it is
        disconnected. Each change is reported, or passed to ``note`` so that the handler can add facts and report it
        itself. A plugin whose type is not checked (``plugind run --health``) is unknown while there is a connection,
        with the reason.

        Raises:
          NoConnectionError: if there is no open channel.
        """

    def report(
        self,
        health: Health,
        reason: str = "",
        facts: Mapping[str, str] | None = None,
        *,
        failed_checks: int = 0,
        warnings: Iterable[str] = (),
    ) -> None:
        """Report the plugin's health, and facts about it; users are shown both.

        Of several reports in one second the newest is shown; a plugin that stops being healthy is shown at once.
        ``facts`` replace all facts reported before; without this argument the old ones still hold. At most 64 facts
        with 16 KiB are kept. ``warnings``, of which 8 are kept, describe problems with the facts, and are replaced
        together with them. ``failed_checks`` is the number of checks that failed in a row, if that is the reason.

        Raises:
          TypeError: if a fact or the reason is not a string.
        """

    async def facts_asked(self) -> None:
        """Wait until somebody asks to refresh the plugin's facts, for example with ``plugind retry NAME --facts``.

        It returns at once if somebody has asked since it returned last. If a handler does not call this method, the
        users who ask are told that it has no facts to refresh.
        """

    def when_facts_asked(self, note: Callable[[], None] | None) -> None:
        """Call ``note`` when somebody asks to refresh the plugin's facts; None removes the callback.

        ``note`` can start a task that waits in :meth:`facts_asked`, so that no task need wait before. It is called at
        once if somebody has asked since :meth:`facts_asked` returned last, and must neither wait nor raise. A later
        call of this method replaces ``note``. Requests that come while there is no callback are kept for the next one.
        """

    def offer(self, devices: Iterable[Device]) -> None:
        """Offer devices of the plugin, whose name is then that of a resource: ``vendor.domain/name``.

        ``devices`` replace those offered before. They are shown and leased like those of a device plugin, for example
        with :meth:`plugind.Supervisor.allocate`; the plugin is told nothing of a lease, and answers nothing. They are
        offered until the plugin is deregistered.

        Raises:
          ValueError: if no resource can have the name of the plugin, or the configuration has devices of that name.
        """

    def role(self, *, usable: bool) -> None:
        """Report whether the plugin can be used.

        Of the instances of a name, a usable one is preferred to one without a report, and that one to an unusable one.
        Among equals the policy of the handler decides.
        """

    def gone(self, reason: str) -> None:
        """Report that the plugin has left for good. If its socket is gone, plugind deregisters it now.

        A plugin whose socket is still there stays registered.
        """


class LinkPort(Protocol):
    """What opens, follows and ends links."""

    def open(self, plugin: Plugin, file: Identity | None) -> Link:
        """Open the link to an instance whose socket is ``file``, just before it is registered."""

    def start(self, plugin: Plugin, follow: Follow) -> None:
        """Run ``follow`` until the link ends, and start it again each time it returns."""

    def give_way(self, plugin: Plugin) -> None:
        """Note that another plugin of the name waits until the Register of this one has ended."""

    async def end(self, plugin: Plugin) -> None:
        """End the link to an instance, if there is one: cancel its follow, which has a few seconds to end."""

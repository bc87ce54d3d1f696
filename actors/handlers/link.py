"""Links: what joins a handler to one registered instance of a plugin.

A handler that has a method ``follow``, or whose ``register`` has a second parameter, is given a :class:`Link` for each
instance. The link is open from Register until just before Deregister. ``plugind.actors.handlers.links`` has the real
ones.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

from ...protocol.identity import Identity
from ...protocol.plugins.health import Health
from ...protocol.plugins.info import Plugin
from ..grpc.client.channel import Channel
from ..health.endpoint_checks import Check, Note

#: Runs a handler's ``follow`` once; returns its error, or None if it returned.
Follow = Callable[[], Awaitable[str | None]]


class Link(Protocol):
    """What joins a handler to one registered instance of a plugin: a channel to its endpoint, its role, its health.

    It is used in Trio's loop only, and not in a thread. None of its methods can change the registration.
    """

    @property
    def plugin(self) -> Plugin:
        """The instance."""

    @property
    def active(self) -> bool:
        """Whether the instance is the active one of its name, and no plugin of another name has its endpoint.

        It is not before plugind has decided so.
        """

    async def role_changed(self) -> bool:
        """Wait until :attr:`active` is another than was last seen here or there, and return it. No change is missed."""

    async def connect(self, *, timeout: float = 10.0, gives_way: bool = False) -> Channel:
        """Return the open channel to the endpoint, or connect if there is none.

        A channel whose server has said that it goes away is left to the calls under way on it.

        While nothing is at the endpoint, or nobody listens there, it is tried again each 100 ms; with a ``timeout`` of
        0 it is tried once. With ``gives_way``, which is for ``register``, it is not tried again either while another
        plugin of the name with another endpoint waits to be registered or deregistered.

        There is one channel at a time. It is read all the time, so that its end is noticed at once and keep-alive is
        answered; plugind sends no PING. The link closes it.

        Raises:
          NoConnectionError: if there is no connection within ``timeout`` seconds, or the endpoint may not be used, for
            example because another plugin has it now: then an open channel is closed, too.
        """

    def when_disconnected(self, note: Callable[[str], None]) -> None:
        """Call ``note`` with the reason each time a channel has ended that :meth:`connect` has returned.

        It is called at once, also while no ``follow`` runs, and must neither wait nor raise. The one of the last call
        counts. If the server of the channel goes away, that is noted when :meth:`connect` is called next.
        """

    @property
    def channel(self) -> Channel:
        """The open channel to the endpoint.

        Raises:
          NoConnectionError: if there is none.
        """

    async def check(self, check: Check, note: Note | None = None) -> None:
        """Check the plugin over :attr:`channel` again and again, and return once the connection has ended.

        ``check`` is called with the channel, by the rule for all plugins (``Config.health_checks``): each 30 s, with a
        deadline of 3 s. It returns if all is well, and raises ``GRPCError`` or :exc:`PluginError` if not. After three
        failures in a row the plugin is unhealthy, and after one success healthy; at the end of the connection it is
        disconnected. Each is reported, or given to ``note`` if the handler knows more, which then reports. A plugin
        whose type is not checked (``plugind run --health``) is unknown while there is a connection, with the reason.

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
        """Report how the plugin is, and what is known of it: users are shown both.

        Of several reports in one second the newest is shown; that the plugin is healthy no more is shown at once.
        ``facts`` replace those reported before; without them those still hold. At most 64 facts with 16 KiB are kept.
        ``warnings``, of which 8 are kept, say what is wrong with the facts, and are replaced together with them.
        ``failed_checks`` is how many checks have failed in a row, if that is the reason.

        Raises:
          TypeError: if a fact or the reason is no text.
        """

    async def facts_asked(self) -> None:
        """Wait until somebody asks for the plugin's facts anew, with ``plugind retry NAME --facts`` for example.

        It returns at once if that was so since it returned last. A handler that does not call it is asked in vain, and
        the user is told so.
        """

    def when_facts_asked(self, note: Callable[[], None] | None) -> None:
        """Call ``note`` when somebody asks for the plugin's facts anew, or with None nothing any more.

        It may start a task that waits in :meth:`facts_asked`, so that no task need wait before. It is called at once if
        somebody has asked since :meth:`facts_asked` returned last, and must neither wait nor raise. The one of the last
        call counts. While there is none, the next one is called for what was asked meanwhile.
        """

    def role(self, *, usable: bool) -> None:
        """Report whether the plugin can be used.

        Of the instances of a name, one that can be used is preferred to one of which nothing is reported, and that one
        to one that cannot be used. Among equals the policy of the handler decides.
        """

    def gone(self, reason: str) -> None:
        """Report that the plugin has left for good: plugind looks at its socket now, and deregisters it if that is so.

        A plugin whose socket is still there stays registered.
        """


class LinkPort(Protocol):
    """What opens, follows and ends links."""

    def open(self, plugin: Plugin, file: Identity | None) -> Link:
        """Open the link to an instance whose socket is ``file``: the handler is about to register it."""

    def start(self, plugin: Plugin, follow: Follow) -> None:
        """Run ``follow`` from now on, and again after each end, until the link ends."""

    def give_way(self, plugin: Plugin) -> None:
        """Note that another plugin of the name waits until the Register of this one has ended."""

    async def end(self, plugin: Plugin) -> None:
        """End the link to an instance, if there is one: its follow is cancelled, and has a few seconds to end."""

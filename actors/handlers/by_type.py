"""The handler actors of a supervisor, by plugin type.

A type has at most one handler that takes plugins. A handler that was removed stays until the last of its plugins is
deregistered; another one may take plugins of that type meanwhile.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import attrs
import trio

from ...protocol import messages as m
from ...protocol.config_messages import CallTimeChanged
from ...protocol.health import Reading
from ..inboxes import Inboxes
from . import actor
from .actor import HandlerInbox
from .calls import Call, CallConfig, Calls
from .handler import Handler, check_handler, policy_of
from .link import LinkPort

#: Starts a child of the supervisor under a name.
StartChild = Callable[[str, Callable[[], Awaitable[None]]], None]


@attrs.frozen(eq=False)
class _Running:
    """A handler actor whose inbox is open."""

    inbox: HandlerInbox
    calls: Calls
    #: Set when the handler was removed and its last plugin is deregistered.
    retired: trio.Event = attrs.Factory(trio.Event)

    def retire(self) -> None:
        self.inbox.close()
        self.retired.set()

    def read(self) -> Reading:
        """Read the inbox, and say which threads of the handler still run."""
        return attrs.evolve(self.inbox.read(), wrong=self.calls.wrong)


class HandlerActors:
    """Starts handler actors, and ends those that were removed and have no plugin left."""

    def __init__(
        self, calls: CallConfig, start_child: StartChild, inboxes: Inboxes, links: LinkPort | None = None
    ) -> None:
        """Configure the calls of all handlers. The actors' inboxes are added to ``inboxes``."""
        self._links = links
        self._call_config = calls
        self._start_child = start_child
        self._inboxes = inboxes
        #: The handlers that take plugins, by type.
        self._added: dict[str, m.HandlerAdded] = {}
        #: These and the removed ones that have not retired, by address.
        self._running: dict[m.Address[m.HandlerMessage], _Running] = {}

    def __contains__(self, plugin_type: str) -> bool:
        """Whether a handler takes plugins of this type."""
        return plugin_type in self._added

    @property
    def added(self) -> tuple[m.HandlerAdded, ...]:
        """The handlers that take plugins, as messages to the reconciler."""
        return tuple(self._added.values())

    @property
    def running(self) -> int:
        """The number of handler actors, removed ones that have not retired included."""
        return len(self._running)

    @property
    def calls(self) -> Iterator[Call]:
        """The calls that have not ended."""
        for running in self._running.values():
            yield from running.calls.under_way

    def address(self, plugin_type: str) -> m.Address[m.HandlerMessage] | None:
        """Return the address of the handler that takes plugins of this type, if there is one."""
        added = self._added.get(plugin_type)
        return None if added is None else added.handler

    def add(self, plugin_type: str, handler: Handler) -> m.HandlerAdded:
        """Start the actor of ``handler``; return the message to the reconciler that says so.

        Raises:
          TypeError: if it cannot be called as a handler.
          ConfigError: if its calls may take longer than they are given.
        """
        config = self._call_config.of_type(plugin_type)
        check_handler(plugin_type, handler, config.timeout)
        policy, calls = policy_of(handler), Calls(handler, config, plugin_type)
        inbox = HandlerInbox()
        running = self._running[inbox] = _Running(inbox, calls)
        self._inboxes.add(f"handler {plugin_type}", running.read)
        added = self._added[plugin_type] = m.HandlerAdded(plugin_type, inbox, policy, calls.has_links)
        # The lanes are kept here, so that a restarted actor answers the asks of its predecessor.
        lanes: actor.Lanes = {}
        links = self._links if calls.has_links else None

        async def serve() -> None:
            await actor.run(calls, inbox, lanes, links)

        self._start_child(f"handler {plugin_type} {id(inbox):x}", serve)
        return added

    def check(self, calls: CallConfig) -> None:
        """Check that the calls of all handlers that take plugins have enough time with this configuration.

        Raises:
          ConfigError: if one may take longer than it would be given.
        """
        for plugin_type, added in self._added.items():
            handler = self._running[added.handler].calls.handler
            check_handler(plugin_type, handler, calls.of_type(plugin_type).timeout)

    def reconfigure(self, calls: CallConfig) -> None:
        """Have all handlers make the calls that begin from now on with these deadlines."""
        self._call_config = calls
        for running in self._running.values():
            running.inbox.send_nowait(CallTimeChanged(calls.of_type(running.calls.plugin_type).timeout))

    def remove(self, plugin_type: str) -> trio.Event:
        """Take the handler away from ``plugin_type``; the event is set when it has retired."""
        return self._running[self._added.pop(plugin_type).handler].retired

    def retire(self, handler: m.Address[m.HandlerMessage]) -> None:
        """Let the actor of a removed handler end: it has no plugin left.

        One that was added and removed while the reconciler did not run has ended before the next one hears of both.
        """
        if handler in self._running:
            self._end(handler)()

    def take_removed(self) -> list[Callable[[], None]]:
        """Forget the removed handlers that have not retired; return what retires each of them.

        A restarted reconciler has no record of them, so it will never report that they have no plugin left.
        """
        current = {added.handler for added in self._added.values()}
        removed = [address for address in self._running if address not in current]
        return [self._end(address) for address in removed]

    def _end(self, handler: m.Address[m.HandlerMessage]) -> Callable[[], None]:
        """Forget a handler actor, and return the function that ends it."""
        running = self._running.pop(handler)
        self._inboxes.remove(running.read)
        return running.retire

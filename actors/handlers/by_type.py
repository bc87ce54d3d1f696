"""The handlers of a supervisor, by plugin type.

A type has at most one handler that takes plugins. A handler that was removed stays until the last of its plugins is
deregistered; another one may take plugins of that type meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import trio

from ...protocol.messages.reconciler import HandlerAdded, HandlerPort
from ..health.inboxes import Inboxes
from .calls import CallConfig, HandlerCalls, MethodCall
from .handler import Handler, check_handler, policy_of
from .link import LinkPort
from .served import Served


class Handlers:
    """Adds handlers, and forgets those that were removed and have no plugin left."""

    def __init__(self, calls: CallConfig, inboxes: Inboxes, links: LinkPort | None = None) -> None:
        """Configure the calls of all handlers. How they are is read with the ``inboxes``."""
        self._links = links
        self._call_config = calls
        self._inboxes = inboxes
        #: The handlers that take plugins, by type.
        self._added: dict[str, HandlerAdded] = {}
        #: These and the removed ones that have not retired.
        self._served: dict[HandlerPort, Served] = {}

    def __contains__(self, plugin_type: str) -> bool:
        """Whether a handler takes plugins of this type."""
        return plugin_type in self._added

    @property
    def added(self) -> tuple[HandlerAdded, ...]:
        """The handlers that take plugins, as messages to the reconciler."""
        return tuple(self._added.values())

    @property
    def count(self) -> int:
        """The number of handlers, removed ones that have not retired included."""
        return len(self._served)

    @property
    def calls(self) -> Iterator[MethodCall]:
        """The calls that have not ended."""
        for served in self._served.values():
            yield from served.calls.under_way

    def add(self, plugin_type: str, handler: Handler) -> HandlerAdded:
        """Add ``handler``; return the message to the reconciler that says so.

        Raises:
          TypeError: if it cannot be called as a handler.
          ConfigError: if its calls may take longer than they are given.
        """
        config = self._call_config.of_type(plugin_type)
        check_handler(plugin_type, handler, config.timeout)
        policy, calls = policy_of(handler), HandlerCalls(handler, config, plugin_type)
        served = Served(calls, self._links if calls.has_links else None)
        self._served[served] = served
        self._inboxes.add(f"handler {plugin_type}", served.read)
        added = self._added[plugin_type] = HandlerAdded(plugin_type, served, policy, calls.has_links)
        return added

    def check(self, calls: CallConfig) -> None:
        """Check that the calls of all handlers that take plugins have enough time with this configuration.

        Raises:
          ConfigError: if one may take longer than it would be given.
        """
        for plugin_type, added in self._added.items():
            handler = self._served[added.handler].calls.handler
            check_handler(plugin_type, handler, calls.of_type(plugin_type).timeout)

    def reconfigure(self, calls: CallConfig) -> None:
        """Make the calls that begin from now on with these deadlines."""
        self._call_config = calls
        for served in self._served.values():
            served.calls.give(calls.of_type(served.calls.plugin_type).timeout)

    def remove(self, plugin_type: str) -> trio.Event:
        """Take the handler away from ``plugin_type``; the event is set when it has retired."""
        return self._served[self._added.pop(plugin_type).handler].retired

    def retire(self, handler: HandlerPort) -> None:
        """Forget a removed handler: it has no plugin left.

        One that was added and removed while the reconciler did not run has retired before the next one hears of both.
        """
        if (served := self._served.pop(handler, None)) is not None:
            self._inboxes.remove(served.read)
            served.retired.set()

    def retirements(self) -> list[Callable[[], None]]:
        """Return what retires each of the removed handlers that have not retired.

        A restarted reconciler has no record of them, so it will never report that they have no plugin left.
        """
        current = {added.handler for added in self._added.values()}
        return [partial(self.retire, handler) for handler in self._served if handler not in current]

"""The handlers of a supervisor, by plugin type.

At most one handler of a type takes plugins. A removed handler stays until its last plugin is deregistered; meanwhile
another one can take plugins of that type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import attrs
import trio

from ...protocol.messages.reconciler import HandlerAdded, HandlerPort
from ..health.inboxes import Inboxes
from .calls import CallConfig, HandlerCalls, MethodCall
from .handler import Handler, check_handler, policy_of
from .link import LinkPort
from .served import Served


class Handlers:
    """Adds and removes handlers, and keeps removed ones until they have no plugin left."""

    def __init__(self, calls: CallConfig, inboxes: Inboxes, links: LinkPort | None = None) -> None:
        """Configure the calls of all handlers; ``inboxes`` lists each handler for health checks."""
        self._links = links
        self._call_config = calls
        self._inboxes = inboxes
        #: The handlers that take plugins, by type.
        self._added: dict[str, HandlerAdded] = {}
        #: All handlers that have not retired, removed ones included.
        self._served: dict[HandlerPort, Served] = {}

    def __contains__(self, plugin_type: str) -> bool:
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

    def add(self, plugin_type: str, handler: Handler, away: Callable[[], str | None] | None = None) -> HandlerAdded:
        """Add ``handler``, and return the message for the reconciler; ``away`` returns why it takes no plugins now.

        Raises:
          TypeError: if it cannot be called as a handler.
          ConfigError: if its calls can take longer than their deadline.
        """
        config = self._call_config.of_type(plugin_type)
        check_handler(plugin_type, handler, config.timeout)
        policy, calls = policy_of(handler), HandlerCalls(handler, config, plugin_type)
        served = Served(calls, self._links if calls.has_links else None, away or (lambda: None))
        self._served[served] = served
        # Whoever knows when a handler is away logs that at once.
        self._inboxes.add(f"handler {plugin_type}", served.read, is_logged=away is None)
        added = self._added[plugin_type] = HandlerAdded(plugin_type, served, policy, calls.has_links)
        return added

    def set_away(self, plugin_type: str, away: str | None) -> HandlerAdded:
        """Note why a handler takes no plugins now, if it takes none; return the message for the reconciler."""
        added = self._added[plugin_type] = attrs.evolve(self._added[plugin_type], away=away)
        return added

    def check(self, calls: CallConfig) -> None:
        """Check that this configuration leaves enough time for the calls of all handlers that take plugins.

        Raises:
          ConfigError: if a handler can take longer than its deadline.
        """
        for plugin_type, added in self._added.items():
            handler = self._served[added.handler].calls.handler
            check_handler(plugin_type, handler, calls.of_type(plugin_type).timeout)

    def reconfigure(self, calls: CallConfig) -> None:
        """Apply these deadlines to the calls that begin from now on."""
        self._call_config = calls
        for served in self._served.values():
            served.calls.give(calls.of_type(served.calls.plugin_type).timeout)

    def remove(self, plugin_type: str) -> trio.Event:
        """Remove the handler of ``plugin_type``; return an event that is set when the handler has retired."""
        return self._served[self._added.pop(plugin_type).handler].retired

    def retire(self, handler: HandlerPort) -> None:
        """Drop a removed handler that has no plugin left; do nothing if it has retired already.

        A handler that was added and removed while the reconciler did not run retires before the next reconciler gets
        both messages.
        """
        if (served := self._served.pop(handler, None)) is not None:
            self._inboxes.remove(served.read)
            served.retired.set()

    def retirements(self) -> list[Callable[[], None]]:
        """Return a function for each removed handler that has not retired, which retires it.

        A restarted reconciler has no record of these handlers, so it never reports that they have no plugin left.
        """
        current = {added.handler for added in self._added.values()}
        return [partial(self.retire, handler) for handler in self._served if handler not in current]

"""Which endpoints registered plugins have, checked while a script is played."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

import attrs

from plugind.protocol.plugins.info import Plugin

#: The reason why a plugin may not use its endpoint any more, with the socket of the plugin that has it.
_TAKEN = re.compile(r"the endpoint .* belongs to .*, by the socket (.*): ")


@attrs.frozen(eq=False)
class EndpointOracle:
    """No plugin is registered with an endpoint that lies elsewhere, or that a plugin of another name has.

    A privileged one may have what another user's plugin has, which stands by then. What is shown of endpoints is true
    at rest.
    """

    _violated: Callable[[str, str], None]
    #: Where endpoints may be.
    _directories: tuple[str, ...]

    def validating(self, plugin: Plugin, earlier: Iterable[Plugin], later: Iterable[Plugin]) -> None:
        """A plugin is validated while others are registered, of whatever name.

        Of those, the ``later`` ones may have been admitted after this one, which has waited for its handler since.
        """
        endpoint = plugin.endpoint
        if endpoint == plugin.socket:
            return
        if not endpoint.startswith(self._directories):
            self._violated("endpoint", f"{plugin.socket} is validated with the endpoint {endpoint}")
        self._check_others(plugin, earlier)
        self._check_later(plugin, later)

    def registering(self, plugin: Plugin, others: Iterable[Plugin]) -> None:
        """A plugin is registered besides the ``others``, of whatever name.

        After this one was admitted, another one may have come to serve on its own socket, which is this one's endpoint;
        or a privileged one may have taken the endpoint over, for which this one stands by.
        """
        if plugin.endpoint != plugin.socket:
            self._check_later(plugin, others)

    def _check_later(self, plugin: Plugin, others: Iterable[Plugin]) -> None:
        """Check ``others`` that may have got their endpoints after this one: it stands by for those above it."""
        self._check_others(plugin, (other for other in others if not _is_above(other, plugin)))

    def _check_others(self, plugin: Plugin, others: Iterable[Plugin]) -> None:
        for other in others:
            if plugin.privileged and not other.privileged:
                continue
            if other.endpoint == plugin.endpoint and (other.type, other.name) != (plugin.type, plugin.name):
                self._violated("endpoint", f"{plugin.socket} gets the endpoint of {other.socket}, {plugin.endpoint}")

    def shown(self, socket: str, problems: Iterable[str], *, usable: bool) -> None:
        """At rest these problems are shown of the endpoint of a plugin, which can be used or not."""
        for problem in problems:
            if usable and _TAKEN.search(problem) is None:
                self._violated("endpoint", f"{socket} is shown with {problem!r}, and its endpoint can be used")

    def standing_by(self, shown: Mapping[str, Iterable[str]], registered: Mapping[str, Plugin]) -> set[str]:
        """Return which sockets stand by because of their endpoints, by what is ``shown`` of these at rest."""
        found: set[str] = set()
        for socket, problems in shown.items():
            for owner in filter(None, map(_TAKEN.search, problems)):
                found.add(socket)
                if owner[1] not in registered:
                    self._violated("endpoint", f"{socket} stands by for {owner[1]}, which is not registered")
        for plugin in registered.values():
            above = [other.socket for other in registered.values() if _is_above(other, plugin)]
            if above and plugin.socket not in found:
                self._violated("endpoint", f"{plugin.socket} has the endpoint of {above[0]}, and does not stand by")
        return found


def _is_above(other: Plugin, plugin: Plugin) -> bool:
    if other.endpoint != plugin.endpoint or (other.type, other.name) == (plugin.type, plugin.name):
        return False
    return _rank(other) > _rank(plugin)


def _rank(plugin: Plugin) -> tuple[bool, bool]:
    return plugin.privileged, plugin.endpoint == plugin.socket

"""Which endpoints registered plugins have, checked while a script is played.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from ....protocol.plugins import Plugin


@attrs.frozen(eq=False)
class EndpointOracle:
    """No plugin is registered with an endpoint that lies elsewhere, or that a plugin of another name has.

    What is shown of an endpoint that did not exist is true at rest.
    """

    _violated: Callable[[str, str], None]
    #: Where endpoints may be.
    _directories: tuple[str, ...]

    def validating(self, plugin: Plugin, others: Iterable[Plugin]) -> None:
        """A plugin is validated while the ``others`` are registered, of whatever name."""
        endpoint = plugin.endpoint
        if endpoint == plugin.socket:
            return
        if not endpoint.startswith(self._directories):
            self._violated("endpoint", f"{plugin.socket} is validated with the endpoint {endpoint}")
        self._check_others(plugin, others)

    def registering(self, plugin: Plugin, others: Iterable[Plugin]) -> None:
        """A plugin is registered besides the ``others``, of whatever name.

        Another one may have come to serve on its own socket, which is this one's endpoint, after this one was admitted.
        """
        if plugin.endpoint != plugin.socket:
            self._check_others(plugin, (other for other in others if other.endpoint != other.socket))

    def _check_others(self, plugin: Plugin, others: Iterable[Plugin]) -> None:
        for other in others:
            if other.endpoint == plugin.endpoint and (other.type, other.name) != (plugin.type, plugin.name):
                self._violated("endpoint", f"{plugin.socket} gets the endpoint of {other.socket}, {plugin.endpoint}")

    def shown(self, socket: str, problems: Iterable[str], *, usable: bool) -> None:
        """At rest these problems are shown of the endpoint of a plugin, which can be used or not."""
        if usable:
            for problem in problems:
                self._violated("endpoint", f"{socket} is shown with {problem!r}, and its endpoint can be used")

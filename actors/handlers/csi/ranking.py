"""The CSI drivers of one name by version."""

from __future__ import annotations

import attrs

from ....protocol.plugins.info import Plugin, csi_version
from ....protocol.world.ranking import Ranking


@attrs.define
class RankedDrivers:
    """The registered drivers of one name by version, privileged ones above all others, and by endpoint.

    A driver is compared with the highest one at another endpoint. With many drivers of one name, comparing each with
    all others would take quadratic time.
    """

    #: For each endpoint, the sockets of its drivers, ranked by version.
    _at: dict[str, Ranking[str]] = attrs.Factory(dict)
    #: The endpoints, ranked by the highest version at each.
    _endpoints: Ranking[str] = attrs.Factory(Ranking)
    _endpoint_of: dict[str, str] = attrs.Factory(dict)

    def add(self, plugin: Plugin) -> None:
        """Add a driver whose socket is not in the ranking."""
        self._endpoint_of[plugin.socket] = plugin.endpoint
        rank = (int(plugin.privileged), *csi_version(plugin.versions).rank)
        self._at.setdefault(plugin.endpoint, Ranking()).add(plugin.socket, rank)
        self._rank(plugin.endpoint)

    def remove(self, socket: str) -> int:
        """Remove the driver at ``socket``, if there is one; return how many drivers are left."""
        endpoint = self._endpoint_of.pop(socket, None)
        if endpoint is not None:
            self._at[endpoint].remove(socket)
            self._rank(endpoint)
        return len(self._endpoint_of)

    def _rank(self, endpoint: str) -> None:
        sockets = self._at[endpoint]
        if sockets:
            self._endpoints.add(endpoint, sockets.highest_rank())
        else:
            self._endpoints.remove(endpoint)
            del self._at[endpoint]

    def highest_elsewhere(self, plugin: Plugin) -> str | None:
        """Return the socket of the highest driver that shares neither socket nor endpoint with ``plugin``."""
        # The loops end early: a socket has one endpoint, so they pass over three candidates at most.
        for endpoint in self._endpoints:
            if endpoint != plugin.endpoint:
                for socket in self._at[endpoint]:
                    if socket != plugin.socket:
                        return socket
        return None

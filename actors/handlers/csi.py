"""The handler of CSI drivers.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import attrs

from ...protocol.errors import ValidationError
from ...protocol.plugins import InstancePolicy, Plugin, check_csi_versions, csi_version
from ...protocol.ranking import Ranking
from ...protocol.text import quoted
from .instances import Instances


class CSIHandler:
    """Accepts CSI drivers of version 1.x, and in deprecated roots those of 0.x, and keeps them by name.

    A second driver of one name must have a strictly higher version, unless it has the same endpoint. Then it counts as
    the same driver with a restarted registrar; all registrars announce the version "1.0.0". A privileged driver is
    compared with privileged ones only (fault 80).
    """

    instances = InstancePolicy.HIGHEST_VERSION

    def __init__(self) -> None:
        #: The drivers that are registered.
        self.drivers = Instances()
        #: The names for which a second driver was offered: most have one only.
        self._ranked: dict[str, _Ranked] = {}

    async def validate(self, plugin: Plugin) -> None:
        """Apply the version rules.

        Raises:
          ValidationError: if the versions are not acceptable, or another driver of that name has them or higher ones;
            the text is the kubelet's, and names the socket of the other driver.
        """
        try:
            self._check(plugin)
        except ValidationError as error:
            raise ValidationError(
                f"validation failed for CSI Driver {plugin.name} at endpoint {plugin.endpoint}: kubernetes.io/csi: "
                f"ValidatePlugin for CSI driver {quoted(plugin.name)} failed. {error}",
                cause=str(error),
            ) from error

    def _check(self, plugin: Plugin) -> None:
        version = check_csi_versions(plugin.versions, deprecated=plugin.found_in_deprecated_dir)
        ranked = self._rank(plugin.name)
        socket = None if ranked is None else ranked.highest_elsewhere(plugin)
        other = None if socket is None else self.drivers.at(plugin.name, socket)
        if other is None or (plugin.privileged and not other.privileged):
            return
        if version <= (present := csi_version(other.versions)):
            raise ValidationError(
                "Another driver with the same name is already registered with a higher supported version: "
                f"{quoted(str(present))} (by the socket {other.socket}; bring a higher version, or remove that one)"
            )

    async def register(self, plugin: Plugin) -> None:
        """Keep the driver."""
        self.keep(plugin)

    def keep(self, plugin: Plugin) -> None:
        """Keep a driver that is registered: others of its name are compared with it."""
        self._forget(plugin)
        self.drivers.add(plugin)
        if plugin.name in self._ranked:
            self._ranked[plugin.name].add(plugin)

    async def deregister(self, plugin: Plugin) -> None:
        """Forget the driver; another of its name stays."""
        self._forget(plugin)

    def _rank(self, name: str) -> _Ranked | None:
        """Return the registered drivers of ``name`` by version; None if there is none."""
        ranked = self._ranked.get(name)
        if ranked is None and (drivers := self.drivers.of(name)):
            ranked = self._ranked[name] = _Ranked()
            for driver in drivers:
                ranked.add(driver)
        return ranked

    def _forget(self, plugin: Plugin) -> None:
        """Forget what is kept for the socket of ``plugin``, which may have had another endpoint."""
        self.drivers.remove(plugin)
        if plugin.name in self._ranked and not self._ranked[plugin.name].remove(plugin.socket):
            del self._ranked[plugin.name]


@attrs.define
class _Ranked:
    """The registered drivers of one name by version, privileged ones above all others, and by endpoint.

    A driver is compared with the highest one at another endpoint. There may be many drivers of one name, so that to
    look at all of them for each one would take quadratic time.
    """

    #: For each endpoint, the sockets of its drivers by version.
    _at: dict[str, Ranking[str]] = attrs.Factory(dict)
    #: The endpoints, by the highest version at each.
    _endpoints: Ranking[str] = attrs.Factory(Ranking)
    _endpoint_of: dict[str, str] = attrs.Factory(dict)

    def add(self, plugin: Plugin) -> None:
        self._endpoint_of[plugin.socket] = plugin.endpoint
        rank = (int(plugin.privileged), *csi_version(plugin.versions).rank)
        self._at.setdefault(plugin.endpoint, Ranking()).add(plugin.socket, rank)
        self._rank(plugin.endpoint)

    def remove(self, socket: str) -> int:
        """Forget the driver at ``socket``, if there is one; return how many drivers are left."""
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
        """Return the socket of the highest driver whose socket and endpoint are not the plugin's."""
        # These loops end early: a socket is at one endpoint, so at most three candidates are passed over.
        for endpoint in self._endpoints:
            if endpoint != plugin.endpoint:
                for socket in self._at[endpoint]:
                    if socket != plugin.socket:
                        return socket
        return None

"""The handler of CSI drivers.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from ...protocol.errors import ValidationError
from ...protocol.plugins import InstancePolicy, Plugin, check_csi_versions, csi_version
from ...protocol.text import quoted
from .instances import Instances


class CSIHandler:
    """Accepts CSI drivers of version 1.x, and in deprecated roots those of 0.x, and keeps them by name.

    A second driver of one name must have a strictly higher version, unless it has the same endpoint. Then it counts as
    the same driver with a restarted registrar; all registrars announce the version "1.0.0".
    """

    instances = InstancePolicy.HIGHEST_VERSION

    def __init__(self) -> None:
        #: The drivers that are registered.
        self.drivers = Instances()

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
        for other in self.drivers.others(plugin):
            present = csi_version(other.versions)
            if other.endpoint != plugin.endpoint and version <= present:
                raise ValidationError(
                    "Another driver with the same name is already registered with a higher supported version: "
                    f"{quoted(str(present))} (by the socket {other.socket}; bring a higher version, or remove that one)"
                )

    async def register(self, plugin: Plugin) -> None:
        """Keep the driver."""
        self.drivers.add(plugin)

    async def deregister(self, plugin: Plugin) -> None:
        """Forget the driver; another of its name stays."""
        self.drivers.remove(plugin)

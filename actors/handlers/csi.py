"""The handler of CSI drivers.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from ...protocol.errors import ValidationError
from ...protocol.plugins import InstancePolicy, Plugin, check_csi_versions
from .instances import Instances


class CSIHandler:
    """Accepts CSI drivers of version 0.x and 1.x and keeps them by name.

    A second driver of one name must bring a strictly higher version, unless it has the same endpoint. Then it is the
    same driver, whose registrar was restarted; all registrars give their version as "1.0.0".
    """

    instances = InstancePolicy.HIGHEST_VERSION

    def __init__(self) -> None:
        #: The drivers that are registered.
        self.drivers = Instances()

    async def validate(self, plugin: Plugin) -> None:
        """Apply the version rules.

        Raises:
          ValidationError: if the versions are not acceptable, or another driver of that name has them or higher ones.
        """
        version = check_csi_versions(plugin.versions)
        if plugin.found_in_deprecated_dir and version.numbers[0] >= 1:
            raise ValidationError("a CSI driver of version 1.0 or above may not register in a deprecated directory")
        for other in self.drivers.others(plugin):
            present = check_csi_versions(other.versions)
            if other.endpoint != plugin.endpoint and version <= present:
                raise ValidationError(
                    f"another CSI driver named {plugin.name!r} is registered by the socket {other.socket} with "
                    f"version {present}: bring a higher version, or remove that socket"
                )

    async def register(self, plugin: Plugin) -> None:
        """Keep the driver."""
        self.drivers.add(plugin)

    async def deregister(self, plugin: Plugin) -> None:
        """Forget the driver; another of its name stays."""
        self.drivers.remove(plugin)

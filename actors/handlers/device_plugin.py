"""The handler of device plugins.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from ...protocol.plugins import InstancePolicy, Plugin, check_device_plugin_versions, check_extended_resource
from .instances import Instances


class DevicePluginHandler:
    """Accepts device plugins of ``v1beta1`` whose name is an extended resource.

    Several may offer one resource side by side.
    """

    instances = InstancePolicy.ALL

    def __init__(self) -> None:
        #: The device plugins that are registered.
        self.plugins = Instances()

    async def validate(self, plugin: Plugin) -> None:
        """Check the versions and the resource name.

        Raises:
          ValidationError: if ``v1beta1`` is not among the versions, or the name is not of the form
            ``vendor.domain/name``; the text is the kubelet's.
        """
        check_device_plugin_versions(plugin.versions)
        check_extended_resource(plugin.name)

    async def register(self, plugin: Plugin) -> None:
        """Keep the device plugin."""
        self.plugins.add(plugin)

    async def deregister(self, plugin: Plugin) -> None:
        """Forget the device plugin; others that offer its resource stay."""
        self.plugins.remove(plugin)

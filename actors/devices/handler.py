"""The handler of device plugins: it asks each for its options, and follows its lists of devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ...protocol.devices.messages import InstanceAdded, InstanceMessage, InstanceRemoved
from ...protocol.errors import NoConnectionError, PluginError, ValidationError
from ...protocol.messages.addresses import Address, Nobody
from ...protocol.plugins.devices import DeviceOptions
from ...protocol.plugins.info import InstancePolicy, Plugin, check_device_plugin_versions, check_extended_resource
from ...protocol.wire.errors import WireError
from ...protocol.wire.outcomes import status_text
from ..handlers.instances import Instances
from ..handlers.link import Link

if TYPE_CHECKING:
    from .calls import PluginCalls
    from .follower import Turns

#: Seconds in which the endpoint of a registering plugin must listen.
CONNECT_TIMEOUT = 10.0
#: Seconds until its answer about options is late.
OPTIONS_TIMEOUT = 5.0


class DevicePluginHandler:
    """Accepts device plugins of ``v1beta1`` whose name is an extended resource, and follows their lists of devices.

    Several plugins can offer one resource. The newest becomes active when it has sent a list; the others are on
    standby. So no devices go while a plugin is updated and two instances run side by side.
    """

    instances = InstancePolicy.NEWEST
    longest_call = CONNECT_TIMEOUT + OPTIONS_TIMEOUT

    def __init__(
        self,
        devices: Address[InstanceMessage] | None = None,
        *,
        strict: bool = False,
        is_static: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Report the devices of plugins to ``devices``, the devices actor.

        With ``strict``, a stream of lists that has ended is not opened again, as in the kubelet. ``is_static`` says of
        which resources the configuration names the devices.
        """
        self.plugins = Instances()
        self._devices: Address[InstanceMessage] = Nobody() if devices is None else devices
        self._strict = strict
        self._is_static = is_static
        self._turns: Turns = WeakValueDictionary()
        #: The calls of each instance, by its socket and generation.
        self._calls: dict[tuple[str, int], PluginCalls] = {}

    async def validate(self, plugin: Plugin) -> None:
        """Check the versions and the resource name.

        Raises:
          ValidationError: if ``v1beta1`` is not among the versions, or the name is not of the form
            ``vendor.domain/name``; the text is the kubelet's. Or if the configuration names the devices.
        """
        check_device_plugin_versions(plugin.versions)
        check_extended_resource(plugin.name)
        if self._is_static(plugin.name):
            raise ValidationError(
                f"the configuration names the devices of {plugin.name}: remove it from [devices], or give the plugin's"
                " resource another name"
            )

    async def register(self, plugin: Plugin, link: Link) -> None:
        """Connect to the endpoint, and ask the device plugin for its options.

        Raises:
          PluginError: if it does not listen or does not answer in time; the text is the kubelet's.
        """
        # The import is late: a node without device plugins does not load the module.
        from .calls import PluginCalls

        options = await _ask_for_options(link)
        self.plugins.add(plugin)
        calls = self._calls[plugin.socket, plugin.generation] = PluginCalls(plugin)
        self._devices.send_nowait(InstanceAdded(plugin, options, plugin.source, trio.current_time(), calls))

    async def follow(self, plugin: Plugin, link: Link) -> None:
        """Pass on the plugin's lists of devices and its role, and make the calls that leases need."""
        from .follower import DeviceFollower

        calls = self._calls[plugin.socket, plugin.generation]
        await DeviceFollower(plugin, link, self._devices, self._turns, calls, strict=self._strict).run()

    async def deregister(self, plugin: Plugin) -> None:
        """Drop the device plugin; other plugins of its resource stay."""
        self.plugins.remove(plugin)
        self._calls.pop((plugin.socket, plugin.generation), None)
        self._devices.send_nowait(InstanceRemoved(plugin.socket, plugin.generation, trio.current_time()))


async def _ask_for_options(link: Link) -> DeviceOptions:
    from ...protocol.proto.deviceplugin_v1beta1_grpc import DevicePluginStub
    from ...protocol.proto.deviceplugin_v1beta1_pb2 import Empty

    try:
        channel = await link.connect(timeout=CONNECT_TIMEOUT)
    except NoConnectionError as error:
        raise PluginError(f"failed to dial device plugin: {error}") from error
    try:
        said = await channel.stub(DevicePluginStub).GetDevicePluginOptions(Empty(), timeout=OPTIONS_TIMEOUT)
    except GRPCError as error:
        raise PluginError(f"failed to get device plugin options: {_words(error)}") from error
    return DeviceOptions(said.pre_start_required, said.get_preferred_allocation_available)


def _words(error: GRPCError) -> str:
    if error.status is Status.DEADLINE_EXCEEDED and not isinstance(error.__cause__, WireError):
        return f"no answer within {OPTIONS_TIMEOUT:g} s"
    return status_text(error)

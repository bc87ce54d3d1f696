"""The calls of a registration to a plugin's endpoint, by type, as the daemon or the kubelet makes them.

All of them only read. Neither calls a DRA driver before it is needed. The kubelet only calls NodeGetInfo of a CSI
driver.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio
from grpclib.exceptions import GRPCError

from ...protocol.errors import PluginError
from ...protocol.handlers.csi import Capabilities, NotKnown
from ...protocol.messages.consumers import CallEnded
from ...protocol.plugins.info import CSI, DEVICE, Plugin
from ...protocol.proto.deviceplugin_v1beta1_grpc import DevicePluginStub
from ...protocol.proto.deviceplugin_v1beta1_pb2 import Empty
from ...protocol.text import in_seconds, quoted
from ...protocol.wire.outcomes import status_text
from ..grpc.client.channel import Channel
from ..handlers.csi.driver import DriverCalls
from .findings import Verdict

#: The verdict on a call, and its text.
Answer = tuple[Verdict, str]
#: Makes a call on a channel to the endpoint; raises :exc:`PluginError` with the error for the plugin.
Call = Callable[[Channel], Awaitable[Answer]]


def calls_to(plugin: Plugin, *, strict: bool) -> dict[str, Call]:
    """Return the calls of a plugin's registration, by the names of their methods and in their order."""
    if plugin.type == CSI:
        return _calls_to_driver(plugin, strict=strict)
    return {"GetDevicePluginOptions": get_options} if plugin.type == DEVICE else {}


#: The types of plugins that are called.
CALLED_TYPES = (CSI, DEVICE)


def _calls_to_driver(plugin: Plugin, *, strict: bool) -> dict[str, Call]:
    calls = DriverCalls(plugin, _count_nothing, strict=strict)

    async def get_plugin_info(channel: Channel) -> Answer:
        version = await calls.get_plugin_info(channel)
        return Verdict.OK, f"the driver has the name of the plugin, and version {version or 'none'}"

    async def get_plugin_capabilities(channel: Channel) -> Answer:
        return _capabilities(await calls.get_plugin_capabilities(channel))

    async def get_node_capabilities(channel: Channel) -> Answer:
        return _capabilities(await calls.node_get_capabilities(channel))

    async def get_node_info(channel: Channel) -> Answer:
        node = await calls.node_get_info(channel)
        if node.node_id is None:
            return Verdict.WARNING, "not implemented: the driver has no node id, and with --strict it is refused"
        names_node = f"the driver calls this node {quoted(node.node_id)}"
        return (Verdict.WARNING, "; ".join((names_node, *node.warnings))) if node.warnings else (Verdict.OK, names_node)

    if strict:
        return {"NodeGetInfo": get_node_info}
    return {
        "GetPluginInfo": get_plugin_info,
        "GetPluginCapabilities": get_plugin_capabilities,
        "NodeGetCapabilities": get_node_capabilities,
        "NodeGetInfo": get_node_info,
    }


def _count_nothing(call: CallEnded) -> None:
    """Ignore a call, which nobody counts."""


def _capabilities(said: Capabilities) -> Answer:
    if isinstance(said, NotKnown):
        return Verdict.WARNING, f"{said.text}: a daemon registers the driver, and asks again"
    return Verdict.OK, ", ".join(said) or "none"


async def get_options(channel: Channel) -> Answer:
    """Ask a device plugin for its options."""
    try:
        await channel.stub(DevicePluginStub).GetDevicePluginOptions(Empty())
    except GRPCError as error:
        raise PluginError(status_text(error)) from error
    return Verdict.OK, "answered"


async def within(seconds: float, call: Call, channel: Channel) -> Answer:
    """Make ``call`` with a deadline of ``seconds``.

    Raises:
      PluginError: if it fails, or is not answered in time.
    """
    try:
        with trio.fail_after(seconds):
            return await call(channel)
    except trio.TooSlowError:
        raise PluginError(f"no answer in {in_seconds(seconds)}") from None

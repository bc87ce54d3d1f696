"""The messages about drivers from their handlers: a part of ``plugind.protocol.messages``."""

from __future__ import annotations

import enum

from ..plugins.info import Plugin
from ..values import value

# --- to the status actor ----------------------------------------------------------------------------------------------


class CallFamily(enum.StrEnum):
    """The histograms of calls to drivers, by the kubelet's names."""

    CSI = "csi_operations_seconds"
    DRA = "dra_grpc_operations_duration_seconds"


@value
class CallEnded:
    """One call to a driver."""

    family: CallFamily
    #: The name of the driver.
    name: str
    #: For example ``/csi.v1.Node/NodeGetInfo``.
    method: str
    #: The name of the status, for example ``DEADLINE_EXCEEDED``.
    code: str
    seconds: float


@value
class CallsEnded:
    """Calls to drivers for the metrics. The calls of one registration come together."""

    calls: tuple[CallEnded, ...]


class PluginEvent(enum.StrEnum):
    """Events of registered plugins besides changes of state, by the words that users see."""

    #: Its facts have changed.
    FACTS = "facts"
    #: No instance of a DRA driver has been connected for some time; the last one may have been deregistered.
    DRIVER_GONE = "driver-gone"


@value
class EventNoted:
    """An event of a plugin, for its history, the watches and the log. The plugin may have left since."""

    plugin: Plugin
    event: PluginEvent
    #: The details.
    text: str
    time: float

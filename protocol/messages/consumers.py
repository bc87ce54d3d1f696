"""What the consumers of drivers tell of them, and what they are asked: a part of ``plugind.protocol.messages``."""

from __future__ import annotations

import enum
from typing import Protocol

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
    #: The name of its status, for example ``DEADLINE_EXCEEDED``.
    code: str
    #: How long it took.
    seconds: float


@value
class CallsEnded:
    """Calls to drivers, to be counted: those of one registration come together."""

    calls: tuple[CallEnded, ...]


class PluginEvent(enum.StrEnum):
    """What can happen to a registered plugin besides a change of its state, by the words that users see."""

    #: What its handler knows of it is not what it was.
    FACTS = "facts"
    #: No instance of a DRA driver has been connected for some time; its last one may be registered no more.
    DRIVER_GONE = "driver-gone"


@value
class EventNoted:
    """Something has happened to a plugin: it is in the history, in watches and in the log.

    It may have left since then, and be forgotten.
    """

    plugin: Plugin
    event: PluginEvent
    #: What exactly.
    text: str
    #: ``trio.current_time()`` in seconds.
    time: float


# --- to the links -----------------------------------------------------------------------------------------------------


class YesOrNo(Protocol):
    """Where an answer of yes or no goes."""

    def send_nowait(self, message: bool, /) -> None:
        """Take the answer; never waits."""


@value
class FactsAsked:
    """A caller wants the facts of a registered plugin to be asked for anew (``plugind retry --facts``)."""

    socket: str
    generation: int
    #: Where it goes at once whether the handler of the plugin does so.
    reply: YesOrNo

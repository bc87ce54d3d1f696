"""CSI drivers of the cheap server: they answer what a node asks at registration, and note when Probe is called.

    python -m benchmarks.plugins.csi_server --dir D --sockets 1000 --hang probe --hang-fraction 0.5

Each socket is the registrar's and the driver's endpoint. Those that hang at ``probe`` are registered as the others, and
never answer Probe. With ``--type DRAPlugin`` they are DRA drivers, which answer gRPC's health check. ``report`` has the
numbers of calls too, and the longest time without a Probe.
"""

from __future__ import annotations

import sys
import time

from plugind.benchmarks.plugins.cheap_plugin import Plugin, PluginReport, ServerOptions, Tally
from plugind.benchmarks.plugins.cheap_protocol import DeviceCall, Notification, not_implemented, success
from plugind.benchmarks.plugins.cheap_server import Server, main
from plugind.protocol.proto import csi_v1_pb2 as api

_SERVICE = api.PluginCapability.Service
_RPC = api.NodeServiceCapability.RPC
#: The answer to ``grpc.health.v1.Health/Check``: its status is SERVING.
_SERVING = b"\x08\x01"


class DriverReport(PluginReport):
    """Events of one socket, and of its driver."""

    #: Calls that a node makes once, when it registers the driver.
    answered: int
    probes: int
    #: The longest time without a Probe, from the notification of the registrar until now.
    longest_gap_ns: int


class CSIDriver(Plugin):
    """One driver: its answers, and when it was asked how it is."""

    __slots__ = ("_answers", "_gap_ns", "_heard_ns", "answered", "probes")

    def __init__(self, options: ServerOptions, index: int, tally: Tally) -> None:
        super().__init__(options, index, tally)
        self._answers = answers(self.name)
        self.answered = self.probes = 0
        #: When it was notified, or probed last, and the longest time between two of that.
        self._heard_ns = self._gap_ns = 0

    def endpoint_call(self, call: DeviceCall) -> bytes:
        """Answer as a driver that is ready, or hang."""
        if call.method == "Check":
            return success(call.stream, _SERVING)
        if call.method == "Probe":
            self.probes += 1
            self._heard()
            return b"" if self.hang == "probe" else success(call.stream, b"")
        answer = self._answers.get(call.method)
        if answer is None:
            return not_implemented(call.stream)
        self.answered += 1
        return success(call.stream, answer)

    def note(self, notified: Notification) -> None:
        """Record the result of the registration: checks are counted from then on."""
        super().note(notified)
        self._heard_ns = time.monotonic_ns()

    def _heard(self) -> None:
        now = time.monotonic_ns()
        # It is followed a moment before its registrar has read the notification.
        if self._heard_ns:
            self._gap_ns = max(self._gap_ns, now - self._heard_ns)
        self._heard_ns = now

    def report(self) -> DriverReport:
        """Return all facts as values for JSON."""
        since = time.monotonic_ns() - self._heard_ns if self._heard_ns else 0
        gap = max(self._gap_ns, since)
        return {**super().report(), "answered": self.answered, "probes": self.probes, "longest_gap_ns": gap}


def answers(name: str) -> dict[str, bytes]:
    """Return what a driver says about itself and this node, by the method that asks it."""
    services = _SERVICE.CONTROLLER_SERVICE, _SERVICE.VOLUME_ACCESSIBILITY_CONSTRAINTS
    calls = _RPC.STAGE_UNSTAGE_VOLUME, _RPC.GET_VOLUME_STATS, _RPC.EXPAND_VOLUME
    of_driver = [api.PluginCapability(service=_SERVICE(type=one)) for one in services]
    of_node = [api.NodeServiceCapability(rpc=_RPC(type=one)) for one in calls]
    where = api.Topology(segments={f"topology.{name}/zone": "zone-1"})
    messages = {
        "GetPluginInfo": api.GetPluginInfoResponse(name=name, vendor_version="1.2.3"),
        "GetPluginCapabilities": api.GetPluginCapabilitiesResponse(capabilities=of_driver),
        "NodeGetCapabilities": api.NodeGetCapabilitiesResponse(capabilities=of_node),
        "NodeGetInfo": api.NodeGetInfoResponse(node_id="node-1", max_volumes_per_node=110, accessible_topology=where),
    }
    return {method: message.SerializeToString() for method, message in messages.items()}


class CSIServer(Server):
    """The cheap server with CSI drivers."""

    kind = CSIDriver


if __name__ == "__main__":
    sys.exit(main("csi_server", __doc__ or "", CSIServer))

"""docs/consumers.md names the limits that hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugind.actors.devices import directory as device_directory
from plugind.actors.devices import follower as device_follower
from plugind.actors.devices import handler as device_plugin
from plugind.actors.handlers import paced
from plugind.actors.handlers.csi import follower as csi_follower
from plugind.actors.handlers.csi import handler as csi
from plugind.actors.handlers.csi import methods as csi_methods
from plugind.actors.handlers.dra import calls as dra_calls
from plugind.actors.handlers.dra.driver import RETRIES
from plugind.actors.handlers.dra.health import AGAIN_AFTER
from plugind.actors.health import endpoint_checks
from plugind.protocol.devices import lists as device_lists
from plugind.protocol.devices import resources
from plugind.protocol.devices.calls import CallLimits
from plugind.protocol.handlers import csi as csi_rules
from plugind.protocol.handlers import dra_facts, dra_health
from plugind.protocol.handlers.dra import DRAConfig
from plugind.protocol.handlers.dra_claims import CALL_TIMEOUT
from plugind.protocol.health.checks import HealthChecks
from plugind.protocol.plugins.info import MAX_INSTANCES
from plugind.protocol.status.metrics import MAX_RESOURCES
from plugind.protocol.wire.limits import ENDPOINT_LIMITS, SMALL_DATA_BYTES

PAGE = (Path(__file__).parents[1] / "docs" / "consumers.md").read_text()
CHECKS = HealthChecks()
MEBIBYTE = 1024 * 1024
CALLS = CallLimits()
LIMITS = {
    "connections to `kubelet.sock`, and those of one process; more are closed, and the log says so": (
        f"{device_directory.LIMITS.max_connections}, {device_directory.LIMITS.max_connections_per_process}"
    ),
    "calls of Register that are under way, and those of one process": f"{CALLS.at_once}, {CALLS.per_process}",
    "time until a plugin that registers listens on its endpoint": f"{device_plugin.CONNECT_TIMEOUT:g} s",
    "time until it has said its options": f"{device_plugin.OPTIONS_TIMEOUT:g} s",
    "time until the first list of a stream; later, the plugin is `unhealthy`": f"{device_follower.FIRST_LIST:g} s",
    "pause between two checks of a plugin, and until one without an answer has failed": (
        f"{CHECKS.next_period(0):g} s to {CHECKS.next_period(1):g} s, {CHECKS.deadline:g} s"
    ),
    "checks that are out at once, of all plugins": str(endpoint_checks.MOST),
    "devices in a list": f"{device_lists.MAX_DEVICES:,}",
    "characters in the id of a device, of which there is at least one, and in its health; all must print": str(
        device_lists.MAX_TEXT
    ),
    "NUMA nodes of a device; a node of -1 means none": str(device_lists.MAX_NODES),
    "fields of a device and of its topology, where a node that is named again counts again": str(
        device_lists.MAX_FIELDS
    ),
    "fields of a list that the API does not define": f"{device_lists.MAX_UNKNOWN:,}",
    "bytes of a message": f"{ENDPOINT_LIMITS.message_bytes / MEBIBYTE:g} MiB",
    "bytes of messages that have not come as a whole, of all plugins": (
        f"{ENDPOINT_LIMITS.unparsed_bytes / MEBIBYTE:g} MiB"
    ),
    "lists taken from a plugin in a second": (
        f"{1 / paced.INTERVAL:g}, and at most {paced.BYTES_PER_SECOND / MEBIBYTE:g} MiB, where a "
        f"list counts at least {paced.LEAST_BYTES // 1024} KiB"
    ),
    "steps in which lists are read, of one plugin in a second, and fields in a step": (
        f"{paced.STEPS_PER_SECOND}, {device_lists.STEP:,}"
    ),
    "time until a CSI driver that registers listens on its endpoint": f"{csi.CONNECT_TIMEOUT:g} s",
    "time until it has answered GetPluginInfo or one of the calls for capabilities, and NodeGetInfo": (
        f"{csi_rules.SHORT_TIMEOUT:g} s, {csi_rules.NODE_INFO_TIMEOUT:g} s"
    ),
    "bytes of its answers": f"{csi_methods.MAX_ANSWER:,}",
    "segments of its topology": str(csi_rules.MAX_SEGMENTS),
    "pause until it is asked again what it can do": (
        f"{csi_follower.ASK_AGAIN.initial:g} s to {csi_follower.ASK_AGAIN.cap:g} s"
    ),
    "CSI drivers that have a label of their own in metrics": str(MAX_RESOURCES),
    "pause between two streams": f"{device_follower.STREAMS.initial:g} s to {device_follower.STREAMS.cap:g} s",
    f"DATA frames of fewer than {SMALL_DATA_BYTES} bytes in {ENDPOINT_LIMITS.budget_period:g} s": (
        f"{ENDPOINT_LIMITS.small_data:,}"
    ),
    "time for which a resource is kept without a plugin": f"{resources.GRACE / 60:g} min",
    "pause between two tries to connect to a DRA driver": f"{RETRIES.initial:g} s to {RETRIES.cap:g} s",
    "time without a connection after which a DRA driver is gone": f"{DRAConfig().gone_after:g} s",
    "time that a DRA driver has to prepare claims": f"{CALL_TIMEOUT:g} s",
    "bytes of its answer for each claim": f"{dra_calls.MAX_PER_CLAIM:,}",
    "devices whose health is kept of an instance of a DRA driver, and those that are named": (
        f"{dra_health.MAX_DEVICES:,}, {dra_facts.MAX_SHOWN}"
    ),
    "characters of what a DRA driver says of a device": str(dra_health.MAX_MESSAGE),
    "pause until a stream with the health of devices is opened again": f"{AGAIN_AFTER:g} s",
    "resources, and plugins of one resource": f"{resources.MAX_RESOURCES}, {MAX_INSTANCES}",
}


@pytest.mark.parametrize("what", LIMITS)
def test_the_page_names_each_limit(what: str) -> None:
    assert f"| {what} | {LIMITS[what]} |" in PAGE

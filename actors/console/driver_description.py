"""The lines of ``plugind describe`` about a CSI driver, and about an instance of a DRA driver."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from ...protocol.handlers.csi import TOPOLOGY, short_capabilities
from ...protocol.handlers.dra_facts import CONNECTED, DEVICE, DEVICE_HEALTH, DEVICES, SERVICE, USABLE
from ...protocol.handlers.dra_health import DRADeviceHealth
from ...protocol.plugins.info import CSI, DRA
from ...protocol.status.json import Json
from .answers import Plugin
from .phrases import by_the_clock, text, unix_time

_OF_CSI = ("node-id", "max-volumes", "capabilities.node")
_OF_DRA = (SERVICE, CONNECTED, USABLE, DEVICE_HEALTH, DEVICES)


def driver_lines(plugin: Plugin) -> Iterator[tuple[str, str]]:
    """Yield label and text of each line; none if ``plugin`` is not a driver with facts."""
    if facts := _facts(plugin, CSI, "csi-version"):
        yield "Node id", text(facts.get("node-id"))
        yield "Max volumes", text(facts.get("max-volumes"))
        segments = (f"{text(key.removeprefix(TOPOLOGY))}={text(facts[key])}" for key in facts if _is_segment(key))
        yield "Topology", ", ".join(segments) or "-"
        yield "Can", text(short_capabilities(str(facts.get("capabilities.node") or "")))
    elif facts := _facts(plugin, DRA, SERVICE):
        yield "Service", text(facts[SERVICE])
        yield "Connection", _connection(str(facts.get(CONNECTED)))
        yield "Usable", text(facts.get(USABLE))
        if DEVICE_HEALTH in facts:
            yield "Watched by", text(facts[DEVICE_HEALTH])
        if DEVICES in facts:
            yield "Devices", text(facts[DEVICES])
        for key, said in facts.items():
            if _is_ill(key, said):
                yield "Devices", f"{text(key.removeprefix(DEVICE))} {text(said)}"


def driver_shown(plugin: Plugin) -> Iterator[str]:
    """Yield the keys of the facts in these lines."""
    yield from (key for key in _facts(plugin, CSI, "csi-version") if key in _OF_CSI or _is_segment(key))
    yield from (key for key, said in _facts(plugin, DRA, SERVICE).items() if key in _OF_DRA or _is_ill(key, said))


def _facts(plugin: Plugin, of: str, key: str) -> Mapping[str, Json]:
    """Return the facts of a plugin of this type which have the ``key``; else none."""
    facts = plugin.get("facts")
    return facts if plugin.get("type") == of and isinstance(facts, Mapping) and key in facts else {}


def _is_segment(key: str) -> bool:
    return key.startswith(TOPOLOGY)


def _is_ill(key: str, said: Json) -> bool:
    """Whether a fact is about a device that is not healthy."""
    return key.startswith(DEVICE) and not str(said).startswith(DRADeviceHealth.HEALTHY)


def _connection(said: str) -> str:
    since = unix_time(said.removeprefix("since "))
    return "none" if since is None else f"connected {by_the_clock(max(0.0, time.time() - since))}"

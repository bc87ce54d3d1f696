"""The lines of ``plugind describe`` about an instance of a DRA driver."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from ...protocol.handlers.dra_facts import CONNECTED, DEVICE, DEVICE_HEALTH, DEVICES, SERVICE, USABLE
from ...protocol.handlers.dra_health import DRADeviceHealth
from ...protocol.plugins.info import DRA
from ...protocol.status.json import Json
from .answers import Plugin
from .phrases import by_the_clock, text, unix_time

_SHOWN = (SERVICE, CONNECTED, USABLE, DEVICE_HEALTH, DEVICES)


def dra_lines(plugin: Plugin) -> Iterator[tuple[str, str]]:
    """Yield label and text of each line; none if ``plugin`` is not a DRA driver with facts."""
    facts = _facts(plugin)
    if facts is None:
        return
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


def dra_shown(plugin: Plugin) -> Iterator[str]:
    """Yield the keys of the facts in these lines."""
    return (key for key, said in (_facts(plugin) or {}).items() if key in _SHOWN or _is_ill(key, said))


def _facts(plugin: Plugin) -> Mapping[str, Json] | None:
    facts = plugin.get("facts")
    if plugin.get("type") != DRA or not isinstance(facts, Mapping) or SERVICE not in facts:
        return None
    return facts


def _is_ill(key: str, said: Json) -> bool:
    """Whether a fact is about a device that is not healthy."""
    return key.startswith(DEVICE) and not str(said).startswith(DRADeviceHealth.HEALTHY)


def _connection(said: str) -> str:
    since = unix_time(said.removeprefix("since "))
    return "none" if since is None else f"connected {by_the_clock(max(0.0, time.time() - since))}"

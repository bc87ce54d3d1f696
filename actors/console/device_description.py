"""The lines of ``plugind describe`` about a device plugin, and about a resource without one."""

from __future__ import annotations

import time
from collections.abc import Iterator

from .answers import Plugin
from .device_leases import leases_line
from .lines import labelled
from .phrases import ago, by_the_clock, duration, exact, text, time_of_day, unix_time

_OPTIONS = {
    "get_preferred_allocation_available": "preferred allocation",
    "pre_start_required": "a call before each start",
}


def device_lines(plugin: Plugin) -> Iterator[tuple[str, str]]:
    """Yield label and text of each line; none if ``plugin`` lists no devices."""
    found = plugin.get("device_plugin")
    if not isinstance(found, dict):
        return
    yield "Resource", _resource(found)
    yield "Devices", _devices(found)
    unhealthy = found.get("unhealthy")
    for device in unhealthy if isinstance(unhealthy, list) else []:
        if isinstance(device, dict):
            yield "Unhealthy", f"{exact(device.get('id'))} since {ago(device.get('age'))} (the API gives no reason)"
    leases = found.get("leases")
    if isinstance(leases, list):
        yield "Leases", leases_line(leases)
    yield "Options", ", ".join(words for key, words in _OPTIONS.items() if found.get(key) is True) or "none"
    if found.get("warning") is not None:
        yield "Warning", text(found["warning"])
    yield "Lists", _lists(found)


def _resource(found: Plugin) -> str:
    if found.get("active") is not True:
        return f"{text(found.get('resource'))}, standby"
    others = found.get("standby")
    return f"{text(found.get('resource'))}, active" + (f" ({others} standby)" if others else "")


def _devices(found: Plugin) -> str:
    if not found.get("lists"):
        return "none listed yet"
    devices, healthy = found.get("devices"), found.get("healthy")
    if not isinstance(devices, int) or not isinstance(healthy, int):
        return "-"
    parts = [f"{healthy} healthy", *([f"{devices - healthy} unhealthy"] if devices > healthy else [])]
    return ", ".join(parts)


def _lists(found: Plugin) -> str:
    passed = found.get("last_list_ago")
    last = "" if passed is None else f", last {by_the_clock(passed)} ago"
    said = f"{text(found.get('lists'))}{last}"
    since = unix_time(found.get("lost_since"))
    if since is None:
        return said
    return f"{said}; lost since {time_of_day(since, time.time())}: {text(found.get('reason'))}"


def described_resource(resource: Plugin, refused: str | None = None, width: int | None = None) -> str:
    """Return the full description of a resource without a registered plugin, line by line.

    ``refused`` is the last refused Register call for it. On a terminal of ``width`` columns, long lines are broken.
    """
    goes_in, last = resource.get("goes_in"), resource.get("last_capacity")
    facts = [
        ("Resource", text(resource.get("resource"))),
        (
            "State",
            f"{text(resource.get('state'))} for {duration(resource.get('age'))}, since {ago(resource.get('age'))}",
        ),
        ("Cause", text(resource.get("reason"))),
        ("Goes", f"in {duration(goes_in)}, at {ago(-goes_in)}" if isinstance(goes_in, int | float) else "-"),
        ("Capacity", text(resource.get("capacity")) + ("" if last is None else f" ({last} before the restart)")),
        *([] if refused is None else [("Refused", refused)]),
    ]
    return "\n".join(labelled(facts, width)) + "\n"

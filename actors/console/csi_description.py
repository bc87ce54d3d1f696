"""The lines of ``plugind describe`` about a CSI driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...protocol.handlers.csi import TOPOLOGY, short_capabilities
from ...protocol.plugins.info import CSI
from ...protocol.status.json import Json
from .answers import Plugin
from .phrases import text

_SHOWN = ("node-id", "max-volumes", "capabilities.node")


def csi_lines(plugin: Plugin) -> Iterator[tuple[str, str]]:
    """Yield label and text of each line; none if ``plugin`` is not a CSI driver with facts."""
    facts = _facts(plugin)
    if facts is None:
        return
    yield "Node id", text(facts.get("node-id"))
    yield "Max volumes", text(facts.get("max-volumes"))
    yield "Topology", ", ".join(_segments(facts)) or "-"
    yield "Can", text(short_capabilities(str(facts.get("capabilities.node") or "")))


def csi_shown(plugin: Plugin) -> Iterator[str]:
    """Yield the keys of the facts in these lines."""
    return (key for key in _facts(plugin) or () if key in _SHOWN or key.startswith(TOPOLOGY))


def _facts(plugin: Plugin) -> Mapping[str, Json] | None:
    facts = plugin.get("facts")
    if plugin.get("type") != CSI or not isinstance(facts, Mapping) or "csi-version" not in facts:
        return None
    return facts


def _segments(facts: Mapping[str, Json]) -> Iterator[str]:
    for key, value in facts.items():
        if key.startswith(TOPOLOGY):
            yield f"{text(key.removeprefix(TOPOLOGY))}={text(value)}"

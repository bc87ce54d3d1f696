"""What ``plugind demo`` shows of the facts that CSI drivers have told: a line for each that has a topology.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...protocol.handlers.csi import TOPOLOGY
from ...protocol.plugins.info import CSI
from ...protocol.plugins.status import PluginStatus, StateName
from .phrases import text


def fact_lines(plugins: Iterable[PluginStatus]) -> list[str]:
    """Return a line for each registered CSI driver that says where the node is."""
    return [line for plugin in plugins if plugin.state is StateName.REGISTERED for line in _line(plugin)]


def _line(plugin: PluginStatus) -> Iterator[str]:
    facts = dict(plugin.facts)
    places = [f"{key.removeprefix(TOPOLOGY)}={said}" for key, said in facts.items() if key.startswith(TOPOLOGY)]
    if plugin.type == CSI and places:
        node_id, volumes = facts.get("node-id", "-"), facts.get("max-volumes", "-")
        yield text(f"{plugin.name}: node id {node_id}, {volumes} volumes, {' '.join(places)}")

"""Which devices a request gets: what must be included, what the plugin prefers, then by NUMA node and name.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import combinations

from ..devices import Device

#: On a node with more NUMA nodes than this, not all sets of them are tried.
MANY_NODES = 8

_DIGITS = re.compile(r"([0-9]+)")

_Nodes = frozenset[int]


def natural(device_id: str) -> tuple[object, ...]:
    """Return the key that orders ids as people do: ``GPU-2`` is before ``GPU-10``."""
    parts = _DIGITS.split(device_id)
    for at in range(1, len(parts), 2):
        # Numbers of thousands of digits are compared as text: to read one as an integer is an error.
        digits = parts[at].lstrip("0")
        parts[at] = f"{len(digits):08}{digits}"
    return (*parts, device_id)


def choose(
    available: Mapping[str, Device], size: int, include: Collection[str] = (), preferred: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return ``size`` ids of ``available``, which has as many and those of ``include``.

    What the plugin has ``preferred`` is used as far as it is available. The others are devices of one NUMA node if
    there are enough, of as few nodes as possible otherwise, and devices of no node only when those are used up.
    """
    chosen = {device_id: available[device_id] for device_id in include}
    for device_id in preferred:
        if device_id in available and len(chosen) < size:
            chosen[device_id] = available[device_id]
    if missing := size - len(chosen):
        others = [device for device_id, device in available.items() if device_id not in chosen]
        nodes = _nodes(others, missing, frozenset(node for it in chosen.values() for node in it.numa))
        others.sort(key=lambda device: (*_distance(device, nodes), natural(device.id)))
        chosen |= {device.id: device for device in others[:missing]}
    return tuple(sorted(chosen, key=natural))


def _distance(device: Device, nodes: _Nodes) -> tuple[bool, bool, int]:
    # Those that are near to other nodes too are kept for somebody who needs them.
    return nodes.isdisjoint(device.numa), not device.numa, len(device.numa)


def _nodes(devices: Iterable[Device], size: int, beside: _Nodes) -> _Nodes:
    """Return the fewest NUMA nodes that have ``size`` of ``devices``; those of ``beside`` are used anyway."""
    near = Counter(frozenset(device.numa) for device in devices if device.numa)
    nodes = sorted(frozenset[int]().union(*near) - beside)
    if len(nodes) > MANY_NODES:
        return _nodes_in_turn(near, size, beside)
    for number in range(len(nodes)):
        sets = map(beside.union, combinations(nodes, number))
        if enough := [some for some in sets if _number(near, some) >= size]:
            return max(enough, key=lambda some: min(size, _number_inside(near, some)))
    return beside.union(nodes)


def _nodes_in_turn(near: Counter[_Nodes], size: int, used: _Nodes) -> _Nodes:
    """Return NUMA nodes that have ``size`` devices, those with the most devices first."""
    by_node = Counter[int]()
    for nodes, number in near.items():
        by_node.update(dict.fromkeys(nodes, number))
    for node, _ in sorted(by_node.items(), key=lambda item: (-item[1], item[0])):
        if _number(near, used) >= size:
            break
        used |= {node}
    return used


def _number(near: Counter[_Nodes], nodes: _Nodes) -> int:
    return sum(number for some, number in near.items() if not nodes.isdisjoint(some))


def _number_inside(near: Counter[_Nodes], nodes: _Nodes) -> int:
    return sum(number for some, number in near.items() if some <= nodes)

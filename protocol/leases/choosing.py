"""Which devices a request gets: what must be included, what the plugin prefers, then by NUMA node and name."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from functools import partial
from itertools import combinations, islice

from .free import FreeDevices, Nodes, natural

#: On a node with more NUMA nodes than this, not all sets of them are tried.
MANY_NODES = 8


def choose(
    free: FreeDevices,
    size: int,
    include: Collection[str] = (),
    preferred: Iterable[str] = (),
    without: Collection[str] = (),
) -> tuple[str, ...]:
    """Return ``size`` ids of ``free``, which has as many and those of ``include`` beside those ``without``.

    What the plugin has ``preferred`` is used as far as it is available. The others are devices of one NUMA node if
    there are enough, of as few nodes as possible otherwise, and devices of no node only when those are used up.
    """
    chosen = {device_id: free[device_id] for device_id in include}
    for device_id in preferred:
        if device_id in free and device_id not in without and len(chosen) < size:
            chosen[device_id] = free[device_id]
    if missing := size - len(chosen):
        used = chosen.keys() | without
        beside = frozenset(node for device in chosen.values() for node in device.numa)
        nodes = _nodes(free.number_near(used), missing, beside)
        others = free.in_order(partial(_distance, nodes), used)
        chosen |= {device.id: device for device in islice(others, missing)}
    return tuple(sorted(chosen, key=natural))


def _distance(nodes: Nodes, near: Nodes) -> tuple[bool, bool, int]:
    # Those that are near to other nodes too are kept for somebody who needs them.
    return nodes.isdisjoint(near), not near, len(near)


def _nodes(near: Counter[Nodes], size: int, beside: Nodes) -> Nodes:
    """Return the fewest NUMA nodes that have ``size`` devices, ``near`` those; those of ``beside`` are used anyway."""
    nodes = sorted(Nodes().union(*near) - beside)
    if len(nodes) > MANY_NODES:
        return _nodes_in_turn(near, size, beside)
    for number in range(len(nodes)):
        sets = map(beside.union, combinations(nodes, number))
        if enough := [some for some in sets if _number(near, some) >= size]:
            return max(enough, key=lambda some: min(size, _number_inside(near, some)))
    return beside.union(nodes)


def _nodes_in_turn(near: Counter[Nodes], size: int, beside: Nodes) -> Nodes:
    """Return NUMA nodes that have ``size`` devices, those with the most devices first."""
    sets = defaultdict[int, list[Nodes]](list)
    for some in near:
        for node in some:
            sets[node].append(some)
    used, found = set(beside), {some for node in beside for some in sets[node]}
    number = sum(near[some] for some in found)
    for node in sorted(sets.keys() - beside, key=lambda node: (-sum(near[some] for some in sets[node]), node)):
        if number >= size:
            break
        used.add(node)
        number += sum(near[some] for some in sets[node] if some not in found)
        found.update(sets[node])
    return frozenset(used)


def _number(near: Counter[Nodes], nodes: Nodes) -> int:
    return sum(number for some, number in near.items() if not nodes.isdisjoint(some))


def _number_inside(near: Counter[Nodes], nodes: Nodes) -> int:
    return sum(number for some, number in near.items() if some <= nodes)

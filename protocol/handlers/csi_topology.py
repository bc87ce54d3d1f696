"""The topologies of registered CSI drivers: two drivers must not give one key different values.

The kubelet makes labels of a node from them, and each label has one value. Nothing here waits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import attrs

from ..plugins.info import Plugin
from ..text import cut, quoted
from ..values import record

Topology = tuple[tuple[str, str], ...]

#: Characters of a key or a value in a text.
_MAX_SHOWN = 256


#: The form of keys and values that the CSI specification allows, which is nearly that of labels in Kubernetes.
_WORD: Final = r"[A-Za-z0-9](?:[-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?"
_PREFIX: Final = r"[a-z0-9](?:[-.a-z0-9]{0,61}[a-z0-9])?/"
_KEY: Final = re.compile(f"(?:{_PREFIX})?{_WORD}")
_VALUE: Final = re.compile(f"(?:{_WORD})?")


def wrong_with(topology: Topology) -> str | None:
    """Describe the first segment that the CSI specification does not allow; None if all are valid.

    A kubelet cannot make a label of an invalid segment. Here a segment is only text.
    """
    wrong = [pair for pair in topology if not (_KEY.fullmatch(pair[0]) and _VALUE.fullmatch(pair[1]))]
    if not wrong:
        return None
    more = f", and {len(wrong) - 1} more such" if len(wrong) > 1 else ""
    return f"the topology has {_pair(*wrong[0])}, which the CSI specification does not allow{more}"


def _key_of(plugin: Plugin) -> tuple[str, int]:
    return plugin.socket, plugin.generation


@record
class Topologies:
    """The topologies of the drivers that are registered."""

    #: For each key and value, the drivers that gave them, by socket and generation. Most keys have one value, so a
    #: collision is found without iterating over the drivers.
    _given: dict[str, dict[str, dict[tuple[str, int], Plugin]]] = attrs.field(init=False, factory=dict)
    _of: dict[tuple[str, int], Topology] = attrs.field(init=False, factory=dict)

    def put(self, plugin: Plugin, topology: Topology) -> None:
        """Set the topology of a driver."""
        self.remove(plugin)
        if not topology:
            return
        self._of[_key_of(plugin)] = topology
        for key, text in topology:
            self._given.setdefault(key, {}).setdefault(text, {})[_key_of(plugin)] = plugin

    def remove(self, plugin: Plugin) -> None:
        """Remove a driver, if it is known."""
        for key, text in self._of.pop(_key_of(plugin), ()):
            values = self._given[key]
            del values[text][_key_of(plugin)]
            if not values[text]:
                del values[text]
            if not values:
                del self._given[key]

    def collision(self, plugin: Plugin, topology: Topology) -> str | None:
        """Describe the first key of ``topology`` that has another value at another driver; None if there is none.

        The instances of one name are one driver. A privileged driver is compared with privileged ones only (fault 80).
        """
        for key, text in topology:
            for existing, other in self._elsewhere(plugin, key, text):
                ours, theirs = _pair(key, text), _pair(key, existing)
                return (
                    f"detected topology value collision: driver reported {ours} but existing label is {theirs}"
                    f" (of the driver {quoted(other.name)})"
                )
        return None

    def _elsewhere(self, plugin: Plugin, key: str, text: str) -> Iterator[tuple[str, Plugin]]:
        for existing, drivers in self._given.get(key, {}).items():
            if existing != text:
                for other in drivers.values():
                    if other.name != plugin.name and (other.privileged or not plugin.privileged):
                        yield existing, other


def _pair(key: str, text: str) -> str:
    return f"{quoted(cut(key, _MAX_SHOWN))}:{quoted(cut(text, _MAX_SHOWN))}"

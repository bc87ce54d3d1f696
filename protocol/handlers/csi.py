"""The checks of a CSI driver's answers, and the facts that users are shown.

``plugind.actors.handlers.csi.driver`` makes the calls. Nothing here waits or reads a clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Literal

import attrs

from ..checks import at_least_ten, or_none
from ..errors import ConfigError, PluginError, ValidationError
from ..health.checks import Checked
from ..plugins.health import MAX_FACTS, Health
from ..text import cut, escaped, quoted
from ..values import value
from .csi_topology import wrong_with

#: What to do with a driver whose topology contradicts that of another one.
Collisions = Literal["refuse", "warn"]
_COLLISIONS: Final = ("refuse", "warn")


@value
class CSIConfig:
    """The configuration for CSI drivers. Times are in seconds.

    Raises:
      ConfigError: if ``refresh`` is less than 10, or ``topology_collisions`` is neither ``refuse`` nor ``warn``.
    """

    #: Between two calls of NodeGetInfo, 10 or more. With None there is one call, and one each time somebody asks for
    #: facts.
    refresh: float | None = attrs.field(default=None, validator=or_none(at_least_ten))
    #: What to do with a driver whose topology gives a key another value than that of another driver: refuse the driver
    #: as the kubelet does, or only warn.
    topology_collisions: Collisions = attrs.field(default="refuse")

    @topology_collisions.validator
    def _check_collisions(self, _: object, word: str) -> None:
        if word not in _COLLISIONS:
            raise ConfigError(f"CSIConfig.topology_collisions is {word!r}: it must be 'refuse' or 'warn'")


# --- the answers ------------------------------------------------------------------------------------------------------

#: Deadlines of calls in seconds. A driver may have to ask a cloud about the node.
SHORT_TIMEOUT = 5.0
NODE_INFO_TIMEOUT = 120.0
#: Bytes of UTF-8 in a node id, by the CSI specification.
MAX_NODE_ID = 256
#: The kubelet cannot count more volumes than this.
MOST_VOLUMES = 2**31 - 1
#: The most segments of a topology. Each is a fact, and there are a few other facts. The specification limits the
#: topology to 4 KiB.
MAX_SEGMENTS = MAX_FACTS - 8


@value
class NodeInfo:
    """A driver's checked answer about this node."""

    #: What the driver calls the node; None if it does not implement NodeGetInfo.
    node_id: str | None
    #: How many volumes of the driver the node can have; 0 for no limit, None if that is not known.
    max_volumes: int | None = None
    #: The segments of the topology in the order of their keys.
    topology: tuple[tuple[str, str], ...] = ()
    #: Problems with the answer that are no reason to refuse it.
    warnings: tuple[str, ...] = ()


#: The facts if a driver does not implement NodeGetInfo.
NO_NODE_INFO: Final = NodeInfo(None)


def check_driver_name(said: str, name: str, endpoint: str) -> None:
    """Check that the driver's own name, ``said``, is the ``name`` that its registrar gave.

    Raises:
      ValidationError: if the names differ.
    """
    if said != name:
        ours, theirs = quoted(cut(said, _MAX_FACT)), quoted(name)
        raise ValidationError(f"the driver at {endpoint} calls itself {ours}, its registrar {theirs}")


def checked_node_info(node_id: str, max_volumes: int, segments: Mapping[str, str]) -> NodeInfo:
    """Return a driver's answer to NodeGetInfo, without invalid parts.

    Raises:
      ValidationError: if there is no node id, or the topology is too large; the text for the former is the kubelet's.
    """
    if not node_id:
        raise ValidationError("error adding CSI driver node info: driverNodeID must not be empty")
    if len(segments) > MAX_SEGMENTS:
        raise ValidationError(
            f"the topology of the driver has {len(segments)} segments, at most {MAX_SEGMENTS} are taken"
        )
    volumes, warning = _checked_volumes(max_volumes)
    topology = tuple(sorted(segments.items()))
    warnings = (_long_node_id(node_id), warning, wrong_with(topology))
    return NodeInfo(node_id, volumes, topology, tuple(warning for warning in warnings if warning is not None))


def _long_node_id(node_id: str) -> str | None:
    size = len(node_id.encode("utf-8", "replace"))
    if size <= MAX_NODE_ID:
        return None
    return f"the node id of the driver has {size} bytes, and the CSI specification allows {MAX_NODE_ID}"


def _checked_volumes(number: int) -> tuple[int | None, str | None]:
    """Return the number of volumes to use, and a warning about ``number`` if there is one."""
    if number < 0:
        return None, f"max_volumes_per_node is {number}, which is not valid: it is left out"
    if number > MOST_VOLUMES:
        return MOST_VOLUMES, f"max_volumes_per_node is {number}: it is cut to {MOST_VOLUMES}"
    return number, None


# --- what a driver can do ---------------------------------------------------------------------------------------------


@value
class NotKnown:
    """A driver has not told its capabilities yet, and is asked again."""

    #: How the call failed.
    text: str


#: A driver's capabilities, by their names in the specification.
Capabilities = tuple[str, ...] | NotKnown

#: The words of ``plugind describe`` for capabilities, in the order in which they are shown.
_CAN: Final = {
    "STAGE_UNSTAGE_VOLUME": "stage",
    "EXPAND_VOLUME": "expand",
    "GET_VOLUME_STATS": "stats",
    "VOLUME_CONDITION": "condition",
    "SINGLE_NODE_MULTI_WRITER": "multi-writer",
    "VOLUME_MOUNT_GROUP": "mount-group",
}
_NONE = "none"
_NOT_KNOWN = "unknown: "


def short_capabilities(capabilities: str) -> str:
    """Return the fact ``capabilities.node`` in shorter words; unknown capabilities keep their names."""
    if capabilities.startswith(_NOT_KNOWN) or capabilities == _NONE:
        return capabilities
    said = capabilities.split(", ")
    return ", ".join(
        [word for name, word in _CAN.items() if name in said]
        + [capability for capability in said if capability not in _CAN]
    )


# --- facts ------------------------------------------------------------------------------------------------------------

#: Characters of one fact. All facts of a driver can be kept, except that a long topology, which comes last, is cut.
_MAX_FACT = 512
#: Characters of the description of changed facts.
_MAX_CHANGE = 1024
REFRESHED = "refreshed"
#: The prefix of facts that are segments of the topology.
TOPOLOGY = "topology."
NO_LIMIT = "no limit"


@value
class DriverFacts:
    """A driver's answers."""

    #: None if the driver is only observed, and so not asked.
    node: NodeInfo | None
    vendor_version: str
    #: The version of the specification that is used with the driver.
    csi_version: str
    node_capabilities: Capabilities
    plugin_capabilities: Capabilities
    #: The time of the last answer to NodeGetInfo, or to GetPluginInfo if the driver is only observed, and the result of
    #: a later call that failed.
    refreshed: str

    @property
    def is_complete(self) -> bool:
        """Whether the driver has told its capabilities."""
        return not isinstance(self.node_capabilities, NotKnown) and not isinstance(self.plugin_capabilities, NotKnown)

    def as_texts(self) -> dict[str, str]:
        """Return the facts as users are shown them, with non-printable characters escaped."""
        texts = {key: cut(text, _MAX_FACT) for key, text in self._texts() if text}
        # One check of all facts together is cheaper, and they nearly always print.
        if "".join([*texts, *texts.values()]).isprintable():
            return texts
        return {escaped(key): escaped(text) for key, text in texts.items()}

    def _texts(self) -> Iterator[tuple[str, str]]:
        node = self.node
        if node is not None:
            yield "node-id", node.node_id or _NONE
            if node.max_volumes is not None:
                yield "max-volumes", str(node.max_volumes) if node.max_volumes else NO_LIMIT
        yield "vendor-version", self.vendor_version
        yield "capabilities.node", _capabilities_text(self.node_capabilities)
        yield "capabilities.plugin", _capabilities_text(self.plugin_capabilities)
        yield "csi-version", self.csi_version
        yield REFRESHED, self.refreshed
        for key, text in () if node is None else node.topology:
            yield TOPOLOGY + cut(key, _MAX_FACT), text or '""'


def _capabilities_text(capabilities: Capabilities) -> str:
    if isinstance(capabilities, NotKnown):
        return _NOT_KNOWN + capabilities.text
    return ", ".join(capabilities) or _NONE


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Describe the changes between two sets of facts, the time of the refresh excepted."""
    return cut("; ".join(_changes(before, after)), _MAX_CHANGE)


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for key in dict.fromkeys((*after, *before)):
        was, is_now = before.get(key), after.get(key)
        if key == REFRESHED or was == is_now:
            continue
        if is_now is None:
            yield f"{key} is not known any more, was {was}"
        else:
            yield f"{key} is {is_now}" + ("" if was is None else f", was {was}")


# --- health -----------------------------------------------------------------------------------------------------------

NOT_READY = "driver responded but is not ready"
#: Seconds after its registration in which a driver that is not ready counts as starting.
STARTING_FOR = 60.0


class DriverNotReadyError(PluginError):
    """The driver answered Probe that it is not ready."""

    def __init__(self) -> None:
        super().__init__(NOT_READY)


def shown_health(checked: Checked, *, may_start: bool) -> tuple[Health, str, int]:
    """Return the health that is reported, the reason, and how many checks have failed in a row.

    ``may_start`` is true if the last check found a driver not ready that was registered a moment ago. Such a driver is
    starting and not unhealthy, unless it was ready before.
    """
    if may_start and checked.health in (Health.UNKNOWN, Health.UNHEALTHY):
        return Health.STARTING, NOT_READY, 0
    return checked.health, checked.reason, checked.failures

"""Static devices: device nodes of the machine that the operator names, which need no device plugin.

A device *is* its node: its number and its place in sysfs. Names in ``/dev`` are given again when a device is unplugged
and another one is plugged in, so a device that was leased is compared with the one that has its id now.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

import attrs

from ..leases.answers import checked
from ..leases.drains import unshared
from ..leases.free import natural
from ..leases.values import Answer, Node, identity_key
from ..plugins.devices import HEALTHY, Device, DeviceList
from ..plugins.static_devices import ATTRIBUTES, StaticResource
from ..text import first_few
from ..values import value

#: How many nodes of one resource are listed.
MAX_DEVICES: Final = 512
#: Characters of an id.
_MAX_ID: Final = 64
_ID: Final = re.compile(r"[A-Za-z0-9._:@+-]")
#: What a path of a node consists of that is put into a variable, where commas separate paths.
_PATH: Final = re.compile(r"[A-Za-z0-9._:@+/-]+")

# --- what is found ----------------------------------------------------------------------------------------------------


@value
class FoundNode:
    """A device node that matches, as it is now."""

    #: The path that matches, which can be a link.
    path: str
    #: The path of the node itself.
    node: str
    #: Its kind and number: ``c188:0``.
    number: str
    #: Its path in sysfs; empty if it has none.
    place: str = ""
    attributes: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: Why it cannot be leased; None if it can.
    problem: str | None = None

    @property
    def identity(self) -> str:
        """What it is, whatever its name."""
        return f"{self.number} {self.place}" if self.place else self.number


@value
class ListedNodes:
    """The devices of one resource."""

    listed: DeviceList
    #: The node of each device that can be leased, by its id in the list.
    nodes: Mapping[str, FoundNode] = attrs.field(factory=dict, hash=False)


def listed(name: str, resource: StaticResource, found: Iterable[FoundNode], numbers: dict[str, str]) -> ListedNodes:
    """Return the devices of resource ``name``, in the natural order of their paths.

    ``numbers`` has the devices of the resources before it, as ``RESOURCE=ID`` by the number of the node, and gets those
    of this one. The second device with a number, and the second with an id, are listed as unhealthy.
    """
    devices = list[Device]()
    nodes = dict[str, FoundNode]()
    ids = set[str]()
    for node in sorted(found, key=lambda node: natural(node.path))[:MAX_DEVICES]:
        device_id, problem = id_of(resource, node), node.problem
        if problem is None and _needs_uuid(resource) and not node.attributes.get("uuid"):
            problem = "its UUID is not known: the driver tells it once a program has used the GPU"
        if device_id in ids:
            # The id belongs to the first, so the second gets one that no node of its own has.
            problem = f"its id {device_id} is that of another device: see the setting id"
            device_id = _encoded(node.path)
        ids.add(device_id)
        own = f"{name}={device_id}"
        if problem is None and (other := numbers.setdefault(node.number, own)) != own:
            problem = f"the same device as {other}"
        if problem is None and not _PATH.fullmatch(node.node):
            problem = "its path has characters that no variable may have"
        for number in range(resource.shared):
            each = device_id if resource.shared == 1 else f"{device_id}::{number}"
            devices.append(Device(each, problem or HEALTHY, identity=node.identity))
            if problem is None:
                nodes[each] = node
    return ListedNodes(DeviceList(devices), nodes)


def doubts(
    resources: Mapping[str, StaticResource],
    find: Callable[[StaticResource], Iterable[FoundNode]],
    why_replaceable: Callable[[str], str | None],
    given: Iterable[tuple[FoundNode, str]] = (),
) -> Iterator[str]:
    """Yield what can be said against resources before a daemon has them.

    These are devices that cannot be leased, patterns whose nodes could not be, and devices that two resources name, by
    one pattern, or by a node that is there. ``given`` has nodes that others give already, and who they are.
    """
    owners, said = dict[str, tuple[str, str]](), set[tuple[str, str]]()
    others = {node.number: f"{node.path} of {whose}" for node, whose in given}
    for name, resource in resources.items():
        reasons = defaultdict[str, list[str]](list)
        for path in (*resource.paths, *resource.nodes):
            if (why := why_replaceable(path)) is not None:
                reasons[why].append(path)
        of_patterns = {*reasons}
        found = list(find(resource))
        for device in listed(name, resource, found, {}).listed.devices.values():
            if not device.healthy and device.health not in of_patterns:
                reasons[device.health].append(unshared(device.id))
        for node in found:
            if (whose := others.get(node.number)) is not None:
                yield f"{node.path} of {name} is also {whose}"
        for why, paths in reasons.items():
            yield f"{first_few(dict.fromkeys(paths))} of {name} cannot be leased: {why}"
        patterns = [(pattern, pattern) for pattern in resource.paths]
        nodes = ((node.number, node.path) for node in found if node.number)
        for what, path in chain(patterns, nodes):
            other, at = owners.setdefault(what, (name, path))
            if other != name and (other, name) not in said:
                said.add((other, name))
                yield f"{path} of {name} is also {at} of {other}, which gets the device"


def _needs_uuid(resource: StaticResource) -> bool:
    return any("{uuid}" in template for template in (resource.id, *resource.env.values()))


def id_of(resource: StaticResource, node: FoundNode) -> str:
    """Return the id of a device, in which other characters than letters, digits and ``._:@+-`` are percent-encoded."""
    known = {name: node.attributes.get(name, "") for name in (*ATTRIBUTES, "uuid")}
    known["name"] = node.path.rpartition("/")[2]
    made = resource.id.format(**known)
    return _encoded(made or node.path)


def _encoded(text: str) -> str:
    """Return a text as an id of at most :data:`_MAX_ID` characters."""
    raw = text.encode("utf-8", "surrogateescape")
    encoded = "".join(chr(byte) if _ID.match(chr(byte)) else f"%{byte:02X}" for byte in raw)
    return encoded[-_MAX_ID:]


# --- what a lease gets ------------------------------------------------------------------------------------------------


def answer(resource: StaticResource, name: str, nodes: Mapping[str, FoundNode], shared: Sequence[FoundNode]) -> Answer:
    """Return what a lease gets of ``nodes``, the devices of resource ``name`` by id.

    ``shared`` are the nodes that all devices share.

    Raises:
      AnswerError: if it cannot be used.
    """
    env = {
        name: ",".join(
            dict.fromkeys(
                template.format(path=node.node, link=_link(node), id=each, uuid=node.attributes.get("uuid", ""))
                for each, node in nodes.items()
            )
        )
        for name, template in resource.env.items()
    }
    places = {node.node: node.identity for node in (*nodes.values(), *shared)}
    edits = tuple(Node(path, path, resource.permissions) for path in places)
    identities = {identity_key(name, each): node.identity for each, node in nodes.items()}
    access = {} if resource.access is None else places
    return attrs.evolve(checked(Answer(env=env, nodes=edits)), identities=identities, access=access)


def _link(node: FoundNode) -> str:
    return node.path if _PATH.fullmatch(node.path) else node.node

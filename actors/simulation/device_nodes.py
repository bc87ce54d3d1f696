"""Device nodes of a simulated machine, for static devices."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from typing import Self

import attrs
import trio

from ...protocol.devices.access import (
    ADVICE,
    GROUP_OBJ,
    MASK,
    READ,
    WRITE,
    Acl,
    acl_of_mode,
    users_of,
    why_open,
    with_users,
)
from ...protocol.devices.static import FoundNode
from ...protocol.plugins.static_devices import StaticResource


class MemoryNodes:
    """The device nodes of a simulated node; a change is noticed at once."""

    def __init__(self) -> None:
        self._nodes: dict[str, FoundNode] = {}
        self._acls: dict[str, Acl] = {}
        self._changed = trio.Event()

    def plug(
        self,
        path: str,
        number: str,
        *,
        node: str | None = None,
        place: str = "",
        attributes: Mapping[str, str] | None = None,
        problem: str | None = None,
        mode: int = 0o660,
    ) -> None:
        """Plug in a device with a ``number`` such as ``c188:0``; its ``path`` is a link if ``node`` is another path.

        The node belongs to root, and has this ``mode`` and no other ACL.
        """
        self._nodes[path] = FoundNode(path, node or path, number, place, attributes or {}, problem)
        self._acls[node or path] = acl_of_mode(mode)
        self._change()

    def unplug(self, path: str) -> None:
        """Take the device at ``path`` out."""
        del self._nodes[path]
        self._change()

    def chmod(self, path: str, mode: int) -> None:
        """Change the mode of the node at ``path``, and the mask of its ACL with it, as chmod(2) does."""
        changed = {entry.tag: entry for entry in acl_of_mode(mode)}
        acl = self._acls[path]
        if any(entry.tag == MASK for entry in acl):
            changed[MASK] = attrs.evolve(changed.pop(GROUP_OBJ), tag=MASK)
        self._acls[path] = tuple(changed.get(entry.tag, entry) for entry in acl)
        self._change()

    def users(self, path: str) -> dict[int, str]:
        """Return the users besides root who may open the node at ``path`` by its ACL, and how: ``r``, ``w``, ``rw``."""
        acl = self._acls[path]
        mask = next((entry.permissions for entry in acl if entry.tag == MASK), READ | WRITE)
        bits = {uid: permissions & mask for uid, permissions in users_of(acl).items()}
        return {uid: "r" * bool(each & READ) + "w" * bool(each & WRITE) for uid, each in bits.items() if each}

    def admit(self, node: FoundNode, users: Mapping[int, int], *, only: bool) -> str | None:
        """See :class:`~plugind.actors.io.device_nodes.NodePort`."""
        before = self._acls[node.node]
        if (why := why_open(before, 0, 0, 0)) is not None:
            return f"{why}: {ADVICE}"
        after = self._acls[node.node] = with_users(before, users if only else {**users_of(before), **users})
        if after != before:
            self._change()
        return None

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def find(self, resource: StaticResource) -> Iterable[FoundNode]:
        """See :class:`~plugind.actors.io.device_nodes.NodePort`."""
        for node in tuple(self._nodes.values()):
            has = node.attributes
            if any(fnmatch.fnmatchcase(node.path, pattern) for pattern in resource.paths) or (
                resource.match
                and all(fnmatch.fnmatchcase(has.get(key, ""), wanted) for key, wanted in resource.match.items())
            ):
                yield node

    def look(self, path: str) -> FoundNode | None:
        """See :class:`~plugind.actors.io.device_nodes.NodePort`."""
        return self._nodes.get(path)

    def why_hidden(self) -> str | None:
        """See :class:`~plugind.actors.io.device_nodes.NodePort`."""
        return None

    def watch(self, resources: Iterable[StaticResource]) -> _Watch:  # noqa: ARG002 - all of them are in one place
        """See :class:`~plugind.actors.io.device_nodes.NodePort`."""
        return _Watch(self._changed)


class _Watch:
    def __init__(self, changed: trio.Event) -> None:
        self._changed = changed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    async def wait(self) -> None:
        await self._changed.wait()

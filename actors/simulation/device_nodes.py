"""Device nodes of a simulated machine, for static devices."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from typing import Self

import trio

from ...protocol.devices.static import FoundNode
from ...protocol.plugins.static_devices import StaticResource


class MemoryNodes:
    """The device nodes of a simulated node; a change is noticed at once."""

    def __init__(self) -> None:
        self._nodes: dict[str, FoundNode] = {}
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
    ) -> None:
        """Plug in a device with a ``number`` such as ``c188:0``; its ``path`` is a link if ``node`` is another path."""
        self._nodes[path] = FoundNode(path, node or path, number, place, attributes or {}, problem)
        self._change()

    def unplug(self, path: str) -> None:
        """Take the device at ``path`` out."""
        del self._nodes[path]
        self._change()

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

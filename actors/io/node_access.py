"""Which users may open which device nodes because they hold leases.

Whoever makes leases gives and ends access here, at once and in order. Whoever looks at the nodes has them mended, since
udev sets the permissions of a node again with each event of its device. What an entry that cannot be removed costs: its
node is shown as unhealthy, and given to nobody until it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from ...protocol.devices.access import bits_of
from ...protocol.leases.values import Lease, LeaseState

if TYPE_CHECKING:
    from ...protocol.devices.static import FoundNode
    from .device_nodes import NodePort

#: Until the leases are read, nobody knows which entries are left over.
_UNREAD = "the leases have not been read yet"


class NodeAccess:
    """The users of held leases, by what their nodes are. It outlives crashes of those who use it."""

    def __init__(self, nodes: Callable[[], NodePort]) -> None:
        """Reach the nodes through ``nodes``, which is called when the first is to be changed."""
        self._nodes = nodes
        #: By the identity of a node: what each lease permits, and to whom.
        self._users: dict[str, dict[str, tuple[int, int]]] = {}
        #: The nodes of each lease, by path.
        self._held: dict[str, dict[str, str]] = {}
        #: Why no device is given to anybody; entries of users without a lease stay until that is over.
        self.withheld: str | None = _UNREAD

    def begin(self, leases: Iterable[Lease], withheld: str | None) -> None:
        """End the access of all leases but the held ones among these."""
        self.withheld = withheld
        held = {lease.id: lease for lease in leases if lease.state is LeaseState.HELD}
        for lease in self._held.keys() - held.keys():
            self.end(lease)
        for each in held.values():
            if each.answer is not None:
                permissions = {node.host_path: node.permissions for node in each.answer.nodes}
                for path, identity in each.answer.access.items():
                    self._add(each.id, each.for_uid, path, identity, permissions.get(path, ""))

    def give(self, lease: str, uid: int, nodes: Iterable[FoundNode], permissions: str) -> str | None:
        """Let the user of a lease open these nodes; return why that is not possible, and nothing has changed."""
        given: list[FoundNode] = []
        for node in nodes:
            given.append(node)
            self._add(lease, uid, node.node, node.identity, permissions)
            if (why := self.mend(node)) is not None:
                for each in given:
                    self._end(lease, each.node, each.identity)
                return f"{node.node}: {why}"
        return None

    def end(self, lease: str) -> None:
        """Let the user of a lease open its nodes no more because of it."""
        for path, identity in self._held.pop(lease, {}).items():
            self._end(lease, path, identity)

    def mend(self, node: FoundNode) -> str | None:
        """Let those open a node who hold a lease of it, and nobody else; return why that is not possible."""
        users = self._permitted(node.identity)
        return self._nodes().admit(node, users, only=self.withheld is None)

    def _permitted(self, identity: str) -> Mapping[int, int]:
        permitted = dict[int, int]()
        for uid, bits in self._users.get(identity, {}).values():
            permitted[uid] = permitted.get(uid, 0) | bits
        return permitted

    def _add(self, lease: str, uid: int, path: str, identity: str, permissions: str) -> None:
        self._users.setdefault(identity, {})[lease] = uid, bits_of(permissions)
        self._held.setdefault(lease, {})[path] = identity

    def _end(self, lease: str, path: str, identity: str) -> None:
        self._held.get(lease, {}).pop(path, None)
        if (users := self._users.get(identity)) is not None:
            users.pop(lease, None)
            if not users:
                del self._users[identity]
        if (node := self._nodes().look(path)) is not None and node.identity == identity:
            self.mend(node)

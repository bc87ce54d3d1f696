"""Which plugin may use an endpoint that several plugins name (fault 79).

An endpoint belongs to the first plugin that names it. But users must not keep plugins of root, or of the user that runs
plugind, out of their endpoints: only privileged plugins count against a privileged one, as with names (fault 80). The
plugin that had the endpoint then stays registered and stands by, with the reason.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Iterator, Mapping

import attrs

from ..identity import Identity, Key
from ..messages.status import PluginDisplaced
from ..plugins.info import PluginInfo
from ..trust.users import user_words
from ..values import record, value

Named = tuple[str, str]


@value
class EndpointOwner:
    """A plugin that has an endpoint."""

    info: PluginInfo
    socket: str
    generation: int
    #: Whether it is of root or of the user that runs plugind.
    privileged: bool

    @property
    def named(self) -> Named:
        """The type and name of the plugin."""
        return self.info.type, self.info.name


def belongs_to(endpoint: str, owner: EndpointOwner) -> str:
    """Return why a plugin may not use an endpoint that belongs to ``owner`` (fault 79)."""
    info = owner.info
    return (
        f"the endpoint {endpoint!r} belongs to {info.type} {info.name!r} of {user_words(info.uid)}, by the socket"
        f" {owner.socket}: give this plugin an endpoint of its own"
    )


_Keys = tuple[str | Key, ...]
#: The plugins of one name that use an endpoint, by socket.
_Users = dict[str, EndpointOwner]
_NO_USES: Mapping[Named, _Users] = {}


@record
class EndpointOwners:
    """The owners of endpoints, by path and by file, since a hard link is the same endpoint.

    Instances of one name may share an endpoint. A plugin's own socket is always its endpoint.
    """

    #: The sockets that are their own endpoints, and the owner of each of their paths and files.
    _own: dict[str, Key] = attrs.field(init=False, factory=dict)
    _owners: dict[str | Key, EndpointOwner] = attrs.field(init=False, factory=dict)
    #: The plugins with other endpoints, by socket, and the users of each endpoint.
    _others: dict[str, tuple[EndpointOwner, _Keys]] = attrs.field(init=False, factory=dict)
    _uses: dict[str | Key, dict[Named, _Users]] = attrs.field(init=False, factory=dict)
    #: Why plugins may no longer use their endpoints, by socket.
    _displaced: dict[str, PluginDisplaced] = attrs.field(init=False, factory=dict)

    def __len__(self) -> int:
        return len(self._own) + len(self._others)

    @property
    def displaced(self) -> Iterable[PluginDisplaced]:
        """The registered plugins that may not use their endpoints now."""
        return self._displaced.values()

    def displacement_of(self, socket: str) -> PluginDisplaced | None:
        """Return why the plugin at ``socket`` may not use its endpoint now; None if it may."""
        return self._displaced.get(socket)

    def other_owner(
        self, named: Named, endpoint: str, file: Identity | None, *, privileged: bool
    ) -> EndpointOwner | None:
        """Return the plugin of another name that keeps ``named`` from ``endpoint``, which is ``file`` if it exists.

        Only a privileged plugin keeps a ``privileged`` one from it.
        """
        others = self._of_others(named, _keys_of(endpoint, file))
        return next((other for other in others if other.privileged or not privileged), None)

    def add_own(self, owner: EndpointOwner, file: Identity) -> list[PluginDisplaced]:
        """Note that a plugin serves on its own socket, which is ``file``; return the changes for plugins."""
        socket, key = owner.socket, file.key
        self._own[socket] = key
        # By path too: the file may be gone before the plugin is deregistered.
        self._owners[socket] = self._owners[key] = owner
        return self._changes(owner, (socket, key))

    def add(self, owner: EndpointOwner, file: Identity | None) -> list[PluginDisplaced]:
        """Note that a plugin has the endpoint of its info, which is ``file`` if that exists; return the changes."""
        keys = _keys_of(owner.info.endpoint, file)
        self._others[owner.socket] = owner, keys
        for key in keys:
            self._uses.setdefault(key, {}).setdefault(owner.named, {})[owner.socket] = owner
        return self._changes(owner, keys)

    def remove(self, socket: str) -> list[PluginDisplaced]:
        """Drop the endpoint of the plugin at ``socket``; return the changes for plugins."""
        file, other = self._own.pop(socket, None), self._others.pop(socket, None)
        if file is not None:
            owner = self._owners.pop(socket)
            # A renamed socket may have been added under its new path, and removed there since.
            named = self._owners.get(file)
            if named is not None and named.socket == socket:
                del self._owners[file]
            return self._changes(owner, (socket, file))
        if other is None:
            return []
        owner, keys = other
        for key in keys:
            self._remove_use(key, owner)
        return self._changes(owner, keys)

    def _remove_use(self, key: str | Key, owner: EndpointOwner) -> None:
        uses = self._uses[key]
        del uses[owner.named][owner.socket]
        if not uses[owner.named]:
            del uses[owner.named]
        if not uses:
            del self._uses[key]

    def _of_others(self, named: Named, keys: _Keys) -> Iterator[EndpointOwner]:
        """Yield the plugins of other names that have one of these keys."""
        for key in keys:
            own = self._owners.get(key)
            if own is not None and own.named != named:
                yield own
            for other, users in self._uses.get(key, _NO_USES).items():
                if other != named:
                    yield from users.values()

    def _changes(self, changed: EndpointOwner, keys: _Keys) -> list[PluginDisplaced]:
        """Return what changed for the plugins that have one of ``keys``, after ``changed`` came or went."""
        if not self._others and not self._displaced:
            return []  # The usual case: each plugin serves on its own socket.
        others = list(self._of_others(changed.named, keys))
        if not others and changed.socket not in self._displaced:
            return []
        owners = {owner.socket: owner for owner in (changed, *others)}
        return [news for owner in owners.values() if (news := self._judge(owner)) is not None]

    def _judge(self, owner: EndpointOwner) -> PluginDisplaced | None:
        """Decide whether a plugin may use its endpoint, and return the decision if it changed."""
        above, before = self._above(owner), self._displaced.pop(owner.socket, None)
        reason = None if above is None else belongs_to(owner.info.endpoint, above)
        now = PluginDisplaced(owner.socket, owner.generation, reason)
        if reason is not None:
            self._displaced[owner.socket] = now
        return None if now == before or (reason is None and before is None) else now

    def _above(self, owner: EndpointOwner) -> EndpointOwner | None:
        """Return the plugin that has precedence over ``owner`` for its endpoint, if there is one."""
        keys: _Keys = ()
        if owner.socket in self._own:
            keys = owner.socket, self._own[owner.socket]
        elif owner.socket in self._others:
            keys = self._others[owner.socket][1]
        rank = self._rank(owner)
        higher = [other for other in self._of_others(owner.named, keys) if self._rank(other) > rank]
        return max(higher, key=self._rank, default=None)

    def _rank(self, owner: EndpointOwner) -> tuple[bool, bool]:
        return owner.privileged, owner.socket in self._own


def _keys_of(endpoint: str, file: Identity | None) -> _Keys:
    path = os.path.normpath(endpoint)
    return (path,) if file is None else (path, file.key)

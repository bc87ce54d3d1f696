"""Which plugin has which endpoint, and which of two plugins that name the same one may use it (fault 79).

An endpoint belongs to the first plugin that names it. That must not let a user keep the plugins of root, or of the user
that runs plugind, out of their own endpoints: for a privileged plugin only privileged ones count, as with names
(fault 80). The plugin that had the endpoint stays registered then and stands by, with the reason.
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

#: A plugin's type and name.
Named = tuple[str, str]


@value
class EndpointOwner:
    """A plugin that has an endpoint."""

    info: PluginInfo
    #: Its registration socket.
    socket: str
    generation: int
    #: Whether it is of root or of the user that runs plugind.
    privileged: bool

    @property
    def named(self) -> Named:
        """Its type and name."""
        return self.info.type, self.info.name


def belongs_to(endpoint: str, owner: EndpointOwner) -> str:
    """Return why a plugin may not use an endpoint that another one has (fault 79)."""
    info = owner.info
    return (
        f"the endpoint {endpoint!r} belongs to {info.type} {info.name!r} of {user_words(info.uid)}, by the socket"
        f" {owner.socket}: give this plugin an endpoint of its own"
    )


_Keys = tuple[str | Key, ...]
#: Those of one name that use an endpoint, by socket.
_Users = dict[str, EndpointOwner]
_NO_USES: Mapping[Named, _Users] = {}


@record
class EndpointOwners:
    """Which plugin has which endpoint, by its path and by its file: a hard link is the same endpoint.

    The instances of one name may share an endpoint. A plugin's own socket is its endpoint whatever others say of it.
    """

    #: The sockets that are their own endpoints, and who has each of their paths and files.
    _own: dict[str, Key] = attrs.field(init=False, factory=dict)
    _owners: dict[str | Key, EndpointOwner] = attrs.field(init=False, factory=dict)
    #: The plugins whose endpoints are elsewhere with these, by socket, and who uses each of them.
    _others: dict[str, tuple[EndpointOwner, _Keys]] = attrs.field(init=False, factory=dict)
    _uses: dict[str | Key, dict[Named, _Users]] = attrs.field(init=False, factory=dict)
    #: Why plugins may not use their endpoints any more, by socket.
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
        """Return the plugin of another name that keeps one of that name from ``endpoint``, the ``file`` if it exists.

        Only a privileged one keeps a ``privileged`` one from it.
        """
        others = self._of_others(named, _keys_of(endpoint, file))
        return next((other for other in others if other.privileged or not privileged), None)

    def add_own(self, owner: EndpointOwner, file: Identity) -> list[PluginDisplaced]:
        """Note that a plugin serves on its own socket, which is ``file``; return for which others that is news."""
        socket, key = owner.socket, file.key
        self._own[socket] = key
        # The path too: the file may be gone before its plugin is deregistered.
        self._owners[socket] = self._owners[key] = owner
        return self._changes(owner, (socket, key))

    def add(self, owner: EndpointOwner, file: Identity | None) -> list[PluginDisplaced]:
        """Note that a plugin has the endpoint of its info, the ``file`` if that exists, and return the same."""
        keys = _keys_of(owner.info.endpoint, file)
        self._others[owner.socket] = owner, keys
        for key in keys:
            self._uses.setdefault(key, {}).setdefault(owner.named, {})[owner.socket] = owner
        return self._changes(owner, keys)

    def remove(self, socket: str) -> list[PluginDisplaced]:
        """Forget what the plugin at ``socket`` has, and return for which plugins that is news."""
        file, other = self._own.pop(socket, None), self._others.pop(socket, None)
        if file is not None:
            owner = self._owners.pop(socket)
            # A socket that was renamed may have been added again under its new path, and removed there since.
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
        """Yield the plugins of other names that have one of these."""
        for key in keys:
            own = self._owners.get(key)
            if own is not None and own.named != named:
                yield own
            for other, users in self._uses.get(key, _NO_USES).items():
                if other != named:
                    yield from users.values()

    def _changes(self, changed: EndpointOwner, keys: _Keys) -> list[PluginDisplaced]:
        """Return what changed for the plugins that have one of these, after ``changed`` came or went."""
        if not self._others and not self._displaced:
            return []  # The usual case, without a search: each plugin serves on its own socket.
        others = list(self._of_others(changed.named, keys))
        if not others and changed.socket not in self._displaced:
            return []
        owners = {owner.socket: owner for owner in (changed, *others)}
        return [news for owner in owners.values() if (news := self._judge(owner)) is not None]

    def _judge(self, owner: EndpointOwner) -> PluginDisplaced | None:
        """Note whether a plugin may use its endpoint, and return that if it is news."""
        above, before = self._above(owner), self._displaced.pop(owner.socket, None)
        reason = None if above is None else belongs_to(owner.info.endpoint, above)
        now = PluginDisplaced(owner.socket, owner.generation, reason)
        if reason is not None:
            self._displaced[owner.socket] = now
        return None if now == before or (reason is None and before is None) else now

    def _above(self, owner: EndpointOwner) -> EndpointOwner | None:
        """Return the plugin that has the endpoint of ``owner`` before it, if there is one."""
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

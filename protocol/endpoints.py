"""Which endpoints plugins may name, and who has which one.

An endpoint is the socket on which a plugin serves its consumer. Calls to it are made with the rights of this node, so a
plugin must not name any file that it likes (faults 43 and 45), or the endpoint of another plugin (fault 79). Nothing
here looks at files: :mod:`plugind.actors.io.endpoints` does, and returns a :class:`FoundFile`.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterable, Iterator

import attrs

from .discovery import Kind
from .identity import Identity, Key
from .values import value

#: The directory in which the kubelet discovers plugins, and those beside it in which their endpoints are.
_REGISTRY = "plugins_registry"
_BESIDE_REGISTRY = ("plugins", "csi-plugins", "device-plugins")
#: Why a plugin is registered whose endpoint is not there.
MISSING = "endpoint does not exist yet"


@value
class FoundFile:
    """What is at the path of an endpoint."""

    #: The path without symbolic links, except for one at its end.
    real: str
    #: None if nothing is there.
    kind: Kind | None = None
    identity: Identity | None = None


def default_directories(roots: Iterable[str]) -> tuple[str, ...]:
    """Return where endpoints may be: in the roots, and where drivers have them beside the kubelet's directory."""
    return tuple(dict.fromkeys(_around(roots)))


def _around(roots: Iterable[str]) -> Iterator[str]:
    for root in roots:
        yield root
        above, name = os.path.split(root)
        if name == _REGISTRY:
            yield from (os.path.join(above, sibling) for sibling in _BESIDE_REGISTRY)


_KINDS = {
    Kind.SYMLINK: "is a symbolic link, which may lead elsewhere tomorrow; give the path of the socket itself",
    Kind.DIRECTORY: "is a directory; give the path of a unix socket",
    Kind.OTHER: "is no socket; give the path of a unix socket",
}


def refusal(endpoint: str, found: FoundFile, directories: tuple[str, ...], resolve: Callable[[str], str]) -> str | None:
    """Return why a plugin may not name ``endpoint``; None if it may (fault 43).

    ``resolve`` returns the path of a directory without symbolic links.
    """
    wrong = _KINDS.get(found.kind) if found.kind is not None else None
    if _is_inside(endpoint, "/proc") or _is_inside(found.real, "/proc"):
        wrong = "is in /proc, where paths lead to the files of processes; give the path of a unix socket"
    if wrong is not None:
        return f"the endpoint {endpoint!r} {wrong}"
    if any(_is_inside(found.real, directory) for directory in directories):
        # A real path has no links, so the directory that it begins with has none either.
        return None
    if any(_is_inside(found.real, resolve(directory)) for directory in directories):
        return None
    return (
        f"the endpoint {endpoint!r} is in none of the directories for endpoints, {', '.join(directories)}: move it"
        f" there, or run plugind with --endpoint-dir {os.path.dirname(found.real)}"
    )


def _is_inside(path: str, directory: str) -> bool:
    return path.startswith(directory.rstrip("/") + "/")


#: A plugin's type and name.
Named = tuple[str, str]


def belongs_to(endpoint: str, owner: Named) -> str:
    """Return why a plugin may not name an endpoint that another one has (fault 79)."""
    plugin_type, name = owner
    return f"the endpoint {endpoint!r} belongs to {plugin_type} {name!r}: give this plugin an endpoint of its own"


@attrs.define
class _Use:
    owner: Named
    count: int = 0


@attrs.define
class EndpointOwners:
    """Which plugin has which endpoint, by its path and by its file: a hard link is the same endpoint.

    The instances of one name may share an endpoint. A plugin's own socket is its endpoint whatever others say of it.
    """

    #: The sockets that are their own endpoints, and who has each of their paths and files.
    _own: dict[str, Key] = attrs.field(init=False, factory=dict)
    _owners: dict[str | Key, tuple[str, Named]] = attrs.field(init=False, factory=dict)
    #: The endpoints elsewhere that the plugin at each socket uses, and who has each of them.
    _others: dict[str, tuple[str | Key, ...]] = attrs.field(init=False, factory=dict)
    _uses: dict[str | Key, _Use] = attrs.field(init=False, factory=dict)

    def __len__(self) -> int:
        return len(self._own) + len(self._others)

    def other_owner(self, named: Named, endpoint: str, file: Identity | None) -> Named | None:
        """Return the plugin of another name that has ``endpoint``, which is the ``file`` if that exists."""
        for key in _keys_of(endpoint, file):
            own, use = self._owners.get(key), self._uses.get(key)
            if own is not None and own[1] != named:
                return own[1]
            if use is not None and use.owner != named:
                return use.owner
        return None

    def add_own(self, socket: str, named: Named, file: Identity) -> None:
        """Note that the plugin at ``socket``, which is ``file``, serves there itself."""
        self._own[socket] = file.key
        # The path too: the file may be gone before its plugin is deregistered.
        self._owners[socket] = self._owners[file.key] = socket, named

    def add(self, socket: str, named: Named, endpoint: str, file: Identity | None) -> None:
        """Note that the plugin at ``socket`` has ``endpoint``, and no other one has it."""
        keys = self._others[socket] = _keys_of(endpoint, file)
        for key in keys:
            self._uses.setdefault(key, _Use(named)).count += 1

    def remove(self, socket: str) -> None:
        """Forget what the plugin at ``socket`` has."""
        file = self._own.pop(socket, None)
        if file is not None:
            del self._owners[socket]
            # A socket that was renamed may have been added again under its new path, and removed there since.
            owner = self._owners.get(file)
            if owner is not None and owner[0] == socket:
                del self._owners[file]
        for key in self._others.pop(socket, ()):
            self._uses[key].count -= 1
            if not self._uses[key].count:
                del self._uses[key]


def _keys_of(endpoint: str, file: Identity | None) -> tuple[str | Key, ...]:
    path = os.path.normpath(endpoint)
    return (path,) if file is None else (path, file.key)

"""The rules for the paths of endpoints.

An endpoint is the socket on which a plugin serves its consumer. Calls to it have the rights of this node, so a plugin
must not name any file (faults 43 and 45). ``plugind.protocol.world.endpoint_owners`` says which plugin may use an
endpoint. :mod:`plugind.actors.grpc.endpoints` looks at files, and returns a :class:`FoundFile`.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterable, Iterator

from ..identity import Identity
from ..values import value
from .sockets import EntryKind

#: The directory in which the kubelet discovers plugins, and the directories beside it that have their endpoints.
_REGISTRY = "plugins_registry"
_BESIDE_REGISTRY = ("plugins", "csi-plugins", "device-plugins")
#: A warning about a plugin that is registered without its endpoint.
MISSING = "endpoint does not exist yet"


@value
class FoundFile:
    """What is at the path of an endpoint."""

    #: The path without symbolic links, except for one at its end.
    real: str
    kind: EntryKind | None = None
    identity: Identity | None = None


def default_directories(roots: Iterable[str]) -> tuple[str, ...]:
    """Return where endpoints may be: in the roots, and in the usual directories beside the kubelet's root."""
    return tuple(dict.fromkeys(_around(roots)))


def _around(roots: Iterable[str]) -> Iterator[str]:
    for root in roots:
        yield root
        above, name = os.path.split(root)
        if name == _REGISTRY:
            yield from (os.path.join(above, sibling) for sibling in _BESIDE_REGISTRY)


_KINDS = {
    EntryKind.SYMLINK: "is a symbolic link, which may lead elsewhere tomorrow; give the path of the socket itself",
    EntryKind.DIRECTORY: "is a directory; give the path of a unix socket",
    EntryKind.OTHER: "is no socket; give the path of a unix socket",
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
        # A real path has no links, so a directory that it begins with has none either.
        return None
    if any(_is_inside(found.real, resolve(directory)) for directory in directories):
        return None
    return (
        f"the endpoint {endpoint!r} is in none of the directories for endpoints, {', '.join(directories)}: move it"
        f" there, or run plugind with --endpoint-dir {os.path.dirname(found.real)}"
    )


def _is_inside(path: str, directory: str) -> bool:
    return path.startswith(directory.rstrip("/") + "/")

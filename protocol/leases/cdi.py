"""The CDI document of a lease: what a container engine adds to the container that is to have its devices.

CDI is the Container Device Interface of the CNCF. An engine does not load a document with a field that it does not
know, nor a device without edits, and it shows neither. So only fields of the lowest version that serves are written,
and ``PLUGIND_LEASE`` is always among the edits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ..errors import IllegalStepError
from ..status.json import Json
from ..values import value
from .forms import variables
from .values import CDI_KIND, Answer, Lease, Mount, Node

#: Seconds after which the engine ends the hook. The hook gives up earlier, so that its own words are shown.
HOOK_TIMEOUT: Final = 30
_NAME_BITS: Final = 127


class CdiError(Exception):
    """A lease cannot be described for a container, or the description cannot be written; the text says why."""


@value
class HostNode:
    """A device node as it is on the host."""

    #: Where it is, with symbolic links followed.
    path: str
    #: What follows the path that was asked for, if that is a directory: empty, or begins with a slash.
    below: str
    #: The permissions alone, such as 0o600.
    mode: int
    uid: int
    gid: int


#: Returns the device nodes at a path of the host, and raises :class:`CdiError` if there is none.
NodesAt = Callable[[str], Sequence[HostNode]]


@value
class Hook:
    """The command that binds a lease to a container, without the lease."""

    #: The absolute path of the program, and its first arguments.
    command: tuple[str, ...]
    #: The path of the status socket.
    status: str


def name_of(bits: int) -> str:
    """Return the name of a CDI device from 127 random bits; names are never used again."""
    # Before 0.5.0 a name has to begin with a letter.
    return f"l{bits % (1 << _NAME_BITS):032x}"


def document(lease: Lease, nodes_at: NodesAt, hook: Hook) -> dict[str, Json]:
    """Return the CDI document of ``lease``, which has a CDI name.

    Raises:
      CdiError: if a device node is not there, or a variable is none for a program.
    """
    if lease.cdi_name is None:
        raise IllegalStepError(f"lease {lease.id} has no CDI name")
    answer = lease.answer or Answer()
    moved = tuple(node for node in answer.nodes if lease.uid and node.host_path != node.container_path)
    nodes = [found for node in answer.nodes if node not in moved for found in _nodes(node, nodes_at)]
    edits: dict[str, Json] = {
        "env": list(_environment(lease)),
        "deviceNodes": list(nodes),
        "mounts": [*(_mount(mount) for mount in answer.mounts), *(_moved(node, nodes_at) for node in moved)],
        "hooks": [_hook(lease, hook)],
    }
    return {
        "cdiVersion": "0.5.0" if any("hostPath" in node for node in nodes) else "0.3.0",
        "kind": CDI_KIND,
        "devices": [{"name": lease.cdi_name, "containerEdits": {key: edit for key, edit in edits.items() if edit}}],
    }


def _environment(lease: Lease) -> Iterator[str]:
    for name, text in variables(lease, inside=True).items():
        if "\0" in text:  # In the id of a device; what a plugin answered has none.
            raise CdiError(f"{name} has a NUL, so no program can get it: ask for other devices")
        yield f"{name}={text}"


def _nodes(node: Node, nodes_at: NodesAt) -> Iterator[dict[str, Json]]:
    """Yield the entries of a node, or of all nodes below it: plugins also name directories such as ``/dev/snd``.

    An engine makes a node with mode 0666 if the document does not say another one.
    """
    for found in nodes_at(node.host_path):
        path = node.container_path + found.below
        entry: dict[str, Json] = {"path": path}
        if found.path != path:
            entry["hostPath"] = found.path
        yield entry | {
            "permissions": node.permissions,
            "fileMode": found.mode,
            "uid": found.uid,
            "gid": found.gid,
        }


def _mount(mount: Mount) -> Json:
    # As the kubelet's runtimes mount what a device plugin names: with what is mounted below it, and unseen outside.
    return {
        "hostPath": mount.host_path,
        "containerPath": mount.container_path,
        "options": ["rbind", "rprivate", "ro" if mount.read_only else "rw"],
    }


def _moved(node: Node, nodes_at: NodesAt) -> Json:
    """Return the mount of a node that has another path inside of a container, for a user who is not root.

    An engine that does not run as root can make no nodes. It mounts each from its path inside, where the host has no
    such node, or another one.
    """
    nodes_at(node.host_path)
    return _mount(Mount(node.host_path, node.container_path, read_only="w" not in node.permissions))


def _hook(lease: Lease, hook: Hook) -> Json:
    program, *arguments = hook.command
    return {
        "hookName": "createRuntime",
        "path": program,
        "args": [program, *arguments, "lease-hook", "--status", hook.status, lease.id],
        "timeout": HOOK_TIMEOUT,
    }

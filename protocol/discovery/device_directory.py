"""Checks of the directory of device plugins, and its error messages.

The start deletes the sockets in the directory, as the kubelet does, so that plugins that watch their socket call again.
So only a directory that is meant for this is accepted.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection

from ..errors import ConfigError
from .watches import LOCK_FILE

#: The socket on which device plugins call, in the directory of their sockets.
KUBELET_SOCKET = "kubelet.sock"
#: The name of that socket until it answers.
TEMPORARY_SOCKET = ".kubelet.sock.tmp"
MAX_SOCKET_PATH = 107
#: The name of the kubelet's directory of device plugins.
USUAL_NAME = "device-plugins"
#: The kubelet's record of devices, in that directory.
CHECKPOINT = "kubelet_internal_checkpoint"

_OPTION = "--device-plugins"


def check_place(directory: str, roots: Collection[str], status_directory: str | None) -> None:
    """Check that ``directory`` holds no other sockets of this node. No path may have symbolic links.

    Raises:
      ConfigError: if it overlaps with a root, or holds the status socket.
    """
    for root in roots:
        if _is_inside(directory, root) or _is_inside(root, directory):
            raise ConfigError(
                f"the directory for device plugins {directory} and the root {root} overlap, and its sockets are deleted"
                f" at the start: give plugind another directory with {_OPTION}=DIR"
            )
    if status_directory == directory:
        raise ConfigError(
            f"the status socket is in the directory for device plugins {directory}, whose sockets are deleted at the"
            f" start: give the socket another path with --status, or give plugind another directory with {_OPTION}=DIR"
        )
    path = os.path.join(directory, KUBELET_SOCKET)
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise ConfigError(
            f"no plugin can connect to {path}, which has more than {MAX_SOCKET_PATH} bytes: give plugind another"
            f" directory with {_OPTION}=DIR"
        )


def _is_inside(path: str, directory: str) -> bool:
    return (path + "/").startswith(directory.rstrip("/") + "/")


def check_names(directory: str, names: Collection[str], *, take_over_kubelet: bool) -> None:
    """Check that the sockets in ``directory`` may be deleted; ``names`` are its entries.

    Raises:
      ConfigError: if the directory has another purpose, or is that of a kubelet.
    """
    if names and os.path.basename(directory) != USUAL_NAME and LOCK_FILE not in names:
        raise ConfigError(
            f"{directory} is not empty, not named {USUAL_NAME} and was not used by plugind before, so its sockets are"
            f" not deleted: give plugind an empty directory with {_OPTION}=DIR"
        )
    if CHECKPOINT in names and not take_over_kubelet:
        raise ConfigError(
            f"{directory} is the directory of a kubelet, whose {CHECKPOINT} is there: give plugind another directory"
            f" with {_OPTION}=DIR, or add --take-over-kubelet if no kubelet will run on this machine"
        )


def answered(directory: str, pid: int) -> str:
    """Return the error for a directory in which process ``pid`` answers on the socket."""
    return _busy(directory, f"pid {pid}" if pid else "a process of another pid namespace")


def locked(directory: str) -> str:
    """Return the error for a directory that another node has locked."""
    return _busy(directory, "another plugind")


def _busy(directory: str, process: str) -> str:
    path = os.path.join(directory, KUBELET_SOCKET)
    return f"{process} serves {path}: stop it, or give plugind another directory with {_OPTION}=DIR"


def not_made(directory: str, error: OSError) -> str:
    """Return why ``directory`` could not be made, and what to do."""
    another = f"name another directory with {_OPTION}=DIR"
    if error.errno == errno.ENOENT:
        return f"cannot make {directory}, since {os.path.dirname(directory)} is missing: make that, or {another}"
    if error.errno == errno.EROFS:
        service = "let the service write there, as 'plugind install-unit --device-plugins' does for the usual one"
        return f"cannot make {directory}: {error.strerror}; {service}, or {another}"
    return f"cannot make {directory}: {error.strerror}; {another}"


def no_directory(directory: str) -> str:
    """Return the error for a ``directory`` that is a file, or lies in one."""
    return f"{directory} is not a directory: move it away, or name another with {_OPTION}=DIR"


def taken(directory: str, pid: int | None) -> str:
    """Return why Register is no longer served: the socket was replaced, by process ``pid`` if known."""
    path, by = os.path.join(directory, KUBELET_SOCKET), f", by pid {pid}" if pid else ""
    return f"{path} was replaced{by}: device plugins are let go until plugind is started again"

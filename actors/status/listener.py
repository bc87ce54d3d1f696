"""The socket on which the daemon answers questions about its plugins: only its own user and root may connect.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import errno
import os

from ...protocol.errors import ConfigError, SocketBusyError
from ...protocol.logs import SILENT, Level, Logger
from ...protocol.text import escaped
from ..io import unix_socket


def listen(path: str, log: Logger = SILENT) -> unix_socket.UnixListener:
    """Listen at ``path`` with mode 0600; its directory is made, with mode 0700, where it alone is missing.

    The stale socket of a dead daemon is replaced.

    Raises:
      ConfigError: if what is there is no socket, or the directory cannot be written.
      SocketBusyError: if another process listens there.
    """
    if path.endswith("/") or "\0" in path or not path:
        raise ConfigError(f"the status socket {escaped(path)!r} is not the path of a file; give one with --status")
    whole = os.path.abspath(path)
    try:
        _make_directory(os.path.dirname(whole), log)
        return unix_socket.listen(whole, remove_stale=True, any_length=True)
    except OSError as error:
        raise _occupied(whole, error) or _cannot_listen(path, error) from error


def _make_directory(directory: str, log: Logger) -> None:
    try:
        os.mkdir(directory, mode=0o700)
    except FileExistsError:
        return
    except FileNotFoundError as error:
        parent = os.path.dirname(directory)
        raise OSError(error.errno, f"{parent} is missing, and plugind does not make it") from error
    log.event(Level.INFO, "directory of the status socket was missing and was made", directory=directory)


def _occupied(path: str, error: OSError) -> ConfigError | None:
    match error.errno:
        case errno.EEXIST:
            return ConfigError(f"{escaped(path)} exists and is no socket; remove it or give another path with --status")
        case errno.EADDRINUSE:
            return SocketBusyError(
                f"another process answers at {escaped(path)}; stop it, or give this one another path with --status"
            )
        case _:
            return None


def _cannot_listen(path: str, error: OSError) -> ConfigError:
    return ConfigError(
        f"cannot make the status socket {escaped(path)}: {error.strerror or error};"
        " give another path with --status or PLUGIND_STATUS"
    )

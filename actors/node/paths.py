"""The directories and sockets of a node, and checks that they do not lie in each other."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...protocol.discovery.device_directory import check_place
from ...protocol.errors import ConfigError
from ...protocol.settings.config import Config, Root, check_roots


def check_places(config: Config, status_socket: str | None) -> None:
    """Check that roots, the status socket and the directory of device plugins do not lie in each other.

    Raises:
      ConfigError: if they do.
    """
    check_roots(config.roots)
    check_status_socket(config.roots, status_socket)
    check_device_directory(config, status_socket)


def check_status_socket(roots: Sequence[Root], path: str | None) -> None:
    """Check that the status socket lies in no root, where the node would dial it as a plugin.

    Raises:
      ConfigError: if it lies in one of ``roots``.
    """
    if path is None:
        return
    directory = os.path.realpath(os.path.dirname(os.path.abspath(path)))
    for root in roots:
        if Path(directory).is_relative_to(os.path.realpath(root.path)):
            raise ConfigError(
                f"the status socket {path} lies in the root {root.path}, where it would be dialed as a plugin:"
                " give it another path with --status"
            )


def check_device_directory(config: Config, status_socket: str | None) -> None:
    """Check that the directory of device plugins holds no other sockets of the node, which would be deleted.

    Raises:
      ConfigError: if it overlaps with a root, or holds the status socket.
    """
    if config.device_plugins is not None:
        roots = [os.path.realpath(root.path) for root in config.roots]
        status = None if status_socket is None else os.path.realpath(os.path.dirname(os.path.abspath(status_socket)))
        check_place(os.path.realpath(config.device_plugins.directory), roots, status)


def directories_of(config: Config) -> Iterator[str]:
    """Yield all directories in which plugins have sockets."""
    yield from (root.path for root in config.roots)
    if config.device_plugins is not None:
        yield config.device_plugins.directory

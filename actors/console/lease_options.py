"""The options of ``plugind run`` about leases."""

from __future__ import annotations

import argparse
import os
from typing import Any

from ...protocol.errors import ConfigError
from ...protocol.leases.config import LeasesConfig
from ...protocol.settings.kinds import Group, WrongValueError
from ...protocol.settings.pools import PoolGiven, PoolKind
from ...protocol.trust.users import TrustedUser, parse_trusted_user
from .configured import gid_of, uids_of


def add_lease_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--lease-uids``, ``--lease-group``, ``--pool`` and ``--cdi-dir``."""
    parser.add_argument(
        "--lease-uids",
        action="append",
        type=_users,
        metavar="UID|FIRST-LAST|NAME,...",
        help="let these users see and lease devices over the status socket, which then has the mode 0666; may be"
        " repeated (default: root, and the user that runs plugind)",
    )
    parser.add_argument(
        "--lease-group",
        type=group,
        metavar="GID|NAME",
        help="let the members of this group see and lease devices over the status socket, which then has the mode 0660",
    )
    parser.add_argument(
        "--pool",
        action="append",
        type=_pool,
        metavar="NAME=RESOURCE[:ID,...][@USER,...]",
        help="lease all devices of a resource, or these, only to who asks for the pool, or only to these users; may be"
        " repeated. With an @ in an id, end with another one",
    )
    parser.add_argument(
        "--cdi-dir",
        type=_directory,
        metavar="DIR",
        help="where container engines look for CDI devices: the files of leased containers are written there (default:"
        f" {LeasesConfig().cdi_directory})",
    )


def _directory(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("the path is empty: name a directory")
    return os.path.abspath(text)


def _users(text: str) -> tuple[TrustedUser, ...]:
    try:
        users = tuple(map(parse_trusted_user, text.split(",")))
        uids_of(users)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return users


def group(text: str) -> Any:
    """Parse a gid or the name of a group, for argparse.

    Raises:
      ArgumentTypeError: if there is no such group.
    """
    try:
        found = Group().from_text(text, "/")
        gid_of(found)
    except (ConfigError, WrongValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return found


def _pool(text: str) -> PoolGiven:
    try:
        pool: PoolGiven = PoolKind().from_text(text, "/")
        uids_of(pool.users)
    except (ConfigError, WrongValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return pool

"""The options of ``plugind run`` that say who may lease which devices.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import argparse
import grp
import os
import pwd
import re
from typing import Final

from ...protocol.errors import ConfigError
from ...protocol.leases.config import LeasesConfig, LeaseUsers
from ...protocol.leases.values import Pool
from ...protocol.trust import parse_trusted_user
from .arguments import resource_name

#: Uids of one range, which are kept one by one.
_MAX_RANGE: Final = 65536
_POOL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


def add_lease_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--lease-uids``, ``--lease-group``, ``--pool`` and ``--cdi-dir``."""
    parser.add_argument(
        "--lease-uids",
        action="append",
        default=[],
        type=_users,
        metavar="UID|FIRST-LAST|NAME,...",
        help="let these users see and lease devices over the status socket, which then has the mode 0666; may be"
        " repeated (default: root, and the user that runs plugind)",
    )
    parser.add_argument(
        "--lease-group",
        type=_group,
        metavar="GID|NAME",
        help="let the members of this group see and lease devices over the status socket, which then has the mode 0660",
    )
    parser.add_argument(
        "--pool",
        action="append",
        default=[],
        type=_pool,
        metavar="NAME=RESOURCE[:ID,...][@USER,...]",
        help="lease all devices of a resource, or these, only to who asks for the pool, or only to these users; may be"
        " repeated. With an @ in an id, end with another one",
    )
    parser.add_argument(
        "--cdi-dir",
        type=_directory,
        default=LeasesConfig().cdi_directory,
        metavar="DIR",
        help="where container engines look for CDI devices: the files of leased containers are written there (default:"
        " %(default)s)",
    )


def leases_from(args: argparse.Namespace) -> LeasesConfig:
    """Return the configuration of leases from the command line."""
    uids = frozenset[int]().union(*args.lease_uids)
    return LeasesConfig(
        users=LeaseUsers(uids, args.lease_group),
        pools=tuple(args.pool),
        # A daemon that forgot its leases at a restart would give the same devices to others.
        without_state=False,
        cdi_directory=args.cdi_dir,
    )


def _directory(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("the path is empty: name a directory")
    return os.path.abspath(text)


def _users(text: str) -> frozenset[int]:
    return frozenset[int]().union(*map(_uids, text.split(",")))


def _uids(text: str) -> frozenset[int]:
    try:
        found = parse_trusted_user(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    match found:
        case str():
            return frozenset({_uid_of(found)})
        case (first, last):
            if last - first >= _MAX_RANGE:
                raise argparse.ArgumentTypeError(f"{text} has more than {_MAX_RANGE} uids: give a smaller range")
            return frozenset(range(first, last + 1))
        case _:
            return frozenset({found})


def _uid_of(name: str) -> int:
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError(f"no user is called {name!r}: name another one, or give the uid") from None


def _group(text: str) -> int:
    if text.isascii() and text.isdigit():
        if int(text) >= 2**32 - 1:
            raise argparse.ArgumentTypeError(f"{text} is no gid: they end with {2**32 - 2}")
        return int(text)
    try:
        return grp.getgrnam(text).gr_gid
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError(f"no group is called {text!r}: name another one, or give the gid") from None


def _pool(text: str) -> Pool:
    name, given, rest = text.partition("=")
    if not given or not _POOL.fullmatch(name):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no pool: give a name of letters, digits, '_', '.' and '-', and the resource, such as"
            " lab=vendor.com/gpu:GPU-0,GPU-1@alice"
        )
    devices, _, users = rest.rpartition("@") if "@" in rest else (rest, "", "")
    resource, some, ids = devices.partition(":")
    named = frozenset(ids.split(",")) if some else frozenset[str]()
    if "" in named:
        raise argparse.ArgumentTypeError(f"{text!r} names a device without an id: give ids with a comma between two")
    return Pool(name, resource_name(resource), named, _users(users) if users else frozenset())

"""The configuration of leases."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from ..checks import refusing_text
from ..values import value
from .answers import check_permits
from .values import Pool


@value
class LeaseLimits:
    """How much a user may have; root has no limit of its own."""

    #: Leases of one user other than root, also those that wait.
    leases: int = 1024
    #: Devices of one user other than root, also those that it waits for.
    devices: int = 4096
    #: Bytes of the labels of all leases of one user other than root, also of those that wait.
    label_bytes: int = 1024 * 1024
    #: Leases of all users.
    all_leases: int = 32768


@value
class LeaseHistoryConfig:
    """How much of the history of leases is kept, if there is a :attr:`~plugind.Config.state`."""

    #: Days for which ended leases stay in the history; None for no history.
    days: int | None = 90
    #: Bytes of the file with the history. Before it is full, the oldest rows of the user who has most are deleted.
    max_bytes: int = 64 * 1024 * 1024


@value
class LeaseUsers:
    """Who may see and lease devices over the status socket, besides root and the user of the daemon.

    They may do nothing else there. Whoever may connect to the socket is asked who it is, so its mode may let in more.
    """

    #: These users.
    uids: frozenset[int] = frozenset()
    #: The members of this group, too.
    group: int | None = None

    @property
    def socket_mode(self) -> int:
        """The mode of the status socket: no mode lets in some users who have no group in common."""
        if self.uids:
            return 0o666
        return 0o600 if self.group is None else 0o660


def _permits(permits: Iterable[str]) -> tuple[str, ...]:
    given = tuple(permits)
    check_permits(given)
    return given


@attrs.frozen(field_transformer=refusing_text)
class LeasesConfig:
    """Who may lease what.

    Raises:
      ConfigError: if a permit is none.
    """

    #: Who may lease over the status socket.
    users: LeaseUsers = attrs.field(factory=LeaseUsers)
    #: Devices that are taken only by requests that name their pool.
    pools: tuple[Pool, ...] = ()
    #: How much a user may have.
    limits: LeaseLimits = attrs.field(factory=LeaseLimits)
    #: How much of the history of leases is kept.
    history: LeaseHistoryConfig = attrs.field(factory=LeaseHistoryConfig)
    #: Users who may end the leases of others, besides root and the user of the daemon.
    operators: frozenset[int] = frozenset()
    #: What plugins of users whom :attr:`~plugind.Config.trust` adds may put into the leases of other users:
    #: ``RESOURCE:env=NAME``, ``RESOURCE:mounts``, ``RESOURCE:cdi``, ``RESOURCE:annotations``.
    permitted: tuple[str, ...] = attrs.field(default=(), converter=_permits)
    #: Whether devices are leased although no :attr:`~plugind.Config.state` outlives the node: then they are free when
    #: it ends. A daemon must not do that, since the processes that use the devices outlive it.
    without_state: bool = True
    #: Where container engines look for CDI devices.
    cdi_directory: str = "/var/run/cdi"

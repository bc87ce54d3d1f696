"""The configuration of leases.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import attrs

from ..values import value
from .values import Pool


@value
class Limits:
    """How much a user may have; root has no limit of its own."""

    #: Leases of one user, also those that wait.
    leases: int = 1024
    #: Devices of one user, also those that it waits for.
    devices: int = 4096
    #: Leases of all users.
    all_leases: int = 32768


@attrs.frozen
class LeasesConfig:
    """Who may lease what."""

    #: Devices that are taken only by requests that name their pool.
    pools: tuple[Pool, ...] = ()
    #: How much a user may have.
    limits: Limits = attrs.field(factory=Limits)
    #: Users who may end the leases of others, besides root and the user of the daemon.
    operators: frozenset[int] = frozenset()
    #: Whether devices are leased although no :attr:`~plugind.Config.state` outlives the node: then they are free when
    #: it ends. A daemon must not do that, since the processes that use the devices outlive it.
    without_state: bool = True
    #: Where container engines look for CDI devices.
    cdi_directory: str = "/var/run/cdi"

"""The users who may connect to the status socket, besides root and the user of the daemon."""

from __future__ import annotations

from typing import Protocol

import attrs

from ..leases.config import LeaseUsers
from ..values import value


class Visitors(Protocol):
    """Users who may connect to the status socket, and the mode that this needs."""

    @property
    def uids(self) -> frozenset[int]:
        """Users who need not be in the group."""

    @property
    def group(self) -> int | None:
        """The group that gets the socket; None if the group is not changed."""

    @property
    def socket_mode(self) -> int:
        """The mode of the socket. Users outside of the group need a mode for everybody."""


@value
class SocketUsers:
    """The users who may lease devices, those who may read, and those who may serve plugin types.

    The server identifies each client.
    """

    leasing: LeaseUsers = attrs.field(factory=LeaseUsers)
    #: Members of this group may read everything.
    readers: int | None = None
    #: These users may serve plugin types.
    serving: frozenset[int] = frozenset()

    @property
    def uids(self) -> frozenset[int]:
        """See :class:`Visitors`."""
        return self.leasing.uids | self.serving

    @property
    def group(self) -> int | None:
        """See :class:`Visitors`. A file has one group, so two groups need a mode for everybody."""
        return next(iter(self._groups)) if len(self._groups) == 1 else None

    @property
    def socket_mode(self) -> int:
        """See :class:`Visitors`."""
        if self.uids or len(self._groups) > 1:
            return 0o666
        return 0o660 if self._groups else 0o600

    @property
    def _groups(self) -> frozenset[int]:
        return frozenset(group for group in (self.leasing.group, self.readers) if group is not None)

"""The files for container engines of a daemon whose id is known once its store can be written.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from ...protocol.errors import ConfigError, StateError
from ...protocol.leases.cdi import CdiError
from ...protocol.leases.values import Lease
from .cdi_writer import CdiStore
from .store import LeaseStore


class LaterCdiStore:
    """A :class:`~plugind.actors.leases.cdi_writer.CdiStore` whose files are named after the id of the daemon."""

    def __init__(self, leases: LeaseStore, files: Callable[[str], CdiStore]) -> None:
        """Take the id from the store of ``leases``, and from ``files`` what has the files of that daemon."""
        self._leases = leases
        self._make = files
        self._files: CdiStore | None = None

    async def clean(self, keep: Collection[str]) -> None:
        """See :class:`~plugind.actors.leases.cdi_writer.CdiStore`."""
        await (await self._found()).clean(keep)

    async def write(self, lease: Lease) -> None:
        """See :class:`~plugind.actors.leases.cdi_writer.CdiStore`."""
        await (await self._found()).write(lease)

    async def remove(self, name: str) -> None:
        """See :class:`~plugind.actors.leases.cdi_writer.CdiStore`."""
        await (await self._found()).remove(name)

    async def _found(self) -> CdiStore:
        if self._files is None:
            try:
                instance = await self._leases.instance()
            except (StateError, ConfigError) as error:
                raise CdiError(f"its name has the id of this plugind, which is not known: {error}") from error
            if instance is None:
                raise CdiError("its name has the id of this plugind, which could not be written to the state yet")
            if self._files is None:  # Several may have asked for the id at once.
                self._files = self._make(instance)
        return self._files

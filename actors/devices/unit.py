"""The devices actor, and the task for static devices, as the supervisor runs them, with what survives their crashes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import trio

from ...protocol.logs.lines import Logger
from ...protocol.messages.addresses import Address
from ...protocol.plugins.static_devices import StaticResource
from . import actor
from .inbox import DevicesInbox
from .offers import OfferMessage, Offers
from .state import ResourceWriter, StateStore

if TYPE_CHECKING:
    from .static import StaticDevices


class Devices:
    """The devices actor of one node. Its :attr:`inbox` is the address of followers and readers."""

    def __init__(self, store: StateStore, log: Logger, leases: Address[OfferMessage] | None = None) -> None:
        """Keep resources in ``store``, and tell ``leases``, the lease actor, which devices can be leased."""
        self.inbox = DevicesInbox()
        self._store = store
        self._writer = ResourceWriter(store, log)
        self._memory = actor.DevicesMemory() if leases is None else actor.DevicesMemory(offers=Offers(leases))
        self._log = log

    async def open(self) -> None:
        """Open the store, before anything is done that two daemons must not do on one store.

        Raises:
          ConfigError: if the store is another daemon's.
        """
        await actor.read(self._writer, self._memory)

    async def run(self) -> None:
        """Run the actor until cancelled."""
        await actor.run(self.inbox, self._writer, self._memory, self._log)

    def close(self) -> None:
        """Close the store."""
        self._store.close()


class StaticUnit:
    """The task that looks for static devices."""

    def __init__(self, resources: Mapping[str, StaticResource], make: Callable[[], StaticDevices]) -> None:
        """Look for the devices of ``resources``; ``make`` returns the task."""
        self._resources = resources
        self._make = make
        self._is_wanted = trio.Event()
        self._task: StaticDevices | None = None

    def offers(self, resource: str) -> bool:
        """Whether the configuration names the devices of a resource."""
        return resource in self._resources

    def reconfigure(self, resources: Mapping[str, StaticResource]) -> None:
        """Offer the devices of these resources from now on, and no others."""
        self._resources = resources
        self._is_wanted.set()
        if self._task is not None:
            self._task.look_again()

    async def run(self) -> None:
        """Look for devices until cancelled. Most nodes have none, and load nothing for that."""
        if not self._resources and self._task is None:
            await self._is_wanted.wait()
        if self._task is None:
            self._task = self._make()
        await self._task.run(lambda: self._resources)

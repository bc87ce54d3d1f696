"""The devices actor as the supervisor runs it, with everything that survives its crashes."""

from __future__ import annotations

from ...protocol.logs.lines import Logger
from ...protocol.messages.addresses import Address
from . import actor
from .inbox import DevicesInbox
from .offers import OfferMessage, Offers
from .state import ResourceWriter, StateStore


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

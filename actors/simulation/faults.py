"""Crashes and hangs of actors that a script requests.

A crash comes from where a bug would: an actor receives a message that no actor sends, or its port raises an error that
no port raises. An actor that hangs no longer gets a message from its inbox, although messages wait there.
"""

from __future__ import annotations

from typing import Final, Generic, Literal, TypeVar

import attrs
import trio

from ...protocol.errors import leaves
from ..messaging.mailbox import Readable

T = TypeVar("T")

Actor = Literal["watcher", "reconciler", "registration", "status", "liveness", "devices", "leases"]
#: The actors that :meth:`plugind.testing.SimulatedNode.crash` can crash.
ACTORS: Final[tuple[Actor, ...]] = (
    "watcher",
    "reconciler",
    "registration",
    "status",
    "liveness",
    "devices",
    "leases",
)


Hangable = Literal["reconciler", "status"]
#: The actors that :meth:`plugind.testing.SimulatedNode.hang` can hang.
HANGABLE: Final[tuple[Hangable, ...]] = ("reconciler", "status")


class Stuck(Generic[T]):
    """Where an actor that hangs takes its messages from: it gets none before ``released`` is set."""

    def __init__(self, source: Readable[T]) -> None:
        self.source = source
        self.released = trio.Event()

    async def receive(self) -> T:
        """Hang, then return the next message."""
        await self.released.wait()
        return await self.source.receive()

    def receive_nowait(self) -> T:
        """Return the next message once released; until then there is none."""
        if not self.released.is_set():
            raise trio.WouldBlock
        return self.source.receive_nowait()


class InjectedError(Exception):
    """The crash of an actor that the script asked for, raised by one of its ports."""


@attrs.frozen
class PoisonMessage:
    """A message that no actor handles; it crashes the actor that receives it."""


def is_injected(error: BaseException) -> bool:
    """Return whether ``error``, which may be a group, consists of crashes that a script asked for."""
    return all(isinstance(leaf, InjectedError) or PoisonMessage.__name__ in str(leaf) for leaf in leaves(error))

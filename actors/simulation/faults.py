"""Crashes and hangs of actors on request of a script.

A crash comes from the place where a bug would be: an actor receives a message that no actor sends, or its port raises
an error that no port raises. An actor that hangs no longer gets the messages that wait in its inbox.
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
    """The inbox of an actor that hangs: it returns no message before ``released`` is set."""

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


class WaitFailedError(AssertionError):
    """What a test waits for cannot come, or has not come in time; the text says where everything is."""


class InjectedError(Exception):
    """The crash of an actor that a script requested, raised by one of its ports."""


@attrs.frozen
class PoisonMessage:
    """A message that no actor handles; it crashes the actor that receives it."""


def is_injected(error: BaseException) -> bool:
    """Return whether ``error``, which can be a group, consists only of crashes that a script requested."""
    return all(isinstance(leaf, InjectedError) or PoisonMessage.__name__ in str(leaf) for leaf in leaves(error))

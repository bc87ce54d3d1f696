"""The sending end of an inbox.

An *address* is all that an actor has of another actor.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

M = TypeVar("M", contravariant=True)


class Address(Protocol[M]):
    """The sending end of an inbox whose size the protocol bounds."""

    def send_nowait(self, message: M, /) -> None:
        """Put ``message`` into the inbox; never waits."""

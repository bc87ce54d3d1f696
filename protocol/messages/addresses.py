"""The sending end of an inbox, through which actors know each other."""

from __future__ import annotations

from typing import Protocol, TypeVar

M = TypeVar("M", contravariant=True)


class Address(Protocol[M]):
    """The sending end of an inbox whose size the protocol bounds."""

    def send_nowait(self, message: M, /) -> None:
        """Put ``message`` into the inbox; never wait."""


class Nobody:
    """The address of an actor that is not there."""

    def send_nowait(self, message: object, /) -> None:
        """Drop ``message``."""

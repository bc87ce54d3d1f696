"""The clients that ``benchmarks.wire`` compares. Each one is a module with the same two functions.

``converse(work, concurrency)`` processes all of ``work``: for each target it connects, calls GetInfo, checks the
answer, calls NotifyRegistrationStatus and closes, up to ``concurrency`` at once. ``hold(targets, measure)`` opens a
channel to each target, makes one call on it, and returns the result of ``measure`` while all of them are open and idle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import attrs

#: The name of each client and its module, in the order of measurement; clients to be compared are adjacent.
CLIENTS = {
    "plugind": "plugind_channel",
    "plugind-stubs": "plugind_stubs",
    "floor": "floor",
    "grpcio-aio": "grpcio_aio",
    "grpcio-threads": "grpcio_threads",
    "grpclib-asyncio": "grpclib_asyncio",
}


@attrs.frozen
class Target:
    """A plugin's socket, and the name that the plugin must return."""

    path: str
    name: str


#: The remaining targets. ``pop`` is atomic, so threads can share the list.
Work = deque[Target]


class WrongAnswer(Exception):  # noqa: N818 - named by whose fault it is
    """A client read something other than what the plugin sent."""


def check(target: Target, name: str) -> None:
    """Check that ``name`` is the name of the target.

    Raises:
      WrongAnswer: if it is not.
    """
    if name != target.name:
        raise WrongAnswer(f"{target.path} is {target.name!r}, not {name!r}")


class Client(Protocol):
    """The interface of each module of this package."""

    def converse(self, work: Work, concurrency: int) -> None:
        """Process all of ``work``."""

    def hold(self, targets: Sequence[Target], measure: Callable[[], float]) -> float:
        """Measure while channels to all targets are open and idle."""

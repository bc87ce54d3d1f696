"""The clients that ``benchmarks.wire`` compares, one module each with the same two functions.

``converse(work, concurrency)`` empties ``work``: for each target it connects, calls GetInfo, checks the answer, calls
NotifyRegistrationStatus and closes, up to ``concurrency`` at once. ``hold(targets, measure)`` opens a channel to each
target, makes one call on it, and returns the result of ``measure`` while all of them are open and idle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import attrs

#: The name of each client and its module, in the order of measurement; clients to compare are neighbours.
CLIENTS = {
    "plugind": "plugind_channel",
    "floor": "floor",
    "grpcio-aio": "grpcio_aio",
    "grpcio-threads": "grpcio_threads",
    "grpclib-asyncio": "grpclib_asyncio",
}


@attrs.frozen
class Target:
    """A plugin's socket, and the name that it must return."""

    path: str
    name: str


#: The remaining targets. Taking one is atomic, so threads may share the list.
Work = deque[Target]


class WrongAnswer(Exception):  # noqa: N818 - named by whose fault it is
    """A client read something other than what the plugin sent."""


def check(target: Target, name: str) -> None:
    """Check that ``name`` is the target's.

    Raises:
      WrongAnswer: if it is not.
    """
    if name != target.name:
        raise WrongAnswer(f"{target.path} is {target.name!r}, not {name!r}")


class Client(Protocol):
    """The interface of each module of this package."""

    def converse(self, work: Work, concurrency: int) -> None:
        """Empty ``work``."""

    def hold(self, targets: Sequence[Target], measure: Callable[[], float]) -> float:
        """Measure while channels to all targets are open and idle."""

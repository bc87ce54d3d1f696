"""The clients that `benchmarks.wire` compares, one module each with the same two functions.

`converse(work, concurrency)` empties `work`: for each target it connects, calls GetInfo, checks the answer, calls
NotifyRegistrationStatus and closes, so many at once. `hold(targets, measure)` opens a channel to each target, makes one
call on it, and returns what `measure` says while all of them are open and idle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import attrs

CLIENTS = {
    "plugind": "plugind_channel",
    "floor": "floor",
    "grpcio-aio": "grpcio_aio",
    "grpcio-threads": "grpcio_threads",
    "grpclib-asyncio": "grpclib_asyncio",
}
"""The name of each client, and its module in this package; measured in this order, those that are compared together."""


@attrs.frozen
class Target:
    """A plugin's socket, and the name that it must give."""

    path: str
    name: str


Work = deque[Target]
"""What is still to do; taking from it is atomic, so that threads may share it."""


class WrongAnswer(Exception):  # noqa: N818 - named by whose fault it is
    """A client read something other than what the plugin sent."""


def check(target: Target, name: str) -> None:
    """Raises `WrongAnswer` unless `name` is the target's."""
    if name != target.name:
        raise WrongAnswer(f"{target.path} is {target.name!r}, not {name!r}")


class Client(Protocol):
    """What each module of this package is."""

    def converse(self, work: Work, concurrency: int) -> None:
        """Empties `work`."""

    def hold(self, targets: Sequence[Target], measure: Callable[[], float]) -> float:
        """Measures while channels to all targets are open and idle."""

"""Bugs in whose directory a plugin is in, put in on purpose; see ``plugind.tests.tools.planted_bugs``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from plugind.actors.registration import conversation
from plugind.actors.simulation.directory import MemoryDirectory


@contextmanager
def let_users_share_directories() -> Iterator[None]:
    """A plugin of a trusted user is taken in the directory of another one."""
    with patch.object(conversation, "misplaced", lambda *_: None):
        yield


@contextmanager
def look_only_at_the_nearest_directory() -> Iterator[None]:
    """What counts is whose directory a socket is in, and not whose directory that one is in."""
    owner_above = MemoryDirectory.owner_above

    def nearest(self: MemoryDirectory, path: str, root: str) -> int | None:
        above = path.rpartition("/")[0]
        return None if above == root else owner_above(self, path, above.rpartition("/")[0])

    with patch.object(MemoryDirectory, "owner_above", nearest):
        yield

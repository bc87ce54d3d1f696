"""The oracle of directories that others may write to."""

from __future__ import annotations

import pytest
import trio

from plugind.actors.simulation.directory import MemoryDirectory
from plugind.tests.fuzz.directory_oracle import DirectoryOracle

ROOT, ABOVE, BELOW = "/plugins", "/plugins/sub", "/plugins/sub/deep"
ANNA, BEN = 2001, 2002


@pytest.mark.usefixtures("autojump_clock")
async def test_an_empty_directory_is_secure_again_when_the_one_above_it_has_the_same_owner() -> None:
    """Seed 2366: a daemon that starts then may dial what was made in it meanwhile (fault 3)."""
    violated: list[str] = []
    directory = MemoryDirectory()
    directory.mkdir(BELOW)
    oracle = DirectoryOracle(directory, lambda rule, _: violated.append(rule), ROOT, {0}, {ANNA, BEN})
    for path, owner in ((ABOVE, ANNA), (BELOW, BEN), (ABOVE, 0), (ABOVE, BEN)):
        directory.chown(path, owner)
        oracle.changed(path)
        await trio.sleep(1.0)
    assert not oracle.is_insecure(BELOW)
    directory.bind(f"{BELOW}/a.sock")
    oracle.connected(f"{BELOW}/a.sock", directory.inode(f"{BELOW}/a.sock"), BEN)
    assert violated == []

"""A node whose directories others may write to for a while."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from plugind.testing import FakeHandler, FakePlugin, SimulatedNode


@pytest.mark.parametrize("where", ["", "sub"])
async def test_a_chmod_deregisters_nothing_and_lets_nothing_new_in(autojump_clock: MockClock, where: str) -> None:
    """Fault 3: a whole node, with its root or a directory below that opened to everybody."""
    handler = FakeHandler()
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        node.plug("sub/red.sock", FakePlugin("Colour", "red"))
        await node.settled()
        place = node.path(where).rstrip("/")
        node.directory.chmod(place, 0o777)
        await node.settled()
        node.plug("sub/blue.sock", FakePlugin("Colour", "blue"))
        node.directory.unlink(node.path("sub/red.sock"))
        await trio.sleep(100.0)
        assert handler.asked() == ["validate", "register"]
        assert {path for _, path in node.network.dials} == {node.path("sub/red.sock")}
        assert node.state("sub/red.sock") == "registered"
        node.directory.chmod(place, 0o755)
        await node.settled()
        assert node.state("sub/blue.sock") == "registered"
        assert sorted(handler.asked()) == ["deregister", "register", "register", "validate", "validate"]

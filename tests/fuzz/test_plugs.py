"""The plugins of a script: by which path their calls are judged."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from plugind.actors.simulation.network import Accepting
from plugind.actors.simulation.plugins import Call, PluggedIn
from plugind.testing import FakePlugin, SimulatedNode
from plugind.tests.fuzz.plugs import Plugs


async def test_a_call_is_of_the_path_by_which_its_connection_was_made_though_it_is_served_after_a_rename(
    autojump_clock: MockClock,
) -> None:
    """Fault 32: a plugin that serves late is moved to another path meanwhile (seed 2301816)."""
    received = list[tuple[str, str]]()

    def receive(path: str, plugin: PluggedIn, call: Call, /, *, well: bool) -> None:
        received.append((path, call.method))

    plugs = Plugs(receive)
    async with SimulatedNode() as node:
        plugin = node.plug("b.sock", FakePlugin("T", "b"))
        plugin.accepting = Accepting.LATE
        plugs.adopt("/plugins/b.sock", plugin)
        await trio.sleep(0.5)
        plugs.adopt("/plugins/a.sock", plugin)
        plugin.accepting = Accepting.SERVES
        await trio.sleep(0.5)
        assert received == [("/plugins/b.sock", "GetInfo"), ("/plugins/b.sock", "NotifyRegistrationStatus")]

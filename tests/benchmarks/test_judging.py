"""The daemon of the benchmarks applies the rules for drivers, and calls none of them."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from plugind.benchmarks.peers.judging import handlers
from plugind.testing import FakePlugin, SimulatedNode

pytestmark = pytest.mark.extended


@pytest.mark.parametrize(
    ("plugin_type", "version", "also"), [("CSIPlugin", "1.0.0", "0.3.0"), ("DRAPlugin", "v1.DRAPlugin", "1.0.0")]
)
async def test_a_driver_is_judged_and_has_one_connection(
    plugin_type: str, version: str, also: str, autojump_clock: MockClock
) -> None:
    async with SimulatedNode(handlers=handlers()) as node:
        first = node.plug("a.sock", FakePlugin(plugin_type, "a.example.com", [version]))
        wrong = node.plug("b.sock", FakePlugin(plugin_type, "b.example.com", [also]))
        twin = FakePlugin(plugin_type, "a.example.com", [version], endpoint=first.path)
        await node.settled()
        node.plug("c.sock", twin)
        await node.settled()
        assert (first.accepted, node.state("a.sock")) == (1, "registered")
        assert [call.method for call in first.calls] == ["GetInfo", "NotifyRegistrationStatus"]
        assert wrong.calls[-1].registered is False
        # Of a CSI driver it is a restarted registrar, and of a DRA driver another instance at the same endpoint.
        assert node.state("c.sock") == ("registered" if plugin_type == "CSIPlugin" else "waiting")
        first.stop()
        await trio.sleep(150)
        assert node.state("c.sock") == "registered"

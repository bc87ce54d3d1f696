"""The node in memory itself: what its users rely on."""

from __future__ import annotations

from trio.testing import MockClock

from plugind.actors.simulation import Call, FakePlugin, SimulatedNode


async def test_a_plugin_that_does_all_well_is_registered_without_any_wait(autojump_clock: MockClock) -> None:
    """The way of a plugin, whole; reference plugin_manager_test TestPluginRegistration."""
    async with SimulatedNode() as node:
        plugin = node.plug("csi.sock", FakePlugin("CSIPlugin", "csi.example.com"))
        await node.settled()
        assert node.timeline("csi.sock") == [
            (0.0, "dialing"),
            (0.0, "asking-info"),
            (0.0, "validating"),
            (0.0, "registering"),
            (0.0, "notifying"),
            (0.0, "registered"),
        ]
        assert plugin.calls == [Call(0.0, "GetInfo"), Call(0.0, "NotifyRegistrationStatus", registered=True)]

"""A handler of an embedded node follows real plugins, each in a process of its own."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import trio

from plugind import Config, Plugin, Root, Supervisor
from plugind.actors.handlers.link import Link
from plugind.protocol.messages.status import Snapshot
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.status import PluginStatus
from plugind.protocol.proto.pluginregistration_grpc import RegistrationStub
from plugind.protocol.proto.pluginregistration_pb2 import InfoRequest
from plugind.tests.end_to_end.processes import DEADLINE, PLUGIND, plugin_process


@attrs.define
class Asking:
    """A handler that asks each plugin for its info through its link, and notices when it ends."""

    deregistered: trio.Event = attrs.Factory(trio.Event)

    async def validate(self, plugin: Plugin) -> None:
        pass

    async def register(self, plugin: Plugin) -> None:
        pass

    async def deregister(self, plugin: Plugin) -> None:
        self.deregistered.set()

    async def follow(self, plugin: Plugin, link: Link) -> None:
        channel = await link.connect()
        info = await channel.stub(RegistrationStub).GetInfo(InfoRequest(), timeout=5)
        link.report(Health.HEALTHY, facts={"name": info.name})
        link.report(Health.DISCONNECTED, (await channel.wait_closed()).problem.value)
        await trio.sleep_forever()


async def until(node: Supervisor, health: Health) -> PluginStatus:
    """Return the status of the plugin once it is registered and its health is this.

    A plugin is followed once its handler has registered it, which is before the plugin has been told.
    """
    with trio.fail_after(DEADLINE):
        async with node.changes() as changes:
            async for change in changes:
                plugins = change.plugins if isinstance(change, Snapshot) else (change.plugin,)
                for plugin in plugins:
                    if plugin.health is health and plugin.state == "registered":
                        return plugin
    raise AssertionError("the node ended")


@pytest.mark.parametrize("own", [True, False])
async def test_a_handler_follows_a_plugin_on_its_own_socket_and_on_another_endpoint(tmp_path: Path, own: bool) -> None:
    """Fault 41: the plugin's own socket is reached by its file. Its process is killed, and its files stay."""
    handler, (root, beside) = Asking(), (tmp_path / "root", tmp_path / "beside")
    root.mkdir()
    beside.mkdir()
    socket, endpoint = root / "red.sock", beside / "service.sock"
    command = [*PLUGIND, "fake", "--type", "Colour"]
    serve = [*command, "--name", "service.example.com", "--socket", str(endpoint)]
    register = [*command, "--name", "red.example.com", "--socket", str(socket)]
    config = Config(roots=(Root(root),), endpoint_directories=(str(beside),))
    async with Supervisor(config, handlers={"Colour": handler}) as node:
        if own:
            async with plugin_process(register) as plugin:
                shown = await until(node, Health.HEALTHY)
                plugin.process.kill()
                lost = await until(node, Health.DISCONNECTED)
        else:
            async with (
                plugin_process(serve) as service,
                plugin_process([*register, "--endpoint", str(endpoint)]) as plugin,
            ):
                shown = await until(node, Health.HEALTHY)
                service.process.kill()
                lost = await until(node, Health.DISCONNECTED)
        assert shown.facts == (("name", "red.example.com" if own else "service.example.com"),)
        assert (lost.health_reason, lost.generation) == ("closed", shown.generation)
        socket.unlink(missing_ok=True)
        with trio.fail_after(DEADLINE):
            await handler.deregistered.wait()

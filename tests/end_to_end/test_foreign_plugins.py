"""Plugins that use other implementations of gRPC, each as a process beside a daemon."""

from __future__ import annotations

import signal

import pytest

from plugind.tests.end_to_end.foreign import ALL, Foreign
from plugind.tests.end_to_end.processes import Daemon, number, plugin_process

pytestmark = pytest.mark.parametrize("foreign", ALL, ids=lambda foreign: foreign.label)


async def test_a_plugin_is_killed_restarted_renamed_and_removed(foreign: Foreign, patient: Daemon) -> None:
    """TestPluginRegistration, TestPluginReRegistration; behaviours 3, 4, 9 and 24."""
    directory = patient.root / foreign.label
    await patient.ready()
    directory.mkdir()
    path, renamed = directory / "a.sock", directory / "b.sock"
    command = foreign.command(path, foreign.name, directory / ".service.sock")
    async with patient.watch() as watch:
        async with plugin_process(command) as plugin:
            await plugin.notified_registered()
            first = await watch.state(path, "registered")
            endpoint = directory / ".service.sock" if foreign.own_endpoint else path
            facts = (foreign.type, foreign.name, str(endpoint), foreign.versions, 1, None)
            keys = ("type", "name", "endpoint", "versions", "attempt", "next_try_in")
            assert tuple(first[key] for key in keys) == facts
            assert (first["root"], first["pid"]) == (str(patient.root), plugin.process.pid)
            # A killed plugin leaves its socket, so the next one must unlink the path before it binds.
            assert await plugin.end(signal.SIGKILL) == -signal.SIGKILL
        async with plugin_process(command) as plugin:
            await plugin.notified_registered()
            second = await watch.state(path, "registered", after=number(first["generation"]))
            assert tuple(second[key] for key in keys) == facts
            assert second["pid"] == plugin.process.pid

            path.rename(renamed)
            await plugin.notified_registered()
            await watch.state(path, "gone")
            third = await watch.state(renamed, "registered")
            assert (third["name"], third["attempt"]) == (foreign.name, 1)
            assert number(third["generation"]) > number(second["generation"])

            renamed.unlink()
            await watch.state(renamed, "gone")
    assert not [path for path in await patient.plugins() if path.startswith(str(directory))]

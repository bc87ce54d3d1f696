"""The kubelet's own plugin manager (``tests/peers/kubelet-pm``) beside a plugin of ours."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from plugind.tests.end_to_end.go_programs import peer
from plugind.tests.end_to_end.processes import PluginProcess, plugin_process

pytestmark = pytest.mark.extended

NAME = "a.example.com"
NOTHING: dict[str, object] = {"desired": [], "actual": [], "calls": {}}


@asynccontextmanager
async def kubelet(root: Path, *options: str) -> AsyncIterator[PluginProcess]:
    """Run the plugin manager on a directory; yield it once it has listed the directory."""
    async with plugin_process([peer("kubelet-pm"), *options, str(root)]) as manager:
        await manager.line(ready=str(root))
        yield manager


@asynccontextmanager
async def fake(socket: Path) -> AsyncIterator[PluginProcess]:
    options = ("--socket", str(socket), "--type", "CSIPlugin", "--name", NAME)
    async with plugin_process([sys.executable, "-m", "plugind", "fake", *options]) as plugin:
        yield plugin


async def state_after(manager: PluginProcess, what: str) -> object:
    """Tell it a line, and return the state after it."""
    await manager.command(f"{what}\nstate")
    while "state" not in (line := await manager.line()):
        continue
    return line["state"]


def calls(manager: PluginProcess) -> list[tuple[object, ...]]:
    """Return what its handlers were called with so far."""
    keys = ("call", "type", "name", "endpoint", "versions")
    return [tuple(line.get(key) for key in keys) for line in manager.lines if "call" in line]


async def test_the_kubelets_manager_registers_a_plugin_once_and_deregisters_it_when_its_socket_goes(
    tmp_path: Path,
) -> None:
    socket = tmp_path / "a.sock"
    at = ("CSIPlugin", NAME, str(socket))
    async with kubelet(tmp_path) as manager:
        async with fake(socket) as plugin:
            await plugin.notified_registered()
            held = {"desired": [str(socket)], "actual": [str(socket)], "calls": {"validate": 1, "register": 1}}
            assert await state_after(manager, "") == held
            assert await plugin.end() == 0
        await manager.line(returned="deregister")
        expected = [("validate", *at, ["1.0.0"]), ("register", *at, ["1.0.0"]), ("deregister", *at, None)]
        assert calls(manager) == expected
        once = dict.fromkeys(("validate", "register", "deregister"), 1)
        assert await state_after(manager, "") == {"desired": [], "actual": [], "calls": once}
        assert await manager.end() == 0


async def test_the_kubelets_manager_notifies_a_refused_plugin_and_tries_again(tmp_path: Path) -> None:
    refuses = [{"call": call, "name": NAME, "error": f"no {call}", "times": 1} for call in ("validate", "register")]
    async with kubelet(tmp_path, *(f"--script={json.dumps(rule)}" for rule in refuses)) as manager:
        async with fake(tmp_path / "a.sock") as plugin:
            for call in ("validate", "register"):
                said = await plugin.line(call="NotifyRegistrationStatus")
                assert (said["plugin_registered"], str(said["error"]).endswith(f"no {call}")) == (False, True)
            await plugin.notified_registered()
            assert await plugin.end() == 0
        await manager.line(returned="deregister")
        assert [call[0] for call in calls(manager)] == ["validate", *2 * ["validate", "register"], "deregister"]


async def test_the_kubelets_manager_ends_with_standard_input_and_its_last_line_is_its_state(tmp_path: Path) -> None:
    async with kubelet(tmp_path, "--quiet") as manager:
        assert await state_after(manager, json.dumps({"call": "register", "seconds": 3600})) == NOTHING
        assert await state_after(manager, "calm") == NOTHING
        assert manager.process.stdin is not None
        await manager.process.stdin.aclose()
        (last,) = (json.loads(line) for line in (await manager.rest()).splitlines())
        assert last["state"] == NOTHING
        assert await manager.process.wait() == 0


@pytest.mark.parametrize("rule", ["{}", '{"call": "follow"}', '{"call": "deregister", "error": "no"}', "validate"])
def test_a_rule_that_means_nothing_is_a_wrong_argument(tmp_path: Path, rule: str) -> None:
    done = subprocess.run([peer("kubelet-pm"), "--script", rule, str(tmp_path)], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, b"")

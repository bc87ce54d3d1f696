"""The daemon that tests of plugins run: what it starts, and what a test is told that fails."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from plugind.protocol.plugins.status import StateName
from plugind.testing import PluginProcess, RunningDaemon, WaitFailedError, daemon
from plugind.tests.end_to_end.foreign import ALL, Foreign


@pytest.fixture(scope="module")
def node() -> Iterator[RunningDaemon]:
    with daemon() as running:
        yield running


def fake(node: RunningDaemon, name: str, *options: str) -> PluginProcess:
    """Start a plugin of plugind's own."""
    socket = node.plugins / f"{name.replace('/', '-')}.sock"
    return node.run(sys.executable, "-m", "plugind", "fake", "--socket", socket, "--name", name, *options)


@pytest.mark.parametrize("foreign", ALL, ids=lambda foreign: foreign.label)
def test_plugins_of_other_implementations_register(foreign: Foreign, node: RunningDaemon) -> None:
    directory = node.plugins / foreign.label
    directory.mkdir()
    plugin = node.run(*foreign.command(directory / "a.sock", foreign.name, directory / ".service.sock"))
    status = node.registered(foreign.name, timeout=60)
    assert (status.state, status.type, status.pid) == (StateName.REGISTERED, foreign.type, plugin.pid)
    assert plugin.end() is not None


def test_a_plugin_in_shell_has_the_devices_that_it_lists(node: RunningDaemon) -> None:
    command = (
        f"exec {sys.executable} -m plugind fake --socket {node.plugins}/sh.sock --type DevicePlugin --name x.com/sh"
    )
    node.run("sh", "-c", f"{command} --device a=/dev/null --device b=/dev/zero")
    resource = node.devices("x.com/sh", healthy=2, timeout=60)
    assert [device.id for device in resource.devices()] == ["a", "b"]


def test_a_process_runs_where_the_test_says_and_a_program_that_is_missing_is_named(
    node: RunningDaemon, tmp_path: Path
) -> None:
    shell = node.run("sh", "-c", "pwd", cwd=tmp_path)
    assert shell.wait(timeout=60) == 0
    assert shell.output == f"{tmp_path}\n"
    with pytest.raises(WaitFailedError) as raised:
        node.run("./our-plugin", "--socket", cwd=tmp_path)
    no_such = "[Errno 2] No such file or directory: './our-plugin'"
    assert str(raised.value) == f"./our-plugin --socket cannot be started in {tmp_path}: {no_such}"
    assert raised.value.__suppress_context__
    assert shell in node.processes[-1:]


def test_what_says_that_a_lease_is_held_stays_in_the_directory_of_the_test(node: RunningDaemon) -> None:
    """Left elsewhere, a lease of one test would withhold the devices of another one."""
    fake(node, "x.com/held", "--type", "DevicePlugin", "--device", "a=/dev/null")
    node.devices("x.com/held", timeout=60)
    with node.client.allocate({"x.com/held": 1}):
        (marker,) = (node.directory / "markers").iterdir()
    assert marker.name.startswith("leases-")


def test_a_wait_for_a_plugin_that_is_refused_fails_at_once_with_all_that_is_known(node: RunningDaemon) -> None:
    plugin = fake(node, "red.example.com", "--type", "ColourPlugin")
    with pytest.raises(WaitFailedError) as raised:
        node.registered("red.example.com", timeout=600)
    text = str(raised.value)
    assert text.startswith("red.example.com is refused\n")
    assert "ColourPlugin red.example.com is parked, attempt 1: " in text
    assert "no handler registered for plugin type: ColourPlugin" in text
    assert f"--name red.example.com --type ColourPlugin (pid {plugin.pid}) runs:" in text
    assert 'msg="plugin parked"' in text
    assert node.refused("red.example.com").state is StateName.PARKED


def test_a_plugin_that_starts_again_is_waited_for_although_the_old_one_stays_registered(node: RunningDaemon) -> None:
    """Its short life delays it, which is no refusal."""
    options = ("--type", "DevicePlugin", "--device", "a=/dev/null")
    old = fake(node, "x.com/again", *options)
    first = node.registered("x.com/again", timeout=60)
    old.kill()
    old.wait()
    new = fake(node, "x.com/again", *options)
    second = node.registered("x.com/again", timeout=60)
    assert (first.pid, second.pid) == (old.pid, new.pid)


def test_a_wait_for_devices_that_fails_names_those_that_are_unhealthy(node: RunningDaemon) -> None:
    options = ("--device", "a=/dev/null", "--device", "b=/dev/zero", "--command", "unhealthy b")
    fake(node, "x.com/broken", "--type", "DevicePlugin", *options)
    node.devices("x.com/broken", healthy=1, timeout=60)
    with pytest.raises(WaitFailedError) as raised:
        node.devices("x.com/broken", healthy=2, timeout=0.1)
    assert "\nx.com/broken is listed: 1 of 2 devices are healthy\n  b is Unhealthy\n" in str(raised.value)
    assert "DevicePlugin x.com/broken is registered, attempt 1\n" in str(raised.value)


def test_a_wait_for_a_refusal_fails_once_the_plugin_is_registered(node: RunningDaemon) -> None:
    fake(node, "x.com/taken", "--type", "DevicePlugin", "--device", "a=/dev/null")
    with pytest.raises(WaitFailedError, match=r"^x.com/taken is registered\n"):
        node.refused("x.com/taken", timeout=600)


def test_a_wait_ends_with_the_processes_of_the_test() -> None:
    with daemon() as node:
        node.run("sh", "-c", "echo cannot find the hardware; exit 3")
        with pytest.raises(WaitFailedError) as raised:
            node.devices("x.com/gpu", timeout=600)
        text = str(raised.value)
        assert text.startswith("x.com/gpu has not 1 healthy devices, and all processes of the test have ended\n")
        assert "has ended with code 3:\n  cannot find the hardware\n" in text


def test_a_wait_ends_with_the_daemon_and_with_its_time() -> None:
    with daemon() as node:
        with pytest.raises(WaitFailedError, match=r"^a is not registered after 0.1 s\n"):
            node.registered("a", timeout=0.1)
        pid = next(entry for entry in Path("/proc").iterdir() if _is_daemon(entry, node))
        os.kill(int(pid.name), signal.SIGKILL)
        with pytest.raises(WaitFailedError, match=r"^a is not registered, and the daemon has ended\n"):
            node.registered("a", timeout=600)


def _is_daemon(entry: Path, node: RunningDaemon) -> bool:
    try:
        words = (entry / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"run" in words and str(node.status).encode() in words


def test_a_daemon_that_does_not_start_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path) if len(str(tmp_path)) <= 40 else None)
    with pytest.raises(WaitFailedError, match="unknown key strickt"), daemon("--set", "strickt=true"):
        pytest.fail("it must not begin")
    assert list(tmp_path.iterdir()) == []


def test_the_processes_end_with_the_block_and_the_directory_is_removed() -> None:
    with daemon() as node:
        plugin = node.run("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done")
        assert plugin.code is None
        plugin.kill()
        assert plugin.wait() == -signal.SIGKILL
        other = node.run("sleep", "1000")
        directory = node.directory
    assert other.code == -signal.SIGTERM
    assert not directory.exists()

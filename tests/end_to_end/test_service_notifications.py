"""What a daemon tells its service manager, on a socket of the test's own."""

from __future__ import annotations

import signal
import socket
from functools import partial
from pathlib import Path

import pytest
import trio

from plugind.tests.end_to_end.processes import DEADLINE, PLUGIND, daemon, plugin_process, run
from plugind.tests.end_to_end.service_manager import service_manager


async def reload(status: str) -> None:
    done = await trio.to_thread.run_sync(partial(run, "reload", status=status))
    assert (done.code, done.out, done.err) == (0, "nothing has changed\n", "")


async def test_the_service_manager_hears_of_the_start_of_plugins_of_a_reload_and_of_the_stop(
    real_processes: None, tmp_path: Path
) -> None:
    path = tmp_path / "root" / "a.sock"
    with (
        service_manager(tmp_path, watchdog=0.6) as manager,
        daemon(tmp_path, environment=manager.environment) as node,
    ):
        assert await manager.next() == {"READY": "1"}
        # The status socket accepts connections at the first attempt.
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(node.status)
        assert await manager.until("STATUS") == {"STATUS": "0 plugins"}
        fake = [*PLUGIND, "fake", "--socket", str(path), "--type", "CSIPlugin", "--name", "red.example.com"]
        async with plugin_process([*fake, "--version", "1.0.0"]):
            await manager.until("STATUS", "1 plugin: 1 registered")
            node.process.send_signal(signal.SIGHUP)
            began = await manager.until("RELOADING", "1")
            assert began["MONOTONIC_USEC"].isdigit()
            await manager.until("READY", "1")
            # As systemd does for ExecReload. The messages are read meanwhile: the kernel keeps ten, and drops others.
            async with trio.open_nursery() as nursery:
                nursery.start_soon(reload, node.status)
                again = await manager.until("RELOADING", "1")
                assert int(again["MONOTONIC_USEC"]) > int(began["MONOTONIC_USEC"])
                await manager.until("READY", "1")
            assert {"WATCHDOG": "1"} in manager.messages
            await manager.until("WATCHDOG", "1")
        node.process.terminate()
        await manager.until("STOPPING", "1")
        assert await node.ended() == 0
    sent = {name for message in manager.messages for name in message}
    assert sent == {"READY", "STATUS", "WATCHDOG", "RELOADING", "MONOTONIC_USEC", "STOPPING"}


@pytest.mark.parametrize("optional", ["true", "false"])
async def test_a_daemon_without_its_root_says_so_in_its_status(optional: str, tmp_path: Path) -> None:
    """As on a node without ``/var/lib/kubelet``, with the unit as it is installed."""
    root = tmp_path / "kubelet" / "plugins_registry"
    with (
        service_manager(tmp_path) as manager,
        daemon(tmp_path, "--set", f"optional_roots={optional}", root=root, environment=manager.environment),
    ):
        status = (await manager.until("STATUS"))["STATUS"]
        assert status.startswith(f"0 plugins; cannot use {root}: its parent directory {root.parent} is missing")
        root.parent.mkdir()
        await manager.until("STATUS", "0 plugins")


async def test_a_daemon_that_the_watchdog_ends_leaves_its_stacks_in_the_log(tmp_path: Path) -> None:
    """systemd sends SIGABRT. What blocks the loop is in these stacks."""
    with (
        service_manager(tmp_path, watchdog=30.0) as manager,
        daemon(tmp_path, environment=manager.environment) as node,
    ):
        await manager.until("WATCHDOG", "1")
        # In a stopped process (SIGSTOP) any thread may get the signal, and otherwise the main one.
        node.process.send_signal(signal.SIGABRT)
        with trio.fail_after(DEADLINE):
            assert await node.ended() == -signal.SIGABRT
    log = node.log.read_text()
    assert "Fatal Python error: Aborted\n" in log
    assert "/trio/_core/_run.py" in log

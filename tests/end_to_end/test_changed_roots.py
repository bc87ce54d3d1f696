"""A daemon whose roots change while it runs."""

from __future__ import annotations

import json
import signal
from functools import partial
from pathlib import Path

import pytest
import trio

from plugind.actors.discovery.roots import RootBusyError, RootLock
from plugind.tests.end_to_end.processes import (
    DEADLINE,
    PLUGIND,
    Daemon,
    daemon_process,
    plugin_process,
    run,
)


async def roots_of(node: Daemon) -> dict[str, str]:
    return {root["root"]: root["status"] for root in json.loads((await node.get("/healthz"))[1])["roots"]}


async def unlocked(root: Path) -> None:
    """Return once no node has locked ``root``."""
    lock = RootLock()
    while True:
        try:
            return lock.take(str(root))
        except RootBusyError:
            await trio.sleep(0.01)
        finally:
            lock.release()


@pytest.mark.usefixtures("real_processes")
async def test_sighup_adds_a_root_and_a_reload_removes_it(tmp_path: Path) -> None:
    first, other, status = tmp_path / "root", tmp_path / "other", str(tmp_path / "status.sock")
    file, path = tmp_path / "plugind.toml", other / "a.sock"

    def write(*roots: Path) -> None:
        named = json.dumps([str(root) for root in roots])
        file.write_text(
            f'roots = {named}\nstatus = "{status}"\nlog_format = "json"\nrescan = 3600\n'
            f"[timeouts]\nget_info = {DEADLINE}\nnotify = {DEADLINE}\n"
        )
        file.chmod(0o644)

    write(first)
    with (
        (tmp_path / "log").open("ab") as log,
        daemon_process([*PLUGIND, "run", "--config", str(file)], log) as process,
    ):
        node = Daemon(first, status, process, tmp_path / "log")
        await node.ready()
        with trio.fail_after(3 * DEADLINE):
            write(first, other)
            process.send_signal(signal.SIGHUP)
            (line,) = await node.logged("the configuration was read again")
            assert line["changed"] == "roots, endpoint_directories"
            await node.ready()
            assert await roots_of(node) == {str(first): "ok", str(other): "ok"}
            with pytest.raises(RootBusyError):
                RootLock().take(str(other))
            fake = [*PLUGIND, "fake", "--socket", str(path), "--type", "DRAPlugin", "--name", "a.example.com"]
            async with node.watch() as watch, plugin_process([*fake, "--version", "v1.DRAPlugin"]):
                await watch.state(path, "registered")
                write(first)
                done = await trio.to_thread.run_sync(partial(run, "reload", status=status))
                assert (done.code, done.out, done.err) == (0, "changed: roots, endpoint_directories\n", "")
                await watch.state(path, "gone")
                (gone,) = await node.logged("plugin deregistered")
                assert gone["cause"] == "its root was removed from the configuration"
                assert await roots_of(node) == {str(first): "ok"}
                assert path.exists()
                # Another node may have it.
                await unlocked(other)
                write(first, first / "below")
                done = await trio.to_thread.run_sync(partial(run, "reload", status=status))
                assert (done.code, "lies in the root" in done.err) == (78, True)
                write(first, other)
                done = await trio.to_thread.run_sync(partial(run, "reload", status=status))
                assert (done.code, done.err) == (0, "")
                await watch.state(path, "registered")

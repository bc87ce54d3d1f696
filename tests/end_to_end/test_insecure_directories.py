"""Directories below the root of a real daemon to which others may write."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import pytest
import trio

from plugind.tests.end_to_end.processes import DEADLINE, Daemon, daemon, run
from plugind.tests.end_to_end.sockets import NAME, plugins_at, stale

#: A socket without a listener is stale almost at once.
BRISK = {"refused_grace": 0.05}


async def health(node: Daemon) -> dict[str, object]:
    answer: dict[str, object] = json.loads((await node.get("/healthz"))[1])
    return answer


async def conditions(node: Daemon, wanted: dict[str, str]) -> dict[str, object]:
    """Wait until the health names ``wanted`` directories with their conditions, and return it."""
    with trio.fail_after(DEADLINE):
        while True:
            answer = await health(node)
            roots = answer["roots"]
            assert isinstance(roots, list)
            if {directory["path"]: directory["condition"] for directory in roots[0]["directories"]} == wanted:
                return answer
            await trio.sleep(0.02)


async def unknown(node: Daemon, path: Path) -> str:
    status, body = await node.get(f"/plugins/{path}")
    assert status == 404
    return str(json.loads(body)["error"])


async def test_a_directory_that_others_may_write_to_takes_nothing_new_and_loses_nothing(tmp_path: Path) -> None:
    """Fault 3: a plugin there stays registered; a socket that appears is not dialed until the directory is mended."""
    root = tmp_path / "root"
    later = root / "later"
    later.mkdir(parents=True)
    first, second, plain = later / "a.sock", later / "b.sock", root / "c.sock"
    async with plugins_at(first) as plugin:
        with daemon(tmp_path, "--metrics-path-labels", timeouts=BRISK) as node:
            async with node.watch() as watch:
                await watch.state(first, "registered")
                assert (await health(node))["status"] == "ok"
                later.chmod(0o777)
                stale(second)
                # A directory that another program makes for everybody, and a socket of which the daemon takes notice.
                old = os.umask(0)
                (root / "open").mkdir(mode=0o1777)
                os.umask(old)
                stale(root / "open/d.sock", plain)
                await watch.state(plain, "stale")
                os.kill(node.process.pid, 1)
                answer = await conditions(node, {str(later): "insecure", str(root / "open"): "insecure"})
                assert answer["status"] == "degraded"
                plugins = await node.plugins()
                assert plugins.keys() == {str(first), str(plain)}
                assert plugins[str(first)]["state"] == "registered"
                metrics = (await node.get("/metrics"))[1].decode()
                assert f'plugind_directories{{condition="insecure",directory="{later}"}} 1.0' in metrics
                listed = await trio.to_thread.run_sync(lambda: run("ls", status=node.status))
                assert f"directory {later} is insecure: everybody may write to {later}" in listed.out
                (described,) = json.loads((await node.get(f"/plugins/{first}"))[1])
                assert any(f"run 'chmod o-w {later}'" in warning for warning in described["warnings"])
                # A path relative to the working directory is asked for in a second request.
                retry = partial(run, "retry", "root/open/d.sock", status=node.status, directory=tmp_path)
                done = await trio.to_thread.run_sync(retry)
                assert done.code == 1
                for error, directory in (done.err, root / "open"), (await unknown(node, second), later):
                    assert f"; directory {directory} is insecure: everybody may write to {directory}" in error
                    assert f"run 'chmod o-w {directory}'" in error
                later.chmod(0o755)
                await watch.state(second, "stale")
                assert "gone" not in watch.states(first)
                assert plugin.process.returncode is None
        said = [line for line in node.lines() if line.get("path") == str(later)]
        assert [line["msg"] for line in said][:1] == ["directory is insecure"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
async def test_a_root_that_is_given_away_is_shown_as_insecure_and_keeps_its_plugins(tmp_path: Path) -> None:
    """Fault 3: a chown later takes effect at once, and the daemon goes on."""
    root = tmp_path / "root"
    root.mkdir()
    path = root / "a.sock"
    async with plugins_at(path, name=NAME):
        with daemon(tmp_path, timeouts=BRISK) as node:
            async with node.watch() as watch:
                await watch.state(path, "registered")
                os.chown(root, 65534, 65534)
                answer = await conditions(node, {str(root): "insecure"})
                assert answer["status"] == "degraded"
                assert (await node.get("/healthz"))[0] == 200
                stale(root / "b.sock")
                path.unlink()
                os.chown(root, 0, 0)
                await watch.state(root / "b.sock", "stale")
                await watch.state(path, "gone")
                await conditions(node, {})

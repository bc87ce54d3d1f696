"""Daemons that a file configures."""

from __future__ import annotations

import json
import re
import signal
from functools import partial
from pathlib import Path

import pytest
import trio

from plugind.tests.end_to_end.processes import PLUGIND, Daemon, daemon, daemon_process, plugin_process, run


@pytest.mark.usefixtures("real_processes")
async def test_a_daemon_may_have_all_of_its_configuration_from_a_file(tmp_path: Path) -> None:
    root, status = tmp_path / "root", str(tmp_path / "status.sock")
    file = tmp_path / "plugind.toml"
    file.write_text(
        f"""
        roots = ["{root}"]
        status = "{status}"
        log_format = "json"
        expected = ["a.example.com"]
        [timeouts]
        get_info = 120.0
        """
    )
    file.chmod(0o644)
    command = [*PLUGIND, "run", "--config", str(file)]
    with (tmp_path / "log").open("ab") as log, daemon_process(command, log) as process:
        node = Daemon(root, status, process, tmp_path / "log")
        assert (await node.get("/readyz"))[0] == 503
        fake = [*PLUGIND, "fake", "--socket", f"{root}/a.sock", "--type", "CSIPlugin", "--name", "a.example.com"]
        async with plugin_process([*fake, "--version", "1.0.0"]):
            await node.ready()
        # The reload of a unit has nothing but the file to find the status socket by.
        done = await trio.to_thread.run_sync(partial(run, "reload", "--config", str(file)))
        assert (done.code, done.out, done.err) == (0, "nothing has changed\n", "")
        file.write_text(f"status = '{status}'\nexpected = [5]\n")
        done = await trio.to_thread.run_sync(partial(run, "reload", "--config", str(file)))
        assert done.code == 78
        assert done.err == f"plugind: {file}:2: expected is 5: it must be a string that is not empty\n"


@pytest.mark.usefixtures("real_processes")
def test_a_wrong_file_ends_a_daemon_before_it_does_anything(tmp_path: Path) -> None:
    file = tmp_path / "plugind.toml"
    file.write_text(f"roots = ['{tmp_path}/root']\n[timeout]\n")
    file.chmod(0o644)
    done = run("run", "--config", str(file))
    assert (done.code, done.out) == (78, "")
    assert done.err == f"plugind: {file}:2: unknown key timeout: did you mean timeouts?\n"
    assert not (tmp_path / "root").exists()


@pytest.mark.usefixtures("real_processes")
def test_the_command_prints_what_a_daemon_would_have(tmp_path: Path) -> None:
    done = run("config", "--root", str(tmp_path), environment={"PLUGIND_TIMEOUTS_GET_INFO": "2.5"})
    assert (done.code, done.err) == (0, "")
    lines = [line.split(" # ") for line in done.out.splitlines()]
    assert ["get_info = 2.5", "PLUGIND_TIMEOUTS_GET_INFO"] in [[part.strip() for part in line] for line in lines]


async def test_a_reload_returns_once_other_plugins_are_expected_and_a_bad_file_changes_nothing(tmp_path: Path) -> None:
    """Fault 89."""
    file = tmp_path / "plugind.toml"

    def write(text: str) -> None:
        file.write_text(text)
        file.chmod(0o644)

    write("")
    with daemon(tmp_path, "--config", str(file)) as node:
        await node.ready()
        write("expected = ['a.example.com']\nrescan = 7\ndra.health = 'try'\n")
        done = await trio.to_thread.run_sync(partial(run, "reload", status=node.status))
        assert (done.code, done.out, done.err) == (0, "changed: expected\nneeds a restart: dra.health\n", "")
        assert (await node.get("/readyz"))[0] == 503
        shown = (
            await trio.to_thread.run_sync(partial(run, "config", "--running", status=node.status))
        ).out.splitlines()
        assert shown[0] == f"# {file}"
        assert re.fullmatch(rf"# waits for a restart: dra\.health = .try.  # {file}:3", shown[1])
        assert ["notify = 5.0", "default"] in [[part.strip() for part in line.split(" # ")] for line in shown]

        write("expected = []\nx = 1\ny = 2\n")
        done = await trio.to_thread.run_sync(partial(run, "reload", status=node.status))
        assert (done.code, done.out) == (78, "")
        assert done.err == f"plugind: {file}:2: unknown key x\nplugind: {file}:3: unknown key y\n"
        assert (await node.get("/readyz"))[0] == 503
        health = json.loads((await node.get("/healthz"))[1])
        (shown,) = [actor for actor in health["actors"] if actor["name"] == "configuration"]
        assert (health["status"], shown["status"]) == ("degraded", "degraded")
        assert f"{file}:2: unknown key x" in shown["reason"]
        await node.metric("plugind_config_refused 1.0")

        write("expected = []\n")
        node.process.send_signal(signal.SIGHUP)
        await node.metric("plugind_config_refused 0.0")
        await node.ready()
        done = await trio.to_thread.run_sync(partial(run, "reload", "-o", "json", status=node.status))
        assert json.loads(done.out) == {"changed": [], "needs_restart": []}

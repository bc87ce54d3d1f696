"""The start and the end of a daemon, with their failures."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
from pathlib import Path

import pytest
import trio

from plugind.actors.console import commands
from plugind.tests.end_to_end.foreign import GRPCLIB
from plugind.tests.end_to_end.processes import (
    DEADLINE,
    PATIENT,
    PLUGIND,
    Daemon,
    daemon,
    daemon_process,
    plugin_process,
    run,
)


def refused(*arguments: str, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Run a daemon that must refuse to start; return its exit code and its only line."""
    done = run("run", *arguments, environment=environment)
    assert done.out == ""
    lines = done.err.splitlines()
    assert len(lines) == 1, done.err
    return done.code, lines[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.usefixtures("real_processes")
async def test_a_signal_stops_the_daemon_with_exit_code_0_and_plugins_stay_registered(
    number: signal.Signals, tmp_path: Path
) -> None:
    """Fault 87 and behaviour 42: nothing is deregistered, and only the root remains."""
    path = tmp_path / "root" / "deep" / "a.sock"
    with daemon(tmp_path) as node:
        await node.ready()
        # A missing root is created, and everything under it is watched at once (behaviour 1).
        path.parent.mkdir()
        async with plugin_process(GRPCLIB.command(path, GRPCLIB.name, path)) as plugin:
            await plugin.notified_registered()
            async with node.watch() as watch:
                await watch.state(path, "registered")
                node.process.send_signal(number)
                with trio.fail_after(DEADLINE), pytest.raises(StopAsyncIteration):
                    await watch.until(lambda watch: False)
                assert watch.states(path)[-1] == "registered"
            assert await node.ended() == 0
            assert plugin.process.returncode is None
    logged = node.lines()
    assert [line["msg"] for line in logged if line["msg"] in ("started", "stopping", "stopped")] == [
        "started",
        "stopping",
        "stopped",
    ]
    assert [line["signal"] for line in logged if "signal" in line] == [number.name]
    assert sorted(os.listdir(tmp_path)) == ["log", "root"]


async def test_a_hung_plugin_does_not_delay_the_stop_and_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    """Fault 87."""
    (tmp_path / "root").mkdir()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "root" / "silent.sock"))
        silent.listen()
        for signals in (1, 2):
            with daemon(tmp_path) as node:
                async with node.watch() as watch:
                    await watch.until(lambda watch: "info" in watch.states(node.root / "silent.sock"))
                    for _ in range(signals):
                        node.process.send_signal(signal.SIGTERM)
                assert await node.ended() == 0


async def test_a_killed_daemon_leaves_nothing_that_prevents_the_next_start(tmp_path: Path) -> None:
    """Faults 88 and 96: its lock is free, its status socket is replaced, and every plugin is registered again."""
    path = tmp_path / "root" / "a.sock"
    path.parent.mkdir()
    async with plugin_process(GRPCLIB.command(path, GRPCLIB.name, path)) as plugin:
        for _ in range(2):
            with daemon(tmp_path, timeouts=PATIENT) as node:
                await plugin.notified_registered()
                async with node.watch() as watch:
                    assert (await watch.state(path, "registered"))["attempt"] == 1
                node.process.kill()
                assert await node.ended() == -signal.SIGKILL
            assert stat.S_ISSOCK(os.stat(node.status).st_mode)


async def test_a_second_daemon_on_one_root_is_refused_in_one_line(shared: Daemon, tmp_path: Path) -> None:
    """Fault 96: the first daemon is not affected."""
    await shared.ready()
    # The second root is the same directory by another name; the first one is free.
    roots = ["--root", str(tmp_path / "free"), "--root", f"{shared.root}/../{shared.root.name}/."]
    result = refused(*roots, "--status", str(tmp_path / "status.sock"))
    said = f"plugind: another plugind runs on {shared.root}: stop it, or choose another directory with --root"
    assert result == (1, said)
    assert not (tmp_path / "status.sock").exists()
    await shared.plugins()


async def test_a_second_daemon_on_one_status_socket_is_refused_and_the_first_keeps_it(
    shared: Daemon, tmp_path: Path
) -> None:
    await shared.ready()
    code, line = refused("--root", str(tmp_path / "root"), "--status", shared.status)
    said = f"another process answers at {shared.status}; stop it, or give this one another path with --status"
    assert (code, line) == (1, f"plugind: {said}")
    await shared.plugins()


def test_a_bad_configuration_is_one_line_and_exit_78(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Faults 2 and 3: a refused root is not changed."""
    file, link, open_to_all, nested = (tmp_path / name for name in ("file", "link", "open", "nested"))
    file.touch()
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    link.symlink_to(open_to_all)
    no_directory = "is not a directory, or is a symbolic link: name a directory"
    everybody = f"run 'chmod o-w {open_to_all}', or allow it with --insecure-root"
    above = f"run 'chmod o-w {open_to_all}', name a directory with --root above which nobody but root and this user may"
    in_each_other = f"the root {nested / 'in'} lies in the root {nested}: name one of them"
    said = {
        (str(file),): f"the root {file} {no_directory}",
        (str(link),): f"the root {link} {no_directory}",
        (str(file / "below"),): f"the root {file / 'below'} {no_directory}",
        (str(open_to_all),): f"everybody may write to the root {open_to_all}: {everybody}",
        (str(open_to_all / "root"),): (
            f"everybody may write to {open_to_all}, and so others may replace the root {open_to_all}/root: {above}"
            " write, or allow it with --insecure-root"
        ),
        ("",): "the path of a root is empty: name a directory with --root",
        (str(nested), str(nested / "in")): in_each_other,
    }
    status = ["--status", str(tmp_path / "status.sock")]
    assert refused("--root", str(file), *status) == (78, f"plugind: the root {file} {no_directory}")
    inside = str(tmp_path / "r" / "status.sock")
    advice = f"lies in the root {tmp_path}/r, where it would be dialed as a plugin: give it another path with --status"
    assert commands.main(["run", "--root", str(tmp_path / "r"), "--status", inside]) == 78
    assert capsys.readouterr().err == f"plugind: the status socket {inside} {advice}\n"
    for roots, line in said.items():
        # All but one run in this process, which gives the same exit code without the time of a start.
        code = commands.main(["run", *status, *(text for root in roots for text in ("--root", root))])
        assert (code, *capsys.readouterr()) == (78, "", f"plugind: {line}\n")
    assert {"status.sock"}.isdisjoint(os.listdir(tmp_path))
    assert open_to_all.stat().st_mode & 0o777 == 0o777


async def test_the_environment_names_the_roots_and_the_status_socket(tmp_path: Path) -> None:
    roots = [tmp_path / "one", tmp_path / "two"]
    environment = {"PLUGIND_ROOT": ":".join(map(str, roots)), "PLUGIND_STATUS": str(tmp_path / "deep" / "s.sock")}
    paths = [root / "a.sock" for root in roots]
    status = environment["PLUGIND_STATUS"]
    with (tmp_path / "log").open("wb") as log, daemon_process([*PLUGIND, "run"], log, environment) as process:
        node = Daemon(roots[0], status, process, tmp_path / "log")
        async with node.watch() as watch:
            await node.ready()
            pairs = [text for index, path in enumerate(paths) for text in (str(path), f"example.com/n{index}")]
            async with plugin_process([*GRPCLIB.command(paths[0], "", paths[0])[:2], *pairs]):
                assert [plugin["root"] for plugin in await watch.all(paths, "registered")] == [*map(str, roots)]
                listed = run("ls", "--json", environment=environment)
                assert {plugin["socket"] for plugin in json.loads(listed.out)} == {*map(str, paths)}
        assert stat.filemode(os.stat(status).st_mode) == "srw-------"
        process.terminate()
        assert await node.ended() == 0


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "reader-closed"])
async def test_the_daemon_keeps_running_when_its_standard_error_is_gone(closed: bool, tmp_path: Path) -> None:
    """Fault 95: it is closed from the start, so that another file gets its descriptor, or its reader has closed."""
    path = tmp_path / "root" / "a.sock"
    arguments = ["run", "--root", str(path.parent), "--status", str(tmp_path / "status.sock")]
    reader, writer = os.pipe()
    os.close(reader)
    command = ["sh", "-c", 'exec "$@" 2>&-', "sh", *PLUGIND] if closed else PLUGIND
    with daemon_process([*command, *arguments], writer) as process:
        os.close(writer)
        node = Daemon(path.parent, str(tmp_path / "status.sock"), process, tmp_path / "none")
        await node.ready()
        async with plugin_process(GRPCLIB.command(path, GRPCLIB.name, path)) as plugin:
            await plugin.notified_registered()
            async with node.watch() as watch:
                await watch.state(path, "registered")
        process.terminate()
        assert await node.ended() == 0

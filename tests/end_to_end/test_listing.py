"""``plugind ls`` and ``describe``: a daemon with a plugin in each lasting state."""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import termios
from collections.abc import Iterator
from contextlib import ExitStack
from fcntl import ioctl
from functools import partial
from pathlib import Path

import pytest
import trio

from plugind.tests.end_to_end.processes import DEADLINE, PATIENT, PLUGIND, Daemon, daemon, plugin_process, run

GOOD, BAD, ODD = "good.example.com", "bad.example.com", "odd.example.com"


def fake(path: Path, kind: str, name: str, *options: str) -> list[str]:
    return [*PLUGIND, "fake", "--socket", str(path), "--type", kind, "--name", name, *options]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with a registered plugin, a refused one, one without a handler, a stale socket and a symbolic link.

    A plugin that has failed is tried again after so long that it is at rest in each test.
    """
    directory, timeouts = tmp_path_factory.mktemp("l"), {**PATIENT, "backoff": 100.0}
    with daemon(directory, timeouts=timeouts) as node, socket.socket(socket.AF_UNIX) as stale, ExitStack() as ends:
        # The daemon makes its root.
        trio.run(node.ready)
        stale.bind(str(node.root / "stale.sock"))
        (node.root / "link.sock").symlink_to("stale.sock")
        for command in (
            fake(node.root / "good.sock", "CSIPlugin", GOOD),
            fake(node.root / "bad.sock", "CSIPlugin", BAD, "--endpoint", "relative/path"),
            fake(node.root / "odd.sock", "OddPlugin", ODD),
        ):
            plugin = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            ends.enter_context(plugin)
            ends.callback(plugin.kill)
        yield node


@pytest.fixture
def node(running: Daemon) -> Daemon:
    """The daemon, when no attempt is under way. A test may have asked for one."""
    trio.run(all_there, running)
    return running


async def all_there(node: Daemon) -> None:
    states = {"good": "registered", "odd": "parked", "stale": "stale", "link": "parked", "bad": "waiting"}
    wanted = {str(node.root / f"{name}.sock"): state for name, state in states.items()}
    async with node.watch() as watch:
        await watch.until(
            lambda watch: wanted.items() <= {path: row["state"] for path, row in watch.now.items()}.items()
        )


async def on_terminal(columns: int, *words: str, colour: bool = True) -> tuple[int, str]:
    """Run a command on a terminal so wide; return its exit code and what was shown."""
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    environment |= {"TERM": "xterm"} | ({} if colour else {"NO_COLOR": "1"})
    try:
        with trio.fail_after(DEADLINE):
            ended = await trio.run_process(
                [*PLUGIND, *words], stdout=slave, capture_stderr=True, check=False, env=environment
            )
        os.close(slave)
        return ended.returncode, b"".join(iter(partial(read_terminal, master), b"")).decode().replace("\r\n", "\n")
    finally:
        os.close(master)


def read_terminal(master: int) -> bytes:
    """Return some of what was written to a terminal that nobody has open any more; nothing at the end.

    One read may return less than there is.
    """
    try:
        return os.read(master, 1 << 20)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""


async def test_every_width_and_every_form_say_why(node: Daemon) -> None:
    cause = "the endpoint 'relative/path' is not an absolute path of a unix socket"
    for width in (40, 120):
        code, shown = await on_terminal(width, "ls", "--status", node.status, colour=False)
        assert code == 0
        plain = re.sub("\x1b[^m]*m", "", shown)
        lines = plain.splitlines()
        assert lines[0].split()[:3] == ["STATE", "NAME", "TYPE"]
        assert max(map(len, lines)) <= width
        assert " ".join(plain.split()).count(cause) == 1
        assert "RegisterPlugin error" not in plain
        counted = " ".join(plain.split()).rpartition("5 plugins: ")[2]
        assert counted == "2 parked, 1 registered, 1 stale, 1 waiting"
    _, coloured = await on_terminal(80, "ls", "--status", node.status)
    assert "\x1b[32m" in coloured, "registered is green"
    piped = run("ls", status=node.status)
    (line,) = [line for line in piped.out.splitlines() if BAD in line]
    assert str(node.root / "bad.sock") in line
    assert (await on_terminal(40, "ls", "-o", "wide", "--status", node.status))[1].count("\n") == 7


async def test_plugins_are_picked_by_state_and_type(node: Daemon) -> None:

    def names(*words: str) -> list[str]:
        done = run("ls", "-o", "name", *words, status=node.status)
        assert (done.code, done.err) == (0, "")
        return done.out.splitlines()

    stale, link = str(node.root / "stale.sock"), str(node.root / "link.sock")
    assert names("--state", "registered") == [GOOD]
    assert names("--state", "stale,parked") == [ODD, link, stale]
    assert names("--state", "stale", "--state", "parked", "--type", "OddPlugin") == [ODD]
    assert set(names("--type", "CSIPlugin,OddPlugin")) == {GOOD, BAD, ODD}
    assert names("--type", "DRAPlugin") == []
    (listed,) = json.loads(run("ls", "--json", "--state", "registered", status=node.status).out)
    assert listed["name"] == GOOD
    assert run("ls", "-o", "json", "--state", "registered", status=node.status).code == 0
    counted = run("ls", "--state", "stale", status=node.status).out.splitlines()[-1]
    assert counted == "1 of 5 plugins: 1 stale"

    wrong = run("ls", "--state", "stale,lost", status=node.status)
    assert (wrong.code, wrong.out) == (2, "")
    assert "argument --state: 'lost' is not one of them; choose from waiting, dialing, " in wrong.err
    wrong = run("ls", "--type", "CSIPlugn", status=node.status)
    types = "CSIPlugin, DRAPlugin, DevicePlugin, OddPlugin"
    said = f"plugind: --type: no plugin is of type 'CSIPlugn'; known types: {types}\n"
    assert (wrong.code, wrong.out, wrong.err) == (2, "", said)


async def test_states_to_fail_on_decide_the_exit_code(node: Daemon) -> None:
    failed = run("ls", "--fail-on", "stale,leaving", status=node.status)
    assert (failed.code, failed.err) == (1, "plugind: --fail-on: 1 plugin: 1 stale\n")
    assert failed.out.splitlines()[-1].startswith("5 plugins: "), "everything is listed all the same"
    hidden = run("ls", "--state", "registered", "--fail-on", "stale", status=node.status)
    assert (hidden.code, hidden.err) == (1, "plugind: --fail-on: 1 plugin: 1 stale\n"), (
        "--state only picks what is shown"
    )
    assert hidden.out.splitlines()[-1] == "1 of 5 plugins: 1 registered"
    assert run("ls", "--fail-on", "leaving", status=node.status).code == 0
    assert run("ls", "--fail-on", "stale", "--type", "CSIPlugin", status=node.status).code == 0


async def test_a_socket_is_found_by_a_relative_path_and_by_its_file_name(node: Daemon) -> None:
    """A name may have slashes, so what is no plugin's name is tried as a path."""
    relative = f"{node.root.name}/stale.sock"
    for target in ("stale.sock", relative, f"../{node.root.parent.name}/{relative}"):
        for command in ("describe", "retry"):
            done = run(command, target, status=node.status, directory=node.root.parent)
            assert (done.code, done.err) == (0, ""), (command, target)
            assert str(node.root / "stale.sock") in done.out
    for unknown in ("vendor.example.com/none", "none.sock"):
        done = run("describe", unknown, status=node.status, directory=node.root.parent)
        said = f"no plugin has the name, and no socket the path, {unknown}"
        assert (done.code, done.err) == (1, f"plugind: {said}\n")


async def test_a_root_that_cannot_be_used_is_named_where_plugins_are_listed_or_missed(tmp_path: Path) -> None:
    missing = tmp_path / "none" / "root"
    with daemon(tmp_path, "--root", str(missing)) as node:
        with trio.fail_after(DEADLINE):
            while (await node.get("/healthz"))[0] != 503:  # noqa: ASYNC110 - it is in another process
                await trio.sleep(0.02)
        listed = run("ls", status=node.status)
        assert listed.code == 0
        *_, counted, note = listed.out.splitlines()
        assert counted == "0 plugins"
        assert note.startswith(f"root {missing} is unavailable: ")
        for command in (["describe", "a"], ["retry", "a"], ["wait", "a", "--timeout", "0"]):
            done = run(*command, status=node.status)
            assert done.code == 1
            assert done.err.endswith(f"; {note}\n"), command


async def test_ctrl_c_ends_watch_with_the_code_of_an_interrupt(tmp_path: Path) -> None:
    with daemon(tmp_path) as node, socket.socket(socket.AF_UNIX) as stale:
        await node.ready()
        stale.bind(str(node.root / "stale.sock"))
        command = [*PLUGIND, "watch", "--json", "--status", node.status]
        async with plugin_process(command) as watch:
            await watch.line(state="stale")
            assert await watch.end(signal.SIGINT) == 130

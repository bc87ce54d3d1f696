"""A daemon from the point of view of an operator: signals, unusable roots, what its log says at which level."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio

from plugind.tests.end_to_end.foreign import GRPCLIB
from plugind.tests.end_to_end.processes import (
    DEADLINE,
    PATIENT,
    PLUGIND,
    Daemon,
    Watch,
    daemon,
    plugin_process,
)
from plugind.tests.end_to_end.service_manager import service_manager

#: The command line of plugind, in a process that sends itself signals as soon as its own code runs.
SIGNALLED_EARLY = """
import os, signal, sys
from plugind import __main__
from plugind.actors.console import commands

imported = commands.command
numbers = [int(word) for word in sys.argv.pop(1).split()]

def command(name):
    for number in numbers:
        os.kill(os.getpid(), number)
    return imported(name)

commands.command = command
sys.exit(__main__.main())
"""

#: Plugind as its two entries start it, in a process that sends itself SIGHUP at each import of plugind's first line on.
SIGNALLED_AT_EACH_IMPORT = """
import os, runpy, signal, sys

begun = False

def each(event, arguments):
    global begun
    if event == "import":
        if begun:
            os.kill(os.getpid(), signal.SIGHUP)
        begun = begun or arguments[0] == "plugind"

entry = sys.argv.pop(1)
sys.addaudithook(each)
if entry == "module":
    runpy.run_module("plugind", run_name="__main__", alter_sys=True)
else:
    from plugind.__main__ import main
    sys.exit(main())
"""

#: The command line of plugind, whose watchers crash as soon as they start.
CRASHING = """
import sys
from plugind.actors.discovery import watcher
from plugind.actors.console import commands

async def run(*_, **__):
    raise RuntimeError("a bug")

watcher.run = run
sys.exit(commands.main(sys.argv[1:]))
"""


async def health(node: Daemon) -> dict[str, object]:
    """What ``GET /healthz`` says of the first root."""
    _, body = await node.get("/healthz")
    root: dict[str, object] = json.loads(body)["roots"][0]
    return root


async def root_becomes(node: Daemon, holds: Callable[[dict[str, object]], bool]) -> dict[str, object]:
    with trio.fail_after(DEADLINE):
        while not holds(root := await health(node)):  # noqa: ASYNC110 - it is in another process
            await trio.sleep(0.02)
    return root


@contextmanager
def silent(path: Path) -> Iterator[None]:
    """A plugin that accepts nothing and says nothing."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield


@asynccontextmanager
async def registered(node: Daemon, path: Path) -> AsyncIterator[Watch]:
    async with plugin_process(GRPCLIB.command(path, GRPCLIB.name, path)) as plugin, node.watch() as watch:
        await plugin.notified_registered()
        await watch.state(path, "registered")
        yield watch


# --- signals ----------------------------------------------------------------------------------------------------------


async def test_sighup_scans_all_roots_at_once_and_reads_the_configuration_again(tmp_path: Path) -> None:
    """It ended the daemon with code 129."""
    with daemon(tmp_path) as node:
        await node.ready()
        for scans in (2, 3):
            node.process.send_signal(signal.SIGHUP)
            await root_becomes(node, lambda root, scans=scans: root["scans"] == scans)  # type: ignore[misc]  # a lambda has no annotations
        lines = await node.logged("scanning all roots", 2)
        assert [(line["level"], line["signal"]) for line in lines] == [("info", "SIGHUP")] * 2
        read = await node.logged("the configuration was read again", 2)
        assert [(line["level"], "changed" in line, "needs_restart" in line) for line in read] == [
            ("info", False, False)
        ] * 2
        node.process.terminate()
        assert await node.ended() == 0


async def test_sigusr1_logs_a_line_for_each_plugin_and_a_summary(tmp_path: Path) -> None:
    """It ended the daemon with code 138."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link.sock").symlink_to("silent.sock")
    path = tmp_path / "root" / "a.sock"
    with silent(tmp_path / "root" / "silent.sock"), daemon(tmp_path) as node:
        await node.ready()
        async with registered(node, path) as watch:
            await watch.state(node.root / "silent.sock", "waiting")
            node.process.send_signal(signal.SIGUSR1)
            (summary,) = await node.logged("states")
        states = {str(line["socket"]): line for line in node.about("state")}
        assert list(states)[-1] == str(path), "those that are not registered come first"
        silent_one = states[str(node.root / "silent.sock")]
        assert (states[str(path)]["state"], states[str(path)]["name"]) == ("registered", GRPCLIB.name)
        assert states[str(node.root / "link.sock")]["state"] == "parked"
        assert silent_one["state"] in ("waiting", "dialing", "asking-info")
        assert (summary["level"], summary["plugins"], summary["listed"], summary["roots"]) == ("info", 3, 3, 1)
        assert "1 parked" in str(summary["by_state"])
        assert "1 registered" in str(summary["by_state"])
        assert summary["handlers"] == "CSIPlugin, DRAPlugin, DevicePlugin"
        assert [line["watching"] for line in node.about("root")] == ["events"]


@pytest.mark.parametrize("entry", ["module", "script"])
async def test_sighup_at_any_moment_from_the_first_line_on_ends_no_daemon_and_leads_to_a_reload(
    entry: str, tmp_path: Path
) -> None:
    """13 of 20 daemons were ended by one within 190 ms of their start."""
    with daemon(tmp_path, by=[sys.executable, "-c", SIGNALLED_AT_EACH_IMPORT, entry, "run"]) as node:
        await node.logged("the configuration was read again")
        await node.logged("scanning all roots")
        await node.ready()
        node.process.terminate()
        assert await node.ended() == 0


async def test_an_interrupt_while_a_command_is_imported_ends_it_without_a_traceback() -> None:
    arguments = [sys.executable, "-c", SIGNALLED_EARLY, str(int(signal.SIGINT)), "run"]
    done = await trio.run_process(arguments, capture_stdout=True, capture_stderr=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


async def test_during_a_stop_sighup_changes_nothing_sigusr1_shows_what_it_waits_for_and_nothing_is_leased(
    tmp_path: Path,
) -> None:
    """Fault 87: a plugin hangs, so that the stop would take half of the grace. It is killed when all is seen."""
    path = tmp_path / "root" / "hangs.sock"
    path.parent.mkdir()
    options = ("--type", "DevicePlugin", "--name", "example.com/hangs", "--hang", "notify")
    timeouts = {**PATIENT, "stop_grace": 2 * DEADLINE}
    async with plugin_process([*PLUGIND, "fake", "--socket", str(path), *options]) as plugin:
        with daemon(tmp_path, timeouts=timeouts) as node:
            async with node.watch() as watch:
                await watch.state(path, "notify")
            node.process.terminate()
            await node.logged("stopping")
            node.process.send_signal(signal.SIGHUP)
            (ignored,) = await node.logged("signal ignored")
            assert (ignored["signal"], ignored["reason"]) == ("SIGHUP", "plugind stops")
            node.process.send_signal(signal.SIGUSR1)
            await node.logged("states")
            assert [(line["socket"], line["state"]) for line in node.about("state")] == [(str(path), "notifying")]
            asked = json.dumps({"resources": {"example.com/hangs": 1}, "owner": {"kind": "none"}}).encode()
            status, said = await node.get("/v1/leases", method="POST", body=asked)
            assert (status, json.loads(said)) == (503, {"error": "plugind is about to stop: ask again"})
            await plugin.end(signal.SIGKILL)
            assert await node.ended() == 0


async def test_signals_that_come_when_the_daemon_has_stopped_do_not_end_its_process(tmp_path: Path) -> None:
    """Its exit code is 0, and no traceback is printed."""
    with daemon(tmp_path) as node:
        await node.ready()
        with trio.fail_after(DEADLINE):
            while node.process.poll() is None:
                for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1):
                    node.process.send_signal(number)
                # Signals that come faster than Python calls their handlers nest these, up to a RecursionError.
                await trio.sleep(0.001)
    assert node.process.returncode == 0
    assert {line["level"] for line in node.lines()} <= {"info", "warning"}, "each line is one of the log"


# --- roots that cannot be used ----------------------------------------------------------------------------------------


async def test_a_root_below_a_missing_directory_is_awaited_and_its_daemon_is_ready_and_unhealthy(
    tmp_path: Path,
) -> None:
    """Faults 1 and 4, behaviours 1 and 2; no directory above the root is made."""
    root = tmp_path / "missing" / "root"
    with service_manager(tmp_path) as manager, daemon(tmp_path, root=root, environment=manager.environment) as node:
        assert await manager.next() == {"READY": "1"}
        # The first try is over by now.
        found = await health(node)
        parent = f"its parent directory {root.parent} is missing, and plugind does not make it"
        parent += ": make it, or name another root with --root DIR"
        assert (found["status"], found["reason"]) == ("failed", f"cannot use {root}: {parent}")
        assert (await node.get("/healthz"))[0] == 503
        assert not root.parent.exists()
        root.parent.mkdir()
        await node.ready()
        assert (await health(node))["status"] == "ok"
        async with registered(node, root / "a.sock"):
            pass
        assert [line["root"] for line in node.about("root was missing and was made")] == [str(root)]
        node.process.terminate()
        assert await node.ended() == 0


async def test_two_daemons_never_have_the_same_plugin_registered_after_the_root_was_removed_and_made_again(
    tmp_path: Path,
) -> None:
    """Fault 96: the lock follows the root, and the daemon that is too late lets go of what was there."""
    root = tmp_path / "root"
    path = root / "a.sock"
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with daemon(tmp_path / "one", root=root, timeouts=PATIENT) as one:
        await one.ready()
        async with registered(one, path) as watch:
            # It does not see the removal before the other one has made and locked the root again.
            one.process.send_signal(signal.SIGSTOP)
            shutil.rmtree(root)
            with daemon(tmp_path / "two", root=root) as two:
                await two.ready()
                async with registered(two, path):
                    one.process.send_signal(signal.SIGCONT)
                    busy = f"another plugind runs on {root}: stop it, or choose another directory with --root"
                    await root_becomes(one, lambda root: root["reason"] == busy)
                    await watch.state(path, "gone")
                    assert (await one.plugins(), [*await two.plugins()]) == ({}, [str(path)])
                    two.process.kill()
                    await two.ended()
                    one.process.send_signal(signal.SIGHUP)
                    assert (await watch.state(path, "registered"))["attempt"] == 1


# --- the log, and what is inherited -----------------------------------------------------------------------------------


async def test_a_node_that_gives_up_logs_it_as_an_error_and_ends_the_daemon_with_code_1(tmp_path: Path) -> None:
    """Fault 85."""
    root = tmp_path / "root"
    with daemon(tmp_path, "--log-level", "error", by=[sys.executable, "-c", CRASHING, "run"]) as node:
        assert await node.ended() == 1
    first, last = node.log.read_text().splitlines()
    said = f"actors crashed more often than 10 in 60 s, the last was watcher {root}: RuntimeError('a bug')"
    event = json.loads(first)
    assert (event["level"], event["msg"], event["error"]) == ("error", "gave up", said)
    assert last == f"plugind: {said}"


@pytest.mark.parametrize(("closed", "out", "err"), [("1", b"", b"plugind: no daemon"), ("2", b"", b"")])
async def test_a_command_whose_standard_output_or_error_is_closed_prints_to_nothing_else(
    closed: str, out: bytes, err: bytes, tmp_path: Path
) -> None:
    """Fault 95: a message meant for standard error does not go to standard output, and nothing raises."""
    command = ["sh", "-c", f'exec "$@" {closed}>&-', "sh", *PLUGIND, "ls", "--status", str(tmp_path / "none")]
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert (done.stdout, done.stderr[: len(err)]) == (out, err)
    assert b"Traceback" not in done.stderr
    version = ["sh", "-c", f'exec "$@" {closed}>&-', "sh", *PLUGIND, "--version"]
    done = await trio.run_process(version, capture_stdout=True, capture_stderr=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


async def test_standard_descriptors_that_are_closed_are_opened_on_nothing(tmp_path: Path) -> None:
    """Fault 95: no socket of the daemon gets the number of standard output."""
    with daemon(tmp_path, by=["sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh", *PLUGIND, "run"]) as node:
        await node.ready()
        found = [os.readlink(f"/proc/{node.process.pid}/fd/{number}") for number in range(3)]
        assert found == [os.devnull] * 3
        node.process.terminate()
        assert await node.ended() == 0

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

from plugind import __version__
from plugind.tests.end_to_end.foreign import GRPCLIB
from plugind.tests.end_to_end.processes import (
    DEADLINE,
    PATIENT,
    PLUGIND,
    Daemon,
    Watch,
    daemon,
    daemon_process,
    plugin_process,
    run,
)

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


@contextmanager
def service_manager(directory: Path) -> Iterator[Callable[[], bytes]]:
    """A socket for ``NOTIFY_SOCKET`` at ``directory / "notify"``; the function reads the next notification."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(directory / "notify"))
        manager.settimeout(DEADLINE)
        yield lambda: manager.recv(100)


@asynccontextmanager
async def registered(node: Daemon, path: Path) -> AsyncIterator[Watch]:
    async with plugin_process(GRPCLIB.command(path, GRPCLIB.name, path)) as plugin, node.watch() as watch:
        await plugin.notified_registered()
        await watch.state(path, "registered")
        yield watch


@contextmanager
def unprivileged(directory: Path) -> Iterator[Daemon]:
    """A daemon on ``directory / "root"`` that may read no more than its modes allow, also if it runs as root."""
    root, status = directory / "root", str(directory / "status.sock")
    command = [*PLUGIND, "run", "--root", str(root), "--status", status, "--log-format", "json"]
    if os.geteuid() == 0:
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            pytest.skip("setpriv is not installed (Debian package util-linux)")
        # Without these two the superuser may read no more than others.
        dropped = "-dac_override,-dac_read_search"
        command = [setpriv, "--bounding-set", dropped, "--inh-caps", dropped, *command]
    with (directory / "log").open("ab") as log, daemon_process(command, log) as process:
        yield Daemon(root, status, process, directory / "log")


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


async def test_sigusr1_is_answered_in_one_line_where_only_warnings_are_logged(tmp_path: Path) -> None:
    with daemon(tmp_path, "--log-level", "warning") as node:
        await node.ready()
        node.process.send_signal(signal.SIGUSR1)
        (summary,) = await node.logged("states")
        assert (summary["level"], summary["plugins"], summary["listed"]) == ("warning", 0, 0)
        assert node.lines() == [summary]


async def test_a_burst_of_signals_ends_nothing_and_delays_no_stop(tmp_path: Path) -> None:
    with daemon(tmp_path) as node:
        await node.ready()
        for _ in range(300):
            node.process.send_signal(signal.SIGHUP)
            node.process.send_signal(signal.SIGUSR1)
        node.process.terminate()
        assert await node.ended() == 0
    assert 1 <= len(node.about("states")) <= 300


async def test_signals_that_come_before_the_node_is_up_are_answered_once_it_is(tmp_path: Path) -> None:
    root, status = tmp_path / "root", str(tmp_path / "status.sock")
    numbers = f"{int(signal.SIGHUP)} {int(signal.SIGUSR1)}"
    options = ["--root", str(root), "--status", status, "--log-format", "json"]
    command = [sys.executable, "-c", SIGNALLED_EARLY, numbers, "run", *options]
    with (tmp_path / "log").open("ab") as log, daemon_process(command, log) as process:
        node = Daemon(root, status, process, tmp_path / "log")
        await node.logged("scanning all roots")
        await node.logged("states")
        process.terminate()
        assert await node.ended() == 0


@pytest.mark.parametrize("entry", ["module", "script"])
async def test_sighup_at_any_moment_from_the_first_line_on_ends_no_daemon_and_leads_to_a_reload(
    entry: str, tmp_path: Path
) -> None:
    """13 of 20 daemons were ended by one within 190 ms of their start."""
    root, status = tmp_path / "root", str(tmp_path / "status.sock")
    options = ["--root", str(root), "--status", status, "--log-format", "json"]
    command = [sys.executable, "-c", SIGNALLED_AT_EACH_IMPORT, entry, "run", *options]
    with (tmp_path / "log").open("ab") as log, daemon_process(command, log) as process:
        node = Daemon(root, status, process, tmp_path / "log")
        await node.logged("the configuration was read again")
        await node.logged("scanning all roots")
        await node.ready()
        process.terminate()
        assert await node.ended() == 0


@pytest.mark.parametrize("command", ["run", "ls"])
async def test_an_interrupt_while_a_command_is_imported_ends_it_without_a_traceback(
    command: str, tmp_path: Path
) -> None:
    arguments = [sys.executable, "-c", SIGNALLED_EARLY, str(int(signal.SIGINT)), command]
    done = await trio.run_process(arguments, capture_stdout=True, capture_stderr=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


async def test_during_a_stop_sighup_changes_nothing_and_sigusr1_shows_what_the_stop_waits_for(tmp_path: Path) -> None:
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
    environment = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
    with service_manager(tmp_path) as notified, daemon(tmp_path, root=root, environment=environment) as node:
        assert await trio.to_thread.run_sync(notified) == b"READY=1"
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


async def test_a_root_that_cannot_be_read_later_is_not_ready_until_it_can_be(tmp_path: Path) -> None:
    """Fault 4, behaviour 40: ``/readyz`` stayed 200, and the log said ``ready=true``."""
    root = tmp_path / "root"
    with unprivileged(tmp_path) as node:
        await node.ready()
        root.chmod(0o000)
        await root_becomes(node, lambda root: root["status"] == "failed")
        reason = f"cannot use {root}: Permission denied"
        code, body = await node.get("/readyz")
        assert (code, json.loads(body)) == (503, {"ready": False, "awaiting": [f"the root {root} ({reason})"]})
        (line,) = await node.logged("root is unavailable")
        assert (line["level"], line["ready"], line["reason"]) == ("warning", False, reason)
        root.chmod(0o755)
        await node.ready()
        assert [line["ready"] for line in await node.logged("root is watched", 2)] == [True, True]


async def test_the_second_of_two_daemons_on_a_root_that_appears_late_waits_for_the_end_of_the_first(
    tmp_path: Path,
) -> None:
    """Fault 96: the lock is taken when the root is there, and tried again."""
    root = tmp_path / "missing" / "root"
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with daemon(tmp_path / "one", root=root) as one, daemon(tmp_path / "two", root=root) as two:
        nodes = [one, two]
        for node in nodes:
            await root_becomes(node, lambda root: root["status"] == "failed")
        root.parent.mkdir()
        busy = f"another plugind runs on {root}: stop it, or choose another directory with --root"
        reasons = [(await root_becomes(node, lambda root: root["reason"] in (None, busy)))["reason"] for node in nodes]
        assert sorted(reasons, key=str) == [None, busy]
        first, second = nodes if reasons[0] is None else nodes[::-1]
        first.process.terminate()
        assert await first.ended() == 0
        # It would be tried again within 30 seconds.
        second.process.send_signal(signal.SIGHUP)
        await second.ready()


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


async def test_ready_comes_after_the_first_scan_of_each_root(tmp_path: Path) -> None:
    """Behaviour 40: what lay in the roots at the start is known when the service manager goes on."""
    (tmp_path / "root").mkdir()
    for number in range(3000):
        (tmp_path / "root" / str(number)).touch()
    environment = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
    with (
        silent(tmp_path / "root" / "a.sock"),
        service_manager(tmp_path) as notified,
        daemon(tmp_path, environment=environment) as node,
    ):
        assert await trio.to_thread.run_sync(notified) == b"READY=1"
        assert [(await health(node))[key] for key in ("status", "scans")] == ["ok", 1]
        async with node.watch() as watch:
            await watch.state(tmp_path / "root" / "a.sock", "info")
        assert [(await health(node))[key] for key in ("scans", "sockets")] == [1, 1]


def test_the_directory_above_that_of_the_status_socket_is_not_made(tmp_path: Path) -> None:
    status = tmp_path / "missing" / "run" / "status.sock"
    done = run("run", "--root", str(tmp_path / "root"), status=str(status))
    missing = f"{tmp_path}/missing is missing, and plugind does not make it"
    said = f"cannot make the status socket {status}: {missing}; give another path with --status or PLUGIND_STATUS"
    assert (done.code, done.err) == (78, f"plugind: {said}\n")
    assert not (tmp_path / "missing").exists()


# --- the log, and what is inherited -----------------------------------------------------------------------------------


async def test_the_line_of_the_start_names_the_version_the_roots_and_the_absolute_path_of_the_status_socket(
    tmp_path: Path,
) -> None:
    root = tmp_path / "root"
    options = ["--root", str(root), "--status", "s.sock", "--log-format", "json"]
    command = ["sh", "-c", 'cd "$0" && exec "$@"', str(tmp_path), *PLUGIND, "run", *options]
    with (tmp_path / "log").open("ab") as log, daemon_process(command, log) as process:
        node = Daemon(root, str(tmp_path / "s.sock"), process, tmp_path / "log")
        await node.ready()
        (line,) = await node.logged("started")
        assert (line["version"], line["status"], line["roots"]) == (__version__, node.status, str(node.root))
        process.terminate()
        assert await node.ended() == 0


async def test_a_node_that_gives_up_logs_it_as_an_error_and_ends_the_daemon_with_code_1(tmp_path: Path) -> None:
    """Fault 85."""
    root, status = tmp_path / "root", str(tmp_path / "status.sock")
    options = ["--root", str(root), "--status", status, "--log-format", "json", "--log-level", "error"]
    with (tmp_path / "log").open("ab") as log:
        with daemon_process([sys.executable, "-c", CRASHING, "run", *options], log) as process:
            node = Daemon(root, status, process, tmp_path / "log")
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
    arguments = ["run", "--root", str(tmp_path / "root"), "--status", str(tmp_path / "status.sock")]
    command = ["sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh", *PLUGIND, *arguments]
    with (tmp_path / "log").open("wb") as log, daemon_process(command, log) as process:
        node = Daemon(tmp_path / "root", str(tmp_path / "status.sock"), process, tmp_path / "log")
        await node.ready()
        assert [os.readlink(f"/proc/{process.pid}/fd/{number}") for number in range(3)] == [os.devnull] * 3
        process.terminate()
        assert await node.ended() == 0


async def test_a_status_socket_that_is_removed_answers_again(tmp_path: Path) -> None:
    """Fault 93: the daemon ran on, and nobody could ask it."""
    with daemon(tmp_path) as node:
        await node.ready()
        os.unlink(node.status)
        await node.ready()
        (line,) = await node.logged("status socket was removed and was made again")
        assert line["socket"] == node.status

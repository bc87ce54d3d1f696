"""Commands whose daemon is stopped, or whose output cannot be written; and names that the locale cannot show."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from plugind.actors.console.status_socket import unreachable
from plugind.actors.http import server as http_server
from plugind.actors.http.client import UnreachableError
from plugind.actors.io.unix_socket import listen
from plugind.tests.end_to_end.processes import DEADLINE, PLUGIND, SOON, Daemon, Done, daemon, plugin_process, run

#: The commands that ask a daemon, with arguments that a running one would answer in milliseconds.
CLIENTS = ["ls", "ls -o json", "describe a", "retry a", "watch", "wait a --timeout 1"]
#: A locale of ASCII, as in a container without one.
POSIX = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@contextmanager
def stopped(process: subprocess.Popen[bytes]) -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    # The stop takes effect some time after the signal; a listener that is not stopped yet would answer.
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that the tests of this module stop and continue."""
    with daemon(tmp_path_factory.mktemp("q")) as started:
        yield started


async def test_a_daemon_that_is_stopped_hangs_no_command(quiet: Daemon) -> None:
    """It still accepts connections, since the kernel does that."""
    await quiet.ready()
    with stopped(quiet.process):
        for command in CLIENTS:
            done = run(*command.split(), "--answer-timeout", "0.3", status=quiet.status)
            reason = f"process {quiet.process.pid} is stopped and sent nothing within 0.3 s"
            why = f"no daemon answers at {quiet.status} ({reason}); --answer-timeout gives it more time"
            assert (done.code, done.out) == (69, json.dumps({"error": why}) + "\n" if "json" in command else "")
            assert f"{why}\n" in done.err
        done = run("wait", "a", "--timeout", "0.3", status=quiet.status)
    said = f"the daemon at {quiet.status} has not answered within 0.3 s"
    assert done == Done(69, "", f"plugind: cannot tell whether a is registered: {said}\n")


async def test_wait_with_no_time_looks_once(quiet: Daemon) -> None:
    await quiet.ready()
    path = quiet.root / "once.sock"
    done = run("wait", "once.example.com", "--timeout", "0", status=quiet.status)
    assert done.code == 1
    assert done.err.startswith("plugind: once.example.com is not registered: no plugin has that name")
    fake = [*PLUGIND, "fake", "--socket", str(path), "--type", "CSIPlugin", "--name", "once.example.com"]
    async with quiet.watch() as watch, plugin_process(fake):
        await watch.state(path, "registered")
        done = run("wait", "once.example.com", "--timeout", "0", status=quiet.status)
        assert done == Done(0, f"once.example.com is registered: {path}\n", "")


async def test_wait_says_that_a_daemon_is_busy_if_all_its_streams_are_taken(quiet: Daemon) -> None:
    await quiet.ready()
    limit = http_server.HttpLimits().streams
    async with AsyncExitStack() as streams:
        for _ in range(limit):
            await streams.enter_async_context(quiet.watch())
        waited = await in_thread("wait", "a", "--timeout", SOON, status=quiet.status)
        looked = await in_thread("wait", "a", "--timeout", "0", status=quiet.status)
        watched = await in_thread("watch", status=quiet.status)
    said = f"{limit} streams are open, which is the limit"
    assert waited == Done(75, "", f"plugind: cannot tell whether a is registered: the daemon is busy: {said}\n")
    assert looked.code == 1, "one look needs no stream"
    assert watched == Done(75, "", f"plugind: {said}\n")


async def test_a_watch_notices_that_the_daemon_is_stopped(quiet: Daemon) -> None:
    await quiet.ready()
    marker = quiet.root / "marker.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(marker))
        command = [*PLUGIND, "watch", "--json", "--answer-timeout", "5", "--status", quiet.status]
        async with plugin_process(command) as watch:
            await watch.line(socket=str(marker))
            with stopped(quiet.process), trio.fail_after(DEADLINE):
                assert await watch.process.wait() == 69


def test_a_status_path_of_another_user_or_that_is_no_socket_is_named_as_such(tmp_path: Path) -> None:
    said = unreachable(UnreachableError("/run/s", "Permission denied", 13))
    assert said == (
        "may not talk to the daemon at /run/s (Permission denied); run this as the daemon's user or as root, or have"
        " its operator let you lease devices with --lease-uids or --lease-group, or serve plugin types with"
        " handler_uids"
    )
    (path := tmp_path / "f.txt").touch()
    said = f"{path} is no socket; name the daemon's status socket with --status or PLUGIND_STATUS"
    assert run("ls", status=str(path)) == Done(69, "", f"plugind: {said}\n")


async def in_thread(*arguments: str, status: str) -> Done:
    return await trio.to_thread.run_sync(partial(run, *arguments, status=status))


async def test_wait_does_not_take_a_list_that_has_begun_for_the_whole(tmp_path: Path) -> None:
    async def answer(_: http_server.HttpRequest, /) -> http_server.HttpResponse:
        async def write(send: http_server.Send) -> None:
            await send(b'{"socket": "/r/a.sock", "state": "stale"}\n')
            await trio.sleep_forever()

        headers = (("Heartbeat", "1"),)
        return http_server.HttpResponse(200, "application/jsonl", write=write, endless=True, headers=headers)

    path, allowed = str(tmp_path / "s"), frozenset({0, os.geteuid()})
    with listen(path) as listener:
        async with trio.open_nursery() as nursery:
            serve = partial(http_server.serve, listener, answer, http_server.HttpLimits(), allowed=allowed)
            nursery.start_soon(serve)
            done = await in_thread("wait", "nobody", "--timeout", SOON, status=path)
            nursery.cancel_scope.cancel()
    said = "the daemon has not sent its whole list yet, which may hold that name"
    assert done == Done(75, "", f"plugind: cannot tell whether nobody is registered: {said}\n")


# --- output that cannot be written ------------------------------------------------------------------------------------


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
async def test_a_full_disk_is_one_line(unbuffered: str, quiet: Daemon) -> None:
    """Fault 95: the interpreter would print a traceback as it exits, and argparse ignores the error."""
    await quiet.ready()
    path = quiet.root / f"full{unbuffered}.sock"
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    asking = [[*words, "--status", quiet.status] for words in (["ls"], ["retry", str(path)], ["watch"])]
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
        async with quiet.watch() as watch:
            await watch.state(path, "stale")
        for words in (*asking, ["probe", str(path)], ["ls", "--help"], ["--version"]):
            with open("/dev/full", "wb") as full, trio.fail_after(DEADLINE):  # noqa: ASYNC230
                done = await trio.run_process(
                    [*PLUGIND, *words], stdout=full, capture_stderr=True, check=False, env=environment
                )
            said = b"plugind: standard output cannot be written: No space left on device\n"
            assert (done.returncode, done.stderr) == (1, said), words


# --- names that the locale cannot show --------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", ["daemon", "command"])
async def test_names_beyond_ascii_are_found_in_a_locale_of_ascii(ends: str, tmp_path: Path) -> None:
    """Fault 21: the POSIX locale cannot decode them, and the bytes are what counts."""
    name = "nämé.example.com"
    (tmp_path / "root").mkdir()
    paths = [os.fsencode(tmp_path) + end for end in ("/root/été.sock".encode(), b"/root/bad\xff.sock")]
    environment = POSIX if ends == "command" else {}
    with (
        socket.socket(socket.AF_UNIX) as first,
        socket.socket(socket.AF_UNIX) as second,
        daemon(tmp_path, environment=POSIX if ends == "daemon" else None) as node,
    ):
        for encoded, bound in zip(paths, (first, second), strict=True):
            bound.bind(encoded)
        await node.ready()
        fake = [*PLUGIND, "fake", "--socket", str(node.root / "n.sock"), "--type", "CSIPlugin", "--name", name]
        async with plugin_process(fake) as plugin:
            await plugin.notified_registered()
            for path in map(os.fsdecode, paths):
                with trio.fail_after(DEADLINE):
                    # Nobody listens there, and the first try of such a socket is silent for a moment.
                    while run("describe", path, status=node.status, environment=environment).code:  # noqa: ASYNC110
                        await trio.sleep(0.05)
                found = run("describe", path, "--json", status=node.status, environment=environment)
                assert (found.code, found.err) == (0, ""), path
                again = run("retry", path, status=node.status, environment=environment)
                assert (again.code, again.err) == (0, ""), path
                shown = again.out.partition(": ")[0]
                given_back = run("describe", shown, status=node.status, environment=environment)
                assert (given_back.code, given_back.err) == (0, ""), f"{shown} is what the command itself has shown"
            for command in (["wait", name, "--timeout", "30"], ["ls"], ["ls", "-o", "json"], ["describe", name]):
                done = run(*command, status=node.status, environment=environment)
                assert (done.code, done.err) == (0, ""), command

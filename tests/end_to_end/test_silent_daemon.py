"""Commands whose daemon is stopped, or whose output cannot be written; and names that the locale cannot show."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
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


@pytest.mark.parametrize("command", CLIENTS)
async def test_a_daemon_that_is_stopped_hangs_no_command(command: str, quiet: Daemon) -> None:
    """It still accepts connections, since the kernel does that."""
    await quiet.ready()
    with stopped(quiet.process):
        done = run(*command.split(), "--answer-timeout", "0.3", status=quiet.status)
    reason = f"process {quiet.process.pid} is stopped and sent nothing within 0.3 s"
    why = f"no daemon answers at {quiet.status} ({reason}); --answer-timeout gives it more time"
    assert (done.code, done.out) == (69, json.dumps({"error": why}) + "\n" if "json" in command else "")
    assert f"{why}\n" in done.err


async def test_wait_does_not_call_a_plugin_unregistered_that_it_could_not_ask_about(quiet: Daemon) -> None:
    await quiet.ready()
    with stopped(quiet.process):
        done = run("wait", "a", "--timeout", "0.3", status=quiet.status)
        served = run("wait", "a", "--serving", "--timeout", "0", "--answer-timeout", "0.3", status=quiet.status)
    said = f"the daemon at {quiet.status} has not answered within 0.3 s"
    assert done == Done(69, "", f"plugind: cannot tell whether a is registered: {said}\n")
    assert served.code == 69
    assert served.err.startswith("plugind: cannot tell whether a is serving: no daemon answers at ")


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


async def connections(node: Daemon, sockets: int) -> None:
    """Wait until the status socket has so many sockets in the kernel: the one that listens, and one of each client."""
    with trio.fail_after(DEADLINE):
        while True:
            shown = (await trio.Path("/proc/net/unix").read_text(errors="replace")).splitlines()
            if sum(line.endswith(f" {node.status}") for line in shown) == sockets:
                return
            await trio.sleep(0.02)


async def test_wait_says_how_long_a_registration_took_only_if_it_has_just_happened(quiet: Daemon) -> None:
    await quiet.ready()
    path = quiet.root / "new.sock"
    fake = [*PLUGIND, "fake", "--socket", str(path), "--type", "CSIPlugin", "--name", "new.example.com"]
    async with trio.open_nursery() as nursery:
        ended: list[Done] = []

        async def wait() -> None:
            ended.append(await in_thread("wait", "new.example.com", status=quiet.status))

        async with AsyncExitStack() as stack:
            watch = await stack.enter_async_context(quiet.watch())
            # The listener, and the watch.
            await connections(quiet, 2)
            nursery.start_soon(wait)
            await connections(quiet, 3)
            await stack.enter_async_context(plugin_process(fake))
            await watch.state(path, "registered")
            with trio.fail_after(DEADLINE):
                while not ended:  # noqa: ASYNC110 - a process ends
                    await trio.sleep(0.02)
            again = await in_thread("wait", "new.example.com", status=quiet.status)
    assert re.fullmatch(rf"new\.example\.com was registered in \S+: {path}\n", ended[0].out)
    assert again == Done(0, f"new.example.com is registered: {path}\n", "")


def test_a_status_path_that_is_no_socket_is_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "f.txt"
    path.touch()
    said = f"{path} is no socket; name the daemon's status socket with --status or PLUGIND_STATUS"
    assert run("ls", status=str(path)) == Done(69, "", f"plugind: {said}\n")


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


def test_a_daemon_of_another_user_is_named_as_such() -> None:
    said = unreachable(UnreachableError("/run/s", "Permission denied", 13))
    assert said == "may not talk to the daemon at /run/s (Permission denied); run this as the daemon's user or as root"


# --- daemons of other versions ----------------------------------------------------------------------------------------


@asynccontextmanager
async def stub(path: str, answer: http_server.RequestHandler) -> AsyncIterator[None]:
    """Serve a status socket that is no daemon's."""
    async with trio.open_nursery() as nursery:
        limits = http_server.HttpLimits()
        with listen(path) as listener:
            allowed = frozenset({0, os.geteuid()})
            nursery.start_soon(partial(http_server.serve, listener, answer, limits, allowed=allowed))
            yield
            nursery.cancel_scope.cancel()


async def in_thread(*arguments: str, status: str) -> Done:
    return await trio.to_thread.run_sync(partial(run, *arguments, status=status))


async def test_wait_does_not_take_a_list_that_has_begun_for_the_whole(tmp_path: Path) -> None:
    async def answer(_: http_server.HttpRequest, /) -> http_server.HttpResponse:
        async def write(send: http_server.Send) -> None:
            await send(b'{"socket": "/r/a.sock", "state": "stale"}\n')
            await trio.sleep_forever()

        return http_server.HttpResponse(
            200, "application/jsonl", write=write, endless=True, headers=(("Heartbeat", "1"),)
        )

    path = str(tmp_path / "s")
    async with stub(path, answer):
        done = await in_thread("wait", "nobody", "--timeout", SOON, status=path)
    said = "the daemon has not sent its whole list yet, which may hold that name"
    assert done == Done(75, "", f"plugind: cannot tell whether nobody is registered: {said}\n")


async def test_the_answers_of_an_older_daemon_are_understood(tmp_path: Path) -> None:
    """It says ages under ``since``, has no heartbeats, and names only the sockets that are tried."""
    plugin = (
        b'{"socket": "/r/a.sock", "name": "a", "type": "CSIPlugin", "state": "registered", "since": 3.5, "new": {}}'
    )

    async def answer(request: http_server.HttpRequest, /) -> http_server.HttpResponse:
        if request.path == "/retry":
            return http_server.HttpResponse(200, "application/json", b'{"sockets": ["/r/a.sock"]}')
        if request.path != "/watch":
            return http_server.HttpResponse(200, "application/json", b"[" + plugin + b"]")

        async def write(send: http_server.Send) -> None:
            # Longer than the command would let a daemon with heartbeats be silent.
            await trio.sleep(4)
            await send(plugin + b"\n")

        return http_server.HttpResponse(200, "application/jsonl", write=write, endless=True)

    path = str(tmp_path / "s")
    async with stub(path, answer):
        done = {
            words[0]: await in_thread(*words, "--answer-timeout", "3", status=path)
            for words in (["ls"], ["describe", "a"], ["watch"], ["wait", "a"], ["retry", "a"])
        }
    assert {command: ended.code for command, ended in done.items()} == dict.fromkeys(done, 0)
    assert done["ls"].out.splitlines()[1].split()[:5] == ["registered", "a", "CSIPlugin", "3.5s", "-"]
    assert "State:      registered for 3.5s, since " in done["describe"].out
    assert done["retry"].out == "/r/a.sock: asked to try now\n"
    assert "registered" in done["watch"].out
    assert done["wait"].out == "a is registered: /r/a.sock\n"


# --- output that cannot be written ------------------------------------------------------------------------------------


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
async def test_a_full_disk_is_one_line_in_every_command(unbuffered: str, quiet: Daemon) -> None:
    """Fault 95."""
    await quiet.ready()
    path = quiet.root / f"full{unbuffered}.sock"
    clients = [["ls"], ["ls", "-o", "name"], ["describe", str(path)], ["retry", str(path)], ["watch"]]
    others = [["probe", str(path)], ["probe", str(path), "--json"]]
    ended: dict[str, tuple[int, bytes]] = {}

    async def print_to_a_full_disk(words: list[str]) -> None:
        status = ["--status", quiet.status] if words in clients else []
        with open("/dev/full", "wb") as full, trio.fail_after(DEADLINE):  # noqa: ASYNC230
            done = await trio.run_process(
                [*PLUGIND, *words, *status],
                stdout=full,
                capture_stderr=True,
                check=False,
                env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            )
        ended[" ".join(words)] = done.returncode, done.stderr

    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
        async with quiet.watch() as watch:
            await watch.state(path, "stale")
        async with trio.open_nursery() as nursery:
            for words in (*clients, *others):
                nursery.start_soon(print_to_a_full_disk, words)
    said = b"plugind: standard output cannot be written: No space left on device\n"
    assert ended == dict.fromkeys((" ".join(words) for words in (*clients, *others)), (1, said))


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_help_that_cannot_be_written_is_one_line(unbuffered: str) -> None:
    """Fault 95: the interpreter would print a traceback as it exits, and argparse ignores the error."""
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "wb") as full:
        for words in (["--help"], ["ls", "--help"], ["--version"]):
            ended = subprocess.run(
                [*PLUGIND, *words], stdout=full, stderr=subprocess.PIPE, text=True, env=environment, check=False
            )
            said = "plugind: standard output cannot be written: No space left on device\n"
            assert (ended.returncode, ended.stderr) == (1, said)


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
            waited = run("wait", name, "--timeout", "30", status=node.status, environment=environment)
            assert (waited.code, waited.err) == (0, "")
            for command in (["ls"], ["ls", "-o", "json"], ["ls", "-o", "name"], ["describe", name]):
                done = run(*command, status=node.status, environment=environment)
                assert (done.code, done.err) == (0, ""), command

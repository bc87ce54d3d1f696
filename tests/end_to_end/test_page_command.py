"""``plugind page`` as a process: what it prints, how it ends, and what it makes of daemons that come and go."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from plugind.tests.actors.status.page.events import Browser, Chunks
from plugind.tests.actors.status.page.stand_in import standing_in
from plugind.tests.end_to_end.processes import DEADLINE, PLUGIND, SOON, daemon, plugin_process, run


@attrs.define
class Page:
    """A running ``plugind page``, and what a browser knows of it."""

    process: trio.Process
    port: int
    token: str
    browser: Browser = attrs.field(factory=Browser)
    _chunks: Chunks | None = None

    async def until(self, condition: Callable[[dict[str, dict[str, Any]]], bool]) -> None:
        """Wait until what is shown meets ``condition``."""
        with trio.fail_after(DEADLINE):
            while not condition(self.browser.tables):
                await self._read()

    async def get(self, target: str) -> tuple[int, Any]:
        """Return the status and the JSON of an answer."""
        with trio.fail_after(DEADLINE):
            async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
                head = f"GET {target} HTTP/1.0\r\nHost: localhost\r\nAuthorization: Bearer {self.token}\r\n\r\n"
                await stream.send_all(head.encode())
                first, _, body = b"".join([piece async for piece in stream]).partition(b"\r\n\r\n")
        return int(first.split()[1]), json.loads(body)

    async def until_plugin(self, socket: Path, state: str) -> None:
        """Wait until the socket is shown in a state."""
        while self.browser.tables.get("plugins", {}).get(str(socket), {}).get("state") != state:
            await self._read()

    async def until_daemon(self, state: str) -> None:
        """Wait until the daemon is shown as ``there`` or ``away``."""
        while self.browser.tables.get("node", {}).get("plugins", {}).get("state") != state:
            await self._read()

    async def _read(self) -> None:
        if self._chunks is None:
            stream = await trio.open_tcp_stream("127.0.0.1", self.port)
            head = f"GET /events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.token}\r\n\r\n"
            await stream.send_all(head.encode())
            self._chunks = Chunks(stream)
            assert (await self._chunks.head()).startswith(b"HTTP/1.1 200 ")
        self.browser.take(await self._chunks.next())

    def close(self) -> None:
        """End the connection of the browser."""
        if self._chunks is not None:
            self._chunks.stream.socket.close()

    async def end(self, number: signal.Signals) -> int:
        """Send a signal; return the exit code."""
        self.process.send_signal(number)
        with trio.fail_after(DEADLINE):
            return await self.process.wait()


@asynccontextmanager
async def page(status: str, *arguments: str, by: Sequence[str] = PLUGIND) -> AsyncIterator[Page]:
    patient = ("--answer-timeout", str(DEADLINE))
    async with plugin_process([*by, "page", "--status", status, *patient, *arguments]) as started:
        out = started.process.stdout
        assert out is not None
        printed = b""
        with trio.fail_after(DEADLINE):
            while not printed.endswith(b"\n"):
                piece = await out.receive_some()
                assert piece, "it has ended"
                printed += piece
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/#([\w-]{43})\n", printed.decode())
        assert found is not None, printed
        shown = Page(started.process, int(found[1]), found[2])
        with contextlib.closing(shown):
            yield shown


def fake(path: Path) -> list[str]:
    return [*PLUGIND, "fake", "--socket", str(path), "--type", "CSIPlugin", "--name", "a.example.com"]


#: Runs a command as a user who has no rights, and may not read the modules and documents of the test.
AS_NOBODY = """
import os, sys
from plugind.actors.console import commands, page
made = page.page()
page.page = lambda: made
os.setgroups([]); os.setgid(65534); os.setuid(65534)
sys.exit(commands.main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be other users, and make device nodes")
async def test_a_user_who_may_only_lease_is_shown_devices_and_leases() -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o711)
        place = Path(directory)
        (place / "dev").mkdir(mode=0o755)
        for name, minor in (("n2", 3), ("n10", 5)):
            os.mknod(place / "dev" / name, 0o20666, os.makedev(1, minor))
        options = ("--lease-uids=65534", f"--devices=lab/null={place}/dev/*", "--pool=lab=lab/null:n10")
        with daemon(place, *options) as node:
            await node.ready()
            allocate = ("allocate", "lab/null=1", "--until-release", "--id", "bench", "--status", node.status)
            await trio.to_thread.run_sync(partial(run, *allocate))
            by = (sys.executable, "-c", AS_NOBODY)
            async with page(node.status, by=by) as shown:
                await shown.until(lambda tables: "bench" in tables.get("leases", {}))
                await shown.until(lambda tables: "lab/null" in tables.get("resources", {}))
                await shown.until(lambda tables: tables.get("node", {}).get("plugins", {}).get("state") == "forbidden")
                lease = shown.browser.tables["leases"]["bench"]
                assert (lease["whose"], lease["for"], lease["devices"]) == ("root", "bench", {"lab/null": ["n2"]})
                assert shown.browser.tables["node"].get("health") is None
                status, devices = await shown.get("/devices")
                listed = {device["id"]: device.get("pool") for device in devices["resources"][0]["devices"]}
                assert (status, listed) == (200, {"n2": None, "n10": "lab"})


async def test_each_change_of_a_real_daemon_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "root" / "a.sock"
    with daemon(tmp_path) as node:
        await node.ready()
        async with page(node.status) as shown:
            await shown.until_daemon("there")
            async with plugin_process(fake(path)):
                await shown.until_plugin(path, "registered")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_it_with_success_although_browsers_are_connected(
    tmp_path: Path, number: signal.Signals
) -> None:
    async with standing_in(str(tmp_path / "s")) as stand_in, page(stand_in.path) as shown:
        await shown.until_daemon("there")
        assert await shown.end(number) == 0
        with pytest.raises(OSError, match="all attempts to connect"):
            await trio.open_tcp_stream("127.0.0.1", shown.port)


async def test_a_daemon_that_is_killed_is_away_until_another_one_is_there(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        with daemon(tmp_path) as node:
            await node.ready()
            shown = await nursery.start(_shown, node.status)
            await shown.until_daemon("there")
            node.process.kill()
            await node.ended()
            await shown.until_daemon("away")
        with daemon(tmp_path):
            await shown.until_daemon("there")
        nursery.cancel_scope.cancel()


async def _shown(status: str, *, task_status: trio.TaskStatus[Page] = trio.TASK_STATUS_IGNORED) -> None:
    async with page(status) as shown:
        task_status.started(shown)
        await trio.sleep_forever()


@pytest.mark.usefixtures("real_processes")
def test_without_a_daemon_it_says_what_to_do_and_ends(tmp_path: Path) -> None:
    done = run("page", status=str(tmp_path / "none.sock"))
    assert (done.code, done.out) == (69, "")
    assert done.err == (
        f"plugind: no daemon answers at {tmp_path}/none.sock (No such file or directory); start one with 'plugind run',"
        " or name its socket with --status or PLUGIND_STATUS\n"
    )


async def test_a_port_is_chosen_and_one_that_is_taken_or_is_none_ends_it(tmp_path: Path) -> None:
    """No process sees the token: it is neither among the arguments nor in the environment."""
    async with standing_in(str(tmp_path / "s")) as stand_in:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            done = await trio.to_thread.run_sync(partial(run, "page", "--port", str(port), status=stand_in.path))
        said = f"plugind: cannot listen at port {port} of 127.0.0.1: Address already in use\n"
        assert (done.code, done.out, done.err) == (1, "", said)
        async with page(stand_in.path, "--port", str(port)) as shown:
            assert shown.port == port
            for file in ("cmdline", "environ"):
                seen = await trio.Path(f"/proc/{shown.process.pid}/{file}").read_bytes()
                assert shown.token.encode() not in seen
    done = run("page", "--port=65536", status=stand_in.path)
    assert (done.code, "is no port: give a number from 1 to 65535" in done.err) == (2, True)


async def test_at_a_unix_socket_the_page_replaces_one_that_nobody_serves_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "page.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    async with standing_in(str(tmp_path / "s")) as stand_in:
        command = [*PLUGIND, "page", "--socket", str(path), "--status", stand_in.path]
        async with plugin_process(command) as started:
            assert started.process.stdout is not None
            with trio.fail_after(DEADLINE):
                assert await started.process.stdout.receive_some() == f"{path}\n".encode()
            with trio.fail_after(DEADLINE):
                async with await trio.open_unix_socket(str(path)) as stream:
                    await stream.send_all(b"GET /plugin?socket=a HTTP/1.0\r\nHost: localhost\r\n\r\n")
                    assert (await stream.receive_some()).startswith(b"HTTP/1.1 404 ")
            second = partial(run, "page", "--socket", str(path), status=stand_in.path)
            done = await trio.to_thread.run_sync(second)
            said = f"plugind: cannot listen at {path}: another process listens there\n"
            assert (done.code, done.out, done.err) == (1, "", said)
            assert await started.end() == 0
        assert not path.exists()
        path.write_text("a file")
        done = await trio.to_thread.run_sync(second)
        said = f"plugind: cannot listen at {path}: something that is no socket is in the way\n"
        assert (done.code, done.out, done.err, path.read_text()) == (1, "", said, "a file")


async def test_a_reader_of_its_output_that_has_gone_ends_it(tmp_path: Path) -> None:
    async with standing_in(str(tmp_path / "s")) as stand_in:
        command = [*PLUGIND, "page", "--status", stand_in.path, "--answer-timeout", SOON]
        process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        await process.stdout.aclose()
        with trio.fail_after(DEADLINE):
            assert await process.wait() == 0

"""The processes of the end-to-end tests: daemons with their status sockets, and plugins."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO

import attrs
import trio

from plugind.actors.http.client import Reply, UnreachableError
from plugind.actors.http.on_trio import ask

#: Seconds in which any step must end, even on a busy machine.
DEADLINE = 120.0
PLUGIND = [sys.executable, "-m", "plugind"]
#: Deadlines that a plugin meets even on a busy machine, for tests that expect the first attempt to succeed.
PATIENT = {"dial": DEADLINE, "get_info": DEADLINE, "notify": DEADLINE}
#: Timeout of commands that wait in vain, in seconds. It must leave time for the daemon's answer: commands that start at
#: once on a busy machine delay each other by a second or two.
SOON = "10"

#: The description of a plugin by the status socket.
Plugin = Mapping[str, object]


def run(
    *arguments: str,
    status: str | None = None,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> Done:
    """Run a command of plugind until it ends."""
    options = [] if status is None else ["--status", status]
    done = subprocess.run(
        [*PLUGIND, *arguments, *options],
        check=False,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=DEADLINE,
        env={**os.environ, **(environment or {})},
        cwd=directory,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def finish(
    command: Sequence[str | Path],
    *,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    check: bool = False,
    timeout: float = DEADLINE,
) -> subprocess.CompletedProcess[str]:
    """Run any program until it ends. Its output is text."""
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=env, input=stdin, check=check, timeout=timeout
    )


@attrs.frozen
class Done:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


def shown(plugin: Plugin) -> str:
    """Return the step of a try that is under way, or else the state."""
    return str(plugin.get("step") or plugin["state"])


@attrs.define
class Watch:
    """A stream of changes that is read as far as a test needs. Earlier changes are kept."""

    _pieces: AsyncIterator[bytes]
    _rest: bytes = b""
    #: All changes so far.
    changes: list[Plugin] = attrs.field(factory=list)
    #: The last change of each socket.
    now: dict[str, Plugin] = attrs.field(factory=dict)

    async def until(self, condition: Callable[[Watch], bool]) -> None:
        """Read until ``condition`` holds."""
        with trio.move_on_after(DEADLINE):
            while not condition(self):
                while b"\n" not in self._rest:
                    self._rest += await anext(self._pieces)
                line, self._rest = self._rest.split(b"\n", 1)
                plugin: Plugin = json.loads(line)
                self.changes.append(plugin)
                self.now[str(plugin["socket"])] = plugin
            return
        raise AssertionError("it did not happen; changes: " + "\n".join(map(str, self.changes)))

    async def state(self, path: str | Path, state: str, *, after: int = 0) -> Plugin:
        """Read until the socket is in this state or step, in a generation after ``after``; return its description."""
        socket = str(path)
        await self.until(
            lambda watch: (
                (plugin := watch.now.get(socket)) is not None
                and shown(plugin) == state
                and number(plugin["generation"]) > after
            )
        )
        return self.now[socket]

    async def all(self, paths: list[Path], state: str) -> list[Plugin]:
        """Read until every socket of ``paths`` is in ``state``."""
        return [await self.state(path, state) for path in paths]

    def states(self, path: str | Path) -> list[str]:
        """Return the states and steps of one socket so far, in order."""
        return [shown(plugin) for plugin in self.changes if plugin["socket"] == str(path)]


def number(value: object) -> int:
    assert isinstance(value, int)
    return value


@attrs.define
class Daemon:
    """A running ``plugind run``."""

    root: Path
    status: str
    process: subprocess.Popen[bytes]
    log: Path

    def lines(self) -> list[dict[str, object]]:
        """Return the lines of its log so far, without one that it has begun to write."""
        return [json.loads(line) for line in self.log.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def about(self, message: str) -> list[dict[str, object]]:
        """Return the lines of its log with this message so far."""
        return [line for line in self.lines() if line["msg"] == message]

    async def logged(self, message: str, times: int = 1) -> list[dict[str, object]]:
        """Wait until the message was logged that often; return its lines. The log is written after the change."""
        with trio.fail_after(DEADLINE):
            while len(self.about(message)) < times:
                assert self.process.poll() is None, self.log.read_text()
                await trio.sleep(0.02)
        return self.about(message)

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[Watch]:
        async with self.pieces("/watch") as pieces:
            yield Watch(pieces)

    @asynccontextmanager
    async def pieces(self, target: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """Ask for a stream."""
        async with self._asked(target) as reply:
            assert reply.status == 200
            async with aclosing(_pieces(reply)) as pieces:
                yield pieces

    async def get(self, target: str, *, method: str = "GET", body: bytes = b"") -> tuple[int, bytes]:
        async with self._asked(target, method, body) as reply:
            return reply.status, await reply.body()

    async def plugins(self) -> dict[str, Plugin]:
        """Return the answer to ``GET /plugins``, by socket."""
        _, body = await self.get("/plugins")
        return {plugin["socket"]: plugin for plugin in json.loads(body)}

    async def facts(self, name: str, condition: Callable[[dict[str, str]], bool]) -> dict[str, str]:
        """Wait until ``condition`` holds of the facts of the plugin ``name``. No stream tells of facts alone."""
        with trio.fail_after(DEADLINE):
            while True:
                status, body = await self.get(f"/plugins/{name}")
                plugins = json.loads(body) if status == 200 else []
                facts: list[dict[str, str]] = [plugin.get("facts") or {} for plugin in plugins]
                if (found := next(filter(condition, facts), None)) is not None:
                    return found
                await trio.sleep(0.1)

    async def metric(self, sample: str) -> None:
        """Wait until ``GET /metrics`` has this line. What happens is counted a moment after it is seen elsewhere."""
        name, found = sample.split("{")[0].split(" ")[0], [""]
        # Before the deadline of a watch around it, so that the failure shows what was found.
        with trio.move_on_after(DEADLINE / 2):
            while sample not in found:
                _, body = await self.get("/metrics")
                found = [line for line in body.decode().splitlines() if line.startswith(name)]
        assert sample in found

    @asynccontextmanager
    async def _asked(self, target: str, method: str = "GET", body: bytes = b"") -> AsyncIterator[Reply]:
        with trio.fail_after(DEADLINE):
            while True:
                try:
                    async with ask(self.status, method, target, body) as reply:
                        yield reply
                    return
                except UnreachableError:
                    # The daemon is still starting, or has failed to start.
                    if self.process.poll() is not None:
                        raise AssertionError(f"the daemon ended: {self.log.read_text()}") from None
                    await trio.sleep(0.02)

    async def ready(self) -> None:
        """Wait until the daemon has scanned all its roots."""
        with trio.fail_after(DEADLINE):
            while (await self.get("/readyz"))[0] != 200:  # noqa: ASYNC110 - it is in another process
                await trio.sleep(0.02)

    async def unready(self, why: str) -> None:
        """Wait until the daemon says that it is not ready, for a reason that has ``why`` in it."""
        with trio.fail_after(DEADLINE):
            while (answer := await self.get("/readyz"))[0] != 503 or why.encode() not in answer[1]:  # noqa: ASYNC110
                await trio.sleep(0.02)

    async def ended(self) -> int:
        """Wait until the daemon ends, and return its exit code."""
        with trio.fail_after(DEADLINE):
            return await trio.to_thread.run_sync(self.process.wait, abandon_on_cancel=True)


@contextmanager
def daemon(
    directory: Path,
    *arguments: str,
    root: Path | None = None,
    environment: Mapping[str, str] | None = None,
    timeouts: Mapping[str, float] | None = None,
    script: str | None = None,
    by: Sequence[str] = (*PLUGIND, "run"),
    output: int | None = None,
) -> Iterator[Daemon]:
    """Start a daemon whose root, status socket and log are in ``directory``; kill it at exit if it still runs.

    It almost never rescans, since a rescan would hide events that were missed. Nor does it report that its loop was
    blocked, which a busy machine can do to it. It has the deadlines of ``plugind run``, unless ``timeouts`` names
    others (see ``patient.py``). ``script`` names a file beside this one to run in place of ``plugind run``, and ``by``
    is another command in its place; ``output`` is where it prints.
    """
    root = root or directory / "root"
    status = str(directory / "status.sock")
    options = ["--root", str(root), "--status", status, "--log-format", "json", "--rescan", "3600"]
    options += ["--blocked-after", str(DEADLINE), *arguments]
    run = [*by]
    if script is not None:
        run = [sys.executable, str(Path(__file__).with_name(script))]
    elif timeouts is not None:
        run = [sys.executable, str(Path(__file__).with_name("patient.py")), json.dumps(timeouts)]
    command = [*run, *options]
    # The state of the machine's own daemon is none of theirs.
    places = {"STATE": "state", "MARKERS": "markers", "LEASES_CDI_DIRECTORY": "cdi"}
    environment = {f"PLUGIND_{name}": str(directory / at) for name, at in places.items()} | dict(environment or {})
    with (directory / "log").open("ab") as log, daemon_process(command, log, environment, output) as process:
        yield Daemon(root, status, process, directory / "log")


@contextmanager
def daemon_process(
    command: list[str],
    stderr: int | IO[bytes],
    environment: Mapping[str, str] | None = None,
    stdout: int | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a daemon process; kill it at exit if it still runs."""
    process = subprocess.Popen(command, stdout=stdout, stderr=stderr, env={**os.environ, **(environment or {})})
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


@attrs.define
class PluginProcess:
    """A plugin that prints a line of JSON for each call that it receives."""

    process: trio.Process
    lines: list[dict[str, object]] = attrs.field(factory=list)
    _rest: bytes = b""

    async def line(self, **wanted: object) -> dict[str, object]:
        """Return the next line that has all of ``wanted``; lines before it are skipped."""
        assert self.process.stdout is not None
        with trio.fail_after(DEADLINE):
            while True:
                while b"\n" not in self._rest:
                    piece = await self.process.stdout.receive_some()
                    assert piece, f"the plugin ended after the lines {self.lines}"
                    self._rest += piece
                first, self._rest = self._rest.split(b"\n", 1)
                said: dict[str, object] = json.loads(first)
                self.lines.append(said)
                if wanted.items() <= said.items():
                    return said

    async def command(self, line: str) -> None:
        """Send it a line."""
        assert self.process.stdin is not None
        await self.process.stdin.send_all(f"{line}\n".encode())

    async def notified_registered(self) -> None:
        """Wait for the next notification, which must say that the plugin is registered."""
        said = await self.line(call="NotifyRegistrationStatus")
        assert (said["plugin_registered"], said["error"]) == (True, ""), said

    async def rest(self) -> str:
        """Return what a plugin that has ended printed after the lines that were read."""
        assert self.process.stdout is not None
        with trio.fail_after(DEADLINE):
            async for piece in self.process.stdout:
                self._rest += piece
        return self._rest.decode()

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        with trio.fail_after(DEADLINE):
            return await self.process.wait()


@asynccontextmanager
async def plugin_process(command: list[str]) -> AsyncIterator[PluginProcess]:
    """Start a plugin; kill it at exit if it still runs."""
    # The environment must not refer the plugin to a cluster.
    environment = {**os.environ, "KUBECONFIG": os.devnull}
    process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    plugin = PluginProcess(process)
    try:
        yield plugin
    finally:
        if process.returncode is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            assert process.stdin is not None
            assert process.stdout is not None
            await process.stdin.aclose()
            await process.stdout.aclose()


async def _pieces(reply: Reply) -> AsyncGenerator[bytes, None]:
    while piece := await reply.piece():
        yield piece

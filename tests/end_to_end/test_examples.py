"""The programs of examples/ as processes: the plugin, the handler, and the program that embeds a node."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from plugind.tests.end_to_end.processes import DEADLINE, PLUGIND, daemon, finish, run

CHECKOUT = Path(__file__).parents[2]
EXAMPLES = CHECKOUT / "examples"


def test_no_except_star_raises_an_error_of_its_own() -> None:
    """CPython before 3.11.4 wraps such an error in a group, and Debian 12 ships 3.11.2."""
    found = [
        f"{path}:{inside.lineno}"
        for path in CHECKOUT.rglob("*.py")
        if not any(part.startswith(".") or part == "node_modules" for part in path.relative_to(CHECKOUT).parts)
        if "except*" in (text := path.read_text())
        for tree in ast.walk(ast.parse(text))
        if isinstance(tree, ast.TryStar)
        for handler in tree.handlers
        for inside in ast.walk(handler)
        if (isinstance(inside, ast.Raise) and inside.exc is not None)
        or (isinstance(inside, ast.Call) and ast.unparse(inside.func) in ("sys.exit", "exit"))
    ]
    assert found == []


class Lines:
    """Reads the output of a process line by line."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self._text = b""

    async def until(self, ending: str) -> str:
        """Return the next line that ends with ``ending``."""
        assert self.process.stdout is not None
        with trio.fail_after(DEADLINE):
            while True:
                *lines, self._text = self._text.split(b"\n")
                for index, line in enumerate(lines):
                    if line.decode().endswith(ending):
                        self._text = b"\n".join([*lines[index + 1 :], self._text])
                        return line.decode()
                piece = await self.process.stdout.receive_some()
                assert piece, f"it ended before {ending!r}"
                self._text += piece

    async def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        with trio.fail_after(DEADLINE):
            return await self.process.wait()


@asynccontextmanager
async def started(*command: str | Path, environment: dict[str, str] | None = None) -> AsyncIterator[Lines]:
    process = await trio.lowlevel.open_process([sys.executable, *command], stdout=subprocess.PIPE, env=environment)
    try:
        yield Lines(process)
    finally:
        if process.returncode is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            assert process.stdout is not None
            await process.stdout.aclose()


async def test_the_example_handler_registers_the_example_plugin_by_its_newest_version(tmp_path: Path) -> None:
    root, endpoint = tmp_path / "root", tmp_path / "root" / ".service.sock"
    root.mkdir()
    path = root / "e.sock"
    plugin: list[str | Path] = [EXAMPLES / "example_plugin.py", "--name", "first.example.com", "--socket", str(path)]
    async with started(EXAMPLES / "example_handler.py", root) as handler, started(*plugin) as first:
        await first.until("v1beta2 asked: 'hello' 'from the example handler'")
        await first.until("registered")
        assert await handler.until(" registered ") == f"{path} first.example.com registered "
        assert await first.end(signal.SIGTERM) == 0
        await handler.until(" gone the socket was removed")
        async with started(*plugin, "--endpoint", endpoint) as second:
            await second.until("v1beta2 asked: 'hello' 'from the example handler'")
            await second.until("registered")
            await handler.until(" registered ")
        assert await handler.end(signal.SIGINT) == 0


def entry_point(directory: Path, value: str) -> dict[str, str]:
    """Install a distribution with a handler entry point; return the environment that finds it."""
    info = directory / "users_handler-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: users-handler\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[plugind.handlers]\nExamplePlugin = {value}\n")
    return {"PYTHONPATH": f"{directory}{os.pathsep}{EXAMPLES}"}


async def test_the_daemon_finds_the_example_handler_by_its_entry_point(tmp_path: Path) -> None:
    """Behaviour 41, and behaviour 16, since the example handler refuses deprecated directories."""
    environment = entry_point(tmp_path / "site", "example_handler:ExampleHandler")
    old = tmp_path / "old"
    with daemon(tmp_path, "--deprecated-root", str(old), environment=environment) as node:
        await node.ready()
        path, deprecated = node.root / "e.sock", old / "d.sock"
        plugin: list[str | Path] = [EXAMPLES / "example_plugin.py", "--name", "first.example.com", "--socket"]
        async with node.watch() as watch, started(*plugin, path) as first, started(*plugin, deprecated) as second:
            await first.until("v1beta2 asked: 'hello' 'from the example handler'")
            await first.until("registered")
            await watch.state(path, "registered")
            # A refused plugin exits and removes its socket.
            with trio.fail_after(DEADLINE):
                assert await second.process.wait() == 1
            await watch.state(deprecated, "gone")
            reasons = [str(said["reason"]) for said in watch.changes if said["socket"] == str(deprecated)]
            assert any(f"{deprecated} lies in a deprecated directory: move it" in reason for reason in reasons)


async def test_the_examples_of_clients_ask_a_daemon(tmp_path: Path) -> None:
    directory, path = tmp_path / "device-plugins", tmp_path / "root" / "red.sock"
    with daemon(tmp_path, f"--device-plugins={directory}") as node:
        await node.ready()
        environment = {**os.environ, "PLUGIND_STATUS": str(node.status)}
        devices = [*PLUGIND[1:], "fake", "--type", "DevicePlugin", "--name", "vendor.com/gpu", "--devices", "2"]
        devices += ["--device-plugins", str(directory), "--socket", str(directory / "gpu.sock")]
        red = [*PLUGIND[1:], "fake", "--type", "CSIPlugin", "--name", "red.example.com", "--socket", str(path)]
        async with started(EXAMPLES / "client_trio.py", environment=environment) as watching:
            await watching.until("watching")
            async with started(*devices), started(*red) as plugin:
                done = await trio.run_process(
                    [sys.executable, str(EXAMPLES / "client_sync.py"), "vendor.com/gpu"],
                    env=environment,
                    capture_stdout=True,
                )
                *lines, leased = done.stdout.decode().splitlines()
                assert lines == ["vendor.com/gpu: 2 of 2 devices are healthy", "gpu-0 Healthy", "gpu-1 Healthy"]
                assert leased.startswith("gpu-0 is ours, by the lease ")
                command = [str(EXAMPLES / "client_hold.py"), "vendor.com/gpu"]
                async with started(*command, environment=environment) as holding:
                    lease = (await holding.until(" gives us gpu-0")).split()[2]
                    assert run("release", lease, status=node.status).code == 0
                    with trio.fail_after(DEADLINE):
                        assert await holding.process.wait() == 1
                await watching.until("in service: red.example.com")
                async with started(EXAMPLES / "client_asyncio.py", environment=environment) as on_asyncio:
                    await on_asyncio.until("in service: red.example.com")
                    on_asyncio.process.terminate()
                    await on_asyncio.until("no longer watching")
                await plugin.end(signal.SIGTERM)
                await watching.until("out of service: red.example.com")
        watch_on_trio, watch_on_asyncio = (
            started(EXAMPLES / f"client_{name}.py", environment=environment) for name in ("trio", "asyncio")
        )
        async with watch_on_trio as watching, watch_on_asyncio as on_asyncio:
            await watching.until("watching")
            await on_asyncio.until("watching")
            node.process.terminate()
            with trio.fail_after(DEADLINE):
                assert await watching.process.wait() == await on_asyncio.process.wait() == 0


def test_the_example_of_a_client_says_what_to_do_without_a_daemon(tmp_path: Path) -> None:
    name = "client_trio"
    (tmp_path / "file").touch()
    environment = {**os.environ, "PLUGIND_STATUS": str(tmp_path / "file")}
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = finish(command, env=environment)
    assert (done.returncode, done.stdout) == (1, "")
    advice = "give the path of the daemon's status socket, or name it with PLUGIND_STATUS"
    assert done.stderr == f"{name}: {tmp_path}/file is no socket; {advice}\n"


async def test_the_example_of_a_lease_has_a_device_and_gives_it_back(tmp_path: Path) -> None:
    fake = ["fake", "--type", "DevicePlugin", "--name", "example.com/gpu", "--socket", str(tmp_path / "gpu.sock")]
    async with (
        started(EXAMPLES / "lease.py", tmp_path) as program,
        started(*PLUGIND[1:], *fake, "--env", "GPUS={ids}"),
    ):
        await program.until("leased: gpu-0")
        await program.until("the plugin says: GPUS=gpu-0")
        assert "Requested: 1000, Available: 3; there are 4 in all; held by 1: " in await program.until("")
        await program.until("leases: 0")
        with trio.fail_after(DEADLINE):
            assert await program.process.wait() == 0


async def test_the_embedding_example_registers_a_plugin_and_deregisters_it(tmp_path: Path) -> None:
    path = tmp_path / "red.sock"
    fake = ["fake", "--socket", str(path), "--type", "ColourPlugin", "--name", "red.example.com"]
    async with started(EXAMPLES / "embed.py", tmp_path) as program, started(*PLUGIND[1:], *fake):
        await program.until(f"in service: red.example.com, at {path}")
        assert (await program.until(" s")).startswith("red.example.com was registered within ")
        await program.until(f"{path}: registered, all is well")
        await program.until("out of service: red.example.com")
        with trio.fail_after(DEADLINE):
            assert await program.process.wait() == 0


def test_the_page_about_embedding_has_the_programs_of_the_examples() -> None:
    page = (CHECKOUT / "docs" / "embedding.md").read_text()
    programs = [part.partition("```")[0] for part in page.split("```python\n")[1:]]
    examples = [(EXAMPLES / name).read_text() for name in ("embed.py", "embed_asyncio.py")]
    assert [program in example for program, example in zip(programs, examples, strict=True)] == [True, True]


async def test_a_node_runs_as_a_guest_of_asyncio(tmp_path: Path) -> None:
    path = tmp_path / "red.sock"
    fake = ["fake", "--socket", str(path), "--type", "ColourPlugin", "--name", "red.example.com"]
    async with started(EXAMPLES / "embed_asyncio.py", tmp_path) as program, started(*PLUGIND[1:], *fake):
        await program.until(f"in service: red.example.com, at {path}")
        with trio.fail_after(DEADLINE):
            assert await program.process.wait() == 0


async def test_the_embedding_example_says_what_is_wrong_with_its_root(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Behaviour 2: it waited without a word."""
    root = tmp_path / "missing" / "root"
    said = ""
    async with started(EXAMPLES / "embed.py", root) as program:
        with trio.fail_after(DEADLINE):
            while f"{root}: unavailable" not in said or not said.endswith("\n"):
                await trio.sleep(0.01)
                said += capfd.readouterr().err
        assert await program.end(signal.SIGINT) == 130
    missing = f"its parent directory {root.parent} is missing, and plugind does not make it"
    missing += ": make it, or name another root with --root DIR"
    # Beside that line is the warning of the node, which Python shows where a program does not set up logging.
    assert f"{root}: unavailable, cannot use {root}: {missing}" in said.splitlines()

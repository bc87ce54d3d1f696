"""A real daemon whose handler is another process: in Python, JavaScript and Go."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from plugind.testing import RunningDaemon, WaitFailedError, daemon

EXAMPLES = Path(__file__).parents[2] / "examples"
SENSOR = ("--set", "handler_uids=SensorPlugin=root")
PYTHON = """
import sys, trio
from plugind.client import Client, HandlerAsk, Health, NoDaemonError

async def serve():
    held = {}
    while True:
        try:
            async with Client(sys.argv[1]).serve("SensorPlugin", held.values()) as asks:
                async for ask in asks:
                    if not isinstance(ask, HandlerAsk):
                        continue
                    name = ask.instance.name
                    print(ask.kind, name, flush=True)
                    if ask.kind == "validate" and not name.endswith(".example.com"):
                        await ask.refuse(f"{name} is not ours")
                        continue
                    if ask.kind == "register":
                        held[ask.instance.id] = ask.instance
                    if ask.kind == "deregister":
                        held.pop(ask.instance.id, None)
                    await ask.done()
                    if ask.kind == "follow":
                        await asks.report(ask.instance.id, Health.HEALTHY)
        except NoDaemonError:
            pass
        await trio.sleep(0.1)
trio.run(serve)
"""
#: Never answers about some plugins.
SILENT = PYTHON.replace("print(", "if name[0].isdigit():\n                        continue\n                    print(")
GO = pytest.mark.skipif(shutil.which("go") is None, reason="there is no Go")
NODE = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
EXTENDED = pytest.mark.extended
HANDLERS = [
    pytest.param((sys.executable, "-c", PYTHON), id="python"),
    pytest.param(("node", str(EXAMPLES / "handler.mjs")), id="javascript", marks=[NODE, EXTENDED]),
    pytest.param(("go", str(EXAMPLES / "handler.go")), id="go", marks=[GO, EXTENDED]),
]


def plug(node: RunningDaemon, name: str) -> None:
    node.run(
        sys.executable, "-m", "plugind", "fake", "--socket", str(node.plugins / f"{name}.sock"), "--type",
        "SensorPlugin", "--name", name,
    )  # fmt: skip


@pytest.mark.parametrize("handler", HANDLERS)
def test_a_handler_in_another_process_takes_plugins_and_is_missed_by_none_of_them(
    handler: tuple[str, ...], tmp_path: Path
) -> None:
    if handler[0] == "go":
        # Built first: a plugin that is parked for longer than that counts as refused here.
        subprocess.run(["go", "build", "-o", tmp_path / "handler", handler[-1]], check=True, timeout=300)
        handler = (str(tmp_path / "handler"),)
    with daemon(*SENSOR) as node:
        plug(node, "early.example.com")
        deadline = time.monotonic() + 60
        while not any(plugin.state == "parked" for plugin in node.client.list("early.example.com")):
            assert time.monotonic() < deadline, node.log
            time.sleep(0.05)
        # It waits for its handler, which is no refusal.
        with pytest.raises(WaitFailedError, match=r"early.example.com is not refused after 0.1 s"):
            node.refused("early.example.com", timeout=0.1)
        serving = node.run(*handler, str(node.status))
        node.registered("early.example.com", timeout=120)
        plug(node, "stranger")
        assert "stranger is not ours" in (node.refused("stranger").cause or "")
        deadline = time.monotonic() + 30
        while node.client.describe("early.example.com")[0].health != "healthy":
            assert time.monotonic() < deadline, node.log
            time.sleep(0.05)
        assert serving.output.startswith("validate early.example.com\nregister early.example.com\n")


def test_a_killed_daemon_and_a_killed_handler_come_back_and_nothing_is_registered_twice(tmp_path: Path) -> None:
    status, plugins = tmp_path / "status.sock", tmp_path / "plugins"
    plugins.mkdir()
    options = ("--root", str(plugins), "--status", str(status), *SENSOR)
    plugind = (sys.executable, "-m", "plugind")

    def shown() -> str:
        return subprocess.run([*plugind, "ls", "--status", status], capture_output=True, text=True, check=False).stdout

    def wait_until_registered() -> None:
        subprocess.run(
            [*plugind, "wait", "a.example.com", "--status", status, "--timeout", "60"], check=True, capture_output=True
        )

    processes = []

    def begin(*command: str, output: Path | None = None) -> subprocess.Popen[bytes]:
        with (output or tmp_path / "log").open("ab") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file)
        processes.append(process)
        return process

    try:
        run = begin(*plugind, "run", *options)
        begin(*plugind, "fake", "--socket", f"{plugins}/a.sock", "--type", "SensorPlugin", "--name", "a.example.com")
        asked = tmp_path / "asked"
        serving = begin(sys.executable, "-c", PYTHON, str(status), output=asked)
        wait_until_registered()
        run.send_signal(signal.SIGKILL)
        run.wait()
        run = begin(*plugind, "run", *options)
        wait_until_registered()
        kinds = [line.split()[0] for line in asked.read_text().splitlines() if "follow" not in line]
        assert kinds == ["validate", "register", "deregister", "validate", "register"]
        serving.kill()
        serving.wait()
        assert "registered" in shown()
        asked.unlink()
        begin(sys.executable, "-c", PYTHON, str(status), output=asked)
        deadline = time.monotonic() + 60
        # The new process has nothing, so it is asked to register again; the plugin is told nothing.
        while asked.read_text().splitlines()[:2] != ["register a.example.com", "follow a.example.com"]:
            assert time.monotonic() < deadline, asked.read_text()
            time.sleep(0.05)
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("options", "handler", "code", "last"),
    [
        ((), PYTHON, 0, "ok      it deregisters what it has from another run of plugind"),
        (
            ("--keeps",),
            PYTHON,
            1,
            "FAILED  killed and started again, it still has the plugin: …/held does not have the instance",
        ),
        (
            ("--name", "stranger"),
            PYTHON,
            1,
            "FAILED  it accepts and registers a plugin, and follows it: validate of stranger: stranger is not ours",
        ),
        (
            (),
            SILENT,
            1,
            "FAILED  it answers 64 asks at once: no answer to validate within 10 s",
        ),
        ((), "raise SystemExit(3)", 1, "FAILED  it connects, and says what it has: it has ended with code 3"),
    ],
)
def test_a_handler_is_probed(options: tuple[str, ...], handler: str, code: int, last: str) -> None:
    probe = (sys.executable, "-m", "plugind", "probe-handler", *options, "SensorPlugin", "--")
    done = subprocess.run(
        [*probe, sys.executable, "-c", handler, "{status}"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == code, done.stderr
    assert done.stdout.splitlines()[-1] == last

"""A forked process cannot be distinguished from ``python SCRIPT`` by what tests look at."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from plugind.tests import fork_server
from plugind.tests.fork_server import ForkingPopen

#: Tells what it is, on both of its outputs; with an argument, it waits for a signal.
SCRIPT = """
import json, os, signal, sys
sys.stderr.write(f"from {sys.argv[1:]}")
descriptors = sorted(int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}"))
print(json.dumps({
    "parent": os.getppid(), "descriptors": descriptors, "directory": os.getcwd(), "environment": dict(os.environ),
    "blocked": [*signal.pthread_sigmask(signal.SIG_BLOCK, ())], "hangup": repr(signal.getsignal(signal.SIGHUP)),
    "interrupt": repr(signal.getsignal(signal.SIGINT)), "arguments": sys.argv, "read": sys.stdin.read(),
    "name": __name__, "path": sys.path[0], "streams": [
        (s.encoding, s.errors, s.line_buffering, s.write_through, type(s.buffer).__name__)
        for s in (sys.stdin, sys.stdout, sys.stderr)
    ],
}), flush=True)
if sys.argv[1:]:
    signal.pause()
sys.exit(7)
"""
PLUGIND = [sys.executable, "-m", "plugind"]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("script") / "script.py"
    made.write_text(SCRIPT)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fork_server, "SCRIPTS", {made})
        yield made


def _is_fork(pid: int) -> bool:
    return b"fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_fork_is_what_a_new_process_would_be(script: Path, tmp_path: Path) -> None:
    reports = []
    for kind in (ForkingPopen, ForkingPopen.__base__):
        assert kind is not None
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            process = kind(
                [sys.executable, script],
                cwd=tmp_path,
                env={"HOME": "/nowhere"} | fork_server.read_at_start(os.environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        finally:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2])
        assert process.poll() is None
        assert _is_fork(process.pid) == (kind is ForkingPopen)
        out, err = process.communicate(b"asked", timeout=60)
        reports.append((json.loads(out), err, process.returncode))
    forked, new = reports
    assert forked[0] == new[0]
    assert forked == new
    said, err, code = new
    assert (said["parent"], said["read"], said["environment"]["HOME"]) == (os.getpid(), "asked", "/nowhere")
    assert (said["descriptors"], err, code) == ([0, 1, 2], b"from []", 7)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_fork_ends_by_a_signal(script: Path, number: signal.Signals) -> None:
    with ForkingPopen([sys.executable, script, "waits"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(number)
        assert process.wait(60) == -number


def test_the_command_is_forked_wherever_it_is_started(tmp_path: Path) -> None:
    done = subprocess.run([*PLUGIND, "ls", "--status", tmp_path / "none"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (69, "")
    assert "none" in done.stderr
    with subprocess.Popen([*PLUGIND, "fake", "--socket", tmp_path / "s", "--type", "A", "--name", "a"]) as process:
        assert _is_fork(process.pid)
        process.kill()


@pytest.mark.parametrize("change", ["environment", "session", "interpreter", "fixture"])
def test_what_a_fork_cannot_be_is_a_new_process(change: str, request: pytest.FixtureRequest) -> None:
    if change == "fixture":
        request.getfixturevalue("real_processes")
    environment = os.environ | ({"PYTHONHASHSEED": "7"} if change == "environment" else {})
    words = [*PLUGIND, "demo"] if change != "interpreter" else ["sleep", "600"]
    with subprocess.Popen(words, env=environment, start_new_session=change == "session") as process:
        assert not _is_fork(process.pid)
        process.kill()

"""What a command may import until it has done its work. ``python -m benchmarks.start`` prints what that costs."""

from __future__ import annotations

import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

#: Runs the command of its arguments; prints the modules that it has imported to standard error.
RUN = """
import sys
before = {*sys.modules}
from plugind.actors.console import commands
try:
    commands.main()
finally:
    print(*{*sys.modules} - before, file=sys.stderr)
"""
#: Runs a daemon until it tells the service manager that it is ready. It starts no other process.
RUN_UNTIL_READY = """
import os, sys
before = {*sys.modules}
from plugind.actors.console import commands, start

def refuse(event, arguments):
    if event == "subprocess.Popen":
        raise AssertionError(arguments)

sys.addaudithook(refuse)

def tell(state):
    assert state == "READY=1"
    print(*{*sys.modules} - before, file=sys.stderr, flush=True)
    os._exit(0)

with start.imports_of_daemon():
    commands.command("run")
sys.modules["plugind.actors.console.service_manager"].tell_service_manager = tell
commands.main()
"""
#: Slow modules of the standard library that no command needs at its start.
HEAVY = {"asyncio", "email", "importlib.metadata", "sqlite3", "tomllib", "urllib.request", "xml"}
#: What loads OpenSSL.
OPENSSL = {"_ssl", "_hashlib"}

COMMAND = {
    "plugind",
    "plugind.actors",
    "plugind.actors.console",
    *(f"plugind.actors.console.{name}" for name in ("commands", "ending", "start")),
    "plugind.protocol",
    "plugind.protocol.version",
}
#: What asks a daemon, and prints a list.
LS = COMMAND | {
    "plugind.actors.client",
    *(f"plugind.actors.client.{name}" for name in ("paths", "reaching")),
    *(f"plugind.actors.console.{name}" for name in ("answers", "client", "ls", "phrases")),
    *(f"plugind.actors.console.{name}" for name in ("status_socket", "table", "times")),
    "plugind.actors.http",
    *(f"plugind.actors.http.{name}" for name in ("asking", "backends", "client")),
    "plugind.actors.io",
    *(f"plugind.actors.io.{name}" for name in ("connecting", "peers", "silence")),
    *(f"plugind.protocol.{name}" for name in ("text", "words")),
}
#: The packages of others that a daemon without plugins needs, and those that they need.
RUN_PACKAGES = {
    *("attr", "attrs", "google", "grpclib", "hpack", "inotify_simple", "multidict", "trio", "trio_util"),
    *("async_generator", "idna", "outcome", "sniffio", "sortedcontainers"),
}
#: Modules of plugind that are imported when they are used, and not by a daemon without plugins and requests.
RUN_LATER = {
    *(f"plugind.actors.handlers.csi.{name}" for name in ("driver", "follower", "methods", "ranking")),
    *(f"plugind.actors.handlers.dra.{name}" for name in ("calls", "driver")),
    *(f"plugind.actors.devices.{name}" for name in ("calls", "follower")),
    *(f"plugind.protocol.leases.{name}" for name in ("book", "choosing", "entries", "stock")),
    *(f"plugind.actors.http.{name}" for name in ("exchange", "places", "server")),
    *(f"plugind.actors.status.{name}" for name in ("allocations", "api", "devices_api", "leases_api", "serving")),
    *(f"plugind.protocol.settings.{name}" for name in ("files", "lines", "table", "writing")),
    *(f"plugind.actors.console.{name}" for name in ("config", "in_force")),
    "plugind.actors.leases.actor",
    "plugind.protocol.proto",
    "plugind.actors.simulation",
    "plugind.actors.status.exposition",
    "plugind.testing",
}


def imported(program: str, *arguments: str) -> set[str]:
    command = [sys.executable, "-c", program, *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    # A variable that begins like those of settings and is none costs nothing.
    environment["PLUGIND_OPTIONS"] = "--strict"
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


def ours(modules: set[str]) -> set[str]:
    return {name for name in modules if name.partition(".")[0] == "plugind"}


def packages(modules: set[str]) -> set[str]:
    """Return the packages of others, without those of the standard library."""
    tops = {name.partition(".")[0] for name in modules}
    return {name for name in tops - sys.stdlib_module_names - {"plugind"} if not name.startswith("_")}


class Answering(socketserver.StreamRequestHandler):
    """Stands for a daemon with one plugin."""

    def handle(self) -> None:
        target = self.rfile.readline().split()[1]
        while self.rfile.readline().strip():
            pass
        body = b'[{"socket": "/a.sock", "state": "registered", "name": "a.example.com", "type": "CSIPlugin"}]'
        answers = {b"/plugins": body, b"/retry": b'{"answers": [{"tried": true}]}'}
        body = next(
            (said for path, said in answers.items() if target.startswith(path)), b'{"resources": [], "leases": []}'
        )
        self.wfile.write(
            b"HTTP/1.1 200 OK\r\nPlugind-Status-Version: 2\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )


@pytest.fixture
def status(tmp_path: Path) -> Iterator[str]:
    path = str(tmp_path / "status.sock")
    with socketserver.ThreadingUnixStreamServer(path, Answering) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield path
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("words", [["--version"], ["--help"]])
def test_the_version_and_the_help_need_no_module_of_a_command(words: list[str]) -> None:
    modules = imported(RUN, *words)
    assert (ours(modules), packages(modules), modules & HEAVY) == (COMMAND, set(), set())


@pytest.mark.parametrize("output", ["json", "name", "wide"])
def test_ls_needs_neither_trio_nor_attrs(output: str, status: str) -> None:
    modules = imported(RUN, "ls", "-o", output, "--status", status)
    assert (ours(modules), packages(modules), modules & HEAVY) == (LS, {"h11"}, set())


@pytest.mark.parametrize(
    "words",
    [
        ["describe", "a.example.com"],
        ["devices"],
        ["leases"],
        ["who"],
        ["retry", "a.example.com"],
        ["wait", "a.example.com", "--timeout", "0"],
        ["watch"],
    ],
    ids=lambda words: words[0],
)
def test_what_asks_a_daemon_needs_neither_trio_nor_anyio(words: list[str], status: str) -> None:
    modules = imported(RUN, *words, "--status", status)
    assert (packages(modules), modules & HEAVY) == ({"attr", "attrs", "h11"}, set())


def test_a_daemon_that_is_ready_has_imported_what_registers_plugins_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir(mode=0o700)
    modules = imported(RUN_UNTIL_READY, "run", "--root", str(tmp_path / "root"), "--status", str(tmp_path / "status"))
    assert "plugind.actors.registration.conversation" in modules
    assert packages(modules) <= RUN_PACKAGES
    assert modules & (HEAVY | OPENSSL) == set()
    assert ours(modules) & RUN_LATER == set()
    assert "difflib" not in modules
    # Only the errors of protobuf are needed before there is a message.
    assert {name for name in modules if name.startswith("google.")} == {"google.protobuf", "google.protobuf.message"}


def test_a_daemon_reads_a_configuration_file_only_if_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir(mode=0o700)
    file = tmp_path / "plugind.toml"
    file.write_text(f"roots = ['{tmp_path}/root']\nstatus = '{tmp_path}/status'\n")
    file.chmod(0o644)
    modules = imported(RUN_UNTIL_READY, "run", "--config", str(file))
    assert {"tomllib", "plugind.protocol.settings.files", "plugind.protocol.settings.table"} <= modules
    # It suggests keys in the place of wrong ones.
    assert "difflib" not in modules

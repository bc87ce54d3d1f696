"""Plugins that use other implementations of gRPC."""

from __future__ import annotations

import fcntl
import functools
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from plugind.tests.end_to_end.packages import program
from plugind.tests.end_to_end.processes import finish

PLUGINS = Path(__file__).parent / "plugins"
GRPC_JS = PLUGINS / "grpc-js"


@attrs.frozen
class Foreign:
    """A plugin program, and the facts that the daemon must show about its plugins."""

    label: str
    #: Returns the command for a registration socket, a name and a path for the plugin's services.
    command: Callable[[Path, str, Path], list[str]]
    type: str
    name: str
    versions: list[str]
    #: Whether its services have a socket of their own.
    own_endpoint: bool = False


def _node(socket: Path, name: str, endpoint: Path) -> list[str]:
    install_grpc_js()
    return ["node", str(GRPC_JS / "server.js"), str(socket), name]


def _python(file: str, *, with_endpoint: bool = False) -> Callable[[Path, str, Path], list[str]]:
    def command(socket: Path, name: str, endpoint: Path) -> list[str]:
        line = [sys.executable, str(PLUGINS / file), str(socket), name]
        return [*line, str(endpoint)] if with_endpoint else line

    return command


GRPCIO = Foreign("grpcio", _python("grpcio_plugin.py"), "CSIPlugin", "grpcio.example.com", ["1.0.0"])
GRPCLIB = Foreign("grpclib", _python("grpclib_plugin.py"), "DevicePlugin", "grpclib.example.com/gpu", ["v1beta1"])
PYDRA = Foreign(
    "pydra",
    _python("pydra_plugin.py", with_endpoint=True),
    "DRAPlugin",
    "pydra.example.com",
    ["v1.DRAPlugin"],
    own_endpoint=True,
)
NODE = Foreign("grpc-js", _node, "DRAPlugin", "grpc-js.example.com", ["v1.DRAPlugin"])
ALL = (GRPCIO, GRPCLIB, PYDRA, pytest.param(NODE, marks=pytest.mark.extended))


#: Seconds in which npm must install two packages and their dependencies.
NPM_DEADLINE = 120.0
#: Errors of npm that mean that its registry cannot be reached; any other error fails the tests.
UNREACHABLE = re.compile(
    r"\b(E(NOTFOUND|AI_AGAIN|CONNREFUSED|CONNRESET|TIMEDOUT|HOSTUNREACH|NETUNREACH|SOCKETTIMEDOUT|5\d\d)"
    r"|ERR_SOCKET_TIMEOUT|FETCH_ERROR|ENOTCACHED)\b"
)


def install_grpc_js() -> None:
    """Install the npm packages of the plugin that uses @grpc/grpc-js; skip the test if they are not available."""
    program("node")
    why_not = _why_not_installed(program("npm"))
    if why_not is not None:
        pytest.skip(f"npm packages @grpc/grpc-js and @grpc/proto-loader are not installed: {why_not}")


@functools.cache
def _why_not_installed(npm: str) -> str | None:
    """Install the packages of the lock file, once in a session; return the reason if that is not possible."""
    lock = GRPC_JS / "package-lock.json"
    stamp = GRPC_JS / "node_modules" / ".installed"
    with lock.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_bytes() == file.read():
            return None
        why_not = npm_ci(npm, GRPC_JS, NPM_DEADLINE)
        if why_not is None:
            shutil.copyfile(lock, stamp)
        return why_not


def npm_ci(npm: str, directory: Path, deadline: float) -> str | None:
    """Run ``npm ci`` in ``directory``. Return None, or one line that says why npm's registry cannot be used."""
    command = [npm, "ci", "--ignore-scripts", "--prefer-offline", "--no-audit", "--fetch-retries=1"]
    command += ["--fetch-retry-mintimeout=1000", f"--fetch-timeout={1000 * deadline / 4:.0f}", "--loglevel=error"]
    try:
        finish(command, cwd=directory, check=True, timeout=deadline)
    except subprocess.TimeoutExpired:
        return f"npm's registry did not answer within {deadline:g} seconds"
    except subprocess.CalledProcessError as error:
        found = UNREACHABLE.search(error.stderr)
        if found is None:
            raise AssertionError(f"npm ci failed: {error.stderr}") from error
        return f"npm's registry cannot be reached ({found.group()})"
    return None

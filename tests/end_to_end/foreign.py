"""Plugins that others wrote, by what they run on."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from plugind.tests.end_to_end.processes import DEADLINE

PLUGINS = Path(__file__).parent / "plugins"
GRPC_JS = PLUGINS / "grpc-js"


@attrs.frozen
class Foreign:
    """A plugin program, and what its plugins are to be shown as."""

    label: str
    #: From the registration socket, the plugin's name and a path for its services to the command.
    command: Callable[[Path, str, Path], list[str]]
    type: str
    name: str
    versions: list[str]
    #: Whether it serves on a socket of its own, instead of the registration socket.
    own_endpoint: bool = False


def _node(socket: Path, name: str, endpoint: Path) -> list[str]:
    install_grpc_js()
    return ["node", str(GRPC_JS / "server.js"), str(socket), name]


def _python(program: str, *, with_endpoint: bool = False) -> Callable[[Path, str, Path], list[str]]:
    def command(socket: Path, name: str, endpoint: Path) -> list[str]:
        line = [sys.executable, str(PLUGINS / program), str(socket), name]
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
ALL = (GRPCIO, GRPCLIB, PYDRA, NODE)


def install_grpc_js() -> None:
    """Install what server.js needs beside it, unless that was done for the present lock file."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("npm or node is not there: install nodejs and npm for the plugin on @grpc/grpc-js")
    lock = GRPC_JS / "package-lock.json"
    stamp = GRPC_JS / "node_modules" / ".installed"
    with lock.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_bytes() == file.read():
            return
        subprocess.run(
            ["npm", "ci", "--ignore-scripts", "--loglevel=error"], cwd=GRPC_JS, check=True, timeout=DEADLINE * 10
        )
        shutil.copyfile(lock, stamp)

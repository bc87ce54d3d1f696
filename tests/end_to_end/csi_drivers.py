"""CSI drivers made from ``csi_v1.proto`` with other implementations of gRPC, each a program of its own.

Each program is run as ``PROGRAM SOCKET NAME ENDPOINT NODE_ID``. It is a registrar and its driver in one process:
the registration service is at SOCKET, and ``csi.v1.Identity`` and ``csi.v1.Node`` are at ENDPOINT. The driver is of
version 2.1.0. It stages volumes, has a controller, 16 volumes at most, and the topology ``zone=z1``. By
hand, in a checkout, as in ``device_plugins.py``::

    mkdir d && python tests/end_to_end/plugins/grpcio_csi.py d/a-reg.sock a.example.com $PWD/d/a.sock node-7

It prints a line of JSON when it listens, and for each call::

    {"listening": "d/a-reg.sock"}
    {"call": "NotifyRegistrationStatus", "plugin_registered": true, "error": ""}
    {"call": "NodeGetInfo"}                        and GetInfo, GetPluginInfo, GetPluginCapabilities, Probe, …
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from plugind.tests.end_to_end.foreign import GRPC_JS, PLUGINS, install_grpc_js
from plugind.tests.end_to_end.go_programs import go_program


@attrs.frozen
class CSIDriverProgram:
    """A program as the docstring of this module describes it."""

    label: str
    _start: Callable[[], list[str]]

    def command(self, socket: Path, name: str, endpoint: Path, node_id: str = "node-7") -> list[str]:
        """Return the command; skip the test if the program cannot run here."""
        return [*self._start(), str(socket), name, str(endpoint), node_id]


def _grpcio() -> list[str]:
    return [sys.executable, str(PLUGINS / "grpcio_csi.py")]


def _grpc_js() -> list[str]:
    install_grpc_js()
    return ["node", str(GRPC_JS / "csi.js")]


def _grpc_go() -> list[str]:
    return [go_program("csi_driver")]


GRPCIO = CSIDriverProgram("grpcio", _grpcio)
NODE = CSIDriverProgram("grpc-js", _grpc_js)
GO = CSIDriverProgram("grpc-go", _grpc_go)
ALL = (GRPCIO, *(pytest.param(program, marks=pytest.mark.extended) for program in (NODE, GO)))

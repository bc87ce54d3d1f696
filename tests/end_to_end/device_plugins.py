"""Device plugins that use other implementations of gRPC, each a program of its own.

Each program is run as ``PROGRAM DIRECTORY FILE RESOURCE [options]``. It serves ``v1beta1.DevicePlugin`` on the socket
DIRECTORY/FILE, with the devices ``NAME-0``, ``NAME-1``, …, where NAME is what follows the slash in RESOURCE. Their NUMA
nodes are 0 and 1 in turn. By hand, in a checkout, where the one in Python needs the extra ``test``::

    pip install -e '.[test]'
    mkdir d && python tests/end_to_end/plugins/grpcio_devices.py d a.sock example.com/a --route socket
    (cd tests/end_to_end/plugins/grpc-js && npm ci)
    mkdir d && node tests/end_to_end/plugins/grpc-js/devices.js d a.sock example.com/a --devices 8

``go_programs.py`` says how the one in Go is built.

========================  ======================================================================================
``--route call``          (default) calls Register on DIRECTORY/kubelet.sock each 0.1 s until the answer is OK
``--route socket``        serves the registration service of the plugin watcher on the same socket instead
``--devices N``           the number of devices; 4 by default
``--pre-start``           its options say that PreStartContainer is required
``--preferred``           its options say that GetPreferredAllocation is available
``--plain``               its devices are ``/dev/null`` inside of a container, too, so that a process can use them
SIGUSR1, SIGUSR2          the first device becomes unhealthy, and healthy again; each open stream gets the new list
SIGHUP                    each open ListAndWatch stream ends with UNAVAILABLE; new ones are served
SIGTERM                   ends, and removes its socket
========================  ======================================================================================

With ``--hang Allocate`` the one on grpcio never answers that call.

Like real plugins, it looks at its own socket file, here each 0.1 s, and listens and registers anew when the file is
gone or another one. It prints a line of JSON for everything that happens::

    {"listening": "d/a.sock"}                                            at each start
    {"lost": "d/a.sock"}                                                 the socket file is gone or another one
    {"call": "Register", "registered": true, "code": "OK", "error": ""}  the answer to its own call
    {"call": "ListAndWatch", "streams": 1}                               the number of streams that are open now
    {"listed": 4, "unhealthy": 1}                                        a list was sent
    {"ended": "ListAndWatch", "streams": 0}
    {"call": "Allocate", "ids": ["a-0"]}                                 and PreStartContainer
    {"call": "GetDevicePluginOptions"}                                   and GetPreferredAllocation, GetInfo
    {"call": "NotifyRegistrationStatus", "plugin_registered": true, "error": ""}
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
class DevicePluginProgram:
    """A program as the docstring of this module describes it."""

    label: str
    _start: Callable[[], list[str]]

    def command(self, directory: Path, file: str, resource: str, *options: str) -> list[str]:
        """Return the command; skip the test if the program cannot run here."""
        return [*self._start(), str(directory), file, resource, *options]


def _grpcio() -> list[str]:
    return [sys.executable, str(PLUGINS / "grpcio_devices.py")]


def _grpc_js() -> list[str]:
    install_grpc_js()
    return ["node", str(GRPC_JS / "devices.js")]


def _grpc_go() -> list[str]:
    return [go_program("devices")]


GRPCIO = DevicePluginProgram("grpcio", _grpcio)
NODE = DevicePluginProgram("grpc-js", _grpc_js)
GO = DevicePluginProgram("grpc-go", _grpc_go)
ALL = (GRPCIO, *(pytest.param(program, marks=pytest.mark.extended) for program in (NODE, GO)))

"""``plugind fake``: a fake plugin as a process, with a real socket.

:class:`plugind.actors.simulation.plugins.FakePlugin`, which the test kit uses too, decides what a fake plugin answers
and how it misbehaves. This module has its socket (:func:`run_fake`), its options, and the line that it prints for each
call.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Literal, TextIO, cast

import attrs
import trio

from ...protocol.endpoints import default_directories
from ...protocol.errors import ValidationError
from ...protocol.plugins import InfoLimits, check_info
from ..io.endpoints import Endpoints, RealEndpointFiles
from ..io.file_identity import identity_at
from ..io.grpc_server.serve import serve_listener
from ..io.unix_socket import UnixListener, listen
from ..simulation.plugins import Call, FakePlugin, FakeRegistration

#: The usual versions of plugins of each built-in type; node-driver-registrar always announces "1.0.0".
_USUAL_VERSIONS = {"CSIPlugin": "1.0.0", "DevicePlugin": "v1beta1", "DRAPlugin": "v1.DRAPlugin"}
_EPILOG = """\
examples:
  plugind fake --socket /var/lib/kubelet/plugins_registry/a.sock --type CSIPlugin --name a.example.com
  plugind fake --socket ./b.sock --type DRAPlugin --name b.example.com --fail-get-info 2
  plugind fake --socket ./c.sock --type DevicePlugin --name example.com/c --hang get-info
"""

OnCall = Callable[[Call], None]


@attrs.frozen
class FakeSpec:
    """A fake plugin and its socket."""

    socket: str
    plugin: FakePlugin
    #: False listens and never accepts.
    accepts: bool = True


async def run_fake(
    spec: FakeSpec, *, on_call: OnCall, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Listen on ``spec.socket`` and play the plugin until it is cancelled or dies, as its script says.

    ``on_call`` is given each call as it comes. A stale socket is replaced; the fake's own socket is removed at the end.

    Raises:
      OSError: if the path cannot be bound.
    """
    listener = listen(spec.socket, remove_stale=True)
    await _play(spec, listener, on_call=on_call, task_status=task_status)


async def _play(spec: FakeSpec, listener: UnixListener, *, on_call: OnCall, task_status: trio.TaskStatus[None]) -> None:
    if not spec.accepts:
        with listener:
            task_status.started()
            await trio.sleep_forever()
    with trio.CancelScope() as life:
        service = FakeRegistration(spec.plugin, on_call, life.cancel)
        await serve_listener([service, *spec.plugin.serves], listener, task_status=task_status)


def to_json(call: Call, socket: str, at: float) -> str:
    """Return one line of JSON for one ``call`` to ``socket``, received at ``at`` seconds of the reader's clock."""
    fields: dict[str, object] = {"time": at, "call": call.method}
    if call.registered is not None:
        fields |= {"plugin_registered": call.registered, "error": call.error}
    assert call.reaction is not None, "a fake plugin records what it does with each call"
    fields |= {"socket": socket, "peer_pid": call.peer_pid, "outcome": call.reaction.value}
    return json.dumps(fields)


async def fake_main(spec: FakeSpec, *, out: TextIO) -> None:
    """Run the fake until SIGTERM or SIGINT, and write one line of JSON to ``out`` for each call.

    Raises:
      OSError: if the socket cannot be bound.
    """
    printer = _Printer(spec.socket, out)
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        # The socket is bound here, so that a failure is not wrapped in an exception group.
        listener = listen(spec.socket, remove_stale=True)
        async with trio.open_nursery() as nursery:
            await nursery.start(functools.partial(_play, spec, listener, on_call=printer.print))
            plugin = spec.plugin
            _say(f"listening at {json.dumps(spec.socket)} as {json.dumps(plugin.type)} {json.dumps(plugin.name)}")
            _warn_of_endpoint(spec)
            async for _ in signals:
                nursery.cancel_scope.cancel()


def _say(line: str) -> None:
    # A fake plugin continues without standard error (fault 95).
    with contextlib.suppress(OSError):
        sys.stderr.write(f"plugind fake: {line}\n")
        sys.stderr.flush()


def _warn_of_endpoint(spec: FakeSpec) -> None:
    """Say why a daemon whose root is the directory of the socket would refuse the endpoint (fault 43)."""
    plugin, socket = spec.plugin, os.path.abspath(spec.socket)
    directories = default_directories([os.path.dirname(socket)])
    try:
        info = check_info(plugin.type, plugin.name, plugin.endpoint, (), socket=socket, limits=InfoLimits())
        judge = Endpoints(RealEndpointFiles(), directories)
        judge.judge(info.endpoint, socket, identity_at(os.lstat(socket), socket))
    except ValidationError as error:
        _say(f"a daemon would refuse this plugin: {error}")


class _Printer:
    """Writes a line for each call, as long as standard output has a reader (fault 95)."""

    def __init__(self, socket: str, out: TextIO) -> None:
        self._socket = socket
        self._out = out
        self._broken = False

    def print(self, call: Call) -> None:
        """Write one line and flush it.

        The time is CLOCK_MONOTONIC, which all processes of a machine share; Trio's clock has an offset of its own in
        each process.
        """
        if self._broken:
            return
        try:
            self._out.write(to_json(call, self._socket, time.monotonic()) + "\n")
            self._out.flush()
        except OSError as error:
            self._broken = True
            _say(f"calls are no longer written: {error.strerror}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``plugind fake``."""
    parser.description = "Play a plugin on a socket; print one line of JSON for each call that it receives."
    parser.epilog = _EPILOG
    parser.add_argument("--socket", required=True, metavar="PATH", help="where to listen, at most 107 bytes")
    parser.add_argument("--type", required=True, metavar="T", help="CSIPlugin, DevicePlugin, DRAPlugin or any other")
    parser.add_argument("--name", required=True, metavar="N", help="the plugin's name")
    parser.add_argument(
        "--version", action="append", metavar="V", help="a version it supports, repeatable; default: usual for its type"
    )
    parser.add_argument("--endpoint", default="", metavar="E", help="where its own service is; default: the socket")
    parser.add_argument("--fail-get-info", type=_count, default=0, metavar="K", help="refuse the first K GetInfo calls")
    parser.add_argument("--hang", choices=("accept", "get-info", "notify"), help="never do this")
    parser.add_argument("--reject-notify", action="store_true", help="answer NotifyRegistrationStatus with an error")


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("a number of calls is not negative")
    return value


def spec_from(args: argparse.Namespace) -> FakeSpec:
    """Return the fake plugin that the parsed arguments describe."""
    hang = cast('Literal["accept", "get-info", "notify"] | None', args.hang)
    versions = cast("list[str] | None", args.version) or [_USUAL_VERSIONS.get(args.type, "1.0.0")]
    plugin = FakePlugin(
        args.type,
        args.name,
        tuple(versions),
        args.endpoint,
        get_info_fails=args.fail_get_info,
        reject_notify=args.reject_notify,
        hang=None if hang == "accept" else hang,
    )
    return FakeSpec(args.socket, plugin, accepts=hang != "accept")


def run(args: argparse.Namespace) -> int:
    """Run ``plugind fake``; return 0 once a signal stopped it, 1 if it cannot listen."""
    spec = spec_from(args)
    try:
        trio.run(functools.partial(fake_main, spec, out=sys.stdout))
    except OSError as error:
        _say(f"cannot listen at {json.dumps(spec.socket)}: {error.strerror}")
        return 1
    return 0

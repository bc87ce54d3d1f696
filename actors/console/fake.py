"""``plugind fake``: a fake plugin as a process, with a real socket.

:class:`plugind.actors.simulation.plugins.FakePlugin`, which the test kit uses too, decides the answers and faults of a
fake plugin. This module has its socket (:func:`run_fake`), its options, and the line that it prints for each call. The
services of device plugins and drivers are in :mod:`.fake_devices`, :mod:`.fake_csi` and :mod:`.fake_dra`.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import ExitStack, suppress
from typing import Literal, TextIO, cast

import attrs
import trio

from ...protocol.discovery.endpoints import default_directories
from ...protocol.errors import ValidationError
from ...protocol.plugins.info import CSI, DEVICE, DRA, InfoLimits, check_info
from ..discovery.directory import describe
from ..grpc.endpoints import Endpoints, RealEndpointFiles
from ..grpc.server.serve import Service, serve_listener
from ..io.file_identity import identity_at
from ..io.unix_socket import UnixListener, listen
from ..simulation.file_devices import FileDevices
from ..simulation.plugins import Call, FakePlugin, FakeRegistration
from . import fake_csi, fake_devices, fake_dra
from .fake_calls import Announcement, Caller, Registered
from .fake_control import Commanded, follow_pipe, follow_standard_input, named_pipe

#: The usual versions of plugins of each built-in type; node-driver-registrar always announces "1.0.0".
_USUAL_VERSIONS = {CSI: "1.0.0", DEVICE: "v1beta1"}
_EPILOG = """\
examples:
  plugind fake --socket /var/lib/kubelet/plugins_registry/a.sock --type CSIPlugin --name a.example.com
  plugind fake --socket ./b.sock --type DRAPlugin --name b.example.com --fail-get-info 2
  plugind fake --socket ./c.sock --type DevicePlugin --name example.com/c --hang get-info

While it runs, a fake plugin of these types takes commands, one in a line, on standard input and in the pipe that
--control names. With --command COMMAND it has taken one before it listens.

"""
#: The types whose fake plugins accept commands, each with its options.
_ONLY_FOR = {
    DEVICE: ("device plugins", fake_devices.ONLY_FOR_DEVICES),
    CSI: ("CSI drivers", fake_csi.ONLY_FOR_CSI),
    DRA: ("DRA drivers", fake_dra.ONLY_FOR_DRA),
}

OnCall = Callable[[Call], None]


@attrs.frozen
class FakeSpec:
    """A fake plugin and its socket."""

    socket: str
    plugin: FakePlugin
    #: If False, it listens and never accepts.
    accepts: bool = True
    #: The service of its type, if it accepts commands.
    commanded: Commanded | None = None
    #: If False, another process serves its endpoint.
    serves_endpoint: bool = True
    #: The call of Register, if it is not found by its socket.
    announcement: Announcement | None = None
    #: The named pipe for commands.
    control: str | None = None
    #: The commands to execute before it listens.
    commands: tuple[str, ...] = ()


async def run_fake(
    spec: FakeSpec, *, on_call: OnCall, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Listen on ``spec.socket`` and play the plugin until it is cancelled or dies by its script.

    ``on_call`` gets each call. A stale socket is replaced; the fake's own socket is removed at the end.

    Raises:
      OSError: if the path cannot be bound.
    """
    listener = listen(spec.socket, remove_stale=True)
    await _play(spec, listener, on_call=on_call, task_status=task_status)


async def _play(spec: FakeSpec, listener: UnixListener, *, on_call: OnCall, task_status: trio.TaskStatus[None]) -> None:
    with trio.CancelScope() as life:
        service = FakeRegistration(spec.plugin, on_call, life.cancel)
        await _serve(spec, [service, *spec.plugin.serves], listener, task_status=task_status)


async def _serve(
    spec: FakeSpec, services: Collection[Service], listener: UnixListener, *, task_status: trio.TaskStatus[None]
) -> None:
    if spec.accepts:
        await serve_listener(services, listener, task_status=task_status)
    else:
        with listener:
            task_status.started()
            await trio.sleep_forever()


def to_json(call: Call, socket: str, at: float) -> str:
    """Return one line of JSON for one ``call`` to ``socket``, received at ``at`` seconds of the reader's clock."""
    fields: dict[str, object] = {"time": at, "call": call.method}
    if call.registered is not None:
        fields |= {"plugin_registered": call.registered, "error": call.error}
    assert call.reaction is not None, "a fake plugin records what it does with each call"
    if call.devices:
        fields["devices"] = list(call.devices)
    fields |= {"socket": socket, "peer_pid": call.peer_pid, "outcome": call.reaction.value}
    return json.dumps(fields)


async def fake_main(spec: FakeSpec, *, out: TextIO) -> None:
    """Run the fake until SIGTERM or SIGINT, and write one line of JSON to ``out`` for each call.

    Raises:
      OSError: if the socket cannot be bound, or the named pipe for commands cannot be made.
    """
    printer = _Printer(spec.socket, out)
    with ExitStack() as stack, trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        _take_first_commands(spec)
        pipe = None if spec.control is None else stack.enter_context(named_pipe(spec.control))
        # The sockets are bound here, so that a failure is not wrapped in an exception group.
        listener = stack.enter_context(listen(spec.socket, remove_stale=True))
        beside = _listen_at_endpoint(spec)
        if beside is not None:
            stack.enter_context(beside)
        plugin = spec.plugin
        _say(f"listening at {json.dumps(spec.socket)} as {json.dumps(plugin.type)} {json.dumps(plugin.name)}")
        async with trio.open_nursery() as nursery:
            if beside is not None:
                await nursery.start(serve_listener, plugin.serves, beside)
            await nursery.start(_start(spec, listener, printer))
            _warn_of_endpoint(spec)
            if spec.commanded is not None:
                _take_commands(nursery, spec.commanded, pipe)
            async for _ in signals:
                nursery.cancel_scope.cancel()


def _listen_at_endpoint(spec: FakeSpec) -> UnixListener | None:
    """Listen at the endpoint of the plugin, if that is another socket than its registration socket.

    The endpoint of a CSI driver can belong to another process, for which the fake plugin is only the registrar.

    Raises:
      OSError: if a device plugin cannot listen there.
    """
    endpoint = spec.plugin.endpoint.removeprefix("unix://")
    if not endpoint or spec.commanded is None or not spec.serves_endpoint:
        return None
    if os.path.abspath(endpoint) == os.path.abspath(spec.socket):
        return None
    try:
        return listen(endpoint, remove_stale=True)
    except OSError as error:
        if spec.plugin.type == DEVICE:
            raise
        _say(f"nothing is served here at the endpoint {json.dumps(endpoint)}: {error.strerror}")
        return None


def _start(spec: FakeSpec, listener: UnixListener, printer: _Printer) -> Callable[..., Awaitable[None]]:
    """Return the function that plays the plugin, by its way of registering."""
    if spec.commanded is not None:
        spec.commanded.service.record = printer.print
    if spec.announcement is None:
        return functools.partial(_play, spec, listener, on_call=printer.print)
    caller = Caller(spec.announcement, _say, printer.print_answer)
    return functools.partial(caller.play, listener, functools.partial(_serve, spec, spec.plugin.serves))


def _take_first_commands(spec: FakeSpec) -> None:
    for line in spec.commands:
        assert spec.commanded is not None, "--command is refused where no commands are taken"
        _say(spec.commanded.obey(line))


def _take_commands(nursery: trio.Nursery, commanded: Commanded, pipe: int | None) -> None:
    nursery.start_soon(follow_standard_input, commanded.obey, _say)
    if pipe is not None:
        nursery.start_soon(follow_pipe, pipe, commanded.obey, _say)


def _say(line: str) -> None:
    # A fake plugin continues without standard error (fault 95).
    with suppress(OSError):
        sys.stderr.write(f"plugind fake: {line}\n")
        sys.stderr.flush()


def _warn_of_endpoint(spec: FakeSpec) -> None:
    """Print why a daemon whose root is the directory of the socket would refuse the endpoint (fault 43)."""
    plugin, socket = spec.plugin, os.path.abspath(spec.socket)
    directories = default_directories([os.path.dirname(socket)])
    try:
        info = check_info(plugin.type, plugin.name, plugin.endpoint, (), socket=socket, limits=InfoLimits())
        judge = Endpoints(RealEndpointFiles(), directories)
        judge.judge(info.endpoint, socket, identity_at(os.lstat(socket), socket))
    except ValidationError as error:
        _say(f"a daemon would refuse this plugin: {error}")
    except OSError as error:  # A starting daemon empties the directory of its device plugins.
        _say(f"whether a daemon would take the endpoint cannot be found out: {describe(error)}")


class _Printer:
    """Writes a line for each call, as long as standard output has a reader (fault 95)."""

    def __init__(self, socket: str, out: TextIO) -> None:
        self._socket = socket
        self._out = out
        self._broken = False

    def print(self, call: Call) -> None:
        """Write and flush one line.

        The time is CLOCK_MONOTONIC, which all processes of a machine share; Trio's clock has another offset in each
        process.
        """
        self._write(to_json(call, self._socket, time.monotonic()))

    def print_answer(self, answer: Registered) -> None:
        """Write one line for the answer to a call of Register."""
        fields = {"plugin_registered": not answer.error, "error": answer.error, "socket": self._socket}
        self._write(json.dumps({"time": time.monotonic(), "sent": "Register", **fields}))

    def _write(self, line: str) -> None:
        if self._broken:
            return
        try:
            self._out.write(line + "\n")
            self._out.flush()
        except OSError as error:
            self._broken = True
            _say(f"calls are no longer written: {error.strerror}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``plugind fake``."""
    parser.description = (
        "Play a plugin on a socket; print one line of JSON for each call that it receives, and for each answer to its"
        " own calls of Register."
    )
    parser.epilog = _EPILOG + fake_devices.DEVICES_EPILOG + fake_csi.DRIVERS_EPILOG + fake_dra.DRA_EPILOG
    parser.add_argument("--socket", metavar="PATH", help="where to listen, at most 107 bytes")
    parser.add_argument("--type", required=True, metavar="T", help="CSIPlugin, DevicePlugin, DRAPlugin or any other")
    parser.add_argument("--name", required=True, metavar="N", help="the plugin's name")
    parser.add_argument(
        "--version", action="append", metavar="V", help="a version it supports, repeatable; default: usual for its type"
    )
    parser.add_argument("--endpoint", metavar="E", help="where its own service is; default: the socket")
    parser.add_argument(
        "--registrar-only", action="store_true", help="serve nothing at the endpoint: another process does, or will"
    )
    parser.add_argument("--fail-get-info", type=_count, metavar="K", help="refuse the first K GetInfo calls")
    parser.add_argument("--hang", choices=("accept", "get-info", "notify"), help="never do this")
    parser.add_argument("--reject-notify", action="store_true", help="answer NotifyRegistrationStatus with an error")
    parser.add_argument("--control", metavar="PIPE", help="make this named pipe, and take commands in it")
    parser.add_argument(
        "--command",
        dest="first_commands",
        action="append",
        default=[],
        metavar="COMMAND",
        help="take this command before it listens, repeatable",
    )
    fake_devices.add_device_arguments(parser)
    fake_csi.add_driver_arguments(parser)
    fake_dra.add_dra_arguments(parser)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of calls")
    return int(text)


def spec_from(args: argparse.Namespace) -> FakeSpec:
    """Return the fake plugin for the parsed arguments.

    Raises:
      CommandError: if they do not fit together, or a device has no file.
    """
    _check_arguments(args)
    devices = fake_devices.devices_from(args)
    commanded = _commanded_from(args, devices)
    hang = cast('Literal["accept", "get-info", "notify"] | None', args.hang)
    versions = cast("list[str] | None", args.version) or _usual_versions(args)
    plugin = FakePlugin(
        args.type,
        args.name,
        tuple(versions),
        args.endpoint or "",
        get_info_fails=args.fail_get_info or 0,
        reject_notify=args.reject_notify,
        hang=None if hang == "accept" else hang,
        serves=() if commanded is None else (commanded.service,),
    )
    announcement = fake_devices.announcement_from(args, versions[0], devices)
    return FakeSpec(
        fake_devices.socket_of(args),
        plugin,
        hang != "accept",
        commanded,
        serves_endpoint=not args.registrar_only,
        announcement=announcement,
        control=args.control,
        commands=tuple(args.first_commands),
    )


def _usual_versions(args: argparse.Namespace) -> list[str]:
    return fake_dra.usual_dra_versions(args) if args.type == DRA else [_USUAL_VERSIONS.get(args.type, "1.0.0")]


def _check_arguments(args: argparse.Namespace) -> None:
    for plugin_type, (whose, options) in _ONLY_FOR.items():
        if args.type != plugin_type and (option := fake_devices.first_option(args, options)):
            raise fake_devices.usage_error(f"{option} is for {whose}: add --type {plugin_type}, or leave it out")
    fake_devices.check_arguments(args)
    option = "--control" if args.control is not None else "--command"
    if (args.control is not None or args.first_commands) and args.type not in _ONLY_FOR:
        types = " or ".join(_ONLY_FOR)
        raise fake_devices.usage_error(f"{option} is for {types}: name one of them with --type, or leave it out")
    if args.registrar_only and not args.endpoint:
        raise fake_devices.usage_error("--registrar-only leaves the endpoint to another process: name it, --endpoint E")


def _commanded_from(args: argparse.Namespace, devices: FileDevices | None) -> Commanded | None:
    """Return the service of the plugin's type, with its commands."""
    if devices is not None:
        return Commanded(devices, functools.partial(fake_devices.obey, devices=devices))
    if (csi := fake_csi.driver_from(args)) is not None:
        return Commanded(csi, functools.partial(fake_csi.obey, driver=csi))
    dra = fake_dra.dra_driver_from(args)
    return None if dra is None else Commanded(dra, functools.partial(fake_dra.obey, driver=dra))


def run(args: argparse.Namespace) -> int:
    """Run ``plugind fake``; return 0 once a signal stopped it, 1 if it cannot listen."""
    spec = spec_from(args)
    try:
        trio.run(functools.partial(fake_main, spec, out=sys.stdout))
    except OSError as error:
        of_pipe = spec.control is not None and error.filename == spec.control
        what = "cannot take commands" if of_pipe else "cannot listen"
        _say(f"{what} at {json.dumps(error.filename or spec.socket)}: {error.strerror}{_advice(spec)}")
        return 1
    return 0


def _advice(spec: FakeSpec) -> str:
    """Return the advice if the directory of device plugins is missing."""
    directory = os.path.dirname(spec.socket) or "."
    if spec.announcement is None or os.path.isdir(directory):
        return ""
    return f"; start 'plugind run --device-plugins={directory}' first, which makes that directory, or make it"

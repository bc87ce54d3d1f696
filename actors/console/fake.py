"""The other side of the conversation: a plugin that registers as told, and misbehaves as told.

``plugind fake`` runs it as a process, ``plugind demo`` and the tests as an actor beside the daemon. What a fake
answers is :func:`decide`, pure and by the number of calls; :class:`FakeService` speaks it on any connection, in memory
too; :func:`run_fake` listens on a socket.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import functools
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TextIO, assert_never, cast

import attrs
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ...protocol.proto.pluginregistration_grpc import RegistrationBase
from ...protocol.proto.pluginregistration_pb2 import (
    InfoRequest,
    PluginInfo,
    RegistrationStatus,
    RegistrationStatusResponse,
)
from ..io.grpc_server.serve import Peer, bind_unix, owning, serve_listener

if TYPE_CHECKING:
    from grpclib.server import Stream

Hang = Literal["accept", "get-info", "notify"]
CallName = Literal["GetInfo", "NotifyRegistrationStatus"]

#: What a plugin of each built-in type usually says it speaks; node-driver-registrar has "1.0.0" for all.
_USUAL_VERSIONS = {"CSIPlugin": "1.0.0", "DevicePlugin": "v1beta1", "DRAPlugin": "v1.DRAPlugin"}
_EPILOG = """\
examples:
  plugind fake --socket /var/lib/kubelet/plugins_registry/a.sock --type CSIPlugin --name a.example.com
  plugind fake --socket ./b.sock --type DRAPlugin --name b.example.com --fail-get-info 2
  plugind fake --socket ./c.sock --type DevicePlugin --name example.com/c --hang get-info
"""


@attrs.frozen
class FakeSpec:
    """What a fake plugin says of itself, and how it misbehaves."""

    socket: str
    type: str
    name: str
    versions: tuple[str, ...] = ("1.0.0",)
    #: Empty means the registration socket itself, as the daemon fills it in.
    endpoint: str = ""
    #: How many of the first GetInfo calls end with UNAVAILABLE.
    fail_get_info: int = 0
    #: ``accept`` listens and never accepts; the others never answer that call.
    hang: Hang | None = None
    #: NotifyRegistrationStatus ends with an error.
    reject_notify: bool = False


class Reaction(enum.Enum):
    """What the fake does with one call."""

    ANSWERED = "answered"
    REFUSED = "refused"
    HUNG = "hung"


@attrs.frozen
class GetInfoCalled:
    """The daemon asked who we are; ``time`` is Trio's, in seconds."""

    time: float
    socket: str
    peer_pid: int | None
    outcome: Reaction


@attrs.frozen
class NotifyCalled:
    """The daemon said how the registration went; ``time`` is Trio's, in seconds."""

    time: float
    socket: str
    peer_pid: int | None
    outcome: Reaction
    plugin_registered: bool
    error: str


FakeCall = GetInfoCalled | NotifyCalled
OnCall = Callable[[FakeCall], None]


def decide(spec: FakeSpec, call: CallName, earlier: int) -> Reaction:
    """What becomes of a call, after ``earlier`` calls of the same name."""
    match call:
        case "GetInfo":
            if spec.hang == "get-info":
                return Reaction.HUNG
            return Reaction.REFUSED if earlier < spec.fail_get_info else Reaction.ANSWERED
        case "NotifyRegistrationStatus":
            if spec.hang == "notify":
                return Reaction.HUNG
            return Reaction.REFUSED if spec.reject_notify else Reaction.ANSWERED
        case _:
            assert_never(call)


def info_of(spec: FakeSpec) -> PluginInfo:
    """The answer to GetInfo."""
    return PluginInfo(type=spec.type, name=spec.name, endpoint=spec.endpoint, supported_versions=list(spec.versions))


class FakeService(RegistrationBase):
    """The Registration service of one fake plugin; counts its calls over all its connections."""

    def __init__(self, spec: FakeSpec, on_call: OnCall) -> None:
        self._spec = spec
        self._on_call = on_call
        self._asked = 0
        self._notified = 0

    async def GetInfo(self, stream: Stream[InfoRequest, PluginInfo]) -> None:  # noqa: N802 -- the name in the .proto
        """Say who we are, or do not, as the spec has it."""
        await stream.recv_message()
        outcome = decide(self._spec, "GetInfo", self._asked)
        self._asked += 1
        self._on_call(GetInfoCalled(trio.current_time(), self._spec.socket, _pid(stream.peer), outcome))
        await _perform(outcome, f"this fake refuses its first {self._spec.fail_get_info} GetInfo calls")
        await stream.send_message(info_of(self._spec))

    async def NotifyRegistrationStatus(  # noqa: N802 -- the name in the .proto
        self, stream: Stream[RegistrationStatus, RegistrationStatusResponse]
    ) -> None:
        """Take note of how the registration went, or do not, as the spec has it."""
        status = await stream.recv_message() or RegistrationStatus()
        outcome = decide(self._spec, "NotifyRegistrationStatus", self._notified)
        self._notified += 1
        self._on_call(
            NotifyCalled(
                trio.current_time(),
                self._spec.socket,
                _pid(stream.peer),
                outcome,
                status.plugin_registered,
                status.error,
            )
        )
        await _perform(outcome, "this fake refuses to be notified")
        await stream.send_message(RegistrationStatusResponse())


def _pid(peer: object) -> int | None:
    return peer.pid if isinstance(peer, Peer) else None


async def _perform(outcome: Reaction, why: str) -> None:
    match outcome:
        case Reaction.ANSWERED:
            return
        case Reaction.REFUSED:
            raise GRPCError(Status.UNAVAILABLE, why)
        case Reaction.HUNG:
            # The client's deadline or its leaving ends the call's scope.
            await trio.sleep_forever()
        case _:
            assert_never(outcome)


async def run_fake(
    spec: FakeSpec, *, on_call: OnCall, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Listen on ``spec.socket`` and play the plugin until cancelled; ``on_call`` is told of each call as it comes.

    A stale socket is replaced, our own is removed at the end. Raises OSError where the path cannot be bound.
    """
    listener = bind_unix(spec.socket, remove_stale=True)
    await _play(spec, listener, on_call=on_call, task_status=task_status)


async def _play(
    spec: FakeSpec, listener: trio.socket.SocketType, *, on_call: OnCall, task_status: trio.TaskStatus[None]
) -> None:
    if spec.hang == "accept":
        with owning(listener, spec.socket):
            task_status.started()
            await trio.sleep_forever()
    await serve_listener([FakeService(spec, on_call)], listener, spec.socket, task_status=task_status)


def to_json(call: FakeCall, at: float) -> str:
    """One line of JSON for one call, received at ``at`` seconds of the clock that the reader knows."""
    match call:
        case GetInfoCalled():
            fields: dict[str, object] = {"time": at, "call": "GetInfo"}
        case NotifyCalled():
            fields = {
                "time": at,
                "call": "NotifyRegistrationStatus",
                "plugin_registered": call.plugin_registered,
                "error": call.error,
            }
        case _:
            assert_never(call)
    fields |= {"socket": call.socket, "peer_pid": call.peer_pid, "outcome": call.outcome.value}
    return json.dumps(fields)


async def fake_main(spec: FakeSpec, *, out: TextIO) -> None:
    """Run the fake until SIGTERM or SIGINT, writing one line of JSON to ``out`` for each call.

    Raises OSError where the socket cannot be bound.
    """
    printer = _Printer(out)
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        # Bound here, so that its failure is no exception group.
        listener = bind_unix(spec.socket, remove_stale=True)
        async with trio.open_nursery() as nursery:
            await nursery.start(functools.partial(_play, spec, listener, on_call=printer.print))
            _tell(f"listening at {json.dumps(spec.socket)} as {json.dumps(spec.type)} {json.dumps(spec.name)}")
            async for _ in signals:
                nursery.cancel_scope.cancel()


def _tell(line: str) -> None:
    # A fake whose standard error is gone goes on playing (fault 95).
    with contextlib.suppress(OSError):
        sys.stderr.write(f"plugind fake: {line}\n")
        sys.stderr.flush()


class _Printer:
    """Writes calls until nobody reads them any more (fault 95)."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._broken = False

    def print(self, call: FakeCall) -> None:
        """Write one line and flush it.

        The time is CLOCK_MONOTONIC, which all processes of a machine share; Trio's clock has an offset of its own in
        each process.
        """
        if self._broken:
            return
        try:
            self._out.write(to_json(call, time.monotonic()) + "\n")
            self._out.flush()
        except OSError as error:
            self._broken = True
            _tell(f"calls are no longer written: {error.strerror}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``plugind fake``."""
    parser.description = "Play a plugin on a socket; print one line of JSON for each call that it receives."
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
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
    """The spec that the parsed arguments ask for."""
    versions = cast("list[str] | None", args.version) or [_USUAL_VERSIONS.get(args.type, "1.0.0")]
    return FakeSpec(
        socket=args.socket,
        type=args.type,
        name=args.name,
        versions=tuple(versions),
        endpoint=args.endpoint,
        fail_get_info=args.fail_get_info,
        hang=args.hang,
        reject_notify=args.reject_notify,
    )


def main(args: argparse.Namespace) -> int:
    """Run ``plugind fake``: 0 once stopped by a signal, 1 when the socket cannot be had."""
    spec = spec_from(args)
    try:
        trio.run(functools.partial(fake_main, spec, out=sys.stdout))
    except OSError as error:
        _tell(f"cannot listen at {json.dumps(spec.socket)}: {error.strerror}")
        return 1
    finally:
        _settle_stdout()
    return 0


def _settle_stdout() -> None:
    """Give what a broken pipe did not take to nobody, since the interpreter would fail on it at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)

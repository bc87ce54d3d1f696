"""A plugin as its author would write it on Trio: it registers, and serves both versions of the example service.

Run it beside a daemon, or beside ``examples/example_handler.py``, which is the other half of the pair::

    python examples/example_plugin.py --socket /tmp/plugins/example.sock --name first.example.com

Its own services are served on the registration socket. With ``--endpoint PATH`` they get a socket of their own, as
most real plugins do, so that the registration socket can be in one directory and the service in another::

    python examples/example_plugin.py --socket /tmp/plugins/b.sock --name b.example.com --endpoint /tmp/b.sock

SIGTERM and Ctrl-C end it: calls in progress finish, both sockets are removed, the exit code is 0. A refused
registration ends it too, with exit code 1 and the reason, as it ends the registrars of real plugins.
"""

from __future__ import annotations

import argparse
import functools
import signal
import sys
from typing import TYPE_CHECKING

import attrs
import trio

from plugind.actors.io.grpc_server.serve import Service, serve_unix
from plugind.protocol.proto.example_v1beta1_grpc import ExampleBase as ExampleBaseV1Beta1
from plugind.protocol.proto.example_v1beta1_pb2 import ExampleRequest as ExampleRequestV1Beta1
from plugind.protocol.proto.example_v1beta1_pb2 import ExampleResponse as ExampleResponseV1Beta1
from plugind.protocol.proto.example_v1beta2_grpc import ExampleBase as ExampleBaseV1Beta2
from plugind.protocol.proto.example_v1beta2_pb2 import ExampleRequest as ExampleRequestV1Beta2
from plugind.protocol.proto.example_v1beta2_pb2 import ExampleResponse as ExampleResponseV1Beta2
from plugind.protocol.proto.pluginregistration_grpc import RegistrationBase
from plugind.protocol.proto.pluginregistration_pb2 import (
    InfoRequest,
    PluginInfo,
    RegistrationStatus,
    RegistrationStatusResponse,
)

if TYPE_CHECKING:
    from grpclib.server import Stream

#: What we serve, and so what we say that we support.
VERSIONS = ("v1beta1", "v1beta2")


@attrs.define
class Life:
    """What the registration service tells the main task."""

    #: Set by a signal or by a refusal; the server then finishes what is in progress.
    stopping: trio.Event = attrs.field(factory=trio.Event)
    #: Why the daemon refused us, where it did.
    refusal: str | None = None


class Registration(RegistrationBase):
    """What every plugin serves on its registration socket: its name and type, and a call for the result."""

    def __init__(self, info: PluginInfo, life: Life) -> None:
        self._info = info
        self._life = life

    async def GetInfo(self, stream: Stream[InfoRequest, PluginInfo]) -> None:  # noqa: N802 -- named in the .proto
        """The daemon makes this call first, each time that the socket appears."""
        await stream.recv_message()
        await stream.send_message(self._info)

    async def NotifyRegistrationStatus(  # noqa: N802 -- named in the .proto
        self, stream: Stream[RegistrationStatus, RegistrationStatusResponse]
    ) -> None:
        """The daemon makes this call last: registered, or why not."""
        status = await stream.recv_message()
        await stream.send_message(RegistrationStatusResponse())
        if status is None:
            return
        if status.plugin_registered:
            print("registered", flush=True)
        else:
            # Answered before, so that the daemon's call succeeds.
            self._life.refusal = status.error
            self._life.stopping.set()


class ExampleV1Beta1(ExampleBaseV1Beta1):
    """The older version of our own service."""

    async def GetExampleInfo(  # noqa: N802 -- named in the .proto
        self, stream: Stream[ExampleRequestV1Beta1, ExampleResponseV1Beta1]
    ) -> None:
        """Answer without an error, after saying what was asked."""
        request = await stream.recv_message()
        if request is not None:
            print(f"v1beta1 asked: {request.request!r} {request.v1beta1_field!r}", flush=True)
        await stream.send_message(ExampleResponseV1Beta1())


class ExampleV1Beta2(ExampleBaseV1Beta2):
    """The newer one; both can be served at once, since the package is part of a method's path."""

    async def GetExampleInfo(  # noqa: N802 -- named in the .proto
        self, stream: Stream[ExampleRequestV1Beta2, ExampleResponseV1Beta2]
    ) -> None:
        """Answer without an error, after saying what was asked."""
        request = await stream.recv_message()
        if request is not None:
            print(f"v1beta2 asked: {request.request!r} {request.v1beta2_field!r}", flush=True)
        await stream.send_message(ExampleResponseV1Beta2())


async def run(socket: str, plugin_type: str, name: str, endpoint: str, life: Life) -> None:
    """Serve until ``life.stopping`` is set. Raises OSError, in a group, where a socket cannot be bound."""
    info = PluginInfo(type=plugin_type, name=name, endpoint=endpoint, supported_versions=VERSIONS)
    registration: list[Service] = [Registration(info, life)]
    examples: list[Service] = [ExampleV1Beta1(), ExampleV1Beta2()]
    # A socket that a killed predecessor left behind is replaced.
    serve = functools.partial(serve_unix, remove_stale=True, stopping=life.stopping)
    async with trio.open_nursery() as nursery:
        if endpoint:
            # The service first: once the registration socket is there, the daemon may call us at any moment.
            await nursery.start(serve, examples, endpoint)
            await nursery.start(serve, registration, socket)
        else:
            await nursery.start(serve, registration + examples, socket)
        print(f"listening at {socket}", flush=True)


async def run_until_stopped(args: argparse.Namespace, life: Life) -> None:
    """Run the plugin until a signal or a refusal ends it."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_on_signal, life, nursery.cancel_scope)
        await run(args.socket, args.type, args.name, args.endpoint, life)
        nursery.cancel_scope.cancel()


async def stop_on_signal(life: Life, everything: trio.CancelScope) -> None:
    """The first signal stops gracefully, the second at once."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            if life.stopping.is_set():
                everything.cancel()
            life.stopping.set()


def first_cause(error: BaseException) -> BaseException:
    """The error itself, out of the groups that the nurseries on its way up have put around it."""
    return first_cause(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def main() -> int:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description="An example plugin on Trio.")
    parser.add_argument("--socket", required=True, metavar="PATH", help="the registration socket")
    parser.add_argument("--name", required=True, metavar="N", help="the plugin's name")
    parser.add_argument("--type", default="ExamplePlugin", metavar="T", help="the plugin's type (%(default)s)")
    parser.add_argument("--endpoint", default="", metavar="PATH", help="a socket of its own for the services")
    life, failure = Life(), None
    try:
        trio.run(run_until_stopped, parser.parse_args(), life)
    except* OSError as errors:
        # Not raised here: before CPython 3.11.4, a SystemExit that leaves ``except*`` arrives in a group.
        failure = first_cause(errors)
    if failure is not None:
        print(f"example plugin: {failure}", file=sys.stderr)
        return 1
    if life.refusal is not None:
        print(f"example plugin: not registered: {life.refusal}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

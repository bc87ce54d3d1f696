"""A plugin as an author would write it on Trio. It registers, and serves both versions of the example service.

Run it beside a daemon, or beside ``examples/example_handler.py``, which is the other half of the pair::

    python examples/example_plugin.py --socket /tmp/plugins/example.sock --name first.example.com

Its services are served on the registration socket. With ``--endpoint PATH`` they have a separate socket, as those of
most real plugins do, so that the registration socket can be in one directory and the service in another::

    python examples/example_plugin.py --socket /tmp/plugins/b.sock --name b.example.com --endpoint /tmp/plugins/.b.sock

On SIGTERM and Ctrl-C calls in progress finish, both sockets are removed, and the exit code is 0. After a refused
registration the plugin prints the reason and exits with code 1, as the registrars of real plugins do.
"""

from __future__ import annotations

import argparse
import functools
import signal
import sys
from typing import TYPE_CHECKING

import attrs
import trio

from plugind.actors.grpc.server.serve import Service, serve_unix
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

#: The versions that the plugin serves and announces.
VERSIONS = ("v1beta1", "v1beta2")


@attrs.define
class Life:
    """State that the registration service and the main task share."""

    #: Set by a signal or by a refusal; the server then finishes the calls in progress.
    stopping: trio.Event = attrs.field(factory=trio.Event)
    #: The reason of the daemon if it refused the plugin.
    refusal: str | None = None


class Registration(RegistrationBase):
    """The service on every registration socket: it returns the plugin's name and type, and gets the result."""

    def __init__(self, info: PluginInfo, life: Life) -> None:
        self._info = info
        self._life = life

    async def GetInfo(self, stream: Stream[InfoRequest, PluginInfo]) -> None:  # noqa: N802 -- named in the .proto
        """The daemon makes this call first, each time a socket appears."""
        await stream.recv_message()
        await stream.send_message(self._info)

    async def NotifyRegistrationStatus(  # noqa: N802 -- named in the .proto
        self, stream: Stream[RegistrationStatus, RegistrationStatusResponse]
    ) -> None:
        """The daemon makes this call last. It says whether the plugin is registered, and if not, why."""
        status = await stream.recv_message()
        await stream.send_message(RegistrationStatusResponse())
        if status is None:
            return
        if status.plugin_registered:
            print("registered", flush=True)
        else:
            # The plugin stops after it has answered, so that the daemon's call succeeds.
            self._life.refusal = status.error
            self._life.stopping.set()


class ExampleV1Beta1(ExampleBaseV1Beta1):
    """The older version of our own service."""

    async def GetExampleInfo(  # noqa: N802 -- named in the .proto
        self, stream: Stream[ExampleRequestV1Beta1, ExampleResponseV1Beta1]
    ) -> None:
        """Print the request, and answer without an error."""
        request = await stream.recv_message()
        if request is not None:
            print(f"v1beta1 asked: {request.request!r} {request.v1beta1_field!r}", flush=True)
        await stream.send_message(ExampleResponseV1Beta1())


class ExampleV1Beta2(ExampleBaseV1Beta2):
    """The newer version. Both can be served at once, since the package is part of a method's path."""

    async def GetExampleInfo(  # noqa: N802 -- named in the .proto
        self, stream: Stream[ExampleRequestV1Beta2, ExampleResponseV1Beta2]
    ) -> None:
        """Print the request, and answer without an error."""
        request = await stream.recv_message()
        if request is not None:
            print(f"v1beta2 asked: {request.request!r} {request.v1beta2_field!r}", flush=True)
        await stream.send_message(ExampleResponseV1Beta2())


async def run(socket: str, plugin_type: str, name: str, endpoint: str, life: Life) -> None:
    """Serve until ``life.stopping`` is set. Raises OSError, in a group, if a socket cannot be bound."""
    info = PluginInfo(type=plugin_type, name=name, endpoint=endpoint, supported_versions=VERSIONS)
    registration: list[Service] = [Registration(info, life)]
    examples: list[Service] = [ExampleV1Beta1(), ExampleV1Beta2()]
    # A socket that a killed process left behind is replaced.
    serve = functools.partial(serve_unix, remove_stale=True, stopping=life.stopping)
    async with trio.open_nursery() as nursery:
        if endpoint:
            # The service is started first, since the daemon may call it as soon as the registration socket exists.
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
    """Stop gracefully on the first signal, and at once on the second one."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            if life.stopping.is_set():
                everything.cancel()
            life.stopping.set()


def first_cause(error: BaseException) -> BaseException:
    """Return the error itself, without the groups in which nurseries have wrapped it."""
    return first_cause(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def main() -> int:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description="An example plugin on Trio.")
    parser.add_argument("--socket", required=True, metavar="PATH", help="the registration socket")
    parser.add_argument("--name", required=True, metavar="N", help="the plugin's name")
    parser.add_argument("--type", default="ExamplePlugin", metavar="T", help="the plugin's type (%(default)s)")
    parser.add_argument("--endpoint", default="", metavar="PATH", help="a separate socket for the services")
    life, failure = Life(), None
    try:
        trio.run(run_until_stopped, parser.parse_args(), life)
    except* OSError as errors:
        # The error is handled below: before CPython 3.11.4, a SystemExit raised in ``except*`` is wrapped in a group.
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

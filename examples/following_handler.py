"""A handler that follows its plugins: it watches their health, for as long as they are registered.

A plugin of the type ``WatchedPlugin`` serves the health service of gRPC, ``grpc.health.v1``, on its endpoint. The
handler watches it, tells plugind how the plugin is, and prefers an instance that serves to one that does not. Run it,
and look at what it reports with ``plugind describe``::

    mkdir -p /tmp/plugins
    python examples/following_handler.py /tmp/plugins /tmp/plugind.sock &
    plugind describe --status /tmp/plugind.sock NAME

``follow`` runs as a task of its own. If it raises or returns, plugind calls it again after a second, then after two
seconds, and so on up to thirty: so there is no loop here, and no error to catch that somebody else repairs.
"""

from __future__ import annotations

import os
import sys

import trio
from grpclib.exceptions import GRPCError

from plugind import Config, Health, Link, Plugin, PluginError, Root, Supervisor
from plugind.protocol.proto.health_v1_grpc import HealthStub
from plugind.protocol.proto.health_v1_pb2 import HealthCheckRequest, HealthCheckResponse


class WatchingHandler:
    """Registers plugins that serve ``grpc.health.v1``, and reports what that service says of them."""

    #: The deadline of the one call in ``register``, in seconds, with what it may take to connect.
    longest_call = 10.0 + 5.0

    async def validate(self, plugin: Plugin) -> None:
        """Accept every plugin."""

    async def register(self, plugin: Plugin, link: Link) -> None:
        """Ask the plugin once, so that one without the service is told so. The link stays connected."""
        channel = await link.connect(timeout=10.0)
        try:
            await channel.stub(HealthStub).Check(HealthCheckRequest(), timeout=5.0)
        except GRPCError as error:
            raise PluginError(f"it does not answer on grpc.health.v1: {error.message}") from error

    async def follow(self, plugin: Plugin, link: Link) -> None:
        """Report each change of the plugin's health until it is deregistered."""
        link.report(Health.STARTING)
        channel = await link.connect()
        link.report(Health.STARTING, facts={"process": str(channel.peer.pid) if channel.peer else "unknown"})
        try:
            async with channel.stub(HealthStub).Watch.open() as stream:
                await stream.send_message(HealthCheckRequest(), end=True)
                async for answer in stream:
                    report(link, answer)
        except GRPCError as error:
            link.report(Health.DISCONNECTED, error.message or error.status.name)
        finally:
            link.role(usable=False)

    async def deregister(self, plugin: Plugin) -> None:
        """There is nothing to undo: ``follow`` has ended before, and the link is closed."""


def report(link: Link, answer: HealthCheckResponse) -> None:
    """Report what the health service of a plugin says."""
    serves = answer.status == HealthCheckResponse.SERVING
    link.role(usable=serves)
    if serves:
        link.report(Health.HEALTHY)
    else:
        link.report(Health.UNHEALTHY, f"its health service says {answer.ServingStatus.Name(answer.status)}")


async def main(root: str, status: str) -> None:
    """Run a node with this handler on the directory ``root``, and serve its status, until Ctrl-C."""
    config = Config(roots=(Root(root),))
    handlers = {"WatchedPlugin": WatchingHandler()}
    async with Supervisor(config, handlers=handlers, status_socket=status):
        await trio.sleep_forever()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        print("usage: python examples/following_handler.py DIRECTORY STATUS-SOCKET", file=sys.stderr)
        sys.exit(2)
    try:
        trio.run(main, os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]))
    except* KeyboardInterrupt:
        pass

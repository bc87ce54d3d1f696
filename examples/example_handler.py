"""A handler as a user would write it, for the plugin type ``ExamplePlugin``.

A plugin of that type serves one or both versions of the example service on its endpoint. The handler accepts it if
the two have a version in common, and calls the newest common one at registration. Run it with the example plugin::

    mkdir -p /tmp/plugins
    python examples/example_handler.py /tmp/plugins &
    python examples/example_plugin.py --socket /tmp/plugins/example.sock --name first.example.com

To have ``plugind run`` serve such plugins, name the class in the entry points of your own distribution::

    [project.entry-points."plugind.handlers"]
    ExamplePlugin = "your_package.example_handler:ExampleHandler"
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, cast

import trio

from plugind import Config, InstancePolicy, Plugin, PluginError, Root, Supervisor
from plugind.actors.grpc.client.dial import dial
from plugind.protocol.proto.example_v1beta1_grpc import ExampleStub as ExampleStubV1Beta1
from plugind.protocol.proto.example_v1beta1_pb2 import ExampleRequest as ExampleRequestV1Beta1
from plugind.protocol.proto.example_v1beta2_grpc import ExampleStub as ExampleStubV1Beta2
from plugind.protocol.proto.example_v1beta2_pb2 import ExampleRequest as ExampleRequestV1Beta2

if TYPE_CHECKING:
    import grpclib.client

#: The versions that this handler supports, newest first.
SUPPORTED_VERSIONS = ("v1beta2", "v1beta1")


class ExampleHandler:
    """Registers example plugins, with the newest version of the example service that both sides support."""

    follow = None

    #: If two sockets offer the same name, both are kept, and the newer one is active.
    instances = InstancePolicy.NEWEST

    def __init__(self, *, permit_deprecated_dir: bool = False) -> None:
        self.permit_deprecated_dir = permit_deprecated_dir
        #: The version that is used with each registered plugin, by socket.
        self.registered: dict[str, str] = {}

    async def validate(self, plugin: Plugin) -> None:
        """Refuse a plugin without a common version. The plugin gets the text of the error."""
        if plugin.found_in_deprecated_dir and not self.permit_deprecated_dir:
            raise PluginError(f"{plugin.socket} lies in a deprecated directory: move it")
        newest_common_version(plugin)

    async def register(self, plugin: Plugin) -> None:
        """Call the plugin once, and register it only if it answers without an error."""
        version = newest_common_version(plugin)
        error = await call_example(plugin.endpoint, version)
        if error:
            raise PluginError(f"the example service {version} answered: {error}")
        self.registered[plugin.socket] = version

    async def deregister(self, plugin: Plugin) -> None:
        """Called once for each register, including one that raised, so the plugin may be unknown here."""
        self.registered.pop(plugin.socket, None)


def newest_common_version(plugin: Plugin) -> str:
    """Return the newest version that the plugin and this handler both support."""
    for version in SUPPORTED_VERSIONS:
        if version in plugin.versions:
            return version
    raise PluginError(f"none of {', '.join(SUPPORTED_VERSIONS)} is among the versions {', '.join(plugin.versions)}")


async def call_example(endpoint: str, version: str) -> str:
    """Call GetExampleInfo on ``endpoint`` and return the error in its answer, which is empty on success."""
    async with await dial(endpoint, timeout=10) as channel:
        # plugind's channel has everything that a generated stub uses of grpclib's.
        stub_channel = cast("grpclib.client.Channel", channel)
        if version == "v1beta2":
            newer = ExampleRequestV1Beta2(request="hello", v1beta2_field="from the example handler")
            return (await ExampleStubV1Beta2(stub_channel).GetExampleInfo(newer, timeout=10)).error
        older = ExampleRequestV1Beta1(request="hello", v1beta1_field="from the example handler")
        return (await ExampleStubV1Beta1(stub_channel).GetExampleInfo(older, timeout=10)).error


async def main(root: str) -> None:
    """Run a node with this handler on the directory ``root``, and print each change of state, until Ctrl-C."""
    config = Config(roots=(Root(root),))
    async with Supervisor(config, handlers={"ExamplePlugin": ExampleHandler()}) as node, node.watch() as changes:
        async for plugin in changes:
            print(plugin.socket, plugin.name or "?", plugin.state, plugin.reason or "", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print("usage: python examples/example_handler.py DIRECTORY", file=sys.stderr)
        sys.exit(2)
    try:
        # A root is named by its absolute path.
        trio.run(main, os.path.abspath(sys.argv[1]))
    except* KeyboardInterrupt:
        pass

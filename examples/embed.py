"""A program that embeds plugind: it adds a handler to a running node, and waits for a plugin before it continues.

::

    mkdir -p /tmp/plugins
    python examples/embed.py /tmp/plugins &
    plugind fake --socket /tmp/plugins/red.sock --type ColourPlugin --name red.example.com
"""

from __future__ import annotations

import os
import sys

import trio

from plugind import Config, Plugin, PluginError, Root, Supervisor


class ColourHandler:
    """The consumer of plugins of type ``ColourPlugin``. A handler needs only these three methods."""

    follow = None

    async def validate(self, plugin: Plugin) -> None:
        """Raise an error if the plugin is not acceptable; the plugin gets the text of the error."""
        if not plugin.name.endswith(".example.com"):
            raise PluginError(f"{plugin.name} is not one of our colours")

    async def register(self, plugin: Plugin) -> None:
        """Start to use the plugin."""
        print(f"in service: {plugin.name}, at {plugin.endpoint}", flush=True)

    async def deregister(self, plugin: Plugin) -> None:
        """Stop using the plugin."""
        print(f"out of service: {plugin.name}", flush=True)


async def main(root: str) -> None:
    """Run a node on the directory ``root``, wait for a colour, and stop."""
    async with Supervisor(Config(roots=(Root(root),))) as node:
        # Plugins of this type that were found before are parked; they are tried at once when their handler is added.
        await node.add_handler("ColourPlugin", ColourHandler())
        await node.wait_scanned()
        for found in (await node.snapshot()).roots:
            if found.reason:
                # The node tries such a root again for as long as it runs.
                print(f"{found.root}: {found.watching}, {found.reason}", file=sys.stderr, flush=True)
        with trio.fail_after(60):
            plugin = await node.wait_for("red.example.com", type="ColourPlugin")
        print(f"{plugin.name} was registered within {plugin.registered_in:.3f} s", flush=True)
        for other in (await node.snapshot()).plugins:
            print(f"{other.socket}: {other.state}, {other.reason or 'all is well'}", flush=True)
        await node.remove_handler("ColourPlugin")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print("usage: python examples/embed.py DIRECTORY", file=sys.stderr)
        sys.exit(2)
    interrupted = False
    try:
        # A root is named by its absolute path.
        trio.run(main, os.path.abspath(sys.argv[1]))
    except* KeyboardInterrupt:
        # Ctrl-C. A star, since it may come while any task of the node runs; the nursery then puts a group around it.
        interrupted = True
    sys.exit(130 if interrupted else 0)

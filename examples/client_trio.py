"""A program on Trio that follows a running daemon: it prints each plugin that is registered, or is no longer.

::

    plugind run --root /tmp/plugins &
    python examples/client_trio.py &
    plugind fake --socket /tmp/plugins/red.sock --type CSIPlugin --name red.example.com
"""

from __future__ import annotations

import sys

import trio

from plugind.client import Client, ClientError, StateName


async def main() -> None:
    """Print changes until the daemon stops."""
    registered: set[str] = set()
    async with Client().watch() as changes:
        print("watching", flush=True)
        async for plugin in changes:
            if plugin.state is StateName.REGISTERED and plugin.socket not in registered:
                registered.add(plugin.socket)
                print(f"in service: {plugin.name}", flush=True)
            elif plugin.state is not StateName.REGISTERED and plugin.socket in registered:
                registered.remove(plugin.socket)
                print(f"out of service: {plugin.name}", flush=True)


if __name__ == "__main__":
    try:
        trio.run(main)
    except ClientError as error:
        sys.exit(f"client_trio: {error}")
    except KeyboardInterrupt:
        pass

"""A program on asyncio that follows a running daemon: it prints each plugin that is registered, until it gets SIGTERM.

::

    plugind run --root /tmp/plugins &
    python examples/client_asyncio.py &
    plugind fake --socket /tmp/plugins/red.sock --type CSIPlugin --name red.example.com
"""

from __future__ import annotations

import asyncio
import signal
import sys

from plugind.client import Client, ClientError, StateName


async def main() -> None:
    """Print the plugins until the daemon stops, or this program is to stop."""
    async with Client().watch() as changes:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, changes.close)
        print("watching", flush=True)
        async for plugin in changes:
            if plugin.state is StateName.REGISTERED:
                print(f"in service: {plugin.name}", flush=True)
    print("no longer watching")


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except ClientError as error:
        sys.exit(f"client_asyncio: {error}")
    except KeyboardInterrupt:
        pass

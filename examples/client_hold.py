"""A program on Trio that works with a device for as long as its lease lasts: a connection owns it.

::

    plugind run --root /tmp/plugins --device-plugins=/tmp/device-plugins --state /tmp/state &
    plugind fake --type DevicePlugin --name vendor.com/gpu --devices 2 --device-plugins=/tmp/device-plugins &
    python examples/client_hold.py vendor.com/gpu

It goes on while plugind is restarted, and ends when somebody runs ``plugind release`` with the id of its lease.
"""

from __future__ import annotations

import sys

import trio

from plugind.client import Client, ClientError


async def main(resource: str) -> None:
    """Hold a device until the lease is released."""
    async with Client().hold({resource: 1}, wait=60) as held:
        print(f"the lease {held.lease.id} gives us {', '.join(held.lease.devices[resource])}", flush=True)
        await trio.sleep_forever()  # The work.


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/client_hold.py RESOURCE")
    try:
        trio.run(main, sys.argv[1])
    except ClientError as error:
        sys.exit(f"client_hold: {error}")
    except KeyboardInterrupt:
        pass

"""A program that embeds plugind and leases a device from it, for as long as it works with the device.

::

    mkdir -p /tmp/plugins
    python examples/lease.py /tmp/plugins &
    plugind fake --type DevicePlugin --name example.com/gpu --socket /tmp/plugins/gpu.sock
"""

from __future__ import annotations

import os
import sys

import trio

from plugind import Config, LeaseFailedError, Root, Supervisor

GPU = "example.com/gpu"


async def main(root: str) -> None:
    """Run a node on the directory ``root``, and use one device after a plugin has come that has some."""
    # Without Config.state, leases end with the node. A program whose children go on to use devices names a directory.
    async with Supervisor(Config(roots=(Root(root),))) as node:
        await wait_for_devices(node)
        # The lease ends with the block, however that ends; and with this process, should it be killed.
        async with node.allocate({GPU: 1}, labels={"job": "demo"}) as lease:
            print(f"leased: {', '.join(lease.devices[GPU])}", flush=True)
            for name, text in (lease.answer.env if lease.answer else {}).items():
                print(f"the plugin says: {name}={text}", flush=True)
            await ask_for_too_many(node)
        print(f"leases: {len(await node.leases())}", flush=True)


async def wait_for_devices(node: Supervisor) -> None:
    """Return once there is a healthy device."""
    async with node.watch_devices() as changes:
        async for resource in changes:
            if resource.name == GPU and resource.allocatable:
                return


async def ask_for_too_many(node: Supervisor) -> None:
    """Show what an error says: who has the devices."""
    try:
        async with node.allocate({GPU: 1000}):
            print("there are a thousand devices", flush=True)
    except LeaseFailedError as error:
        holders = ", ".join(holder.id for holder in error.holders)
        print(f"{error}; held by {len(error.holders)}: {holders}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print("usage: python examples/lease.py DIRECTORY", file=sys.stderr)
        sys.exit(2)
    interrupted = False
    try:
        # A root is named by its absolute path.
        trio.run(main, os.path.abspath(sys.argv[1]))
    except* KeyboardInterrupt:
        # Ctrl-C. A star, since it may come while any task of the node runs; the nursery then puts a group around it.
        interrupted = True
    sys.exit(130 if interrupted else 0)

"""A program that asks a running daemon, without Trio: it waits for devices, lists them, and leases one for a moment.

::

    plugind run --root /tmp/plugins --device-plugins=/tmp/device-plugins --state /tmp/state &
    plugind fake --type DevicePlugin --name vendor.com/gpu --devices 2 --device-plugins=/tmp/device-plugins &
    python examples/client_sync.py vendor.com/gpu
"""

from __future__ import annotations

import sys

from plugind.client import ClientError, SyncClient


def main(resource: str) -> None:
    """Wait until the resource has a healthy device, print all of its devices, and lease one."""
    client = SyncClient()
    client.wait_for_devices({resource: 1}, timeout=30)
    (found,) = client.devices(resource)
    print(f"{found.name}: {found.allocatable} of {found.capacity} devices are healthy")
    for device in found.devices():
        print(f"{device.id} {device.health}")
    with client.allocate({resource: 1}, wait=60) as lease:
        print(f"{', '.join(lease.devices[resource])} is ours, by the lease {lease.id}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/client_sync.py RESOURCE")
    try:
        main(sys.argv[1])
    except ClientError as error:
        sys.exit(f"client_sync: {error}")

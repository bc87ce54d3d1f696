"""Actors of Ray that have devices for as long as they live. Ray counts the devices, and plugind gives them out.

::

    plugind run --root /tmp/plugins --device-plugins=/tmp/device-plugins --state /tmp/state &
    plugind fake --type DevicePlugin --name vendor.com/gpu --devices 4 --device-plugins=/tmp/device-plugins &
    pip install ray
    python examples/ray_actor.py vendor.com/gpu

It goes on until Ctrl-C. In another terminal, ``plugind leases`` shows what happens when an actor's process is killed.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack

import ray  # pyright: ignore[reportMissingImports]

from plugind.client import ClientError, LeaseLostError, SyncClient


class Leased:
    """An actor with devices: a connection of its process owns the lease, which therefore ends with the process."""

    def __init__(self, resource: str, count: int, wait: float = 10) -> None:
        """Lease the devices. Ray may start an actor before plugind knows that the one before has ended, so it waits."""
        self._until_the_end = ExitStack()
        self._held = self._until_the_end.enter_context(SyncClient().hold({resource: count}, wait=wait))
        # Libraries read these variables when they are first imported or used, so import them later.
        if self._held.lease.answer is not None:
            os.environ.update(self._held.lease.answer.env)

    def work(self) -> str:
        """Work with the devices. Raises LeaseLostError if somebody has released them meanwhile."""
        if self._held.lost is not None:
            raise LeaseLostError(self._held.lost)
        devices = [device for ids in self._held.lease.devices.values() for device in ids]
        return f"process {os.getpid()} has {', '.join(devices)}"


def main(resource: str) -> None:
    """Give each of two actors half of the devices, until Ctrl-C."""
    (found,) = SyncClient().devices(resource)
    half = found.allocatable // 2
    ray.init(resources={resource: found.allocatable})  # On a cluster: ray start --resources='{"vendor.com/gpu": 4}'
    leased = ray.remote(Leased).options(resources={resource: half}, num_cpus=0)
    actors = [leased.remote(resource, half) for _ in range(2)]
    for said in ray.get([actor.work.remote() for actor in actors]):
        print(said, flush=True)
    signal.pause()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/ray_actor.py RESOURCE")
    try:
        main(sys.argv[1])
    except ClientError as error:
        sys.exit(f"ray_actor: {error}")
    except KeyboardInterrupt:
        pass

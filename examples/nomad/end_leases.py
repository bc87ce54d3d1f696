"""Ends the leases of tasks of Nomad that have ended, since Nomad tells no device plugin of that.

It was never run with an agent of Nomad. ``README.md`` beside it says how to start it.

A lease ends if two looks in turn have found an allocation that had all of its devices and has ended since the lease
began, and no allocation that lives has one of them. Whatever fails ends nothing. Nor does an allocation that is not
shown, as when the token may not read its namespace.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import sys
import time
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from plugind.client import ClientError, Lease, LeaseState, SyncClient

#: How the ids of all leases for Nomad begin.
PREFIX = "nomad-"
#: The statuses of allocations of which nothing runs. ``lost`` alone says less: that a server has not heard of the node.
ENDED = ("complete", "failed", "lost")


def main() -> None:
    """Look until interrupted."""
    parser = argparse.ArgumentParser(description="End plugind's leases of tasks of Nomad that have ended.")
    parser.add_argument("--status", help="the status socket of plugind (default: as plugind's commands)")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two looks (default: 60)")
    args = parser.parse_args()
    client = SyncClient(args.status)
    before: set[str] = set()
    while True:
        time.sleep(args.every)
        try:
            found = look(client)
            for lease in found & before:
                client.release(lease)
                print(f"the lease {lease} has ended with its task", flush=True)
            before = found
        except (ClientError, OSError, http.client.HTTPException, LookupError, TypeError, ValueError) as error:
            print(f"no lease ends: {error!r}", file=sys.stderr, flush=True)
            before = set()


def look(client: SyncClient) -> set[str]:
    """Return the ids of the leases whose tasks have ended.

    Raises:
      ClientError: if plugind does not answer.
      OSError, http.client.HTTPException: if the agent does not.
      LookupError, TypeError, ValueError: if the agent's answer cannot be understood.
    """
    # The leases first: the allocation of a lease that is listed here was there before Nomad is asked.
    leases = [lease for lease in client.leases(PREFIX) if lease.state is LeaseState.HELD]
    if not leases:
        return set()
    node = answer("/v1/agent/self")["stats"]["client"]["node_id"]
    shown = answer(f"/v1/node/{node}/allocations")
    ends = [(devices_of(lease), end_of(lease)) for lease in shown]
    return {lease.id for lease in leases if has_ended(lease, ends)}


def has_ended(lease: Lease, ends: list[tuple[set[str], float | None]]) -> bool:
    """Return whether a lease may end, by the devices of each allocation and when it ended; None if it lives."""
    devices = {f"{resource}={device}" for resource, ids in lease.devices.items() for device in ids}
    if any(end is None and devices & its for its, end in ends):
        return False
    return any(end is not None and end >= lease.created and devices <= its for its, end in ends)


def devices_of(allocation: Any) -> set[str]:
    """Return the devices of an allocation, as ``vendor.com/gpu=ID``."""
    return {
        f"{group['Vendor']}/{group['Type']}={device}"
        for task in allocation["AllocatedResources"]["Tasks"].values()
        for group in task["Devices"] or ()  # Go writes null for an empty list.
        for device in group["DeviceIDs"]
    }


def end_of(allocation: Any) -> float | None:
    """Return when the last task of an allocation ended, in Unix seconds, or 0 if none ever ran; None if it lives."""
    states = (allocation["TaskStates"] or {}).values()
    if allocation["ClientStatus"] not in ENDED or any(state["State"] != "dead" for state in states):
        return None
    ends = [datetime.fromisoformat(state["FinishedAt"]) for state in states if state["FinishedAt"]]
    return max((end.timestamp() for end in ends if end.year > 1), default=0.0)  # The year 1 is Go's word for no time.


def answer(path: str) -> Any:
    """Return what the agent answers to a GET request. There is no proxy and no redirection, for the token's sake."""
    address = os.environ.get("NOMAD_ADDR", "http://127.0.0.1:4646")
    if urlsplit(address).scheme != "http":
        raise ValueError(f"{address} is no address for this example, which has no TLS")
    token = os.environ.get("NOMAD_TOKEN")
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=10)
    try:
        connection.request("GET", path, headers={"X-Nomad-Token": token} if token else {})
        got = connection.getresponse()
        if got.status != 200:
            raise ValueError(f"GET {path}: {got.status} {got.reason}")
        return json.load(got)
    finally:
        connection.close()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()

"""``plugind who``: who has which devices, what for and until when, and who waits for some."""

from __future__ import annotations

import argparse
import collections
import json
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from ...protocol.leases.free import natural
from ...protocol.leases.leases_json import lease_to_json
from ...protocol.leases.replies import LeasesSnapshot
from ...protocol.leases.values import Lease, LeaseState
from ...protocol.plugins.devices import UNHEALTHY
from ...protocol.status.json import Json
from ...protocol.text import encodable, first_few
from ..io.process_identity import purpose_of
from .answers import Plugin, add_daemon_arguments, daemon, resources_in, resources_target
from .arguments import resource_name
from .client import fetch
from .device_leases import add_leases, by_device, leases_of
from .devices import devices_in, wrong_with
from .ending import EXIT_OK, say
from .lease_words import end, user
from .leases import problems
from .phrases import ago, duration, exact, text, time_of_day, unix_time
from .table import add_table_argument, fitting, shortened, table_width

_COLUMNS: Final = ("RESOURCE", "DEVICE", "STATE", "USER", "FOR", "AGE", "SINCE", "UNTIL", "POOL")
#: Stands for a device of a lease that is in no list.
_UNLISTED: Final[Plugin] = {"health": "not listed"}
_EPILOG = """examples:
  plugind who
  plugind who vendor.com/gpu
  plugind who -o json | jq -r '.leases[] | "\\(.user) \\(.for) \\(.devices)"'

A device is free, held, unhealthy, drained, withheld, or in the state of its lease ('plugind leases --help'); the reason
is in a line of its own. FOR is the command without its arguments, the container or the job, or else the id of the
lease. AGE and SINCE are those of the lease, of the drain or of bad health. Requests that wait for devices are last, in
the order in which they are served. On a terminal, columns for which there is no room are left out. In a pipe, and with
-o wide, all is shown.

exit codes: 0 ok, 1 there is no such resource, 2 usage, 69 no daemon answers, 75 it is busy"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind who``."""
    parser.description = "Show each device with who has it, what for and until when, and the requests that wait."
    parser.epilog = _EPILOG
    parser.add_argument(
        "resources", metavar="RESOURCE", nargs="*", type=resource_name, help="show only the devices of these resources"
    )
    add_table_argument(parser, "one object, with the resources, their devices, and the leases")
    add_daemon_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Show who has which devices; return the exit code."""
    asked, names = daemon(args), dict.fromkeys(args.resources)
    resources = [one for name in names or (None,) for one in resources_in(fetch(asked, resources_target(name)))]
    found = leases_of(asked)
    add_leases(resources, found.leases)
    if args.output == "json":
        say(json.dumps(_to_json(resources, found, names)) + "\n")
    else:
        say("".join(f"{line}\n" for line in lines(resources, found, names, table_width(args))))
    return EXIT_OK


def _about(names: Collection[str], found: LeasesSnapshot) -> list[Lease]:
    """Return the leases that are about the resources of these names, or all if there are no names."""
    return [lease for lease in found.leases if not names or any(name in names for name in lease.request.resources)]


def _to_json(resources: list[Plugin], found: LeasesSnapshot, names: Collection[str]) -> Plugin:
    boottime = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    shown = [
        {**lease_to_json(lease, boottime), "user": user(lease.for_uid), "for": encodable(purpose_of(lease))}
        for lease in _about(names, found)
    ]
    return {"withheld": found.withheld, "problem": found.problem, "resources": [*resources], "leases": [*shown]}


def lines(
    resources: Sequence[Plugin], found: LeasesSnapshot, names: Collection[str] = (), width: int | None = None
) -> Iterator[str]:
    """Yield the table, for a terminal of ``width`` columns, the sum, the reasons, and the problems.

    ``resources`` are those of these ``names``, or all if there are no names.
    """
    reasons = dict[tuple[str, str, str], list[str]]()
    rows = [*_of_devices(resources, found, names, reasons)]
    states = collections.Counter(row[2] for row in rows)
    queue = [lease for lease in _about(names, found) if not lease.devices]
    in_line = [lease.id for lease in found.leases if lease.state is LeaseState.QUEUED]
    rows += (row for lease in queue for row in _of_request(lease, in_line))

    def table(size: int) -> list[Sequence[str]]:
        return [
            _COLUMNS,
            *((row[0], shortened(row[1], size), *row[2:4], shortened(row[4], size), *row[5:]) for row in rows),
        ]

    if rows:
        yield from fitting(table, width, ("SINCE",), ("AGE", "UNTIL", "RESOURCE", "POOL", "FOR"))
    counted = [f"{number} {state}" for state, number in sorted(states.items())]
    yield ", ".join([*counted, *([f"{len(queue)} waiting"] if queue else [])]) or "no devices"
    for (name, state, reason), each in reasons.items():
        yield f"{name} {first_few(each)} {'is' if len(each) == 1 else 'are'} {state}: {reason}"
    yield from (f"{text(lease.id)}: {text(lease.reason)}" for lease in queue if lease.reason is not None)
    yield from wrong_with(resources)
    yield from problems(found)


def _of_devices(
    resources: Sequence[Plugin],
    found: LeasesSnapshot,
    names: Collection[str],
    reasons: dict[tuple[str, str, str], list[str]],
) -> Iterator[tuple[str, ...]]:
    """Yield the rows of devices; add the ids of those whose state needs a reason to ``reasons``."""
    held = {key: lease for key, lease in by_device(found.leases).items() if not names or key[0] in names}
    devices = {
        (str(one.get("resource")), str(device.get("id"))): device for one in resources for device in devices_in(one)
    }
    # A resource without a plugin lists nothing, and may have leases.
    unlisted = sorted(held.keys() - devices.keys(), key=lambda key: (key[0], natural(key[1])))
    for name, device_id in (*devices, *unlisted):
        key = name, device_id
        device, lease = devices.get(key, _UNLISTED), held.get(key)
        state, reason = _state(device, lease, found)
        if reason is not None:
            reasons.setdefault((text(name), state, reason), []).append(exact(device_id))
        yield _row(name, device_id, state, lease, device.get("pool"), _age(state, device))


def _age(state: str, device: Plugin) -> Json:
    """Return for how many seconds a device is drained or unhealthy; None for another state."""
    if state == "unhealthy":
        return device.get("age")
    drained = device.get("drained")
    since = unix_time(drained.get("since")) if state == "drained" and isinstance(drained, dict) else None
    return None if since is None else max(0.0, time.time() - since)


def _of_request(lease: Lease, in_line: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a request that has no devices yet."""
    state = f"waits: {in_line.index(lease.id) + 1}" if lease.id in in_line else lease.state.value
    for wanted in lease.request.wanted:
        what = ",".join(lease.request.ids) or f"any {wanted.count}"
        yield _row(wanted.resource, what, state, lease, lease.request.pool, None)


def _state(device: Plugin, lease: Lease | None, found: LeasesSnapshot) -> tuple[str, str | None]:
    """Return the state of a device in a word, and the reason, if the word needs one."""
    drained, withheld = device.get("drained"), device.get("withheld")
    if device.get("healthy") is not True:
        health = exact(device.get("health"))
        return "unhealthy", "no reason is given" if health == UNHEALTHY else health
    if lease is not None and lease.state is not LeaseState.HELD:
        return lease.state.value, None if lease.reason is None else text(lease.reason)
    if isinstance(drained, dict):
        return "drained", _drained(drained)
    if lease is not None:
        return "held", None
    if withheld is not None:
        return "withheld", text(withheld) if found.withheld is None else None
    return "free", None


def _drained(drained: Plugin) -> str:
    until, by = unix_time(drained.get("until")), drained.get("by")
    end = "" if until is None else f", until {time_of_day(until, time.time())}"
    return f"{text(drained.get('reason'))}{end}, by {user(by) if isinstance(by, int) else text(by)}"


def _row(resource: str, device: str, state: str, lease: Lease | None, pool: Json, seconds: Json) -> tuple[str, ...]:
    """Return a row; ``seconds`` is for how long a device without a lease is in its state, if that is known."""
    shown = text(resource), exact(device), state
    if lease is None:
        return *shown, "-", "-", duration(seconds), ago(seconds), "-", text(pool)
    passed = max(0.0, time.time() - lease.created)
    return *shown, user(lease.for_uid), text(purpose_of(lease)), duration(passed), ago(passed), end(lease), text(pool)

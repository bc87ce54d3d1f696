"""``plugind leases``: the list of leases."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from ...protocol.leases.forms import LEASE
from ...protocol.leases.free import natural
from ...protocol.leases.leases_json import snapshot_to_json
from ...protocol.leases.replies import LeasesSnapshot
from ...protocol.leases.values import Lease, LeaseState
from ...protocol.text import encodable
from ..client.errors import ClientError
from ..client.lease_calls import all_leases, recovery
from ..client.reaching import ANSWER_TIMEOUT, WRITING
from ..client.transport import asked
from .ending import EXIT_FAILED, EXIT_OK, complain, say
from .lease_failures import fail
from .lease_watch import watch_leases
from .lease_words import add_period_arguments, devices_by_resource, end, owner, user
from .phrases import text, time_of_day
from .status_socket import add_status_argument, status_path
from .table import WHOLE, add_table_argument, fitting, shortened, table_width
from .times import past

_COLUMNS = ("LEASE", "STATE", "OWNER", "USER", "SINCE", "UNTIL", "DEVICES", "REASON")
_OF_HISTORY = ("device", "resource", "user", "at", "since", "until")
_EPILOG = """examples:
  plugind leases
  plugind leases --prefix slurm- -o json | jq -r '.leases[].id'
  plugind leases --watch
  plugind leases recover
  plugind leases recover --none-held
  plugind leases --history --device gpu-3 --at 02:14
  plugind leases --history --user alice --since yesterday -o csv

A lease is queued, choosing, pending, held, or uncertain: its plugin has not said whether it has prepared the devices.
On a terminal, reasons have lines of their own, SINCE is left out if there is no room, then long ids are shortened and
devices counted, and then more columns are left out. In a pipe, and with -o wide, all is shown.

'recover --none-held' says that no leased device is in use, after the state of plugind was lost while some were: until
then, or a reboot, no device is given to anybody. As a hint it names the processes whose environment has a lease
that plugind does not know; anybody can forge that, and whoever has left it out is not named. 'recover' alone frees
nothing: it says why devices are withheld, names these processes, and ends with 1 while devices are withheld.

--history lists the devices of all leases that were granted, also of those that have ended, the latest grant first. An
end that plugind did not see, such as that of a machine that lost its power, is shown as the time 'by' which it was, and
HELD as the time for which the device was held at least. A TIME is 02:14, '2027-01-31 02:14', 2027-01-31T02:14:00Z,
yesterday, or 2h for two hours ago. Whoever may only lease devices sees the leases of its own user.

exit codes: 0 ok, 1 failed, 2 usage, 69 no daemon answers"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind leases``."""
    parser.description = "List the leases: who has which devices, since when, and until when."
    parser.epilog = _EPILOG
    parser.add_argument("action", nargs="?", choices=("recover",), help="free the devices that a lost state withholds")
    parser.add_argument("--none-held", action="store_true", help="of recover: no leased device is in use")
    parser.add_argument("--prefix", metavar="TEXT", default="", help="list only leases whose ids begin with this")
    parser.add_argument("--watch", action="store_true", help="print all leases, then each change, until plugind stops")
    parser.add_argument("--history", action="store_true", help="list who had which devices, and when")
    parser.add_argument("--device", metavar="ID", help="with --history: this device, or all its shares")
    parser.add_argument("--resource", metavar="RESOURCE", help="with --history: devices of this resource")
    parser.add_argument("--at", metavar="TIME", type=past, help="with --history: who had them at this time")
    add_period_arguments(parser, "with --history: ")
    what = "one object, with a list of leases; with --watch, one for each change; with --history, with a list of rows"
    add_table_argument(parser, what, "with --history")
    add_status_argument(parser)


def run(args: argparse.Namespace) -> int:
    """List the leases, or free the devices that a lost state withholds; return the exit code."""
    if args.action is None and args.none_held:
        args.parser.error("--none-held is an option of 'plugind leases recover'")
    if args.action is not None and args.watch:
        args.parser.error("--watch follows the leases: leave out recover")
    path = status_path(args)
    wrong = _wrong_with_history(args)
    if wrong is not None:
        args.parser.error(wrong)
    try:
        if args.history:
            from .lease_history import show_history  # Few ask for it.

            return show_history(path, args)
        if args.watch:
            return watch_leases(path, args.prefix, as_json=args.output == "json")
        if args.action is not None:
            return (_recover if args.none_held else _show_recovery)(path, as_json=args.output == "json")
        found = asked(path, all_leases(args.prefix), timeout=ANSWER_TIMEOUT)
    except ClientError as error:
        return fail(error, args.output)
    if args.output == "json":
        boottime = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        say(json.dumps(snapshot_to_json(found, found.time, boottime)) + "\n")
    else:
        say("".join(f"{line}\n" for line in lines(found, table_width(args))))
    return EXIT_OK


def _wrong_with_history(args: argparse.Namespace) -> str | None:
    """Return what is wrong with the options of ``--history``; None if nothing is."""
    given = [f"--{name}" for name in _OF_HISTORY if getattr(args, name) is not None]
    if args.output == "csv":
        given.append("-o csv")
    if given and not args.history:
        return f"{given[0]} is an option of --history"
    if args.history and (args.action is not None or args.watch or args.prefix):
        return "--history lists what was: leave out recover, --watch and --prefix"
    if args.at is not None and (args.since is not None or args.until is not None):
        return "--at is one moment: leave out --since and --until"
    return None


def _recover(path: str, *, as_json: bool) -> int:
    """Free the devices that a lost state withholds, and then list the processes that may use them, as a hint.

    The owner of a process can block the reading of its environment forever, so that comes last.
    """
    asked(path, recovery(), timeout=WRITING)
    processes = _hint(path)
    if as_json:
        say(json.dumps({"recovered": True, "processes": processes}) + "\n")
    return EXIT_OK


def _show_recovery(path: str, *, as_json: bool) -> int:
    """Say whether devices are withheld, and list the processes that may use them, as a hint. Change nothing."""
    withheld = asked(path, all_leases(), timeout=ANSWER_TIMEOUT).withheld
    if withheld is None:
        complain("no device is withheld: there is nothing to recover")
    else:
        complain(f"all devices are withheld: {text(withheld)}")
        complain("nothing was changed: if none of them is in use, --none-held frees them")
    processes = [] if withheld is None else _hint(path)
    if as_json:
        why = None if withheld is None else encodable(withheld)
        say(json.dumps({"recovered": False, "withheld": why, "processes": processes}) + "\n")
    return EXIT_OK if withheld is None else EXIT_FAILED


def _hint(path: str) -> list[dict[str, Any]]:
    """Name the processes that may use devices by a lease that plugind does not know; return them for programs."""
    processes = list(_processes())
    if processes:
        listed = {lease.id for lease in asked(path, all_leases(), timeout=ANSWER_TIMEOUT).leases}
        processes = [process for process in processes if process[1] not in listed]
    for pid, lease in processes:
        complain(
            f"hint: process {pid} may use devices: its environment, which anybody can forge, names the lease"
            f" {text(lease)}, which plugind does not know"
        )
    return [{"pid": pid, "lease": encodable(lease)} for pid, lease in processes]


def _processes() -> Iterator[tuple[int, str]]:
    """Yield the processes whose environment names a lease, and the lease."""
    name = f"{LEASE}=".encode()
    for pid in sorted(int(entry) for entry in os.listdir("/proc") if entry.isdecimal()):
        with suppress(OSError):  # It has ended, or belongs to another user.
            with open(f"/proc/{pid}/environ", "rb") as file:
                variables = file.read().split(b"\0")
            # The first one is the one that the process itself sees.
            yield from [
                (pid, os.fsdecode(variable.removeprefix(name))) for variable in variables if variable.startswith(name)
            ][:1]


def lines(found: LeasesSnapshot, width: int | None = None) -> Iterator[str]:
    """Yield the table, for a terminal of ``width`` columns, the sum, and the problems."""
    # A reason has a whole line, for which a terminal has no column.
    reasons = [] if width is None else [lease for lease in found.leases if lease.reason is not None]
    if found.leases:
        columns = _COLUMNS if width is None else _COLUMNS[:-1]
        queued = [lease for lease in found.leases if lease.state is LeaseState.QUEUED]
        others = (lease for lease in found.leases if lease.state is not LeaseState.QUEUED)
        ordered = [*sorted(others, key=lambda lease: natural(lease.id)), *queued]

        def table(size: int) -> list[Sequence[str]]:
            return [columns, *(_row(lease, size)[: len(columns)] for lease in ordered)]

        yield from fitting(table, width, ("SINCE",), ("UNTIL", "OWNER", "USER"))
    yield summary(found.leases)
    for lease in reasons:
        yield f"{text(lease.id)} is {lease.state}: {text(lease.reason)}"
    yield from problems(found)


def problems(found: LeasesSnapshot) -> Iterator[str]:
    """Yield why no device is given to anybody, and why leases cannot be kept."""
    if found.withheld is not None:
        yield f"all devices are withheld: {text(found.withheld)}"
    if found.problem is not None:
        yield f"leases cannot be written now: {text(found.problem)}"


def summary(leases: Sequence[Lease]) -> str:
    """Return how many leases there are, in one line."""
    if not leases:
        return "no leases"
    states = [state for state in LeaseState if any(lease.state is state for lease in leases)]
    counted = ", ".join(f"{sum(lease.state is state for lease in leases)} {state}" for state in states)
    return f"{len(leases)} lease{'' if len(leases) == 1 else 's'}: {counted}"


def _row(lease: Lease, size: int) -> tuple[str, ...]:
    return (
        shortened(text(lease.id), size),
        lease.state.value,
        owner(lease),
        user(lease.uid),
        time_of_day(lease.created, time.time()),
        end(lease),
        devices_by_resource(lease, counted=size < WHOLE),
        text(lease.reason),
    )

"""``plugind devices``: every device that device plugins list.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence

import trio

from ...protocol.device_directory import KUBELET_SOCKET
from ...protocol.devices import ResourceState
from ...protocol.status import Watching
from ...protocol.status_json import Json
from .arguments import resource_name
from .client import (
    Daemon,
    Plugin,
    add_daemon_arguments,
    daemon,
    fetch,
    resources_in,
    resources_target,
    roots,
    to_mend,
)
from .ending import EXIT_OK, say
from .phrases import ago, duration, exact, text
from .refused_calls import lines as refused_lines
from .refused_calls import refused_calls
from .table import aligned

COLUMNS = ("RESOURCE", "ID", "HEALTH", "SINCE", "NUMA", "LEASE", "PLUGIN")
_EPILOG = """examples:
  plugind devices
  plugind devices vendor.com/gpu
  plugind devices -o json | jq -r '.resources[] | "\\(.resource) \\(.allocatable) of \\(.capacity)"'

A resource without devices has one line, with its state in place of a health. LEASE is a dash: devices cannot be leased
yet.

exit codes: 0 ok, 1 there is no such resource, 2 usage, 69 no daemon answers, 75 it is busy"""
_EMPTY = "no devices: no device plugin has registered; 'plugind ls' shows those that are on their way"
_NOT_SERVED = "most register by a call, for which 'plugind run --device-plugins=DIR' serves DIR/kubelet.sock"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind devices``."""
    parser.description = (
        "List every device that device plugins offer, with its health and since when it has it. The last lines count"
        " them, and say what is wrong."
    )
    parser.epilog = _EPILOG
    parser.add_argument(
        "resource", metavar="RESOURCE", nargs="?", type=resource_name, help="list only the devices of this resource"
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=("json",),
        help="json: one object, with the resources, their plugins and their devices",
    )
    parser.add_argument("--json", action="store_const", const="json", dest="output", help="the same as -o json")
    add_daemon_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """List the devices; return the exit code."""
    answer, roots, refused = trio.run(_ask, daemon(args), args.resource)
    resources, problem = resources_in(answer), json.loads(answer).get("problem")
    if args.output == "json":
        say(answer.decode())
    elif not resources:
        say("".join(f"{line}\n" for line in why_none(roots)))
    else:
        say("".join(f"{line}\n" for line in lines(resources)))
    if args.output is None:
        say("".join(f"{line}\n" for line in refused_lines(refused, args.resource)))
    if args.output is None and problem is not None:
        say(f"what is known is not kept over a restart: {text(problem)}\n")
    return EXIT_OK


async def _ask(daemon: Daemon, resource: str | None) -> tuple[bytes, list[Plugin], dict[str, str]]:
    """Return the answer, how the roots of the daemon are if there is nothing in it, and the calls that were refused."""
    answer = await fetch(daemon, "GET", resources_target(resource))
    return answer, [] if resources_in(answer) else await roots(daemon), await refused_calls(daemon)


def why_none(roots: Sequence[Plugin]) -> Iterator[str]:
    """Yield the lines for a daemon that knows no resource and whose roots are these."""
    yield _EMPTY
    where = [root for root in roots if root.get("watching") == Watching.SERVING]
    for root in where:
        yield f"they call Register on {text(root.get('root'))}/{KUBELET_SOCKET}"
    yield from to_mend(roots)
    if not where:
        yield _NOT_SERVED


def lines(resources: Sequence[Plugin]) -> Iterator[str]:
    """Yield the table, then the sum, then a line for each resource that has no plugin with a list."""
    yield from aligned([COLUMNS, *(row for resource in resources for row in _rows(resource))])
    yield summary(resources)
    for resource in resources:
        if resource.get("state") != ResourceState.LISTED:
            yield _wrong_with(resource)


def summary(resources: Sequence[Plugin]) -> str:
    """Return how many devices there are, in one line."""
    capacity = sum(_number(resource.get("capacity")) for resource in resources)
    healthy = sum(_number(resource.get("allocatable")) for resource in resources)
    parts = [f"{healthy} healthy"] if healthy else []
    parts += [f"{capacity - healthy} unhealthy"] if capacity > healthy else []
    counted = f"{_counted(capacity, 'device')} of {_counted(len(resources), 'resource')}"
    return counted + (f": {', '.join(parts)}" if parts else "")


def _rows(resource: Plugin) -> Iterator[tuple[str, ...]]:
    name, plugin = text(resource.get("resource")), text(resource.get("plugin"))
    devices = resource.get("devices")
    there = [device for device in devices if isinstance(device, dict)] if isinstance(devices, list) else []
    for device in there:
        yield (
            name,
            exact(device.get("id")),
            exact(device.get("health")),
            ago(device.get("age")),
            _numa(device),
            "-",
            plugin,
        )
    if not there:
        yield name, "-", text(resource.get("state")), ago(resource.get("age")), "-", "-", plugin


def _numa(device: Plugin) -> str:
    nodes = device.get("numa")
    return ",".join(map(text, nodes)) or "-" if isinstance(nodes, list) else "-"


def _wrong_with(resource: Plugin) -> str:
    reason, goes_in = resource.get("reason"), resource.get("goes_in")
    said = "" if reason is None else f": {text(reason)}"
    end = "" if goes_in is None else f"; it goes in {duration(goes_in)}"
    return f"{text(resource.get('resource'))} is {text(resource.get('state'))}{said}{end}"


def _number(value: Json) -> int:
    return value if isinstance(value, int) else 0


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")

"""``plugind devices``: every device that device plugins list."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from ...protocol.discovery.device_directory import KUBELET_SOCKET
from ...protocol.leases.free import natural
from ...protocol.leases.json_values import WRONG_FORM
from ...protocol.leases.leases_json import drain_from_json
from ...protocol.plugins.devices import OTHER_DEVICE, ResourceState
from ...protocol.plugins.health import Health
from ...protocol.plugins.info import DEVICE
from ...protocol.plugins.status import Watching
from ...protocol.status.json import Json
from ...protocol.text import escaped
from .answers import (
    Daemon,
    NotAllowedError,
    Plugin,
    add_daemon_arguments,
    daemon,
    plugins_in,
    resources_in,
    resources_target,
    to_mend,
)
from .arguments import resource_name
from .client import fetch, roots
from .device_leases import add_leases, leases_of
from .ending import EXIT_OK, say
from .lease_words import user
from .phrases import ago, duration, exact, text, time_of_day
from .refused_calls import lines as refused_lines
from .refused_calls import refused_calls
from .table import add_table_argument, fitting, shortened, table_width

COLUMNS = ("RESOURCE", "ID", "HEALTH", "SINCE", "NUMA", "USER", "LEASE", "POOL", "PLUGIN")
_EPILOG = """examples:
  plugind devices
  plugind devices vendor.com/gpu
  plugind devices -o json | jq -r '.resources[] | "\\(.resource) \\(.allocatable) of \\(.capacity)"'

On a terminal, columns for which there is no room are left out, PLUGIN first, and long ids of leases are shortened. In a
pipe, and with -o wide, all is shown. A resource without devices has one line, with its state in place of a health.
USER and LEASE say who has the device; 'plugind who' tells more. A device that is leased, and that is not listed any
more, is 'no longer listed'; it is not counted. A device that is out of service is 'drained'; each drain has a line at
the end.

exit codes: 0 ok, 1 there is no such resource, 2 usage, 69 no daemon answers, 75 it is busy"""
#: Shown as the health of a leased device that its plugin does not list.
MISSING = "no longer listed"
_EMPTY = (
    "no devices: neither a device plugin nor the configuration offers any; 'plugind ls' shows plugins that are on their"
    " way"
)
_OBSERVED = "no devices: this daemon only observes plugins (--observe), and does not ask them for their devices"
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
    add_table_argument(parser, "one object, with the resources, their plugins and their devices")
    add_daemon_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """List the devices; return the exit code."""
    content, resources, roots, rest = _ask(daemon(args), args.resource)
    problem = content.get("problem")
    if args.output == "json":
        say(json.dumps({**content, "resources": resources}) + "\n")
        return EXIT_OK
    if resources:
        shown = lines(resources, table_width(args))
    else:
        shown = why_none(roots, observes=content.get("observes") is True)
    say("".join(f"{line}\n" for line in (*shown, *drain_lines(content.get("drains")), *rest)))
    if problem is not None:
        say(f"what is known is not kept over a restart: {text(problem)}\n")
    return EXIT_OK


def _ask(daemon: Daemon, resource: str | None) -> tuple[Plugin, list[Plugin], list[Plugin], list[str]]:
    """Return the answer, its resources with the leases of their devices, and more that is to be said.

    The roots are asked for if there are no resources. The lines are about unhealthy plugins and refused calls of
    Register.
    """
    answer = fetch(daemon, resources_target(resource))
    resources = resources_in(answer)
    leases = leases_of(daemon)
    add_leases(resources, leases.leases)
    withheld = [] if leases.withheld is None else [f"all devices are withheld: {text(leases.withheld)}"]
    where = [] if resources else roots(daemon)
    plugins = list[Plugin]()
    with suppress(NotAllowedError):
        plugins = plugins_in(fetch(daemon, f"/plugins?type={DEVICE}"))
    refused = refused_lines(refused_calls(daemon), resource)
    return json.loads(answer), resources, where, [*withheld, *not_healthy(plugins, resource), *refused]


def not_healthy(plugins: Iterable[Plugin], resource: str | None = None) -> Iterator[str]:
    """Yield a line for each plugin, of all or of those of ``resource``, whose health is reported and not healthy.

    The health of a plugin that has just registered is unknown without a reason.
    """
    for plugin in plugins:
        health, why, name = plugin.get("health"), plugin.get("health_reason"), plugin.get("name")
        is_well = health in (None, Health.HEALTHY) or (health == Health.UNKNOWN and not why)
        if not is_well and resource in (None, name):
            reason = "" if why is None else f": {text(why)}"
            yield f"the plugin {text(plugin.get('socket'))} of {text(name)} is {text(health)}{reason}"


def why_none(roots: Sequence[Plugin], *, observes: bool = False) -> Iterator[str]:
    """Yield the lines for a daemon that has no resources and these roots."""
    if observes:
        yield _OBSERVED
        yield from to_mend(roots)
        return
    yield _EMPTY
    where = [root for root in roots if root.get("watching") == Watching.SERVING]
    for root in where:
        yield f"they call Register on {text(root.get('root'))}/{KUBELET_SOCKET}"
    yield from to_mend(roots)
    if not where:
        yield _NOT_SERVED


def lines(resources: Sequence[Plugin], width: int | None = None) -> Iterator[str]:
    """Yield the table, for a terminal of ``width`` columns, the sum, and a line for each resource without a list."""

    def table(size: int) -> list[tuple[str, ...]]:
        return [COLUMNS, *(row for resource in resources for row in _rows(resource, size))]

    yield from fitting(table, width, ("PLUGIN", "NUMA", "SINCE"), ("LEASE", "POOL", "USER"))
    yield summary(resources)
    yield from wrong_with(resources)


def drain_lines(drains: Json) -> Iterator[str]:
    """Yield a line for each drain, also of what is not listed."""
    for drain in drains if isinstance(drains, list) else []:
        with suppress(*WRONG_FORM):
            found = drain_from_json(drain)
            since = time_of_day(found.since, time.time())
            yield f"drained: {escaped(found.words)} (by {user(found.uid)}, since {since})"


def summary(resources: Sequence[Plugin]) -> str:
    """Return how many devices there are, in one line."""
    capacity = sum(_number(resource.get("capacity")) for resource in resources)
    others = sum(device.get("health") == OTHER_DEVICE for resource in resources for device in devices_in(resource))
    healthy = sum(_number(resource.get("allocatable")) for resource in resources) - others
    parts = [f"{healthy} healthy"] if healthy else []
    parts += [f"{capacity - healthy} unhealthy"] if capacity > healthy else []
    drained = sum(bool(device.get("drained")) for resource in resources for device in devices_in(resource))
    parts += [f"{drained} drained"] if drained else []
    counted = f"{_counted(capacity, 'device')} of {_counted(len(resources), 'resource')}"
    return counted + (f": {', '.join(parts)}" if parts else "")


def _rows(resource: Plugin, size: int) -> Iterator[tuple[str, ...]]:
    name, plugin = text(resource.get("resource")), text(resource.get("plugin"))
    for device in devices_in(resource):
        lease = (text(device.get("user")), _lease(device, size), text(device.get("pool")))
        health = exact(device.get("health")) + (", drained" if device.get("drained") else "")
        yield name, exact(device.get("id")), health, ago(device.get("age")), _numa(device), *lease, plugin
    if not resource.get("devices"):
        state, since = text(resource.get("state")), ago(resource.get("age"))
        yield name, "-", state, since, "-", "-", "-", "-", plugin


def _lease(device: Plugin, size: int) -> str:
    if device.get("lease") is None:
        return "withheld" if device.get("withheld") else "-"
    return shortened(text(device["lease"]), size)


def devices_in(resource: Plugin) -> list[Plugin]:
    """Return the devices of a resource in natural order; the last ones are leased, and not listed any more."""
    listed, missing = resource.get("devices"), resource.get("missing")
    found = [device for device in listed if isinstance(device, dict)] if isinstance(listed, list) else []
    gone = (
        [device | {"health": MISSING} for device in missing if isinstance(device, dict)]
        if isinstance(missing, list)
        else []
    )
    return [*sorted(found, key=lambda device: natural(str(device.get("id")))), *gone]


def _numa(device: Plugin) -> str:
    nodes = device.get("numa")
    return ",".join(map(text, nodes)) or "-" if isinstance(nodes, list) else "-"


def wrong_with(resources: Iterable[Plugin]) -> Iterator[str]:
    """Yield why a resource has no list of devices now, and until when it is awaited, or why its list has none."""
    for resource in resources:
        name, reason, goes_in = text(resource.get("resource")), resource.get("reason"), resource.get("goes_in")
        if resource.get("state") != ResourceState.LISTED:
            said = "" if reason is None else f": {text(reason)}"
            end = "" if goes_in is None else f"; it goes in {duration(goes_in)}"
            yield f"{name} is {text(resource.get('state'))}{said}{end}"
        elif not devices_in(resource):
            why = f"its plugin {text(resource.get('plugin'))} lists none" if reason is None else text(reason)
            yield f"{name} has no devices: {why}"


def _number(value: Json) -> int:
    return value if isinstance(value, int) else 0


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")

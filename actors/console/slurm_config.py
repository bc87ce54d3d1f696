"""``plugind slurm-config``: the lines that configure Slurm for the devices of this node."""

from __future__ import annotations

import argparse
import re
import socket
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from ...protocol.leases.free import natural
from ...protocol.plugins.devices import ResourceStatus
from ...protocol.text import escaped
from ..client.errors import ClientError
from ..client.sync import SyncClient
from .ending import EXIT_OK, CommandError, say
from .lease_failures import fail
from .status_socket import add_status_argument, status_path

#: The directory of the programs that Slurm calls.
PARTS: Final = "/usr/share/plugind/slurm"
#: Seconds of a lease that only finds the node of a device, in case this command is killed.
_MOMENT: Final = 60.0
_GRES: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Characters with another meaning in a line of the map, or in ``File=`` of gres.conf.
_UNSAFE: Final = re.compile(r"[\s,#\[\]\"'\\=]")
_EPILOG: Final = """examples:
  plugind slurm-config
  plugind slurm-config gpu=vendor.com/gpu --find-nodes
  plugind slurm-config lic=vendor.com/licence --pool slurm

Without GRES=RESOURCE, each resource that has devices is printed, and its GRES is called as the end of its name. The
lines are for slurm.conf, for gres.conf, and for /etc/plugind/slurm-gres; docs/engines.md says what they are for.

exit codes: 0 ok, 1 failed, 2 usage, 69 no daemon answers, 4 a plugin has refused"""
_SLURM_CONF: Final = """\
# slurm.conf, the same on all nodes; add to it what it does not have already
GresTypes={types}
NodeName={node} Gres={counts}
# The prolog runs on each node of a job before the job begins. It ends within 10 s, which MessageTimeout is by default.
PrologFlags=Alloc
Prolog=/etc/slurm/prolog.d/*
Epilog=/etc/slurm/epilog.d/*
PrologEpilogTimeout=60
TaskProlog={parts}/task-prolog
# So that a process that leaves its session ends with its job.
ProctrackType=proctrack/cgroup
{confined}# A job whose prolog has failed on one node may begin on another one.
SchedulerParameters=nohold_on_prolog_fail
# A script of your own may call it instead.
HealthCheckProgram={parts}/health
HealthCheckInterval=60
"""


_CONFINED: Final = """\
# With ConstrainDevices=yes in cgroup.conf, a job can open the devices alone that Slurm chose for it.
TaskPlugin=task/cgroup
"""


class Gres(NamedTuple):
    """One GRES of Slurm, and its devices."""

    name: str
    resource: str
    number: int
    #: The devices and their device nodes, in the order in which Slurm counts them; empty if it only counts.
    ids: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind slurm-config``."""
    parser.description = "Print the lines by which Slurm counts and places the devices of this node."
    parser.epilog = _EPILOG
    parser.add_argument(
        "named", metavar="GRES=RESOURCE", nargs="*", type=_named, help="the name of a resource as a GRES of Slurm"
    )
    parser.add_argument(
        "--find-nodes",
        action="store_true",
        help="lease each device for a moment, to learn its device node: then Slurm chooses the devices of a job, and"
        " can confine it to them",
    )
    parser.add_argument("--pool", metavar="POOL", help="the pool of plugind that has the devices")
    parser.add_argument(
        "--node",
        metavar="NAME",
        default=socket.gethostname().partition(".")[0],
        help="the name of this node in Slurm (default: that of the host)",
    )
    parser.add_argument(
        "--parts", metavar="DIR", default=PARTS, help="where the parts are that Slurm calls (default: %(default)s)"
    )
    add_status_argument(parser)


def _named(text: str) -> tuple[str, str]:
    name, equals, resource = text.partition("=")
    if not equals or not resource or not _GRES.fullmatch(name):
        raise argparse.ArgumentTypeError(f"{text!r} is not GRES=RESOURCE, such as gpu=vendor.com/gpu")
    return name, resource


def run(args: argparse.Namespace) -> int:
    """Print the lines; return the exit code.

    Raises:
      CommandError: if there is nothing to print, or the lines could not identify the devices.
    """
    client = SyncClient(status_path(args))
    try:
        found = {resource.name: resource for resource in client.devices()}
        all_of = [_gres(client, args, name, resource) for name, resource in _chosen(args.named, found.values())]
    except ClientError as error:
        return fail(error)
    say("\n".join(_texts(all_of, args.node, args.parts, args.pool)))
    return EXIT_OK


def _chosen(named: Sequence[tuple[str, str]], found: Iterable[ResourceStatus]) -> Iterator[tuple[str, ResourceStatus]]:
    """Yield the resources to print, each with the name of its GRES."""
    offered = {resource.name: resource for resource in found if resource.capacity}
    pairs = named or [(re.sub(r"\W", "_", name.rpartition("/")[2], flags=re.ASCII), name) for name in offered]
    if not pairs:
        raise CommandError("no resource has devices now: 'plugind devices' says why")
    for at, (name, resource) in enumerate(pairs):
        if name in (before for before, _ in pairs[:at]):
            raise CommandError(f"more than one resource would be the GRES {name}: name them as GRES=RESOURCE")
        if resource not in offered:
            raise CommandError(f"{escaped(resource)} has no devices now: 'plugind devices' says why")
        yield name, offered[resource]


def _gres(client: SyncClient, args: argparse.Namespace, name: str, resource: ResourceStatus) -> Gres:
    if not args.find_nodes:
        return Gres(name, resource.name, resource.capacity)
    found = sorted(
        (natural(_node_of(client, resource.name, device.id, args.pool)), device.id)
        for device in resource.listed.devices.values()
    )
    # The natural order of a path ends with the path.
    files = tuple(order.rpartition("\0")[2] for order, _ in found)
    for text in (*files, *(device for _, device in found)):
        if _UNSAFE.search(text):
            raise CommandError(f"{escaped(text)} has characters that Slurm or its map would take for something else")
    if len(set(files)) < len(files):
        raise CommandError(
            f"several devices of {escaped(resource.name)} have the same device node: leave out --find-nodes"
        )
    return Gres(name, resource.name, resource.capacity, tuple(device for _, device in found), files)


def _node_of(client: SyncClient, resource: str, device: str, pool: str | None) -> str:
    """Lease a device briefly; return the path of its device node."""
    lease = client.take({resource: 1}, ids=[device], pool=pool, seconds=_MOMENT)
    client.release(lease.id)
    nodes = {node.host_path for node in lease.answer.nodes} if lease.answer else set()
    if len(nodes) != 1:
        what = f"{escaped(device)} of {escaped(resource)} has {len(nodes)} device nodes"
        raise CommandError(f"{what}, and not one: leave out --find-nodes")
    return nodes.pop()


def _texts(all_of: Sequence[Gres], node: str, parts: str, pool: str | None) -> Iterator[str]:
    counts = ",".join(f"{gres.name}:{gres.number}" for gres in all_of)
    types = ",".join(gres.name for gres in all_of)
    confined = _CONFINED if any(gres.files for gres in all_of) else ""
    yield _SLURM_CONF.format(types=types, node=node, counts=counts, parts=parts, confined=confined)
    lines = [line for gres in all_of for line in _gres_lines(gres, node)]
    yield "".join(f"{line}\n" for line in ["# gres.conf; several lines of one GRES stay in this order", *lines])
    yield "".join(f"{line}\n" for line in ["# /etc/plugind/slurm-gres", *(_map_line(gres, pool) for gres in all_of)])


def _gres_lines(gres: Gres, node: str) -> Iterator[str]:
    for file in gres.files:
        yield f"NodeName={node} Name={gres.name} File={file}"
    if not gres.files:
        yield f"NodeName={node} Name={gres.name} Count={gres.number}"


def _map_line(gres: Gres, pool: str | None) -> str:
    words = [gres.name, gres.resource, f"count={gres.number}"]
    words += [f"ids={','.join(gres.ids)}"] if gres.ids else []
    words += [f"pool={pool}"] if pool else []
    return " ".join(words)

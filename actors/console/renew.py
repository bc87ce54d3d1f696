"""``plugind renew``: restarts the time of a lease."""

from __future__ import annotations

import argparse
import json
import time

from ...protocol.leases.leases_json import lease_to_json
from ...protocol.leases.values import TimeOwner
from ...protocol.text import escaped
from ..client.errors import ClientError
from ..client.lease_calls import renewal
from ..client.reaching import WRITING
from ..client.transport import asked
from .ending import EXIT_OK, say
from .lease_failures import fail
from .output import add_output_argument
from .status_socket import add_status_argument, status_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind renew``."""
    parser.description = "Begin the time of a lease again that was asked for with --ttl."
    parser.epilog = (
        "examples:\n  plugind renew bench-3\n\n"
        "exit codes: 0 ok, 1 it is not there, or belongs to another user, 2 it has no time, or usage,"
        " 69 no daemon answers"
    )
    parser.add_argument("id", metavar="ID", help="the lease")
    add_output_argument(parser, "the lease, as 'plugind allocate -o json' prints it")
    add_status_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Restart the time of a lease; return the exit code."""
    try:
        lease = asked(status_path(args), renewal(args.id), timeout=WRITING)
    except ClientError as error:
        return fail(error, args.output)
    if args.output == "json":
        say(json.dumps(lease_to_json(lease, time.clock_gettime_ns(time.CLOCK_BOOTTIME))) + "\n")
    elif isinstance(lease.owner, TimeOwner):
        say(f"{escaped(lease.id)} ends in {lease.owner.seconds:g} s\n")
    return EXIT_OK

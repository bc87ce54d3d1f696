"""``plugind release``: the end of leases."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from ...protocol.leases.forms import not_on_disk
from ..client.errors import ClientError, NoDaemonError
from ..client.lease_calls import is_unknown, release
from ..client.reaching import WRITING
from ..client.transport import asked
from .ending import EXIT_FAILED, EXIT_OK, complain, say
from .lease_failures import fail
from .output import add_output_argument
from .status_socket import add_status_argument, status_path

if TYPE_CHECKING:
    from ...protocol.leases.replies import Released
    from ...protocol.status.json import Json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind release``."""
    parser.description = (
        "End leases: their devices are free at once. The plugin is told nothing, since its API has no call for that,"
        " and a process that still has a device open keeps it open."
    )
    parser.epilog = (
        "examples:\n  plugind release a1b2c3d4e5f6\n  plugind release --if-exists bench-3 bench-4\n\n"
        "exit codes: 0 ok, 1 one is not there, or belongs to another user, 2 usage, 69 no daemon answers"
    )
    parser.add_argument("ids", metavar="ID", nargs="+", help="a lease")
    parser.add_argument("--if-exists", action="store_true", help="a lease that is not there is no error")
    add_output_argument(parser, "one object, whose 'leases' say of each whether it was released, and why not")
    add_status_argument(parser)


def run(args: argparse.Namespace) -> int:
    """End the leases, each by itself; return the exit code of the first that failed."""
    path, code = status_path(args), EXIT_OK
    said: list[dict[str, Json]] = []
    for lease in args.ids:
        released, error = _release(path, lease)
        unwritten = None if released is None else released.unwritten
        why = None if error is None else str(error)
        said.append({"id": lease, "released": error is None, "error": why, "unwritten": unwritten})
        if unwritten is not None:
            complain(not_on_disk(lease, unwritten))
        if error is not None and not (args.if_exists and is_unknown(error)):
            code = code or fail(error) or EXIT_FAILED
        if isinstance(error, NoDaemonError):
            break
    if args.output == "json":
        say(json.dumps({"leases": said}) + "\n")
    return code


def _release(path: str, lease: str) -> tuple[Released | None, ClientError | None]:
    """End a lease; return the answer, or the error."""
    try:
        return asked(path, release(lease), timeout=WRITING), None
    except ClientError as error:
        return None, error

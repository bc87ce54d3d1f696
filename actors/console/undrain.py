"""``plugind undrain``: devices back in service."""

from __future__ import annotations

import argparse
import json

from ...protocol.leases.leases_json import drain_to_json
from ...protocol.text import escaped
from ..client.errors import ClientError
from ..client.lease_calls import undraining
from ..client.reaching import WRITING
from ..client.transport import asked
from .drain import add_drain_target, drain_target_of
from .ending import EXIT_OK, say
from .lease_failures import fail
from .output import add_output_argument
from .status_socket import add_status_argument, status_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind undrain``."""
    parser.description = (
        "End a drain: its devices are leased again, unless another drain has them too. What was drained is named as"
        " 'plugind devices' shows it."
    )
    parser.epilog = (
        "examples:\n  plugind undrain vendor.com/gpu:gpu-0\n  plugind undrain --node\n\n"
        "exit codes: 0 ok, 1 it is not drained, not allowed, or cannot be written, 2 usage, 69 no daemon answers"
    )
    add_drain_target(parser)
    add_output_argument(parser, "the drain that has ended")
    add_status_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Put devices back into service; return the exit code."""
    try:
        drain = asked(status_path(args), undraining(drain_target_of(args)), timeout=WRITING)
    except ClientError as error:
        return fail(error, args.output)
    if args.output == "json":
        say(json.dumps(drain_to_json(drain)) + "\n")
    else:
        say(f"back in service: {escaped(drain.target.words)}\n")
    return EXIT_OK

"""The options of ``plugind nomad-device`` about the API of Nomad's agent; Nomad's own commands have the same variables.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from typing import Final

from ...protocol.nomad import NomadError
from ..io.http_get import Tls, origin
from .ending import EXIT_USAGE, CommandError
from .nomad_agent import NomadAgent, of_file, usable

ADDRESS: Final = "http://127.0.0.1:4646"
_TOKEN: Final = "NOMAD_TOKEN"
#: Each option that takes a text, with its variable, its placeholder and its help.
_OPTIONS: Final = {
    "address": ("NOMAD_ADDR", "URL", f"the address of the agent's API (default: $NOMAD_ADDR, else {ADDRESS})"),
    "token-file": (None, "FILE", f"a file with the secret of the token for the API (default: ${_TOKEN}, if any)"),
    "ca-cert": (
        "NOMAD_CACERT",
        "FILE",
        "the certificates of the authorities that the API is known by (default: $NOMAD_CACERT, else the system's)",
    ),
    "client-cert": ("NOMAD_CLIENT_CERT", "FILE", "the certificate for the API (default: $NOMAD_CLIENT_CERT, if any)"),
    "client-key": ("NOMAD_CLIENT_KEY", "FILE", "its key (default: $NOMAD_CLIENT_KEY, if any)"),
    "tls-server-name": (
        "NOMAD_TLS_SERVER_NAME",
        "NAME",
        "the name in the certificate of the API (default: $NOMAD_TLS_SERVER_NAME, else that in the address)",
    ),
}


def add_agent_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--reconcile`` and all that belongs to it."""
    group = parser.add_argument_group("to end the leases of tasks that have ended")
    group.add_argument(
        "--reconcile",
        action="store_true",
        help="compare the leases with the agent's API each minute, and end those whose allocations have ended",
    )
    for name, (_, metavar, text) in _OPTIONS.items():
        group.add_argument(f"--{name}", metavar=metavar, default=None, help=text)


def agent_of(args: argparse.Namespace) -> NomadAgent | None:
    """Return the agent to ask; None if no lease is to be compared.

    Raises:
      CommandError: if the options are not about an agent.
    """
    given = {name: getattr(args, name.replace("-", "_")) for name in _OPTIONS}
    if not args.reconcile:
        for name in (name for name, text in given.items() if text is not None):
            raise CommandError(f"--{name} is of use with --reconcile alone", EXIT_USAGE)
        return None
    found = {name: text or _variable(name) for name, text in given.items()}
    tls = Tls(found["ca-cert"], found["client-cert"], found["client-key"], found["tls-server-name"])
    try:
        server = origin(found["address"] or ADDRESS, tls)
    except ValueError as error:
        raise CommandError(f"the address of the agent cannot be used: {error}", EXIT_USAGE) from error
    return NomadAgent(server, _token(found["token-file"]))


def _variable(name: str) -> str | None:
    variable = _OPTIONS[name][0]
    return None if variable is None else os.environ.get(variable) or None


def _token(file: str | None) -> Callable[[], str]:
    if file is not None:
        return partial(of_file, file)
    try:
        secret = usable(os.environ.get(_TOKEN, ""))
    except NomadError as error:
        raise CommandError(f"${_TOKEN} cannot be used: {error}", EXIT_USAGE) from error
    return lambda: secret

"""``plugind nomad-device``: a device plugin of Nomad whose devices are those of a pool of plugind.

An agent of Nomad starts it by go-plugin's rules: a variable has a certain word, and the first line on standard output
says where the plugin listens. ``docs/engines.md`` says how to set it up.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
from collections.abc import AsyncIterator, Sequence
from typing import Final

import trio

from ...protocol.leases.values import Pool
from ...protocol.settings.kinds import WrongValueError
from ...protocol.settings.pools import PoolGiven, PoolKind
from ..client.client import Client
from ..io.grpc_server.limits import ServerLimits
from ..io.grpc_server.serve import Service, serve_listener
from ..io.unix_socket import UnixListener, listen
from .ending import EXIT_OK, EXIT_USAGE, CommandError, say
from .nomad_options import add_agent_arguments, agent_of
from .nomad_pool import NomadPool
from .nomad_reconciler import Reconciler
from .nomad_services import Base, Broker, Controller, Devices, PluginHealth
from .status_socket import add_status_argument, status_path

#: The variable by which go-plugin tells that it has started a plugin, and the word of Nomad.
COOKIE_NAME: Final = "NOMAD_PLUGIN_MAGIC_COOKIE"
COOKIE: Final = "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255"
#: go-plugin kills a plugin 2 s after it has asked it to end.
_LIMITS: Final = ServerLimits(grace=0.5)
#: Seconds by which the pauses between two looks at the allocations differ at most.
JITTER: Final = 15.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind nomad-device``."""
    parser.description = (
        "Offer the devices of a pool to an agent of Nomad, which starts this command. A task has its devices by a lease"
        " until Nomad gives them to another one."
    )
    parser.epilog = (
        "examples:\n"
        "  # in the configuration of the agent\n"
        '  plugin "plugind" {\n'
        '    args = ["nomad-device", "--pool", "nomad=vendor.com/gpu", "--reconcile"]\n'
        "    config {}\n"
        "  }\n\n"
        "The agent starts this command; docs/engines.md says how to set it up.\n\n"
        "exit codes: 0 the agent has ended it, 1 it was not started by an agent, 2 usage"
    )
    parser.add_argument(
        "--pool",
        dest="pools",
        metavar="P",
        type=_pool,
        action="append",
        required=True,
        help="the pool, in the words of 'plugind run --pool'; again for each resource of the pool",
    )
    add_status_argument(parser)
    add_agent_arguments(parser)


def _pool(text: str) -> PoolGiven:
    try:
        pool: PoolGiven = PoolKind().from_text(text, "/")
    except WrongValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return pool


def run(args: argparse.Namespace) -> int:
    """Be a plugin until the agent ends it; return the exit code."""
    pools, agent = _checked(args.pools), agent_of(args)
    if os.environ.get(COOKIE_NAME) != COOKIE:
        raise CommandError("this is a plugin of Nomad: its agent starts it, see docs/engines.md")
    if os.environ.get("PLUGIN_CLIENT_CERT"):
        raise CommandError("the agent asks for TLS to its plugins, which plugind does not have")
    # An interrupt of the agent's terminal is for the agent, which ends its plugins itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with tempfile.TemporaryDirectory(
        prefix="plugind-", dir=os.environ.get("PLUGIN_UNIX_SOCKET_DIR") or None, ignore_cleanup_errors=True
    ) as directory:
        path = os.path.join(directory, "s")
        try:
            listener = listen(path)
        except OSError as error:
            raise CommandError(f"cannot listen at {path}: {error.strerror}") from error
        client = Client(status_path(args))
        reconciler = None if agent is None else Reconciler(client, agent, pools)
        trio.run(_serve, listener, path, NomadPool(client, pools), reconciler)
    return EXIT_OK


def _checked(given: Sequence[PoolGiven]) -> list[Pool]:
    """Return the pools, which have one name and different resources.

    Raises:
      CommandError: if they have not.
    """
    if len({pool.name for pool in given}) > 1:
        raise CommandError("all --pool have one name: a plugin of Nomad has the devices of one pool", EXIT_USAGE)
    if len({pool.resource for pool in given}) < len(given):
        raise CommandError("each --pool has another resource", EXIT_USAGE)
    return [Pool(pool.name, pool.resource, frozenset(pool.ids)) for pool in given]


async def _serve(listener: UnixListener, path: str, pool: NomadPool, reconciler: Reconciler | None) -> None:
    stopping = trio.Event()
    services: list[Service] = [
        PluginHealth(),
        Broker(),
        Controller(stopping),
        Base(f"plugind-{pool.name}"),
        Devices(pool),
    ]
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_stop_by, signals, stopping)
            nursery.start_soon(pool.run)
            if reconciler is not None:
                nursery.start_soon(reconciler.run, _later)
            # The socket is bound already, so a connection that comes at once waits.
            say(f"1|2|unix|{path}|grpc|\n", now=True)
            await serve_listener(services, listener, limits=_LIMITS, stopping=stopping)
            nursery.cancel_scope.cancel()


def _later() -> float:
    return random.uniform(0.0, JITTER)


async def _stop_by(signals: AsyncIterator[int], stopping: trio.Event) -> None:
    async for _ in signals:
        stopping.set()

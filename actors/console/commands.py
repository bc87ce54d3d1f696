"""The command line of plugind: one parser, one function for each command, exit codes 0, 1, 2 and 78."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from importlib.metadata import version

import trio

from ...protocol.errors import ConfigError
from ..io.roots import RootBusyError
from ..supervision import GaveUpError, leaves
from . import (
    ask,
    demo,
    fake,
    probe,
    simulate,
)
from . import run as daemon
from .client import complain

EXIT_FAILED = 1
EXIT_CONFIG = 78

_EPILOG = """examples:
  plugind demo                                     a small node at work, nothing to set up
  plugind run --root /tmp/plugins                  a daemon on a directory of your own
  plugind ls                                       every plugin, its state, and why
  plugind wait csi.example.com --timeout 60        until a plugin is registered
  plugind probe ./csi.example.com-reg.sock         what is right and wrong with a plugin's socket

exit codes: 0 ok, 1 failed, 2 usage, 78 bad configuration"""

_RUN_EPILOG = """examples:
  plugind run
  plugind run --root /tmp/plugins --status /tmp/plugind.sock --log-format json
  PLUGIND_ROOT=/tmp/a:/tmp/b plugind run --rescan 30

SIGTERM and SIGINT stop it gracefully: what is in flight finishes or is rolled back. A second one stops it at once."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse ``arguments`` (those of the process if None), run the command, and return its exit code."""
    args = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = args.run
    return run(args)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="plugind",
        description="Discover plugin sockets and register each with the consumer of its type.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"plugind {version('plugind')}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        name: str, text: str, add_arguments: Callable[[argparse.ArgumentParser], None], run: Callable[..., int]
    ) -> None:
        subparser = subparsers.add_parser(name, help=text, formatter_class=argparse.RawDescriptionHelpFormatter)
        add_arguments(subparser)
        subparser.set_defaults(run=run)

    add("run", "run the daemon", _add_run_arguments, _run)
    add("ls", "list the plugins", ask.add_ls_arguments, ask.run_ls)
    add("describe", "tell all about a plugin", ask.add_describe_arguments, ask.run_describe)
    add("watch", "print changes as they happen", ask.add_watch_arguments, ask.run_watch)
    add("wait", "wait until plugins are registered", ask.add_wait_arguments, ask.run_wait)
    add("retry", "try a plugin now", ask.add_retry_arguments, ask.run_retry)
    add("probe", "check a plugin's socket", probe.add_probe_arguments, probe.run_probe)
    add("fake", "play a plugin", fake.add_arguments, fake.main)
    add("demo", "see a small node at work", demo.add_demo_arguments, demo.run_demo)
    add(
        "simulate",
        "play random scripts on a node in memory",
        simulate.add_simulate_arguments,
        simulate.run_simulate,
    )
    return parser


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Discover plugin sockets under the roots and register each, until a signal comes."
    parser.epilog = _RUN_EPILOG
    daemon.add_arguments(parser)


def _run(args: argparse.Namespace) -> int:
    try:
        trio.run(daemon.run_daemon, args, daemon.config_from(args, os.environ))
    except (ConfigError, RootBusyError, GaveUpError, ExceptionGroup) as error:
        known = [leaf for leaf in leaves(error) if isinstance(leaf, ConfigError | RootBusyError | GaveUpError)]
        if not known:
            raise
        complain(str(known[0]))
        return EXIT_CONFIG if isinstance(known[0], ConfigError) else EXIT_FAILED
    return 0

"""``plugind watch``: each change of a plugin as it happens."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack

from ...protocol.plugins.health import Health
from ...protocol.plugins.status import StateName
from ...protocol.text import escaped
from ..http.backends import each
from ..http.client import Reply, UnreachableError
from .answers import Daemon, Plugin, add_daemon_arguments, daemon, plugin_in
from .client import has_heartbeats, unanswered, watching
from .description import change, said_of
from .ending import EXIT_UNREACHABLE, CutOffError, complain, say
from .output import add_output_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind watch``."""
    parser.description = (
        "Print the present state of every plugin, then each change as it happens, one line each, until the daemon"
        " stops. A change that would print the same line again is left out, except with -o json."
    )
    parser.epilog = (
        "examples:\n  plugind watch\n  plugind watch -o json | jq -c '[.time, .name, .state, .reason]'\n\n"
        "exit codes: 1 changes were lost, 2 usage, 69 no daemon answers, or it has stopped, 75 it is busy"
    )
    add_output_argument(parser, "one object for each line, with the keys of 'plugind ls -o json', and 'time'")
    add_daemon_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Watch the plugins until the daemon stops; return the exit code."""
    return _watch(daemon(args), as_json=args.output == "json")


class News:
    """Selects the changes that show a reader something new.

    Facts of a plugin or the pid of a process can change without a change of the line. Programs, which ask for JSON, get
    each change.
    """

    def __init__(self) -> None:
        #: The last line about each existing socket.
        self.said: dict[str, str] = {}

    def take(self, plugin: Plugin) -> bool:
        """Return whether a change must be printed."""
        socket, said = str(plugin.get("socket")), said_of(_without_details(plugin))
        if plugin.get("state") == StateName.GONE:
            self.said.pop(socket, None)
            return True
        before, self.said[socket] = self.said.get(socket), said
        return plugin.get("event") is not None or said != before


def _without_details(plugin: Plugin) -> Plugin:
    """Return a change without its event, and without the reason of a missing connection, which changes meanwhile."""
    reason = None if plugin.get("health") == Health.DISCONNECTED else plugin.get("health_reason")
    return {**plugin, "event": None, "health_reason": reason}


def _watch(daemon: Daemon, *, as_json: bool) -> int:
    news = News()
    with ExitStack() as opened:
        try:
            reply = opened.enter_context(watching(daemon))
        except UnreachableError as error:
            raise unanswered(error) from error
        has_heartbeats(reply)
        for line in filter(None, _lines(daemon, reply)):
            plugin = plugin_in(line)
            if as_json or news.take(plugin):
                say(line.decode() + "\n" if as_json else change(plugin), now=True)
    complain(f"the daemon at {escaped(daemon.path)} stopped")
    return EXIT_UNREACHABLE


def _lines(daemon: Daemon, reply: Reply) -> Iterator[bytes]:
    try:
        yield from each(reply)
    except UnreachableError as error:
        why = f"the daemon at {escaped(daemon.path)} went away: {error.reason}"
        raise CutOffError(why, EXIT_UNREACHABLE) from error

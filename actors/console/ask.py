"""The commands that ask a running daemon: ls, describe, watch, wait and retry.

Each command is an ``add_NAME_arguments`` that completes a parser and a ``run_NAME`` from the parsed arguments to the
exit code. What people are shown is formed in ``console_table``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from urllib.parse import quote

import attrs
import trio

from ...protocol.text import escaped
from ..io.http_client import UnreachableError, ask
from . import table as console_table
from .client import (
    CommandError,
    Plugin,
    add_status_argument,
    complain,
    default_status_path,
    error_in,
    fetch,
    plugin_in,
    plugins_in,
    run,
    unreachable,
)

__all__ = [
    "add_describe_arguments",
    "add_ls_arguments",
    "add_retry_arguments",
    "add_status_argument",
    "add_wait_arguments",
    "add_watch_arguments",
    "default_status_path",
    "run_describe",
    "run_ls",
    "run_retry",
    "run_wait",
    "run_watch",
]

#: Seconds between tries to reach a daemon that is not up yet.
RECONNECT = 0.2
#: Seconds that ``wait`` waits unless told.
WAIT = 60.0


def _status_path(args: argparse.Namespace) -> str:
    given: str | None = args.status
    return given or default_status_path()


def _target(text: str) -> str:
    """A path may be relative; a name may hold slashes (``vendor.com/device``): only what looks like a path is one."""
    return os.path.abspath(text) if text.startswith(("./", "../")) else text


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < 1e9:
        raise ValueError
    return seconds


_seconds.__name__ = "number of seconds"

# --- ls ---------------------------------------------------------------------------------------------------------------


def add_ls_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind ls``."""
    parser.description = "List every plugin socket with its state, the reason for it and the time of the next try."
    parser.epilog = "examples:\n  plugind ls\n  plugind ls --json | jq '.[] | select(.state != \"registered\")'"
    parser.add_argument("--json", action="store_true", help="print a JSON list of objects")
    add_status_argument(parser)


def run_ls(args: argparse.Namespace) -> int:
    """List the plugins; return the exit code."""
    return run(_ls, args)


async def _ls(args: argparse.Namespace) -> int:
    answer = await fetch(_status_path(args), "GET", "/plugins")
    if args.json:
        sys.stdout.write(answer.decode())
    else:
        console_table.show(plugins_in(answer))
    return 0


# --- describe ---------------------------------------------------------------------------------------------------------


def add_describe_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind describe``."""
    parser.description = "Tell all that is known of a plugin, with the history of its states, reasons and times."
    parser.epilog = (
        "examples:\n  plugind describe csi.example.com\n"
        "  plugind describe /var/lib/kubelet/plugins_registry/csi.example.com-reg.sock --json"
    )
    parser.add_argument("target", metavar="NAME|SOCKET", help="a plugin's name, or the path of its socket")
    parser.add_argument("--json", action="store_true", help="print a JSON list of objects, one for each socket")
    add_status_argument(parser)


def run_describe(args: argparse.Namespace) -> int:
    """Describe a plugin; return the exit code."""
    return run(_describe, args)


async def _describe(args: argparse.Namespace) -> int:
    target = quote(os.fsencode(_target(args.target)), safe="")
    answer = await fetch(_status_path(args), "GET", f"/plugins/{target}")
    if args.json:
        sys.stdout.write(answer.decode())
    else:
        sys.stdout.write("\n".join(map(console_table.described, plugins_in(answer))))
    return 0


# --- watch ------------------------------------------------------------------------------------------------------------


def add_watch_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind watch``."""
    parser.description = "Print the present state of every plugin, then each change as it happens, one line each."
    parser.epilog = "examples:\n  plugind watch\n  plugind watch --json | jq -c '[.time, .name, .state, .reason]'"
    parser.add_argument("--json", action="store_true", help="print JSON lines: the keys of 'ls --json', and 'time'")
    add_status_argument(parser)


def run_watch(args: argparse.Namespace) -> int:
    """Watch the plugins until the daemon stops; return the exit code."""
    return run(_watch, args)


async def _watch(args: argparse.Namespace) -> int:
    path = _status_path(args)
    async with ask(path, "GET", "/watch") as reply:
        if reply.status != 200:
            raise CommandError(error_in(await reply.body(), reply.status))
        try:
            async for line in reply.lines():
                plugin = plugin_in(line)
                sys.stdout.write(line.decode() + "\n" if args.json else console_table.change(plugin))
                sys.stdout.flush()
        except UnreachableError as error:
            complain(f"the daemon at {escaped(path)} went away: {error.reason}")
            return 1
    complain(f"the daemon at {escaped(path)} stopped")
    return 0


# --- wait -------------------------------------------------------------------------------------------------------------


def add_wait_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind wait``."""
    parser.description = (
        "Wait until plugins are registered. Exit 0 once all are, 1 at the timeout, with the reason why each is not."
        " The daemon need not be up yet."
    )
    parser.epilog = (
        "examples:\n  plugind wait csi.example.com --timeout 120\n  plugind wait gpu.example.com --type DRAPlugin"
    )
    parser.add_argument("names", metavar="NAME", nargs="+", help="a plugin's name")
    parser.add_argument("--type", help="of this type, CSIPlugin say (default: of any type)")
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=_seconds,
        default=WAIT,
        help="how long to wait, in seconds (default: %(default)g)",
    )
    add_status_argument(parser)


def run_wait(args: argparse.Namespace) -> int:
    """Wait for plugins; return the exit code."""
    return run(_wait, args)


@attrs.define
class _Waiting:
    """What a wait knows."""

    names: list[str]
    type: str | None
    known: dict[str, Plugin] = attrs.field(factory=dict)
    #: Why the daemon has told nothing, if so.
    unreachable: str | None = None

    def note(self, plugin: Plugin) -> None:
        socket = str(plugin.get("socket"))
        if plugin.get("state") == "gone":
            self.known.pop(socket, None)
        else:
            self.known[socket] = plugin

    def instances(self, name: str) -> list[Plugin]:
        return [
            plugin
            for plugin in self.known.values()
            if plugin.get("name") == name and self.type in (None, plugin.get("type"))
        ]

    def registered(self, name: str) -> Plugin | None:
        return next((plugin for plugin in self.instances(name) if plugin.get("state") == "registered"), None)

    def why_not(self, name: str) -> str:
        shown = escaped(name)
        if self.unreachable is not None:
            return f"{shown} is not registered: {self.unreachable}"
        instances = self.instances(name)
        if instances:
            return f"{shown} is not registered: " + "; ".join(map(_why, instances))
        others = [plugin for plugin in self.known.values() if plugin.get("name") == name]
        if others:
            types = ", ".join(sorted({console_table.text(plugin.get("type")) for plugin in others}))
            return f"{shown} is not registered: it is there as {types}, not as {escaped(self.type or '')}"
        nameless = [plugin for plugin in self.known.values() if plugin.get("name") is None]
        said = "; ".join(map(_why, nameless[:3]))
        more = f"; and {len(nameless) - 3} more" if len(nameless) > 3 else ""
        hint = f"; sockets that have not said their name: {said}{more}" if nameless else ""
        return f"{shown} is not registered: no plugin has that name{hint}"


def _why(plugin: Plugin) -> str:
    said = console_table.remarks(plugin)
    tries = f", attempt {plugin['attempt']}" if plugin.get("attempt") else ""
    when = plugin.get("next_try_in")
    following = "" if when is None else f", next try in {console_table.duration(when)}"
    state = f"{console_table.text(plugin.get('state'))}{tries}{following}"
    return f"{console_table.text(plugin.get('socket'))} is {state}" + (f": {said}" if said else "")


async def _wait(args: argparse.Namespace) -> int:
    path = _status_path(args)
    unanswered = f"the daemon at {escaped(path)} has not answered within {args.timeout:g} s"
    waiting = _Waiting(list(dict.fromkeys(args.names)), args.type, unreachable=unanswered)
    with trio.move_on_after(args.timeout):
        while not await _follow(path, waiting):  # noqa: ASYNC110
            # A daemon that is not there tells nobody when it comes.
            await trio.sleep(RECONNECT)
        for name in waiting.names:
            plugin = waiting.registered(name)
            if plugin is not None:
                took = plugin.get("registered_in")
                within = "" if took is None else f" in {console_table.duration(took)}"
                socket = console_table.text(plugin.get("socket"))
                sys.stdout.write(f"{escaped(name)} is registered{within}: {socket}\n")
        return 0
    for name in waiting.names:
        if waiting.registered(name) is None:
            complain(waiting.why_not(name))
    return 1


async def _follow(path: str, waiting: _Waiting) -> bool:
    """Follow the daemon; return whether all are registered, or it left or was not there."""
    try:
        async with ask(path, "GET", "/watch") as reply:
            if reply.status == 503:
                waiting.unreachable = error_in(await reply.body(), reply.status)
                return False
            if reply.status != 200:
                raise CommandError(error_in(await reply.body(), reply.status))
            waiting.known.clear()
            waiting.unreachable = None
            async for line in reply.lines():
                waiting.note(plugin_in(line))
                if all(waiting.registered(name) is not None for name in waiting.names):
                    return True
        waiting.unreachable = f"the daemon at {escaped(path)} stopped"
    except UnreachableError as error:
        waiting.unreachable = unreachable(error)
    return False


# --- retry ------------------------------------------------------------------------------------------------------------


def add_retry_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind retry``."""
    parser.description = "Try to register a plugin now, with a fresh backoff, instead of at its next try."
    parser.epilog = (
        "examples:\n  plugind retry csi.example.com\n  plugind retry /var/lib/kubelet/plugins_registry/a.sock"
    )
    parser.add_argument("target", metavar="NAME|SOCKET", help="a plugin's name, or the path of its socket")
    add_status_argument(parser)


def run_retry(args: argparse.Namespace) -> int:
    """Ask for a try now; return the exit code."""
    return run(_retry, args)


async def _retry(args: argparse.Namespace) -> int:
    body = json.dumps({"target": _target(args.target)}).encode()
    answer = json.loads(await fetch(_status_path(args), "POST", "/retry", body))
    for socket in answer["sockets"]:
        sys.stdout.write(f"trying {console_table.text(socket)} now\n")
    return 0

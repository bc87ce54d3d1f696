"""``plugind ls``: every plugin socket, its state, and why."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Collection, Iterable, Sequence

from ...protocol.text import escaped
from ...protocol.words import BUILT_IN_TYPES
from . import table
from .answers import Plugin, add_daemon_arguments, daemon, health_in, plugins_in, queued_in, roots_in, to_mend
from .client import answer, fetch
from .ending import EXIT_FAILED, EXIT_OK, EXIT_USAGE, CommandError, complain, say
from .phrases import STATE_WORDS, state_words, text

_EPILOG = """examples:
  plugind ls
  plugind ls --state waiting,stale,parked
  plugind ls --type CSIPlugin -o name
  plugind ls --fail-on stale,waiting >/dev/null || echo look at the plugins
  plugind ls -o json | jq '.[] | select(.state != "registered")'

On a terminal, columns for which there is no room are left out, and a cause that does not fit stands under its row. In a
pipe, and with -o wide, each plugin is one line with all columns.

exit codes: 0 ok, 1 a plugin is in a state of --fail-on, 2 usage, 69 no daemon answers, 75 it is busy"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind ls``."""
    parser.description = (
        "List every plugin socket: its state and why, since when, and when it is tried next. The last line counts them."
    )
    parser.epilog = _EPILOG
    states = ", ".join(STATE_WORDS)
    picks = {
        "--state": (STATE_WORDS, f"list only plugins in these states, which are {states}; may be repeated"),
        "--type": ((), "list only plugins of these types; may be repeated"),
        "--fail-on": (
            STATE_WORDS,
            "exit 1 if a plugin is in one of these states, whatever --state lists; --type limits this, too; may be"
            " repeated",
        ),
    }
    for option, (choices, purpose) in picks.items():
        word = "TYPE" if option == "--type" else "STATE"
        parser.add_argument(
            option, action="extend", default=[], type=_words(choices), metavar=f"{word}[,{word}]", help=purpose
        )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "-o",
        "--output",
        choices=("wide", "json", "name"),
        help="wide: all columns, one line each; json: a list of objects; name: names alone, or the socket of a plugin"
        " that has not said its name",
    )
    form.add_argument("--json", action="store_const", const="json", dest="output", help="the same as -o json")
    add_daemon_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """List the plugins; return the exit code."""
    asked = daemon(args)
    plugins = plugins_in(fetch(asked, "/plugins"))
    # The answer about health has the status 503 if anything is wrong, and says what.
    health = health_in(answer(asked, "GET", "/healthz")[1]) if args.output in (None, "wide") else {}
    notes = [*queued_in(health), *to_mend(roots_in(health))]
    _check_types(args.type, plugins)
    typed = [plugin for plugin in plugins if not args.type or plugin.get("type") in args.type]
    picked = [plugin for plugin in typed if not args.state or state_words(plugin) & {*args.state}]
    match args.output:
        case "json":
            say("[" + ",\n".join(map(json.dumps, picked)) + "]\n")
        case "name":
            say("".join(f"{name}\n" for name in _names(picked)))
        case _:
            table.show(picked, total=len(plugins), notes=notes, wide=args.output == "wide")
    failing = [plugin for plugin in typed if state_words(plugin) & {*args.fail_on}]
    if failing:
        complain(f"--fail-on: {table.summary(failing)}")
    return EXIT_FAILED if failing else EXIT_OK


def _words(choices: Collection[str] = ()) -> Callable[[str], list[str]]:
    """Return a parser of words between commas, which must be among ``choices`` if given."""

    def parsed(given: str) -> list[str]:
        words = given.split(",")
        unknown = [word for word in words if not word or (choices and word not in choices)]
        if unknown:
            expected = f"; choose from {', '.join(choices)}" if choices else ""
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of them{expected}")
        return words

    return parsed


def _check_types(asked: Iterable[str], plugins: Sequence[Plugin]) -> None:
    """Refuse a type that no plugin has and that is not built in, since it is misspelt.

    Raises:
      CommandError: if there is such a type.
    """
    present = sorted({*BUILT_IN_TYPES, *(str(plugin["type"]) for plugin in plugins if plugin.get("type") is not None)})
    for word in asked:
        if word not in present:
            types = ", ".join(map(escaped, present))
            raise CommandError(f"--type: no plugin is of type {escaped(word)!r}; known types: {types}", EXIT_USAGE)


def _names(plugins: Iterable[Plugin]) -> list[str]:
    """Return each name once, and the paths of sockets without one, as ``describe`` and ``retry`` accept them."""
    ordered = table.in_order(plugins)
    return list(dict.fromkeys(text(plugin.get("name") or plugin.get("socket")) for plugin in ordered))

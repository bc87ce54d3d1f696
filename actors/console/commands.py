"""The command line: the list of commands.

Each command is a module of this package with two functions: ``add_arguments(parser)`` completes its parser, and
``run(args)`` does the work and returns the exit code, or raises :class:`~plugind.actors.console.ending.CommandError`.
Only the module of the requested command is imported, since importing the daemon takes much longer than running
``plugind ls``. ``docs/performance.md`` has the start time of each command, and a test lists the modules that it may
load.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast

from ...protocol.version import __version__
from .ending import EXIT_OK, EXIT_USAGE, OutputError, code_of, flush, run_to_end, say
from .start import imports_of_daemon, no_collection, open_standard_descriptors

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

#: The commands in the order of the help, by who needs them, each with its line there.
GROUPS = {
    "to see what is there": {
        "ls": "list the plugins",
        "who": "show who has which devices",
        "devices": "list the devices",
        "leases": "list the leases, or their history",
        "usage": "sum for how long devices were held",
        "describe": "tell all about a plugin",
        "inventory": "print plugins, devices and holders as one document",
        "watch": "print changes as they happen",
        "page": "show plugins, devices and leases in a browser",
        "wait": "wait until plugins are registered, or devices are there",
    },
    "to use devices": {
        "allocate": "lease devices, for a command, a container or some time",
        "release": "end leases",
        "renew": "begin the time of a lease again",
        "drain": "take devices out of service",
        "undrain": "put devices back into service",
    },
    "to run a node": {
        "run": "run the daemon",
        "config": "print or check the configuration",
        "reload": "read the configuration of the daemon again",
        "retry": "try a plugin now",
        "install-unit": "write the systemd service of the daemon",
        "slurm-config": "print the lines for Slurm",
    },
    "to write plugins": {
        "probe": "check a plugin's socket",
        "probe-handler": "check a handler in another process",
        "fake": "play a plugin",
        "demo": "see a small node at work",
    },
}
COMMANDS = {name: line for group in GROUPS.values() for name, line in group.items()}
#: The heading above the first command of each group.
_HEADINGS = {next(iter(group)): heading for heading, group in GROUPS.items()}
#: What argparse says of a misspelt command, before the list of all.
_INVALID = re.compile(r"argument COMMAND: invalid choice: '(\S{1,64})' ")
#: Options whose time may begin with a minus, as those of ``journalctl``.
_TIMES = ("--since", "--until", "--at")
#: Commands that programs run. The help does not list them.
_HIDDEN = ("lease-hook",)
#: Commands for which the words after ``--`` are a command of the user.
_RUNNING = ("allocate", "probe-handler")

_EPILOG = """examples:
  plugind demo                                     a small node at work, nothing to set up
  plugind run --devices 'lab/serial=/dev/ttyUSB*'  a daemon that leases serial adapters
  plugind allocate lab/serial=1 -- ./test-board    a command that has one of them
  plugind who                                      who has which device, and who waits
  plugind run --root /tmp/plugins                  a daemon that registers the plugins in a directory
  plugind ls                                       every plugin, its state, and why
  plugind wait csi.example.com --timeout 60        until a plugin is registered
  plugind probe ./csi.example.com-reg.sock         what is right and wrong with a plugin's socket

exit codes: 0 ok, 1 failed, 2 usage, 69 no daemon answers, 75 the daemon is busy,
78 bad configuration, 130 interrupted"""


class Command(Protocol):
    """The interface of a command's module."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Complete the parser: description, examples and options."""

    def run(self, args: argparse.Namespace) -> int:
        """Do the work and return the exit code."""


def command(name: str) -> Command:
    """Import the module of a command."""
    return cast(Command, import_module(f".{name.replace('-', '_')}", __package__))


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse ``arguments`` (those of the process if None), run the command, and return its exit code."""
    if arguments is not None:
        return _main(arguments, contextlib.nullcontext())
    words = sys.argv[1:]
    return _main(words, imports_of_daemon() if _asked_for(words) == "run" else no_collection())


def _main(words: Sequence[str], importing: AbstractContextManager[None]) -> int:
    open_standard_descriptors()
    words, command = _split(_spelt_out(words))
    words = _with_times(words)
    try:
        # Most of the time until a command runs is spent in imports.
        with importing:
            args, unknown = _parser(words).parse_known_args(words)
        if unknown:
            # Shows the usage of this command, not that of all commands.
            args.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    except SystemExit as end:
        if end.code == EXIT_USAGE and _asked_for(words) == "allocate":
            from .allocate import refuse

            refuse(words, end, command)
        # Standard output can fail for a help, too.
        sys.exit(flush(end.code if isinstance(end.code, int) else EXIT_OK))
    except (OutputError, KeyboardInterrupt) as error:
        return code_of(error)
    args.command = command
    run: Callable[[argparse.Namespace], int] = args.run
    return run_to_end(run, args)


def _with_times(words: Sequence[str]) -> Sequence[str]:
    """Return the words with ``--since -2h`` as one, which argparse takes for two options."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] in _TIMES and re.match(r"-\d", word):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _spelt_out(words: Sequence[str]) -> Sequence[str]:
    """Return the words with ``--help`` where none are given, or where they ask for help as a command."""
    if not words:
        return ["--help"]
    return [*words[1:2], "--help"] if words[0] == "help" else words


class _Help(argparse.RawDescriptionHelpFormatter):
    """The help of all commands, by groups."""

    def _format_action(self, action: argparse.Action) -> str:
        heading = _HEADINGS.get(action.dest)
        return ("" if heading is None else f"\n  {heading}\n") + super()._format_action(action)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors stay short, since a command can have forty options.

    Its help fails like other output if it cannot be written, which argparse ignores (fault 95).
    """

    def error(self, message: str) -> NoReturn:
        """Exit with 2, after a line about the help and a line about the error."""
        if (misspelt := _INVALID.match(message)) is not None:
            from difflib import get_close_matches

            close = get_close_matches(misspelt[1], COMMANDS, 1)
            message = f"there is no command {misspelt[1]!r}" + (f": did you mean {close[0]}?" if close else "")
        self.exit(EXIT_USAGE, f"see '{self.prog} --help'\n{self.prog}: error: {message}\n")

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        if file is None or file is not sys.stdout:
            super()._print_message(message, file)
        else:
            say(message)


def whole_parser() -> argparse.ArgumentParser:
    """Return the complete parser of all commands in the help, for manual pages and completions."""
    return _parser_of(COMMANDS, complete=COMMANDS)


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser of all commands, complete for the one in ``words``."""
    asked_for = _asked_for(words)
    if asked_for in COMMANDS and words[0] == asked_for:
        return _parser_of([asked_for], complete=[asked_for])
    # The parsers of the others are for the help, and for the list of names if the command is misspelt.
    hidden = [asked_for] if asked_for in _HIDDEN else []
    return _parser_of([*hidden, *COMMANDS], complete=[*hidden, asked_for])


def _parser_of(names: Iterable[str], complete: Container[str | None]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="plugind",
        description="Lease devices to programs, and register plugins with the consumers of their types.",
        epilog=_EPILOG,
        formatter_class=_Help,
    )
    parser.add_argument("--version", action="version", version=f"plugind {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for name in names:
        # The help lists the commands that have a line.
        line: dict[str, Any] = {"help": COMMANDS[name]} if name in COMMANDS else {}
        subparser = subparsers.add_parser(name, formatter_class=argparse.RawDescriptionHelpFormatter, **line)
        if name in complete:
            _complete(subparser, name)
    return parser


def _complete(parser: argparse.ArgumentParser, name: str) -> None:
    module = command(name)
    module.add_arguments(parser)
    parser.set_defaults(run=module.run, parser=parser)


def _split(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str] | None]:
    """Return the words of plugind, and the user's command after ``--``, or None.

    Otherwise argparse would parse the options of that command.
    """
    if _asked_for(words) not in _RUNNING or "--" not in words:
        return words, None
    end = list(words).index("--")
    return words[:end], words[end + 1 :]


def _asked_for(words: Sequence[str]) -> str | None:
    # No option before the command has a value, so the first such word is the command.
    return next((word for word in words if not word.startswith("-")), None)

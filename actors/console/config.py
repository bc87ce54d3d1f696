"""``plugind config``: which settings a daemon would have and where each comes from, and whether a file can be used.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from typing import Any

from ...protocol.errors import ConfigError
from ...protocol.settings.files import parse
from ...protocol.settings.given import Given, Problem, SettingsError, Source, merged
from ...protocol.settings.writing import to_json, to_toml
from ...protocol.text import escaped
from ..io.config_files import DEFAULT_FILE, ConfigFile, read_file, read_files
from ..io.users import users_of
from ..wiring import check_pools
from . import run as daemon
from .configured import Configured, configured
from .ending import EXIT_CONFIG, EXIT_OK, CommandError, say
from .in_force import InForce, in_force
from .settings import CONFIG_VARIABLE, OPTIONS

_EPILOG = """examples:
  plugind config                                  what 'plugind run' would use, as a configuration file
  plugind config --root /tmp/plugins -o json      the same with an option, for programs
  plugind config check /etc/plugind/plugind.toml  whether a file can be used

It takes the options of 'plugind run'. What it prints is a configuration file: the comment behind each value says where
it comes from, an option, a variable, a line of a file, or the default.

exit codes:
  0   the configuration can be used
  2   wrong usage
  78  it cannot: each line on standard error says where something is wrong"""
#: In the column of the comments.
_WIDTH = 44


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind config``."""
    daemon.add_arguments(parser)
    parser.description = "Print the settings that 'plugind run' would use with the same options, or check a file."
    parser.epilog = _EPILOG
    parser.add_argument("-o", "--output", choices=["toml", "json"], default="toml", help="the form (toml)")
    actions = parser.add_subparsers(metavar="[check [FILE]]")
    check = actions.add_parser("check", help="say all that is wrong with a configuration file, and print nothing else")
    check.description = "Say all that is wrong with a file, or with all files that 'plugind run' would read."
    check.add_argument("file", nargs="?", metavar="FILE", help="the file (default: all that a daemon would read)")
    check.add_argument(
        "-o",
        "--output",
        choices=("text", "json"),
        # One before the word 'check' counts, too.
        default=argparse.SUPPRESS,
        help="text for people (default); json: one object, whose 'problems' say where and what",
    )
    check.set_defaults(run=check_files)


def run(args: argparse.Namespace) -> int:
    """Print the settings; return the exit code.

    Raises:
      CommandError: if they cannot be used.
    """
    try:
        settings = daemon.read_configuration(args, os.environ)
    except ConfigError as error:
        raise _unusable(error) from error
    if args.output == "json":
        say(json.dumps(_report(settings), indent=2) + "\n")
    else:
        say("".join(_lines(settings)))
    return EXIT_OK


def _unusable(error: ConfigError) -> CommandError:
    problems = error.problems if isinstance(error, SettingsError) else (error,)
    return CommandError("\nplugind: ".join(map(str, problems)), EXIT_CONFIG)


def _lines(settings: Configured) -> Iterator[str]:
    for path in settings.files:
        yield f"# {escaped(path)}\n"
    section = ""
    for it in in_force(settings):
        above, _, name = it.setting.key.rpartition(".")
        if above != section:
            section = above
            yield f"\n[{section}]\n"
        assigned = f"{name} = {to_toml(to_json(it.value))}"
        yield f"{assigned:{_WIDTH}}  # {escaped(str(it.source))}\n"


def _report(settings: Configured) -> dict[str, Any]:
    return {"files": list(settings.files), "settings": [_row(it) for it in in_force(settings)]}


def _row(it: InForce) -> dict[str, Any]:
    return {
        "key": it.setting.key,
        "value": to_json(it.value),
        "source": _source(it.source),
        "option": OPTIONS.get(it.setting.key),
        "variable": it.setting.variable,
    }


def check_files(args: argparse.Namespace) -> int:
    """Check a file, or all that a daemon would read; return the exit code.

    Raises:
      CommandError: if something is wrong.
    """
    try:
        files = _files(args)
        parsed = [parse(file.path, file.content) for file in files]
        problems = tuple(problem for one in parsed for problem in one.problems)
        if problems:
            raise SettingsError(problems)
        _check_together(merged(one.given for one in parsed), files)
    except ConfigError as error:
        if args.output != "json":
            raise _unusable(error) from error
        say(json.dumps({"usable": False, "problems": _problems(error)}) + "\n")
        return EXIT_CONFIG
    if args.output == "json":
        say(json.dumps({"usable": True, "problems": []}) + "\n")
    return EXIT_OK


def _problems(error: ConfigError) -> list[dict[str, Any]]:
    """Return where each problem is, as far as that is known, and what it is."""
    if not isinstance(error, SettingsError):
        return [{"source": None, "text": str(error)}]
    return [{"source": _source(it.source), "text": it.text} for it in error.problems]


def _source(source: Source) -> dict[str, Any]:
    return {"kind": source.kind, "name": source.name or None, "line": source.line}


def _files(args: argparse.Namespace) -> tuple[ConfigFile, ...]:
    if args.file is not None:
        return (read_file(args.file),)
    named = args.config or os.environ.get(CONFIG_VARIABLE)
    return read_files(os.path.abspath(named or DEFAULT_FILE), required=bool(named))


def _check_together(given: dict[str, Given], files: tuple[ConfigFile, ...]) -> None:
    """Check what can be said only of all settings.

    Raises:
      ConfigError: if they cannot work together.
    """
    try:
        config = configured(given, os.environ).config
        users_of(config.trust)
        check_pools(config.leases.pools)
    except SettingsError:
        raise
    except ConfigError as error:
        where = Source("file", files[-1].path if files else DEFAULT_FILE)
        raise SettingsError((Problem(where, str(error)),)) from error

"""``plugind reload``: a daemon reads its configuration again."""

from __future__ import annotations

import argparse
import json
import os

from ...protocol.settings.variables import CONFIG_VARIABLE
from ...protocol.text import escaped
from ..io.config_files import DEFAULT_FILE
from .answers import add_daemon_arguments, daemon, decoded, refusal
from .client import answer
from .ending import EXIT_CONFIG, EXIT_OK, CommandError, say
from .output import add_output_argument
from .settings import name_status

#: Advice if there is no daemon. That of a service can run, but at a socket that the configuration no longer names.
_NONE = (
    "start one with 'plugind run', or name its socket with --status or PLUGIND_STATUS: if 'status' was changed since"
    " its start, the one before"
)
#: The status of the answer if the configuration cannot be used.
_REFUSED = 422


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind reload``."""
    parser.description = (
        "Have a daemon read its configuration again: its files, with the options and variables of its start. It returns"
        " once what needs no restart is in force, and says what needs one. A configuration that cannot be used changes"
        " nothing."
    )
    parser.epilog = (
        "examples:\n  plugind reload\n  plugind reload -o json\n  plugind reload --config /etc/other.toml\n\n"
        "exit codes: 0 it is in force, or needs a restart, 2 usage, 69 no daemon answers, 75 it is busy,\n"
        "78 the configuration cannot be used: each line on standard error says where something is wrong"
    )
    add_output_argument(parser, "one object, with the keys that have changed and those that need a restart")
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="the configuration file of the daemon: without --status and PLUGIND_STATUS, the status socket is the one"
        f" that it names (default: ${CONFIG_VARIABLE}, or {DEFAULT_FILE})",
    )
    add_daemon_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Ask for a reload; return the exit code.

    Raises:
      CommandError: if the daemon does not answer, or refuses the configuration.
    """
    name_status(args, os.environ)
    asked = daemon(args)
    # The daemon answers once the files are read, which it gives up itself on a disk that hangs.
    patient = asked._replace(timeout=max(asked.timeout, 30.0))
    status, body, version = answer(patient, "POST", "/reload", none=_NONE)
    if status not in (200, _REFUSED):
        raise refusal(body, status, version)
    content = decoded(body)
    said = content if isinstance(content, dict) else {}
    if status == _REFUSED:
        problems = _strings(said, "problems") or ["the daemon refuses the configuration, and does not say why"]
        raise CommandError(problems[0], EXIT_CONFIG, more=problems[1:], problems=problems)
    changed, needs_restart = (_strings(said, key) for key in ("changed", "needs_restart"))
    if args.output == "json":
        say(json.dumps({"changed": changed, "needs_restart": needs_restart}) + "\n")
        return EXIT_OK
    say(f"changed: {', '.join(changed)}\n" if changed else "nothing has changed\n")
    if needs_restart:
        say(f"needs a restart: {', '.join(needs_restart)}\n")
    return EXIT_OK


def _strings(answer: dict[str, object], key: str) -> list[str]:
    found = answer.get(key)
    return [escaped(text) for text in found if isinstance(text, str)] if isinstance(found, list) else []

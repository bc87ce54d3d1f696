"""``plugind config``: the settings of a daemon with their sources, and the check of configuration files."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ...protocol.devices.static import FoundNode, doubts
from ...protocol.errors import ConfigError
from ...protocol.leases.mapped import BUILT_IN
from ...protocol.settings.config import Config
from ...protocol.settings.files import parse
from ...protocol.settings.given import Given, SettingProblem, SettingsError, Source, merged
from ...protocol.settings.variables import CONFIG_VARIABLE
from ...protocol.settings.writing import to_json, to_toml
from ...protocol.text import escaped
from ..client.awaited import EXPLAIN
from ..client.errors import ClientError
from ..client.lease_calls import all_leases
from ..client.transport import asked as answer_of
from ..handlers.handler import check_handler
from ..io.config_files import DEFAULT_FILE, ConfigFile, read_file, read_files
from ..io.device_nodes import DeviceNodes, why_replaceable
from ..node.handlers import built_in_handlers, installed_handlers
from ..node.paths import check_device_directory, check_status_socket
from ..node.wiring import check_pools
from . import run as daemon
from .answers import daemon as asked
from .client import fetch
from .configured import configured, unresolved
from .ending import EXIT_CONFIG, EXIT_OK, CommandError, complain, say
from .in_force import in_force, row, source_row
from .settings import name_status
from .status_socket import add_answer_timeout

_EPILOG = """examples:
  plugind config                                  what 'plugind run' would use, as a configuration file
  plugind config --root /tmp/plugins -o json      the same with an option, for programs
  plugind config check /etc/plugind/plugind.toml  whether a file can be used
  plugind config --running                        what a daemon uses, and what waits for its restart

It takes the options of 'plugind run'. What it prints is a configuration file: the comment behind each value says where
it comes from, an option, a variable, a line of a file, or the default. In the JSON, 'change_needs' of a setting says
whether another value counts after a reload ('plugind reload') or a restart of a daemon with this configuration.

exit codes:
  0   the configuration can be used
  2   wrong usage
  69  with --running, no daemon answers, 75 it is busy
  78  it cannot: each line on standard error says where something is wrong"""
T = TypeVar("T")
#: The column of the comments.
_WIDTH = 44


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind config``."""
    daemon.add_arguments(parser)
    parser.description = "Print the settings that 'plugind run' would use with the same options, or check a file."
    parser.epilog = _EPILOG
    parser.add_argument("-o", "--output", choices=["toml", "json"], default="toml", help="the form (toml)")
    parser.add_argument(
        "--running",
        action="store_true",
        help="print what is in force in the daemon at --status; of the other options only -o, --config and"
        " --answer-timeout count",
    )
    add_answer_timeout(parser)
    actions = parser.add_subparsers(metavar="[check [FILE]]")
    check = actions.add_parser("check", help="say all that is wrong with a configuration file, and print nothing else")
    check.description = "Say all that is wrong with a file, or with all files that 'plugind run' would read."
    check.add_argument("file", nargs="?", metavar="FILE", help="the file (default: all that a daemon would read)")
    check.add_argument(
        "--config",
        metavar="FILE",
        # An option before the word 'check' counts, too.
        default=argparse.SUPPRESS,
        help="check this file and those in FILE.d, as 'plugind run --config FILE' reads them",
    )
    check.add_argument(
        "-o",
        "--output",
        choices=("text", "json"),
        default=argparse.SUPPRESS,
        help="text for people (default); json: one object, whose 'problems' say where and what",
    )
    check.set_defaults(run=check_files)


def run(args: argparse.Namespace) -> int:
    """Print the settings; return the exit code.

    Raises:
      CommandError: if they cannot be used.
    """
    report = _of_daemon(args) if args.running else _of_files(args)
    if args.output == "json":
        say(json.dumps(report, indent=2) + "\n")
    else:
        say("".join(_lines(report)))
    return EXIT_OK


def _of_files(args: argparse.Namespace) -> dict[str, Any]:
    try:
        settings = daemon.read_configuration(args, os.environ)
    except ConfigError as error:
        raise _unusable(error) from error
    return {"files": list(settings.files), "settings": [row(entry) for entry in in_force(settings)]}


def _of_daemon(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings in force in a daemon.

    Raises:
      CommandError: if it does not answer, or is too old.
    """
    name_status(args, os.environ)
    answer = fetch(asked(args), "/config")
    try:
        report: dict[str, Any] = json.loads(answer)
        # An invalid answer fails here, and not in the middle of the output.
        "".join(_lines({name: report[name] for name in ("files", "settings", "waiting")}))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CommandError(f"the daemon's answer is no configuration: {error!r}") from error
    return report


def _unusable(error: ConfigError) -> CommandError:
    problems = [*map(str, error.problems if isinstance(error, SettingsError) else (error,))]
    return CommandError(problems[0], EXIT_CONFIG, more=problems[1:], problems=problems)


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    for path in report["files"]:
        yield f"# {escaped(path)}\n"
    for entry in report.get("waiting", ()):
        yield f"# waits for a restart: {escaped(entry['key'])} = {to_toml(entry['value'])}  # {_source_of(entry)}\n"
    section = ""
    for entry in report["settings"]:
        above, _, name = escaped(entry["key"]).rpartition(".")
        if above != section:
            section = above
            yield f"\n[{section}]\n"
        assigned = f"{name} = {to_toml(entry['value'])}"
        yield f"{assigned:{_WIDTH}}  # {_source_of(entry)}{_built_in(entry)}\n"


def _source_of(entry: Mapping[str, Any]) -> str:
    source = entry["source"]
    return escaped(str(Source(source["kind"], source["name"] or "", source["line"])))


def _built_in(entry: Mapping[str, Any]) -> str:
    """Return which resources of the setting with this name are built in."""
    if entry["key"] != "resources":
        return ""
    built_in = to_json(BUILT_IN)
    names = [name for name, resource in entry["value"].items() if resource == built_in.get(name)]
    return f"; built in: {escaped(', '.join(names))}" if names else ""


def check_files(args: argparse.Namespace) -> int:
    """Check a file, or all files that a daemon would read; return the exit code.

    Raises:
      CommandError: if there is a problem.
    """
    try:
        files = _files(args)
        parsed = [parse(file.path, file.content) for file in files]
        problems = [problem for one in parsed for problem in one.problems]
        given = merged(one.given for one in parsed)
        # A list with a problem can also have an unknown user.
        problems += unresolved((*given.values(), *(rest for one in parsed for rest in one.rest)))
        if problems:
            raise SettingsError(tuple(problems))
        config, status_path = _check_together(given, files)
    except ConfigError as error:
        if args.output != "json":
            raise _unusable(error) from error
        say(json.dumps({"usable": False, "problems": _problems(error)}) + "\n")
        return EXIT_CONFIG
    # These depend on the devices that are plugged in now, so the file can be used nevertheless.
    nodes = DeviceNodes()
    others, unknown = _given_by_plugins(config, status_path, nodes) if config.devices else ((), None)
    warnings = list(doubts(config.devices, nodes.find, why_replaceable, others))
    for warning in warnings:
        complain(f"warning: {escaped(warning)}")
    if unknown is not None:
        complain(f"note: {escaped(unknown)}")
    if args.output == "json":
        say(json.dumps({"usable": True, "problems": [], "warnings": warnings, "not_compared": unknown}) + "\n")
    return EXIT_OK


def _problems(error: ConfigError) -> list[dict[str, Any]]:
    """Return each problem with its place, if known."""
    if not isinstance(error, SettingsError):
        return [{"source": None, "text": str(error)}]
    return [{"source": source_row(problem.source), "text": problem.text} for problem in error.problems]


def _files(args: argparse.Namespace) -> tuple[ConfigFile, ...]:
    if args.file is not None:
        if args.config is not None:
            args.parser.error("FILE is checked by itself, and --config FILE with those in FILE.d: give one of them")
        return (read_file(args.file),)
    named = args.config or os.environ.get(CONFIG_VARIABLE)
    return read_files(os.path.abspath(named or DEFAULT_FILE), required=bool(named))


def _check_together(given: dict[str, Given], files: tuple[ConfigFile, ...]) -> tuple[Config, str]:
    """Check the settings together, and return what they make, and the path of the status socket.

    Raises:
      SettingsError: if they cannot work together.
    """
    everywhere, problems = Source("file", files[-1].path if files else DEFAULT_FILE), list[SettingProblem]()

    def check(function: Callable[..., T], *arguments: Any, key: str | None = None) -> T | None:
        try:
            return function(*arguments)
        except SettingsError as error:
            problems.extend(error.problems)
        except ConfigError as error:
            at = everywhere if key is None or key not in given else given[key].source
            problems.append(SettingProblem(at, str(error) if at is everywhere else f"{key}: {error}"))
        return None

    settings = check(configured, given, os.environ)
    if settings is not None:
        config = settings.config
        check(check_pools, config.leases.pools, key="leases.pools")
        check(check_status_socket, config.roots, settings.status_path, key="status")
        check(check_device_directory, config, settings.status_path)
        handlers = {} if config.observe else {**built_in_handlers(), **installed_handlers()}
        for plugin_type, handler in handlers.items():
            check(check_handler, plugin_type, handler, config.timeouts.of_handler(plugin_type))
    if settings is None or problems:
        raise SettingsError(tuple(problems))
    return settings.config, settings.status_path


def _given_by_plugins(
    config: Config, status_path: str, nodes: DeviceNodes
) -> tuple[Sequence[tuple[FoundNode, str]], str | None]:
    """Return the nodes that plugins have given to leases, and why that is not known.

    The list of a plugin has no nodes: it says which node a device is when the device is leased.
    """
    try:
        leases = answer_of(status_path, all_leases(), timeout=EXPLAIN).leases
    except ClientError as error:
        return (), f"devices are not compared with the nodes that plugins have given: {error}"
    found = list[tuple[FoundNode, str]]()
    for lease in leases:
        plugins = [name for name in lease.request.resources if name not in config.devices]
        if not plugins or lease.answer is None:
            continue
        for path in dict.fromkeys(node.host_path for node in lease.answer.nodes):
            node = nodes.look(path)
            if node is not None and node.number and node.identity not in lease.answer.identities.values():
                found.append((node, f"{', '.join(plugins)}, whose plugin has given it to the lease {lease.id}"))
    return found, None

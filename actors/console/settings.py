"""The settings of ``plugind run``: from its options, the environment, the files and the defaults, in that order."""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from ...protocol.errors import ConfigError
from ...protocol.health.checks import ALL_TYPES
from ...protocol.settings.given import Given, SettingProblem, SettingsError, Source, merged
from ...protocol.settings.kinds import DEFAULT, WrongValueError
from ...protocol.settings.variables import CONFIG_VARIABLE, NAMES, PREFIX, meant_by
from ...protocol.text import escaped
from ..client.paths import STATUS_VARIABLE, default_status_path
from ..io.config_files import DEFAULT_FILE, ConfigFile, read_files
from ..io.unix_socket import listens
from .ending import complain

#: Options whose value is that of one key.
_SIMPLE: Final[Mapping[str, str]] = {
    "rescan": "rescan",
    "stable_after": "stable_after",
    "ready_when": "ready_when",
    "max_instances": "max_instances",
    "blocked_after": "blocked_after",
    "dra_health": "dra.health",
    "deregister_at_stop": "deregister_at_stop",
    "deregister_not_serving": "deregister_not_serving",
    "strict": "strict",
    "observe": "observe",
    "csi_refresh": "csi.refresh",
    "csi_topology": "csi.topology_collisions",
    "take_over_kubelet": "device_plugins.take_over_kubelet",
    "lease_group": "leases.users.group",
    "cdi_dir": "leases.cdi_directory",
    "metrics": "metrics.address",
    "metrics_path_labels": "metrics_path_labels",
    "status_group": "status_group",
    "log_format": "log_format",
    "log_level": "log_level",
}
#: Options that can be repeated, whose values are the list of one key.
_LISTS: Final[Mapping[str, str]] = {
    "expect": "expected",
    "trust_uid": "trust.uids",
    "pool": "leases.pools",
    "metrics_host": "metrics.hosts",
}
#: The option for each key of :data:`_SIMPLE` and :data:`_LISTS`, for the list of keys.
OPTIONS: Final[Mapping[str, str]] = {
    **{key: f"--{name.replace('_', '-')}" for name, key in {**_SIMPLE, **_LISTS}.items()},
    "roots": "--root",
    "deprecated_roots": "--deprecated-root",
    "insecure_roots": "--insecure-root",
    "device_plugins.insecure": "--insecure-root",
    "device_plugins.directory": "--device-plugins",
    "endpoint_directories": "--endpoint-dir",
    "state": "--state",
    "status": "--status",
    "timeouts.handler": "--handler-timeout",
    "timeouts.handlers": "--handler-timeout",
    "health_checks.period": "--health",
    "health_checks.periods": "--health",
    "health_checks.off": "--health",
    "leases.users.uids": "--lease-uids",
    "expected_devices": "--expect-devices",
    "devices": "--devices",
}


def add_settings_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--config`` and ``--set``."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        help=f"read this file, and those in FILE.d, in the place of {DEFAULT_FILE} and those in {DEFAULT_FILE}.d"
        f" (default: ${CONFIG_VARIABLE}; /dev/null reads none)",
    )
    parser.add_argument(
        "--set",
        action="append",
        type=set_option,
        metavar="KEY=VALUE",
        help="set any key of the configuration file, such as timeouts.get_info=2; it has precedence over the other"
        " options; may be repeated ('plugind config' lists all keys)",
    )


def set_option(text: str) -> Given:
    """Return the value of one ``--set KEY=VALUE``."""
    from ...protocol.settings.files import unknown_key
    from ...protocol.settings.table import PARTS, settings

    key, given, value = text.partition("=")
    if not given:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE, such as timeouts.get_info=2")
    setting = settings().get(key)
    if setting is None:
        raise argparse.ArgumentTypeError(f"{key} is a table: set one of its keys" if key in PARTS else unknown_key(key))
    try:
        return Given(key, setting.from_text(value, os.getcwd()), Source("flag", "--set"))
    except WrongValueError as error:
        raise argparse.ArgumentTypeError(error.with_key(key)) from None


def files_of(args: argparse.Namespace, environment: Mapping[str, str], default_file: str) -> tuple[ConfigFile, ...]:
    """Read the configuration files: those of an option, or else of a variable, or else ``default_file``.

    Raises:
      ConfigError: if one cannot be read, or others may write to it.
    """
    if args.config == "":
        raise ConfigError("the path of the configuration file is empty: name one with --config")
    named = args.config or environment.get(CONFIG_VARIABLE)
    return read_files(os.path.abspath(named or default_file), required=bool(named))


def name_status(args: argparse.Namespace, environment: Mapping[str, str], default_file: str = DEFAULT_FILE) -> None:
    """Set ``--status`` to the socket in the configuration files, unless the option or the variable is given.

    This is for commands that ask a daemon about its configuration. Other problems of the files are not reported here. A
    daemon that was started before the service's files named another socket still answers at the default one.
    """
    if args.status is not None or environment.get(STATUS_VARIABLE):
        return
    from ...protocol.settings.files import parse

    try:
        files = files_of(args, environment, default_file)
    except SettingsError as error:
        complain(f"{error}: the status socket may be another one")
        return
    given = merged(parse(file.path, file.content).given for file in files)
    if "status" not in given:
        return
    args.status = path = given["status"].value
    before, is_of_service = default_status_path(), not (args.config or environment.get(CONFIG_VARIABLE))
    if is_of_service and not listens(path) and listens(before):
        complain(
            f"no daemon answers at {escaped(path)}, which {given['status'].source} names: asking the one at"
            f" {escaped(before)}, since 'status' needs a restart"
        )
        args.status = before


def values_of(
    args: argparse.Namespace, environment: Mapping[str, str], files: tuple[ConfigFile, ...]
) -> dict[str, Given]:
    """Return the value of each given key, with its source.

    Raises:
      SettingsError: if something in a file or in a variable cannot be used.
    """
    lower = merged((*_from_files(files), _from_variables(environment)))
    return merged((lower.values(), flags(args, lower), args.set or ()))


def _from_files(files: tuple[ConfigFile, ...]) -> list[tuple[Given, ...]]:
    if not files:
        return []
    from ...protocol.settings.files import parse

    parsed = [parse(file.path, file.content) for file in files]
    problems = tuple(problem for one in parsed for problem in one.problems)
    if problems:
        raise SettingsError(problems)
    return [one.given for one in parsed]


def _from_variables(environment: Mapping[str, str]) -> list[Given]:
    given = [name for name, text in environment.items() if text and name.startswith(PREFIX)]
    names = NAMES.intersection(given)
    problems = [
        SettingProblem(Source("variable", escaped(name)), f"there is no such setting: did you mean {meant}?")
        for name in sorted({*given} - names)
        if (meant := meant_by(name)) is not None
    ]
    return _values_of_variables(environment, names, problems) if names or problems else []


def _values_of_variables(
    environment: Mapping[str, str], names: Collection[str], problems: list[SettingProblem]
) -> list[Given]:
    from ...protocol.settings.table import settings

    here, found = os.getcwd(), list[Given]()
    for setting in settings().values():
        if setting.variable in names:
            source = Source("variable", setting.variable)
            try:
                found.append(Given(setting.key, setting.from_text(environment[setting.variable], here), source))
            except WrongValueError as error:
                problems.append(SettingProblem(source, error.with_key("it")))
    if problems:
        raise SettingsError(tuple(problems))
    return found


def flags(args: argparse.Namespace, lower: Mapping[str, Given]) -> Iterator[Given]:
    """Yield the settings of the options; ``lower`` are the settings over which they have precedence.

    Raises:
      ConfigError: if a path is empty.
    """
    given = {name: value for name, value in vars(args).items() if value is not None}
    for name, key in _SIMPLE.items():
        if name in given:
            yield _flag(key, given[name])
    for name, key in _LISTS.items():
        if name in given:
            yield _flag(key, tuple(given[name]))
    if "lease_uids" in given:
        yield _flag("leases.users.uids", tuple(user for users in given["lease_uids"] for user in users))
    if "expect_devices" in given:
        yield _flag("expected_devices", dict(given["expect_devices"]))
    if "devices" in given:
        from ...protocol.settings.static import joined

        yield _flag("devices", joined(given["devices"]))
    yield from _paths(given)
    yield from _times(given.get("handler_timeout", ()))
    if "health" in given:
        yield from _health(given["health"], lower)


def _flag(key: str, value: Any) -> Given:
    return Given(key, value, Source("flag", OPTIONS[key]))


def _paths(given: Mapping[str, Any]) -> Iterator[Given]:
    for name, key in (("root", "roots"), ("deprecated_root", "deprecated_roots")):
        if name in given:
            yield _flag(key, tuple(dict.fromkeys(map(_root_path, given[name]))))
    if "insecure_root" in given:
        yield _flag("insecure_roots", value=True)
        yield _flag("device_plugins.insecure", value=True)
    if "endpoint_dir" in given:
        yield _flag("endpoint_directories", (DEFAULT, *map(os.path.abspath, given["endpoint_dir"])))
    if "device_plugins" in given:
        directory = given["device_plugins"]
        yield _flag("device_plugins.directory", os.path.abspath(directory) if directory else DEFAULT)
    if "status" in given:
        if not given["status"]:
            raise ConfigError("the path of the status socket is empty: give one with --status")
        yield _flag("status", given["status"])
    if "state" in given:
        if not given["state"]:
            raise ConfigError("the path of the state is empty: name a directory with --state")
        yield _flag("state", os.path.abspath(given["state"]))


def _root_path(path: str) -> str:
    if not path:
        raise ConfigError("the path of a root is empty: name a directory with --root")
    return os.path.abspath(path)


def _times(given: tuple[tuple[str | None, float], ...]) -> Iterator[Given]:
    """Yield the times of handlers; the last one for each type counts."""
    by_type = {plugin_type: time for plugin_type, time in given if plugin_type is not None}
    others = [time for plugin_type, time in given if plugin_type is None]
    if others:
        yield _flag("timeouts.handler", others[-1])
    if by_type:
        yield _flag("timeouts.handlers", by_type)


def _health(given: tuple[tuple[str, float | None], ...], lower: Mapping[str, Given]) -> Iterator[Given]:
    """Yield the settings of health checks; the last word for each type counts."""
    off = dict.fromkeys(lower["health_checks.off"].value) if "health_checks.off" in lower else {}
    periods = dict[str, float]()
    for plugin_type, seconds in dict(given).items():
        off.pop(plugin_type, None)
        if seconds is None:
            off[plugin_type] = None
        elif plugin_type == ALL_TYPES:
            yield _flag("health_checks.period", seconds)
        else:
            periods[plugin_type] = seconds
    yield _flag("health_checks.off", tuple(off))
    if periods:
        yield _flag("health_checks.periods", periods)

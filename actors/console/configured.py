"""A daemon's configuration, made from the given settings and the defaults."""

from __future__ import annotations

import grp
import itertools
import os
import pwd
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

from ...protocol.backoff import Backoff, RestartIntensity
from ...protocol.discovery.endpoints import default_directories
from ...protocol.errors import ConfigError
from ...protocol.handlers.csi import CSIConfig
from ...protocol.handlers.dra import DRAConfig
from ...protocol.health.checks import HealthChecks
from ...protocol.leases.config import LeaseHistoryConfig, LeaseLimits, LeasesConfig, LeaseUsers
from ...protocol.leases.mapped import ResourceConfig
from ...protocol.leases.values import Pool, UserLimits
from ...protocol.logs.limits import LogLimits
from ...protocol.logs.lines import Format, Level
from ...protocol.plugins.info import InfoLimits
from ...protocol.settings.config import (
    DEFAULT_ROOT,
    Config,
    DevicePluginDirectory,
    Root,
    Timeouts,
    check_renotify,
    check_roots,
    device_plugins_beside,
)
from ...protocol.settings.given import Given, SettingProblem, SettingsError
from ...protocol.settings.kinds import DEFAULT
from ...protocol.settings.pools import PoolGiven
from ...protocol.status.metrics_config import MetricsConfig
from ...protocol.trust.users import Trust, TrustedUser
from ...protocol.values import value
from ...protocol.wire.limits import REGISTRATION_LIMITS
from ..client.paths import default_status_path

#: The most uids of one range, which are stored one by one.
MAX_RANGE: Final = 65536
#: Settings that become fields of the configuration as they are. The others are put together below.
_SIMPLE: Final = frozenset(field.name for field in attrs.fields(Config)) - {
    *("roots", "endpoint_directories", "state", "handler_uids", "resources")
}


@value
class Configured:
    """The whole configuration of ``plugind run``."""

    config: Config
    #: The path of the status socket.
    status: str
    #: Members of this group may read on it.
    status_group: int | None
    metrics_path_labels: bool
    log_format: Format
    log_level: Level
    #: The given settings, by key.
    given: Mapping[str, Given]
    #: The files that were read.
    files: tuple[str, ...] = ()

    @property
    def status_path(self) -> str:
        """The absolute path of the status socket."""
        return os.path.abspath(self.status)


def configured(given: Mapping[str, Given], environment: Mapping[str, str], files: Iterable[str] = ()) -> Configured:
    """Return the configuration that ``given`` and the defaults make.

    Raises:
      ConfigError: if it cannot work.
    """
    problems = unresolved(setting for setting in given.values() if setting.key != _TRUSTED)
    if problems:
        raise SettingsError(problems)
    values = {key: setting.value for key, setting in given.items()}
    config = _config(given, values, environment)
    check_renotify(config)
    return Configured(
        config=config,
        status=values.get("status") or default_status_path(),
        status_group=_resolved(given.get("status_group"), gid_of, None),
        metrics_path_labels=values.get("metrics_path_labels", False),
        log_format=Format(values.get("log_format", Format.TEXT)),
        log_level=Level[values.get("log_level", Level.INFO.name).upper()],
        given=given,
        files=tuple(files),
    )


def unresolved(given: Iterable[Given]) -> tuple[SettingProblem, ...]:
    """Return the unknown users and groups in ``given``, and the ranges that are too large."""
    return tuple(
        SettingProblem(setting.source, f"{setting.key}: {text}")
        for setting in given
        if setting.key in _NAMES_IN
        for text in _NAMES_IN[setting.key](setting.value)
    )


def _wrong_users(users: Iterable[TrustedUser]) -> Iterator[str]:
    for user in users:
        try:
            _uids(user)
        except ConfigError as error:
            yield str(error)


def _wrong_names(users: Iterable[TrustedUser]) -> Iterator[str]:
    return _wrong_users(user for user in users if isinstance(user, str))


def _wrong_group(group: int | str | None) -> Iterator[str]:
    try:
        gid_of(group)
    except ConfigError as error:
        yield str(error)


def _wrong_in_pools(pools: Iterable[PoolGiven]) -> Iterator[str]:
    for pool in pools:
        yield from (f"the pool {pool.name}: {text}" for text in _wrong_users(pool.users))


#: Its names are looked up at each start or reload of a daemon, by :func:`~.io.users.users_of`.
_TRUSTED: Final = "trust.uids"
#: The settings with names of users or groups, and functions that yield the problems.
_NAMES_IN: Final[Mapping[str, Callable[[Any], Iterable[str]]]] = {
    "status_group": _wrong_group,
    _TRUSTED: _wrong_names,
    "leases.users.uids": _wrong_users,
    "leases.users.group": _wrong_group,
    "leases.operators": _wrong_users,
    "handler_uids": lambda by_type: _wrong_users(itertools.chain.from_iterable(by_type.values())),
    "leases.pools": _wrong_in_pools,
}


def _config(given: Mapping[str, Given], values: Mapping[str, Any], environment: Mapping[str, str]) -> Config:
    roots = _roots(values)
    device_plugins = _device_plugins(values, roots)
    return Config(
        roots=roots,
        trust=Trust(**_part("trust", values)),
        timeouts=Timeouts(**_part("timeouts", values)),
        backoff=Backoff(**_part("backoff", values)),
        intensity=RestartIntensity(**_part("intensity", values)),
        info_limits=InfoLimits(**_part("info_limits", values)),
        wire_limits=attrs.evolve(REGISTRATION_LIMITS, **_part("wire_limits", values)),
        health_checks=HealthChecks(**_part("health_checks", values)),
        dra=DRAConfig(**_part("dra", values)),
        csi=CSIConfig(**_part("csi", values)),
        endpoint_directories=_endpoint_directories(values, roots),
        device_plugins=device_plugins,
        state=_state(given, environment, offers=device_plugins is not None or bool(values.get("devices"))),
        leases=_leases(given),
        metrics=_metrics(values),
        log_limits=_log_limits(values),
        handler_uids={of: uids_of(users) for of, users in values.get("handler_uids", {}).items()},
        resources=_resources_of(given.get("resources")),
        handles_sigint=True,
        **{key: value for key, value in values.items() if key in _SIMPLE},
    )


def _part(part: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given values of the fields of a part."""
    found = ((key.rpartition("."), value) for key, value in values.items())
    return {name: value for (of, _, name), value in found if of == part}


def _roots(values: Mapping[str, Any]) -> tuple[Root, ...]:
    """Return the roots.

    Raises:
      ConfigError: if there is none, one is named twice, or one lies in another.
    """
    insecure = values.get("insecure_roots", False)
    # Device plugins that register by a call need no root, nor do static devices, so the kubelet's root can be missing.
    offers = values.get("device_plugins.directory") is not None or bool(values.get("devices"))
    by_default = "roots" not in values and offers
    optional = values.get("optional_roots", by_default)
    deprecated = values.get("deprecated_roots", ())
    roots = (
        *(Root(path, insecure=insecure, optional=optional) for path in values.get("roots", (DEFAULT_ROOT,))),
        *(Root(path, deprecated=True, insecure=insecure) for path in deprecated),
    )
    check_roots(roots)
    return roots


def _device_plugins(values: Mapping[str, Any], roots: Iterable[Root]) -> DevicePluginDirectory | None:
    """Return the directory in which device plugins can call, if there is one.

    Raises:
      ConfigError: if an option is given that needs the directory.
    """
    part = _part("device_plugins", values)
    directory = part.pop("directory", None)
    if directory is None:
        if part.get("take_over_kubelet"):
            raise ConfigError("--take-over-kubelet is for the directory of device plugins: add --device-plugins")
        return None
    if directory == DEFAULT:
        directory = device_plugins_beside(root.path for root in roots)
    return DevicePluginDirectory(directory, **part)


def _endpoint_directories(values: Mapping[str, Any], roots: Iterable[Root]) -> tuple[str, ...]:
    usual = default_directories(root.path for root in roots)
    named = values.get("endpoint_directories", (DEFAULT,))
    return tuple(dict.fromkeys(path for name in named for path in (usual if name == DEFAULT else (name,))))


def _state(given: Mapping[str, Given], environment: Mapping[str, str], *, offers: bool) -> str | None:
    """Return the directory of the state. A daemon that offers no devices by itself has one only if it is given.

    A variable does not count as given, since it can be set for all programs.
    """
    named = given.get("state")
    if not offers and (named is None or named.source.kind == "variable"):
        return None
    if named is None:
        return _usual_state(environment)
    state: str | None = named.value
    return state


def _usual_state(environment: Mapping[str, str]) -> str:
    if os.geteuid() == 0:
        return "/var/lib/plugind"
    home = environment.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.abspath(os.path.join(home, "plugind"))


def _metrics(values: Mapping[str, Any]) -> MetricsConfig:
    """Return the configuration of metrics.

    Raises:
      ConfigError: if the address is not valid, or hosts are given without an address.
    """
    part = _part("metrics", values)
    if part.get("address") is None and part.get("hosts"):
        raise ConfigError("--metrics-host is for the address of --metrics: add --metrics")
    return MetricsConfig(**part)


def _log_limits(values: Mapping[str, Any]) -> LogLimits | None:
    part = _part("log_limits", values)
    return LogLimits(**part) if part.pop("enabled", True) else None


def _leases(given: Mapping[str, Given]) -> LeasesConfig:
    """Return the configuration of leases, with uids instead of names."""
    defaults, values = LeasesConfig(), {key: setting.value for key, setting in given.items()}
    return LeasesConfig(
        users=LeaseUsers(
            _resolved(given.get("leases.users.uids"), uids_of, frozenset()),
            _resolved(given.get("leases.users.group"), gid_of, None),
        ),
        pools=_pools_of(given.get("leases.pools")),
        limits=LeaseLimits(**_part("leases.limits", values)),
        history=LeaseHistoryConfig(**_part("leases.history", values)),
        operators=_resolved(given.get("leases.operators"), uids_of, frozenset()),
        permitted=_resolved(given.get("leases.permitted"), tuple, ()),
        # A daemon without its leases would give the same devices to others after a restart.
        without_state=False,
        cdi_directory=given["leases.cdi_directory"].value
        if "leases.cdi_directory" in given
        else defaults.cdi_directory,
    )


def _resolved(given: Given | None, resolve: Callable[[Any], Any], default: Any) -> Any:
    return default if given is None else resolve(given.value)


def _pools_of(given: Given | None) -> tuple[Pool, ...]:
    pools: Iterable[PoolGiven] = () if given is None else given.value
    return tuple(
        Pool(pool.name, pool.resource, frozenset(pool.ids), uids_of(pool.users), _from(pool.limits, given, str(index)))
        for index, pool in enumerate(pools)
    )


def _resources_of(given: Given | None) -> Mapping[str, ResourceConfig]:
    resources: Mapping[str, ResourceConfig] = {} if given is None else given.value
    return {name: attrs.evolve(found, limits=_from(found.limits, given, name)) for name, found in resources.items()}


def _from(limits: UserLimits, given: Given | None, name: str) -> UserLimits:
    """Return limits with the source of this entry of a setting, which a message about a limit names."""
    if given is None or limits == UserLimits():
        return limits
    return attrs.evolve(limits, source=str(given.within.get(name, given.source)))


def uids_of(users: Iterable[TrustedUser]) -> frozenset[int]:
    """Return the uids of users.

    Raises:
      ConfigError: if a name is not known, or a range has more than :data:`MAX_RANGE` uids.
    """
    return frozenset[int]().union(*map(_uids, users))


def _uids(user: TrustedUser) -> Iterable[int]:
    match user:
        case str():
            return (_uid_of(user),)
        case (first, last):
            if last - first >= MAX_RANGE:
                raise ConfigError(f"{first}-{last} has more than {MAX_RANGE} uids: give a smaller range")
            return range(first, last + 1)
        case _:
            return (user,)


def _uid_of(name: str) -> int:
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        raise ConfigError(f"no user is called {name!r}: name another one, or give the uid") from None


def gid_of(group: int | str | None) -> int | None:
    """Return the gid of a group.

    Raises:
      ConfigError: if the name is not known.
    """
    if not isinstance(group, str):
        return group
    try:
        return grp.getgrnam(group).gr_gid
    except (KeyError, ValueError):
        raise ConfigError(f"no group is called {group!r}: name another one, or give the gid") from None

"""The table of all settings: every field of :class:`Config` and of its parts has a key, and so have log and status.

The keys are derived from the fields, so that none is missing. A kind follows from the type of the field, unless
``_KINDS`` has another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final, get_args

import attrs

from ..backoff import Backoff, RestartIntensity
from ..errors import ConfigError
from ..handlers.csi import Collisions, CSIConfig
from ..handlers.dra import DRAConfig, WatchedHealth
from ..health.checks import HealthChecks
from ..leases.config import LeaseHistoryConfig, LeaseLimits, LeasesConfig, LeaseUsers
from ..logs.limits import LogLimits
from ..logs.lines import Format, Level
from ..plugins.info import InfoLimits
from ..status.metrics_config import MetricsConfig
from ..trust.users import Trust
from ..wire.limits import WireLimits
from .config import Config, DevicePluginDirectory, ReadyWhen, Timeouts
from .kinds import (
    DEFAULT,
    ByType,
    Group,
    Integer,
    Kind,
    ListOf,
    Number,
    OrOff,
    Path,
    Switch,
    Text,
    User,
    Word,
    WrongValueError,
)
from .pools import PoolKind
from .static import ResourcesKind, StaticKind

#: The parts of the configuration: their key, and the class whose fields are settings.
PARTS: Final[Mapping[str, type]] = {
    "trust": Trust,
    "timeouts": Timeouts,
    "backoff": Backoff,
    "intensity": RestartIntensity,
    "info_limits": InfoLimits,
    "wire_limits": WireLimits,
    "device_plugins": DevicePluginDirectory,
    "health_checks": HealthChecks,
    "dra": DRAConfig,
    "csi": CSIConfig,
    "leases": LeasesConfig,
    "leases.users": LeaseUsers,
    "leases.limits": LeaseLimits,
    "leases.history": LeaseHistoryConfig,
    "metrics": MetricsConfig,
    "log_limits": LogLimits,
}
#: Fields that are no settings: the keys of :data:`_OF_ROOTS` replace the fields of a root, and the others are for
#: programs that embed a node. ``plugind run`` handles SIGINT, and must not lease devices without a state.
NO_SETTINGS: Final = frozenset({"roots", "handles_sigint", "leases.without_state"})
_DAY: Final = 86_400.0
#: Bytes in which the rows of the most leases that can be held have room.
_LEAST_HISTORY: Final = 16 * 1024 * 1024
_ABSOLUTE: Final = ListOf(Path(), ":")

_OF_ROOTS: Final[Mapping[str, tuple[Kind, Any]]] = {
    "roots": (_ABSOLUTE, ()),
    "deprecated_roots": (_ABSOLUTE, ()),
    "insecure_roots": (Switch(), False),
    "optional_roots": (Switch(), False),
}
_OF_DAEMON: Final[Mapping[str, tuple[Kind, Any]]] = {
    "status": (Path(relative=True), None),
    "status_group": (OrOff(Group()), None),
    "metrics_path_labels": (Switch(), False),
    "log_format": (Word(tuple(form.value for form in Format)), Format.TEXT.value),
    "log_level": (Word(tuple(level.name.lower() for level in Level)), Level.INFO.name.lower()),
}
_KINDS: Final[Mapping[str, Kind]] = {
    "rescan": Number(0.01, _DAY),
    "stable_after": Number(0.0, _DAY),
    "blocked_after": OrOff(Number(0.05, 3600.0)),
    "timeouts.handler": Number(0.1, _DAY),
    "timeouts.handlers": ByType(Number(0.1, _DAY)),
    "handler_uids": ByType(ListOf(User())),
    "handler_grace": ByType(Number(0.0, 30 * _DAY)),
    "health_checks.period": Number(1.0, _DAY),
    "health_checks.periods": ByType(Number(1.0, _DAY)),
    "health_checks.off": ListOf(Text()),
    "csi.refresh": OrOff(Number(10.0, _DAY)),
    "csi.topology_collisions": Word(get_args(Collisions)),
    "dra.health": Word(get_args(WatchedHealth)),
    "ready_when": Word(get_args(ReadyWhen)),
    "expected": ListOf(Text()),
    "expected_devices": ByType(Integer(1), "resource"),
    "devices": StaticKind(),
    "resources": ResourcesKind(),
    "trust.uids": ListOf(User()),
    "endpoint_directories": ListOf(Path(or_words=(DEFAULT,)), ":"),
    "device_plugins.directory": OrOff(Path(or_words=(DEFAULT,))),
    "state": OrOff(Path()),
    "leases.users.uids": ListOf(User()),
    "leases.users.group": OrOff(Group()),
    "leases.operators": ListOf(User()),
    "leases.permitted": ListOf(Text()),
    "leases.pools": ListOf(PoolKind(), ";", joins_equal=False),
    "leases.limits.leases": Integer(0),
    "leases.limits.devices": Integer(0),
    "leases.limits.label_bytes": Integer(0),
    "leases.limits.all_leases": Integer(0),
    "leases.history.days": OrOff(Integer(1)),
    "leases.history.max_bytes": Integer(_LEAST_HISTORY),
    "leases.cdi_directory": Path(),
    "metrics.address": OrOff(Text()),
    "metrics.hosts": ListOf(Text()),
}
_BY_TYPE: Final[Mapping[str, Kind]] = {
    "float": Number(),
    "float | None": OrOff(Number()),
    "int": Integer(),
    "int | None": OrOff(Integer()),
    "bool": Switch(),
}
#: The variables that are not named after their key. ``PLUGIND_DEVICES`` says to a command which devices it has leased.
_VARIABLES: Final[Mapping[str, str]] = {"roots": "PLUGIND_ROOT", "devices": "PLUGIND_STATIC_DEVICES"}
#: Settings whose check depends on other settings.
_CHECKED_LATER: Final = frozenset({"endpoint_directories", "expected", "expected_devices", "devices"})
#: The beginning of the text of a field's validator.
_OF_FIELD: Final = re.compile(r"^(?:\w+\.)?\w+ (?=is |must )")


@attrs.frozen
class Setting:
    """One setting."""

    #: The key, with dots between its parts: ``timeouts.get_info``.
    key: str
    kind: Kind
    #: The default value; also None if it depends on other settings.
    default: Any
    #: The class with this field, used to check a value; None if there is none.
    owner: type | None = None

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return _VARIABLES.get(self.key) or f"PLUGIND_{self.key.upper().replace('.', '_')}"

    def from_toml(self, value: object) -> Any:
        """Convert a ``value`` from a file.

        Raises:
          WrongValueError: if the setting cannot have it.
        """
        return self._checked(self.kind.from_toml(value))

    def from_text(self, text: str, here: str) -> Any:
        """Convert ``text``. Paths are relative to the directory ``here``.

        Raises:
          WrongValueError: if the setting cannot have it.
        """
        return self._checked(self.kind.from_text(text, here))

    def _checked(self, value: Any) -> Any:
        if self.owner is not None and self.key not in _CHECKED_LATER:
            try:
                self.owner(**{self.key.rpartition(".")[2]: value})
            except (ConfigError, ValueError) as error:
                raise WrongValueError(_OF_FIELD.sub("", str(error))) from None
        return value


@cache
def settings() -> Mapping[str, Setting]:
    """Return all settings by key, in the order of the documentation."""
    of_roots = (Setting(key, kind, default) for key, (kind, default) in _OF_ROOTS.items())
    of_daemon = (Setting(key, kind, default) for key, (kind, default) in _OF_DAEMON.items())
    own = (_setting("", Config, Config(), attribute) for attribute in attrs.fields(Config) if _is_own(attribute))
    parts = (setting for key, owner in PARTS.items() for setting in _of_part(key, owner))
    enabled = Setting("log_limits.enabled", Switch(), default=True)
    return {setting.key: setting for setting in (*of_roots, *of_daemon, *own, *parts, enabled)}


def _is_own(attribute: attrs.Attribute[Any]) -> bool:
    return attribute.name not in PARTS and attribute.name not in NO_SETTINGS


def _of_part(key: str, owner: type) -> Iterator[Setting]:
    default = _default_of(key)
    # A directory for device plugins has no default, and its fields have no checks besides those of their kinds.
    checked = None if default is None else owner
    for attribute in attrs.fields(owner):
        name = f"{key}.{attribute.name}"
        if attribute.init and name not in PARTS and name not in NO_SETTINGS:
            yield _setting(f"{key}.", checked, default, attribute)


def _default_of(key: str) -> Any:
    """Return the part of a daemon's default configuration; None if there is none."""
    part: Any = Config()
    for name in key.split("."):
        part = getattr(part, name)
    return part


def _setting(prefix: str, owner: type | None, default: Any, attribute: attrs.Attribute[Any]) -> Setting:
    key = f"{prefix}{attribute.name}"
    kind = _KINDS.get(key) or _BY_TYPE[_type_name(attribute.type)]
    if default is None:
        usual = None if attribute.default is attrs.NOTHING else attribute.default
        return Setting(key, kind, usual, owner)
    return Setting(key, kind, _as_given(getattr(default, attribute.name)), owner)


def _as_given(value: Any) -> Any:
    """Return the value of a field in the form that a kind returns."""
    return tuple(sorted(value)) if isinstance(value, frozenset) else value


def _type_name(hint: object) -> str:
    return hint if isinstance(hint, str) else getattr(hint, "__name__", "") or str(hint)

"""The value of every setting in a daemon's configuration, with its source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import attrs

from ...protocol.logs.limits import LogLimits
from ...protocol.settings.given import BY_DEFAULT, Given, Source
from ...protocol.settings.reload import change_needs
from ...protocol.settings.table import Setting, settings
from ...protocol.settings.writing import to_json
from .configured import Configured
from .settings import OPTIONS

#: Settings with names of users, for which the configuration has uids.
_AS_GIVEN: Final = frozenset(
    {"status_group", "leases.users.uids", "leases.users.group", "leases.operators", "leases.pools"}
)


@attrs.frozen
class InForce:
    """A setting with its value."""

    setting: Setting
    value: Any
    source: Source
    #: What is needed to change the value while the daemon runs.
    change_needs: Literal["reload", "restart"]


def in_force(settings_of: Configured) -> Iterator[InForce]:
    """Yield all settings."""
    values = _values(settings_of)
    for key, setting in settings().items():
        given = settings_of.given.get(key)
        source = BY_DEFAULT if given is None else given.source
        yield InForce(setting, _value(setting, values, given), source, change_needs(key, settings_of.config))


def differing(old: Configured, new: Configured) -> tuple[InForce, ...]:
    """Return the settings of ``new`` whose values differ from those of ``old``."""
    pairs = zip(in_force(old), in_force(new), strict=True)
    return tuple(after for before, after in pairs if before.value != after.value)


def source_row(source: Source) -> dict[str, Any]:
    """Return the source of a value for JSON."""
    return {"kind": source.kind, "name": source.name or None, "line": source.line}


def row(entry: InForce) -> dict[str, Any]:
    """Return a setting for JSON."""
    return {
        "key": entry.setting.key,
        "value": to_json(entry.value),
        "source": source_row(entry.source),
        "option": OPTIONS.get(entry.setting.key),
        "variable": entry.setting.variable,
        "change_needs": entry.change_needs,
    }


def _value(setting: Setting, values: Mapping[str, Any], given: Given | None) -> Any:
    if setting.key in _AS_GIVEN or setting.key not in values:
        return setting.default if given is None else given.value
    value = values[setting.key]
    return tuple(sorted(value)) if isinstance(value, frozenset) else value


def _values(configured: Configured) -> dict[str, Any]:
    """Return the values of a configuration by key, without the parts that it lacks."""
    config = configured.config
    values = {
        **dict(_fields("", config)),
        "roots": tuple(root.path for root in config.roots if not root.deprecated),
        "deprecated_roots": tuple(root.path for root in config.roots if root.deprecated),
        "insecure_roots": any(root.insecure for root in config.roots),
        "optional_roots": any(root.optional for root in config.roots),
        "status": configured.status_path,
        "status_group": configured.status_group,
        "metrics_path_labels": configured.metrics_path_labels,
        "log_format": configured.log_format.value,
        "log_level": configured.log_level.name.lower(),
        "log_limits.enabled": config.log_limits is not None,
    }
    return values if config.log_limits is not None else {**values, **dict(_fields("log_limits.", LogLimits()))}


def _fields(prefix: str, part: attrs.AttrsInstance) -> Iterator[tuple[str, Any]]:
    for attribute in attrs.fields(type(part)):
        value = getattr(part, attribute.name)
        if attrs.has(type(value)):
            yield from _fields(f"{prefix}{attribute.name}.", value)
        yield f"{prefix}{attribute.name}", value

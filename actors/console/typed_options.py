"""Warnings about plugin types in settings that have no handler."""

from __future__ import annotations

from collections.abc import Collection

from ...protocol.health.checks import ALL_TYPES
from ...protocol.logs.lines import Level, Logger
from ...protocol.settings.config import Config
from .settings import OPTIONS


def warn_of_types(config: Config, handled: Collection[str], log: Logger) -> None:
    """Log each plugin type in a setting that is not ``handled``, since it may be misspelt.

    It is no error, because a program can add handlers while it runs.
    """
    checks = config.health_checks
    named = {
        "timeouts.handlers": {*config.timeouts.handlers},
        "health_checks.off": {*checks.off} - {ALL_TYPES},
        "health_checks.periods": {*checks.periods} - {ALL_TYPES},
    }
    for key, types in named.items():
        for plugin_type in sorted(types.difference(handled)):
            log.event(
                Level.WARNING,
                "a setting names a plugin type without a handler",
                setting=f"{key} ({OPTIONS[key]})",
                plugin_type=plugin_type,
                handlers=", ".join(sorted(handled)),
            )

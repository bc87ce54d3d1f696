"""Options of ``plugind run`` that name plugin types, and types among them that nothing handles.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Collection

from ...protocol.config import Config
from ...protocol.health_checks import ALL_TYPES
from ...protocol.logs import Level, Logger


def warn_of_types(config: Config, handled: Collection[str], log: Logger) -> None:
    """Log each plugin type that an option names and that is not ``handled``: it may be misspelt.

    It is no error, since a program may add handlers while it runs.
    """
    checks = config.health_checks
    named = {
        "--handler-timeout": {*config.timeouts.handlers},
        "--health": {*checks.off, *checks.periods} - {ALL_TYPES},
    }
    for option, types in named.items():
        for plugin_type in sorted(types.difference(handled)):
            log.event(
                Level.WARNING,
                "an option names a plugin type without a handler",
                option=f"{option} {plugin_type}=…",
                handlers=", ".join(sorted(handled)),
            )

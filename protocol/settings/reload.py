"""Which settings may change while a node runs, and how two configurations differ.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from typing import Final

import attrs

from ..config import Config

#: The parts of the configuration that a node takes while it runs, and single fields. All others need a restart.
_PARTS: Final = ("backoff", "info_limits", "timeouts")
_OF_LEASES: Final = ("limits", "operators", "pools")
_FIELDS: Final = ("deregister_at_stop", "expected", "max_instances", "ready_when", "stable_after")
#: Settings of the daemon that are no fields of the configuration.
OF_DAEMON: Final = frozenset({"log_level"})


def changed_while_running(old: Config, new: Config) -> Config:
    """Return ``old`` with the values of ``new`` that may change while a node runs."""
    leases = attrs.evolve(old.leases, **{name: getattr(new.leases, name) for name in _OF_LEASES})
    return attrs.evolve(old, leases=leases, **{name: getattr(new, name) for name in (*_PARTS, *_FIELDS)})


def may_change(key: str) -> bool:
    """Whether a daemon takes another value of the setting ``key`` while it runs."""
    part, _, name = key.partition(".")
    if part == "leases":
        return name.partition(".")[0] in _OF_LEASES
    return key in _FIELDS or key in OF_DAEMON or part in _PARTS

"""Which settings may change while a node runs, and how two configurations differ.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from ..config import Config

#: The keys of the configuration whose values a node takes while it runs. All others need a restart.
WHILE_RUNNING: Final = frozenset({"deregister_at_stop", "expected", "ready_when"})
#: Those of the daemon, which are no fields of the configuration.
OF_DAEMON: Final = frozenset({"log_level"})


def changed_while_running(old: Config, new: Config) -> Config:
    """Return ``old`` with the values of ``new`` that may change while a node runs."""
    result = old
    for key in sorted(WHILE_RUNNING):
        result = _with(result, key.split("."), new)
    return result


def _with(old: Any, path: list[str], new: Any) -> Any:
    name, *rest = path
    if getattr(old, name) == getattr(new, name):
        return old
    value = _with(getattr(old, name), rest, getattr(new, name)) if rest else getattr(new, name)
    return attrs.evolve(old, **{name: value})

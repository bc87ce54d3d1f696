"""The last refused Register calls in commands. Such a plugin is visible nowhere else."""

from __future__ import annotations

from ...protocol.text import escaped
from ..client import awaited
from .answers import Daemon, UnknownPluginError, decoded
from .client import fetch


def refused_calls(daemon: Daemon) -> dict[str, str]:
    """Return the words for each resource whose last Register call was refused.

    Raises:
      CommandError: if the daemon does not answer in time.
    """
    try:
        return awaited.refused_calls(decoded(fetch(daemon, "/v1/devices/refused")))
    except UnknownPluginError:
        return {}  # An older daemon only logs them.


def lines(refused: dict[str, str], resource: str | None = None) -> list[str]:
    """Return a line for each refusal, or for that of ``resource``."""
    return [f"{escaped(name)}: {words}" for name, words in refused.items() if resource in (None, name)]

"""The Register calls that were refused last, as the commands show them: nothing else tells of such a plugin."""

from __future__ import annotations

import json

from ...protocol.text import escaped
from ..client import awaited
from .answers import Daemon, UnknownPluginError
from .client import fetch
from .ending import CommandError


def refused_calls(daemon: Daemon) -> dict[str, str]:
    """Return the words for each resource whose last Register call was refused.

    Raises:
      CommandError: if the daemon does not answer in time.
    """
    try:
        answer = json.loads(fetch(daemon, "/v1/devices/refused"))
    except UnknownPluginError:
        return {}  # An older daemon keeps them only in its log.
    except ValueError as error:
        raise CommandError(f"the daemon's answer is not JSON: {error}") from error
    return awaited.refused_calls(answer)


def lines(refused: dict[str, str], resource: str | None = None) -> list[str]:
    """Return a line for each refusal, or for that of ``resource``."""
    return [f"{escaped(name)}: {words}" for name, words in refused.items() if resource in (None, name)]

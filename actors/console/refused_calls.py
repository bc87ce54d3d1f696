"""The last refused Register calls in commands. Such a plugin is visible nowhere else."""

from __future__ import annotations

import json

from ...protocol.devices.refused_calls import in_words
from ...protocol.text import escaped
from .answers import Daemon, UnknownPluginError
from .client import fetch
from .ending import CommandError


async def refused_calls(daemon: Daemon) -> dict[str, str]:
    """Return the text about each resource whose last Register call was refused.

    Raises:
      CommandError: if the daemon does not answer in time.
    """
    try:
        answer = json.loads(await fetch(daemon, "GET", "/v1/devices/refused"))
    except UnknownPluginError:
        return {}  # An older daemon only logs them.
    except ValueError as error:
        raise CommandError(f"the daemon's answer is not JSON: {error}") from error
    found = answer if isinstance(answer, list) else []
    return {str(call.get("resource")): _words(call) for call in found if isinstance(call, dict)}


def _words(call: dict[str, object]) -> str:
    age = call.get("age")
    return escaped(in_words(call.get("reason"), call.get("pid"), age if isinstance(age, int | float) else 0.0))


def lines(refused: dict[str, str], resource: str | None = None) -> list[str]:
    """Return a line for each refusal, or for that of ``resource``."""
    return [f"{escaped(name)}: {words}" for name, words in refused.items() if resource in (None, name)]

"""The plugins that a daemon has registered, for a probe that judges beside them.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ...protocol.plugins import Plugin
from .client import Daemon, fetch, plugins_in
from .client import Plugin as Listed
from .ending import CommandError


@attrs.frozen
class Other:
    """Another plugin, and the user whose process listens on its socket, as far as is known."""

    plugin: Plugin
    uid: int | None = None


async def registered_at(daemon: Daemon, *, but: str) -> tuple[Other, ...]:
    """Return what the daemon has registered, but for the plugin of the socket ``but``.

    Raises:
      CommandError: if the daemon does not answer as it should.
    """
    listed = plugins_in(await fetch(daemon, "GET", "/plugins"))
    return tuple(_other(item) for item in listed if item.get("state") == "registered" and item.get("socket") != but)


def _other(item: Listed) -> Other:
    uid = item.get("uid")
    return Other(_plugin(item), uid if isinstance(uid, int) else None)


def _plugin(item: Listed) -> Plugin:
    versions, generation = item.get("versions"), item.get("generation")
    texts = [item.get(key) for key in ("type", "name", "endpoint", "socket")]
    if not isinstance(versions, Sequence) or not isinstance(generation, int) or None in texts:
        raise CommandError("the daemon's list has a plugin that is not described as registered ones are")
    plugin_type, name, endpoint, socket = map(str, texts)
    return Plugin(plugin_type, name, endpoint, tuple(map(str, versions)), socket, generation)

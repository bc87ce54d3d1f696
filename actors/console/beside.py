"""The registered plugins and the rules of a daemon, for a probe that applies them."""

from __future__ import annotations

import json
from collections.abc import Sequence

import attrs

from ...protocol.plugins.info import Plugin, PluginInfo
from ...protocol.settings.rules import Rules, rules_from_json
from ...protocol.trust.users import Users
from ...protocol.world.endpoint_owners import EndpointOwner, EndpointOwners
from ..grpc.endpoints import RealEndpointFiles
from .answers import Daemon, UnknownPluginError, plugins_in
from .answers import Plugin as Listed
from .client import fetch
from .ending import CommandError


@attrs.frozen
class Other:
    """Another plugin, and the user whose process listens on its socket, if known."""

    plugin: Plugin
    uid: int | None = None


def registered_at(daemon: Daemon, *, but: str) -> tuple[Other, ...]:
    """Return what the daemon has registered, but for the plugin of the socket ``but``.

    Raises:
      CommandError: if the daemon does not answer, or the answer is not valid.
    """
    listed = plugins_in(fetch(daemon, "/plugins"))
    return tuple(_other(item) for item in listed if item.get("state") == "registered" and item.get("socket") != but)


def rules_of(daemon: Daemon) -> Rules | None:
    """Return the rules of the daemon; None if it is older and does not show them.

    Raises:
      CommandError: if the daemon does not answer, or the answer is not valid.
    """
    try:
        return rules_from_json(json.loads(fetch(daemon, "/rules")))
    except UnknownPluginError:  # It answers 404, as for any path that it does not have.
        return None
    except ValueError as error:
        raise CommandError(f"the daemon does not show its rules as it should: {error}") from error


def owner_of_endpoint(info: PluginInfo, socket: str, others: Sequence[Other], users: Users) -> EndpointOwner | None:
    """Return the plugin that has the endpoint of the one at ``socket``, by the daemon's rules (fault 79)."""
    if info.endpoint == socket:
        return None
    owners, look = EndpointOwners(), RealEndpointFiles().look
    for other in others:
        owner = _as_owner(other, users)
        file = look(owner.info.endpoint).identity
        if owner.info.endpoint == owner.socket and file is not None:
            owners.add_own(owner, file)
        else:
            owners.add(owner, file)
    file, privileged = look(info.endpoint).identity, users.is_privileged(info.uid)
    return owners.other_owner((info.type, info.name), info.endpoint, file, privileged=privileged)


def _as_owner(other: Other, users: Users) -> EndpointOwner:
    """Return the plugin as an owner of its endpoint; one of an unknown user keeps the endpoint from all others."""
    plugin = other.plugin
    info = PluginInfo(plugin.type, plugin.name, plugin.endpoint, plugin.versions, other.uid)
    return EndpointOwner(info, plugin.socket, plugin.generation, other.uid is None or users.is_privileged(other.uid))


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

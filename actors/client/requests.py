"""What is asked of a daemon about its plugins and devices, and what its answers mean. Nothing here waits."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, urlencode

from ...protocol.client.status_values import StatusFormError, plugin_from_json, resource_from_json
from ...protocol.plugins.devices import ResourceStatus
from ...protocol.plugins.status import PluginStatus
from .calls import ClientRequest

if TYPE_CHECKING:
    from ...protocol.messages.reconciler import RetryAnswer

T = TypeVar("T")


def plugins(name: str | None, plugin_type: str | None) -> ClientRequest[tuple[PluginStatus, ...]]:
    """Ask for all plugins, or for those of a name or type."""
    return ClientRequest("GET", "/plugins" + _query(name=name, type=plugin_type), _plugins)


def description(target: str) -> ClientRequest[tuple[PluginStatus, ...]]:
    """Ask for all about the plugins of a name, or the one of a socket."""
    return ClientRequest("GET", f"/plugins/{quote(os.fsencode(target), safe='')}", _plugins)


def devices(resource: str | None) -> ClientRequest[tuple[ResourceStatus, ...]]:
    """Ask for all resources with their devices, or for one."""
    return ClientRequest("GET", "/v1/devices" + _query(resource=resource), _resources)


def retry(target: str, *, facts: bool = False) -> ClientRequest[tuple[RetryAnswer, ...]]:
    """Ask for a try now, or for facts, of the plugins of a name, or the one of a socket."""
    body = {"target": target, "facts": True} if facts else {"target": target}
    return ClientRequest("POST", "/retry", _answers, json.dumps(body).encode())


def _query(**given: str | None) -> str:
    query = urlencode({key: text for key, text in given.items() if text is not None})
    return f"?{query}" if query else ""


def _plugins(content: object) -> tuple[PluginStatus, ...]:
    return _read_all(plugin_from_json, content)


def _resources(content: object) -> tuple[ResourceStatus, ...]:
    return _read_all(resource_from_json, content.get("resources") if isinstance(content, dict) else None)


def _answers(content: object) -> tuple[RetryAnswer, ...]:
    return _read_all(_answer, content.get("answers") if isinstance(content, dict) else None)


def _answer(content: object) -> RetryAnswer:
    from ...protocol.messages.reconciler import RetryAnswer  # Its module takes long to import.

    match content:
        case {"socket": str(socket), "tried": bool(tried), "why": str(why)}:
            return RetryAnswer(socket, tried, why)
        case _:
            raise StatusFormError("it is no answer to a retry that this version of plugind knows")


def _read_all(read: Callable[[object], T], content: object) -> tuple[T, ...]:
    if not isinstance(content, list):
        raise StatusFormError("it is no list")
    return tuple(read(element) for element in content)

"""The daemon that a command asks, and its answers: without Trio, for commands that must start quickly."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from ...protocol.text import escaped
from ...protocol.version import difference
from ...protocol.words import DirectoryCondition, Watching
from ..client.reaching import ANSWER_TIMEOUT, UNKNOWN_HERE, error_in
from .ending import EXIT_BUSY, EXIT_FAILED, CommandError
from .status_socket import add_answer_timeout, add_status_argument, status_path

if TYPE_CHECKING:
    from ...protocol.status.json import Json

#: The status socket's description of one socket.
Plugin = dict[str, "Json"]


def add_daemon_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--status`` and ``--answer-timeout``, which all commands that ask a daemon have."""
    add_status_argument(parser)
    add_answer_timeout(parser)


class Daemon(NamedTuple):
    """The daemon that a command asks."""

    path: str
    #: Seconds that it can be silent.
    timeout: float = ANSWER_TIMEOUT


def daemon(args: argparse.Namespace) -> Daemon:
    """Return the daemon that the arguments name."""
    return Daemon(status_path(args), args.answer_timeout)


class UnknownPluginError(CommandError):
    """The daemon knows no plugin with that name, and no socket at that path."""


class NotAllowedError(CommandError):
    """This user may not ask that: a user who may only lease devices is told of devices and leases alone."""


def refusal(answer: bytes, status: int, version: str | None) -> CommandError:
    """Return the error for an answer whose status is not 200; with 503, the daemon may answer later.

    A daemon with another ``version`` of the status socket may not know the request.
    """
    said = error_in(answer)
    why = f"the daemon answered {status}" if said is None else escaped(said)
    if status in UNKNOWN_HERE and (other := difference(version)) is not None:
        why = f"{why}; {other}"
    if status == 404:
        return UnknownPluginError(why)
    if status == 403:
        return NotAllowedError(why)
    return CommandError(why, EXIT_BUSY if status == 503 else EXIT_FAILED)


def decoded(said: bytes, what: str = "answer") -> Any:
    """Return the content of an answer, or of a line of a stream.

    Raises:
      CommandError: if it is not JSON.
    """
    try:
        return json.loads(said)
    except ValueError as error:
        raise CommandError(f"the daemon's {what} is not JSON: {error}") from error


def plugins_in(answer: bytes) -> list[Plugin]:
    """Return the plugins of a list.

    Raises:
      CommandError: if the answer is not such a list.
    """
    content = decoded(answer)
    if not isinstance(content, list) or not all(isinstance(item, dict) for item in content):
        raise CommandError("the daemon's answer is not a list of plugins")
    return content


def resources_target(resource: str | None) -> str:
    """Return the request target for all resources, or for one."""
    return "/v1/devices" + ("" if resource is None else f"?resource={quote(resource, safe='')}")


def resources_in(answer: bytes) -> list[Plugin]:
    """Return the resources of an answer.

    Raises:
      CommandError: if it contains no list of them.
    """
    content = decoded(answer)
    resources = content.get("resources") if isinstance(content, dict) else None
    if not isinstance(resources, list) or not all(isinstance(resource, dict) for resource in resources):
        raise CommandError("the daemon's answer is not a list of resources")
    return resources


def retries_in(answer: bytes) -> list[dict[str, Json]]:
    """Return the answers to a retry: ``socket``, ``tried`` and ``why`` of each.

    Raises:
      CommandError: if there are none.
    """
    content = decoded(answer)
    if isinstance(content, dict) and isinstance(content.get("answers"), list):
        return [item for item in content["answers"] if isinstance(item, dict)]
    if isinstance(content, dict) and isinstance(content.get("sockets"), list):
        # An older daemon lists only the sockets.
        return [{"socket": socket, "tried": True, "why": "asked to try now"} for socket in content["sockets"]]
    raise CommandError("the daemon's answer does not say what is tried")


def plugin_in(line: bytes) -> Plugin:
    """Return the plugin in one line of a watch.

    Raises:
      CommandError: if the line describes no plugin, or reports that the daemon ends the watch.
    """
    content = decoded(line, "line")
    if not isinstance(content, dict):
        raise CommandError("the daemon's line is not an object")
    if isinstance(content.get("error"), str):
        raise CommandError(escaped(content["error"]))
    return content


def health_in(answer: bytes) -> Plugin:
    """Return the content of a health answer.

    Raises:
      CommandError: if the answer is not JSON.
    """
    health = decoded(answer)
    return health if isinstance(health, dict) else {}


def roots_in(health: Plugin) -> list[Plugin]:
    """Return the condition of each root, the directory of device plugins included."""
    found = health.get("roots")
    return [root for root in (found if isinstance(found, list) else []) if isinstance(root, dict)]


def queued_in(health: Plugin) -> list[str]:
    """Return a line about the sockets that wait for a dial slot, if there are any; older daemons do not count them."""
    queued = health.get("queued")
    return [f"{queued} queued for a dial"] if isinstance(queued, int) and queued else []


def to_mend(roots: Iterable[Plugin]) -> list[str]:
    """Return a line for each of the ``roots`` that cannot be used, and for each directory with a problem."""
    return [line for root in roots for line in _to_mend(root)]


def _to_mend(root: Mapping[str, object]) -> Iterator[str]:
    name = root.get("root")
    own = name, DirectoryCondition.INSECURE
    if root.get("watching") in (Watching.UNAVAILABLE, Watching.INSECURE, Watching.TAKEN):
        yield f"root {escaped(str(name))} is {root['watching']}: {escaped(str(root.get('reason')))}"
    directories = root.get("directories")
    for directory in directories if isinstance(directories, list) else []:
        if isinstance(directory, dict) and (directory.get("path"), directory.get("condition")) != own:
            path, condition, reason = (str(directory.get(key)) for key in ("path", "condition", "reason"))
            yield f"directory {escaped(path)} is {escaped(condition)}: {escaped(reason)}"

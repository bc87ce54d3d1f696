"""What the commands that ask a daemon share: where its status socket is, how it is asked, and how it is understood.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import argparse
import errno
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from ...protocol.status_json import Json
from ...protocol.text import escaped
from ..io.http_client import Reply, UnreachableError, ask
from .ending import CommandError

#: One socket as the status socket describes it.
Plugin = dict[str, Json]

#: Seconds for a daemon to answer a request that it need not wait for.
ANSWER = 30.0


def default_status_path() -> str:
    """Return the path of the status socket where no option names it: PLUGIND_STATUS, else it depends on the user."""
    named = os.environ.get("PLUGIND_STATUS")
    if named:
        return named
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if os.geteuid() == 0 or not runtime:
        return "/run/plugind/status.sock"
    return os.path.join(runtime, "plugind", "status.sock")


def add_status_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--status``, which all commands that ask a daemon have."""
    parser.add_argument(
        "--status",
        metavar="PATH",
        default=None,
        help="the daemon's status socket (default: $PLUGIND_STATUS, else /run/plugind/status.sock for root and"
        " $XDG_RUNTIME_DIR/plugind/status.sock for others)",
    )


def status_path(args: argparse.Namespace) -> str:
    """Return the path that ``--status`` names, or the default."""
    given: str | None = args.status
    return given or default_status_path()


def target(text: str) -> str:
    """Return the name or path that the daemon is asked for.

    A path may be relative. A name may contain slashes (``vendor.com/device``), so only what begins like a path is one.
    """
    return os.path.abspath(text) if text.startswith(("./", "../")) else text


def unreachable(error: UnreachableError) -> str:
    """Return what to do about a daemon that does not answer."""
    path = escaped(error.path)
    if error.code in (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR):
        return (
            f"no daemon answers at {path} ({error.reason});"
            " start one with 'plugind run', or name its socket with --status or PLUGIND_STATUS"
        )
    if error.code in (errno.EACCES, errno.EPERM):
        return f"may not talk to the daemon at {path} ({error.reason}); run this as the daemon's user or as root"
    return f"the daemon at {path} does not answer as it should: {error.reason}"


@asynccontextmanager
async def asked(path: str, method: str, target: str, body: bytes = b"") -> AsyncIterator[Reply]:
    """Ask the daemon; the block reads its answer.

    Raises:
      CommandError: if the daemon does not answer, or refuses.
    """
    try:
        async with ask(path, method, target, body) as reply:
            if reply.status != 200:
                raise CommandError(error_in(await reply.body(), reply.status))
            yield reply
    except UnreachableError as error:
        raise CommandError(unreachable(error)) from error


async def fetch(path: str, method: str, target: str, body: bytes = b"") -> bytes:
    """Ask the daemon and return the whole answer.

    Raises:
      CommandError: if the daemon does not answer in time, or refuses.
    """
    with trio.move_on_after(ANSWER):
        async with asked(path, method, target, body) as reply:
            return await reply.body()
    raise CommandError(f"the daemon at {escaped(path)} does not answer within {ANSWER:g} seconds")


def error_in(answer: bytes, status: int) -> str:
    """Return the reason in an answer whose status is not 200."""
    try:
        decoded = json.loads(answer)
    except ValueError:
        decoded = None
    if isinstance(decoded, dict) and isinstance(decoded.get("error"), str):
        return escaped(decoded["error"])
    return f"the daemon answered {status}"


def plugins_in(answer: bytes) -> list[Plugin]:
    """Return the plugins of a list.

    Raises:
      CommandError: if the answer is not such a list.
    """
    try:
        decoded = json.loads(answer)
    except ValueError as error:
        raise CommandError(f"the daemon's answer is not JSON: {error}") from error
    if not isinstance(decoded, list) or not all(isinstance(item, dict) for item in decoded):
        raise CommandError("the daemon's answer is not a list of plugins")
    return decoded


def plugin_in(line: bytes) -> Plugin:
    """Return the plugin of one line of a watch.

    Raises:
      CommandError: if the line describes no plugin, or says that the daemon ends the watch.
    """
    try:
        decoded = json.loads(line)
    except ValueError as error:
        raise CommandError(f"the daemon's line is not JSON: {error}") from error
    if not isinstance(decoded, dict):
        raise CommandError("the daemon's line is not an object")
    if isinstance(decoded.get("error"), str):
        raise CommandError(escaped(decoded["error"]))
    return decoded

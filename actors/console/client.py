"""The requests of commands that wait for more than one answer."""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from ..client.reaching import watched
from ..http.client import Reply, UnreachableError, ask
from .answers import Daemon, Plugin, UnknownPluginError, refusal, roots_in, to_mend
from .arguments import path_of
from .ending import EXIT_UNREACHABLE, CommandError
from .status_socket import unreachable


@asynccontextmanager
async def asked(daemon: Daemon, method: str, target: str, body: bytes = b"") -> AsyncIterator[Reply]:
    """Ask the daemon; the block reads its answer.

    Raises:
      CommandError: if the daemon does not answer in time, or refuses.
    """
    try:
        async with ask(daemon.path, method, target, body, timeout=daemon.timeout) as reply:
            if reply.status != 200:
                raise refusal(await reply.body(), reply.status, reply.version)
            yield reply
    except UnreachableError as error:
        raise CommandError(unreachable(error), EXIT_UNREACHABLE) from error


async def fetch(daemon: Daemon, method: str, target: str, body: bytes = b"") -> bytes:
    """Ask the daemon and return the whole answer.

    Raises:
      CommandError: if the daemon does not answer in time, or refuses.
    """
    async with asked(daemon, method, target, body) as reply:
        return await reply.body()


async def fetch_about(target: str, asked: Callable[[str], Awaitable[bytes]]) -> bytes:
    """Ask about a plugin. A name with slashes that is not known is tried as a path, relative to the working directory.

    Raises:
      CommandError: if the daemon knows neither, does not answer in time, or refuses.
    """
    try:
        return await asked(target)
    except UnknownPluginError:
        if "/" not in target or os.path.isabs(target):
            raise
        try:
            return await asked(path_of(target))
        except UnknownPluginError:
            # The user means the file there, and the error may explain why the daemon ignores it.
            if os.path.lexists(target):  # noqa: ASYNC240 - a single check
                raise
        raise


async def roots(daemon: Daemon) -> list[Plugin]:
    """Return the condition of each root of the daemon, the directory of device plugins included.

    Raises:
      CommandError: if the daemon does not answer in time.
    """
    try:
        # If anything is wrong, the answer has the status 503 and the details.
        async with ask(daemon.path, "GET", "/healthz", timeout=daemon.timeout) as reply:
            return roots_in(await reply.body())
    except UnreachableError as error:
        raise CommandError(unreachable(error), EXIT_UNREACHABLE) from error


async def roots_to_mend(daemon: Daemon) -> list[str]:
    """Return a line for each root that the daemon cannot use, and for each directory with a problem.

    Raises:
      CommandError: if the daemon does not answer in time.
    """
    return to_mend(await roots(daemon))


def watch_target(daemon: Daemon, path: str = "/watch") -> str:
    """Return the target of a stream of changes with heartbeats, by which a stopped daemon is noticed."""
    return watched(path, daemon.timeout)


def has_heartbeats(reply: Reply) -> bool:
    """Return whether the stream has heartbeats. An older daemon without them can be silent forever."""
    beats = "heartbeat" in reply.head.headers
    if not beats:
        reply.timeout = math.inf
    return beats

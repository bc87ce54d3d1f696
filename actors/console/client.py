"""The requests of the commands that wait for more than one answer, and how long they wait."""

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
    """Ask about a plugin; what has slashes and is no name is a path, relative to the working directory.

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
            # A file there is meant, and the daemon may have said why it takes nothing there.
            if os.path.lexists(target):  # noqa: ASYNC240 - a single check
                raise
        raise


async def roots(daemon: Daemon) -> list[Plugin]:
    """Return how each root of the daemon is, the directory of device plugins included.

    Raises:
      CommandError: if the daemon does not answer in time.
    """
    try:
        # The answer has the status 503 if anything is wrong, and says what.
        async with ask(daemon.path, "GET", "/healthz", timeout=daemon.timeout) as reply:
            return roots_in(await reply.body())
    except UnreachableError as error:
        raise CommandError(unreachable(error), EXIT_UNREACHABLE) from error


async def roots_to_mend(daemon: Daemon) -> list[str]:
    """Return a line for each root that the daemon cannot use, and for each directory from which it takes nothing new.

    Raises:
      CommandError: if the daemon does not answer in time.
    """
    return to_mend(await roots(daemon))


def watch_target(daemon: Daemon, path: str = "/watch") -> str:
    """Return what to ask for a stream of changes in which a daemon that has stopped is noticed."""
    return watched(path, daemon.timeout)


def has_heartbeats(reply: Reply) -> bool:
    """Return whether the stream has heartbeats. A daemon without them, which is older, may be silent for ever."""
    beats = "heartbeat" in reply.head.headers
    if not beats:
        reply.timeout = math.inf
    return beats

"""The requests of the commands, on plain sockets: Trio takes longer to import than most commands run."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..client.reaching import watched
from ..http.backends import BLOCKING, Entered, result_of
from ..http.client import Reply, UnreachableError, ask
from .answers import Daemon, Plugin, UnknownPluginError, health_in, refusal, roots_in, to_mend
from .ending import EXIT_UNREACHABLE, CommandError
from .status_socket import unreachable


def answer(daemon: Daemon, method: str, target: str, body: bytes = b"", **advice: str) -> tuple[int, bytes, str | None]:
    """Ask the daemon, and return the status and the body of its answer, and the version of its status socket.

    The daemon may be silent for its ``timeout``. A long list may take longer, for as long as it goes on. For ``advice``
    see :func:`~plugind.actors.console.status_socket.unreachable`.

    Raises:
      CommandError: if it does not answer in time.
    """
    try:
        with Entered(ask(BLOCKING, daemon.path, method, target, body, timeout=daemon.timeout)) as reply:
            return reply.status, result_of(reply.body()), reply.version
    except UnreachableError as error:
        raise unanswered(error, **advice) from error


def unanswered(error: UnreachableError, **advice: str) -> CommandError:
    """Return what a command says of a daemon that does not answer."""
    return CommandError(unreachable(error, **advice), EXIT_UNREACHABLE)


def fetch(daemon: Daemon, target: str, method: str = "GET", body: bytes = b"") -> bytes:
    """Ask the daemon and return the whole answer.

    Raises:
      CommandError: if it does not answer in time, or refuses.
    """
    status, said, version = answer(daemon, method, target, body)
    if status != 200:
        raise refusal(said, status, version)
    return said


def fetch_about(target: str, fetched: Callable[[str], bytes]) -> bytes:
    """Ask about a plugin; what has slashes and is no name is a path, relative to the working directory.

    Raises:
      CommandError: if the daemon knows neither, does not answer in time, or refuses.
    """
    from .arguments import path_of  # It imports what ``ls`` does not need.

    try:
        return fetched(target)
    except UnknownPluginError:
        if "/" not in target or os.path.isabs(target):
            raise
        try:
            return fetched(path_of(target))
        except UnknownPluginError:
            # A file there is meant, and the daemon may have said why it takes nothing there.
            if os.path.lexists(target):
                raise
        raise


def roots(daemon: Daemon) -> list[Plugin]:
    """Return how each root of the daemon is, the directory of device plugins included; none if this user may not know.

    Raises:
      CommandError: if the daemon does not answer in time.
    """
    # The answer has the status 503 if anything is wrong, and says what.
    status, said, _ = answer(daemon, "GET", "/healthz")
    return [] if status == 403 else roots_in(health_in(said))


def roots_to_mend(daemon: Daemon) -> list[str]:
    """Return a line for each root that the daemon cannot use, and for each directory from which it takes nothing new.

    Raises:
      CommandError: if the daemon does not answer in time.
    """
    return to_mend(roots(daemon))


@contextmanager
def watching(daemon: Daemon, path: str = "/watch", deadline: float = math.inf) -> Iterator[Reply]:
    """Ask for a stream of changes in which a daemon that has stopped is noticed, until ``deadline`` at the latest.

    Raises:
      UnreachableError: if the daemon does not answer; also from the lines of the reply.
      CommandError: if it refuses.
    """
    target, total = watched(path, daemon.timeout), deadline - time.monotonic()
    with Entered(ask(BLOCKING, daemon.path, "GET", target, timeout=daemon.timeout, total=total)) as reply:
        if reply.status != 200:
            raise refusal(result_of(reply.body()), reply.status, reply.version)
        yield reply


def has_heartbeats(reply: Reply) -> bool:
    """Return whether the stream has heartbeats. A daemon without them, which is older, may be silent for ever."""
    beats = "heartbeat" in reply.headers
    if not beats:
        reply.may_be_silent()
    return beats

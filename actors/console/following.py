"""Following a watch of a daemon line by line, until a condition holds."""

from __future__ import annotations

import time
from typing import Protocol

from ...protocol.text import escaped
from ..client.awaited import RECONNECT
from ..http.backends import each
from ..http.client import Reply, UnreachableError
from .answers import Daemon, Plugin, plugin_in
from .client import has_heartbeats, unanswered, watching
from .ending import EXIT_BUSY, EXIT_UNREACHABLE, CommandError


class WaitedFor(Protocol):
    """The condition that is waited for, and the daemon's reports about it."""

    #: Why the daemon has reported nothing, if that is so.
    failure: CommandError | None
    #: Whether the daemon has sent its whole list.
    has_list: bool

    @property
    def over(self) -> bool:
        """Whether there is nothing left to wait for."""

    def clear(self) -> None:
        """Drop the reports of an earlier watch."""

    def note(self, line: Plugin, /) -> None:
        """Record a line of the watch."""


def follow(daemon: Daemon, waiting: WaitedFor, deadline: float, path: str = "/watch", *, once: bool = False) -> None:
    """Follow the watch at ``path`` until ``waiting`` is over, or the daemon stops, or cannot be reached.

    It ends at the monotonic ``deadline``. With ``once``, it ends when the daemon has named all that it knows.
    """
    try:
        with watching(daemon, path, deadline) as reply:
            _read(reply, waiting, once=once)
        if not waiting.over and not once:
            waiting.failure = CommandError(f"the daemon at {escaped(daemon.path)} stopped", EXIT_UNREACHABLE)
    except UnreachableError as error:
        # That the time is over tells less than what was said before.
        if time.monotonic() < deadline:
            waiting.failure = unanswered(error)
    except CommandError as error:
        if error.code != EXIT_BUSY:
            raise
        waiting.failure = CommandError(f"the daemon is busy: {error.line}", error.code)


def follow_until_over(daemon: Daemon, waiting: WaitedFor, timeout: float, path: str = "/watch") -> None:
    """Follow the watch at ``path``, and those of later daemons, until ``waiting`` is over, for ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    follow(daemon, waiting, deadline, path)
    while not waiting.over and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(RECONNECT, left))  # There is no event for the start of a daemon.
        follow(daemon, waiting, deadline, path)


def _read(reply: Reply, waiting: WaitedFor, *, once: bool) -> None:
    waiting.clear()
    # The first heartbeat follows the last line of the list.
    waiting.failure, waiting.has_list = None, not has_heartbeats(reply)
    for line in each(reply):
        if line:
            waiting.note(plugin_in(line))
        else:
            waiting.has_list = True
        if waiting.over or (once and waiting.has_list):
            return

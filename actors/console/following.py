"""Following a watch of a daemon line by line, until a condition holds."""

from __future__ import annotations

from typing import Protocol

from ...protocol.text import escaped
from ..http.client import Reply, UnreachableError, ask
from .answers import Daemon, Plugin, plugin_in, refusal
from .client import has_heartbeats, watch_target
from .ending import EXIT_UNREACHABLE, CommandError
from .status_socket import unreachable

#: Seconds between attempts to reach a daemon that does not run yet.
RECONNECT = 0.2


class Waiting(Protocol):
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


async def follow(daemon: Daemon, waiting: Waiting, path: str = "/watch", *, once: bool = False) -> None:
    """Follow the watch at ``path`` until ``waiting`` is over, or the daemon stops or cannot be reached.

    With ``once``, stop at the latest when the daemon has sent its whole list.
    """
    try:
        async with ask(daemon.path, "GET", watch_target(daemon, path), timeout=daemon.timeout) as reply:
            if reply.status != 200:
                refused = refusal(await reply.body(), reply.status, reply.version)
                if reply.status != 503:
                    raise refused
                waiting.failure = CommandError(f"the daemon is busy: {refused.line}", refused.code)
                return
            await _read(reply, waiting, once=once)
        if not waiting.over and not once:
            waiting.failure = CommandError(f"the daemon at {escaped(daemon.path)} stopped", EXIT_UNREACHABLE)
    except UnreachableError as error:
        waiting.failure = CommandError(unreachable(error), EXIT_UNREACHABLE)


async def _read(reply: Reply, waiting: Waiting, *, once: bool) -> None:
    waiting.clear()
    # The first heartbeat follows the last line of the list.
    waiting.failure, waiting.has_list = None, not has_heartbeats(reply)
    async for line in reply.lines():
        if line:
            waiting.note(plugin_in(line))
        else:
            waiting.has_list = True
        if waiting.over or (once and waiting.has_list):
            return

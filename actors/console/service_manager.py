"""Messages of ``plugind run`` to the service manager that started it, such as systemd, by the protocol of sd_notify(3).

They report when the daemon is ready, reloads and stops, its status, and, if the service manager has a watchdog, that it
works. A task of the loop feeds the watchdog, only while no core actor hangs. So the service manager restarts a daemon
whose loop is blocked, and one that runs and does nothing. A handler that hangs does not count: it delays only the
plugins of its type, and ``/healthz`` shows it.
"""

from __future__ import annotations

import faulthandler
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol

import trio

from ...protocol.logs.lines import Level, Logger
from ...protocol.plugins.status import PluginCounts, StateName
from ...protocol.text import encodable, escaped
from ...protocol.values import record
from ...supervisor import NodeEndedError

#: Seconds between two reports, unless the watchdog needs them more often.
BEAT: Final = 10.0
#: How often the watchdog is fed within its time, so that a lost message does no harm.
_FEEDS: Final = 3
#: Seconds for which READY=1 is sent again while the service manager accepts no message.
_PATIENCE: Final = 10.0
_PAUSE: Final = 0.05
#: Characters of the status text.
_MAX_STATUS: Final = 500
_STANDARD_ERROR: Final = 2


class Observed(Protocol):
    """The methods of a node that report its condition."""

    def hung(self) -> tuple[str, ...]:
        """Return the reason for each core actor that counts as hanging; empty while all work."""

    async def counts(self) -> PluginCounts:
        """Return how many plugins are in each state, how many devices there are, and which roots cannot be used."""


def tell_service_manager(state: str) -> bool:
    """Send ``state`` to the socket in NOTIFY_SOCKET, if there is one; never wait.

    Return False if its queue is full. Any other error is ignored (fault 95).
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return True
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
        try:
            sender.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
        except BlockingIOError:
            return False
        except OSError:
            return True
    return True


async def tell_surely(state: str) -> None:
    """Send ``state``, repeatedly while the queue of the service manager is full."""
    with trio.move_on_after(_PATIENCE):
        while not tell_service_manager(state):  # noqa: ASYNC110 - no event of the kernel tells of room in the queue
            await trio.sleep(_PAUSE)


@contextmanager
def reloading() -> Iterator[None]:
    """Report that the daemon reloads its configuration in this block, and that it is ready again after it."""
    tell_service_manager(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
    try:
        yield
    finally:
        tell_service_manager("READY=1")


def watchdog_seconds(environment: Mapping[str, str], pid: int) -> float | None:
    """Return how long the watchdog of the service manager waits for this process; None if there is none."""
    if environment.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    given = environment.get("WATCHDOG_USEC", "")
    return int(given) / 1e6 if given.isascii() and given.isdigit() and int(given) else None


async def keep_informed(node: Observed, log: Logger) -> None:
    """Feed the watchdog of the service manager and report the node's status, until cancelled."""
    if not os.environ.get("NOTIFY_SOCKET"):
        return
    limit = watchdog_seconds(os.environ, os.getpid())
    if limit is not None and not faulthandler.is_enabled():
        # SIGABRT, the signal of the watchdog, then leaves the stacks in the log, which show what blocks the loop.
        faulthandler.enable(_STANDARD_ERROR, all_threads=False)
    beats = _Beats(node, log, is_watched=limit is not None)
    while True:
        await beats.beat()
        await trio.sleep(BEAT if limit is None else min(BEAT, limit / _FEEDS))


@record
class _Beats:
    """The periodic reports."""

    _node: Observed
    _log: Logger
    _is_watched: bool
    _said: str = ""
    _is_fed: bool = True

    async def beat(self) -> None:
        """Report once that the daemon works, and the status if it has changed."""
        hung = self._node.hung()
        if self._is_watched:
            self._feed(hung)
        status = f"not fed: {'; '.join(hung)}" if hung else await self._words()
        if status not in ("", self._said) and tell_service_manager(f"STATUS={_shown(status)}"):
            self._said = status

    def _feed(self, hung: tuple[str, ...]) -> None:
        if not hung:
            tell_service_manager("WATCHDOG=1")
        if self._is_fed is bool(hung):
            self._is_fed = not hung
            if hung:
                self._log.event(Level.ERROR, "the watchdog is not fed any more", reason="; ".join(hung))
            else:
                self._log.event(Level.INFO, "the watchdog is fed again")

    async def _words(self) -> str:
        """Return how many plugins there are; empty if the node does not answer soon, or has ended."""
        with trio.move_on_after(_PAUSE):
            try:
                return words_of(await self._node.counts())
            except NodeEndedError:
                return ""
        return ""


def words_of(counts: PluginCounts) -> str:
    """Return in words how many plugins are in each state or queued for a dial, the devices, and the unusable roots."""
    total = sum(counts.by_state.values())
    states = ", ".join(states_of(counts))
    plugins = f"{total} {'plugin' if total == 1 else 'plugins'}{': ' if states else ''}{states}"
    queued = [f"{counts.queued} queued"] if counts.queued else []
    healthy, unhealthy = counts.devices
    number = healthy + unhealthy
    sick = f": {healthy} healthy, {unhealthy} unhealthy" if unhealthy else ""
    devices = [f"{number} {'device' if number == 1 else 'devices'}{sick}"] if number else []
    withheld = ["all devices are withheld"] if counts.withheld else []
    return "; ".join((plugins, *queued, *devices, *withheld, *counts.unusable))


def states_of(counts: PluginCounts) -> Iterator[str]:
    """Yield the states of plugins, each with their number."""
    by_state = Counter(counts.by_state)
    for state in StateName:
        if by_state[state]:
            yield f"{by_state[state]} {state.value}"
        if state is StateName.REGISTERED and counts.not_serving:
            yield f"{counts.not_serving} of them not serving"


def _shown(text: str) -> str:
    """Return ``text`` in one line, since each line is another assignment."""
    return encodable(escaped(text))[:_MAX_STATUS]

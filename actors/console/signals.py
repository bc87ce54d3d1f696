"""The signals of ``plugind run``, and the reactions to SIGHUP and SIGUSR1.

If a signal is sent again before it is handled, it counts once, so a burst of signals is bounded. The two signals that
stop the daemon have a separate task, so handling another signal does not delay them.
"""

from __future__ import annotations

import faulthandler
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Protocol

import trio

from ...protocol.logs.lines import Level, Logger
from ...protocol.messages.status import Snapshot
from ...protocol.plugins.status import PluginCounts, PluginStatus, StateName
from ...protocol.values import value
from ...supervisor import NodeEndedError
from .service_manager import states_of
from .start import REQUESTS

#: The signals that stop the daemon.
STOPS: Final = (signal.SIGTERM, signal.SIGINT)
#: The maximum number of plugins that SIGUSR1 logs; those that are not registered or do not serve come first. The
#: summary counts all.
MOST_LINES: Final = 1000
#: How many lines are logged before other tasks run: about a millisecond of work.
_BATCH: Final = 64
_STANDARD_ERROR: Final = 2
#: Seconds for the node to answer.
_ANSWER: Final = 5.0


class Answering(Protocol):
    """The methods of a node that the reactions to signals use."""

    async def snapshot(self) -> Snapshot:
        """Return everything that is known at this moment."""

    async def rescan(self) -> None:
        """Scan every root now."""


@value
class StopLimit:
    """When a process that was told to stop is ended by force."""

    #: Returns how many seconds after the first signal ``end`` is called; called at that signal.
    seconds: Callable[[], float]
    #: Ends the process after so many seconds, and reports what has not ended.
    end: Callable[[float], None]
    #: Seconds that ``end`` then has, before the kernel ends the process.
    spare: float = 1.0


@contextmanager
def received(limit: StopLimit | None = None) -> Iterator[tuple[AsyncIterator[int], AsyncIterator[int]]]:
    """Receive the signals that stop the daemon, and the others.

    At its ``limit`` after the first stopping signal, the process is ended by force, even if its loop does not turn.
    Afterwards the signals are blocked, so that a late one does not end the process.
    """
    everything = (*STOPS, *REQUESTS)
    # An early signal stays pending until it can be received.
    signal.pthread_sigmask(signal.SIG_BLOCK, everything)
    for number in everything:
        signal.signal(number, _drop)
    with trio.open_signal_receiver(*STOPS) as stops, trio.open_signal_receiver(*REQUESTS) as requests:
        if limit is not None:
            token = trio.lowlevel.current_trio_token()
            for number in STOPS:
                signal.signal(number, partial(_stop_within, limit, token, signal.getsignal(number)))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, everything)
        try:
            yield stops, requests
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, everything)


def _stop_within(limit: StopLimit, token: trio.lowlevel.TrioToken, handler: Any, number: int, frame: object) -> None:
    """Pass a signal to ``handler``, and make the process end at the limit.

    A task does that, and reports what has not ended. While code blocks the loop, these lines can run, but no task. So
    there is also a kernel timer, whose signal is handled in C: it writes the stack, which shows what blocks, to
    standard error, and ends the process.
    """
    if signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0):
        faulthandler.register(signal.SIGALRM, file=_STANDARD_ERROR, all_threads=False, chain=True)
        seconds = limit.seconds()
        signal.setitimer(signal.ITIMER_REAL, seconds + limit.spare)
        # A system task, which is not cancelled with the daemon's own tasks.
        token.run_sync_soon(trio.lowlevel.spawn_system_task, _end_at_limit, limit, seconds)
    handler(number, frame)


async def _end_at_limit(limit: StopLimit, seconds: float) -> None:
    await trio.sleep(seconds)
    limit.end(seconds)


def _drop(_number: int, _frame: object) -> None:
    """Do nothing. Trio's receiver calls this for signals that were received but not read."""


async def answer(
    requests: AsyncIterator[int],
    node: Answering,
    log: Logger,
    stop: trio.Event,
    reload: Callable[[], Awaitable[object]],
) -> None:
    """Answer SIGHUP and SIGUSR1 until the node has ended."""
    async for number in requests:
        name = signal.Signals(number).name
        try:
            with trio.move_on_after(_ANSWER) as scope:
                if number == signal.SIGUSR1:
                    await log_states(await node.snapshot(), log)
                else:
                    await _reload(node, log, stop, reload)
            if scope.cancelled_caught:
                log.event(Level.WARNING, "the node does not answer", signal=name, seconds=_ANSWER)
        except NodeEndedError:
            log.event(Level.INFO, "signal ignored", signal=name, reason="the node has ended")


async def _reload(node: Answering, log: Logger, stop: trio.Event, reload: Callable[[], Awaitable[object]]) -> None:
    if stop.is_set():
        log.event(Level.INFO, "signal ignored", signal="SIGHUP", reason="plugind stops")
        return
    await reload()
    await node.rescan()
    log.event(Level.INFO, "scanning all roots", signal="SIGHUP")


async def log_states(snapshot: Snapshot, log: Logger) -> None:
    """Log a line for each plugin and each root, and a summary."""
    if log.enabled(Level.INFO):
        well = [plugin for plugin in snapshot.plugins if _is_well(plugin)]
        others = [plugin for plugin in snapshot.plugins if not _is_well(plugin)]
        for number, plugin in enumerate((others + well)[:MOST_LINES], 1):
            _log_plugin(plugin, snapshot.time, log)
            if number % _BATCH == 0:
                await trio.lowlevel.checkpoint()
        sockets = Counter(plugin.root for plugin in snapshot.plugins)
        for root in snapshot.roots:
            log.event(
                Level.INFO,
                "root",
                root=root.root,
                watching=root.watching,
                sockets=sockets[root.root],
                reason=root.reason,
            )
    _log_summary(snapshot, log)


def _is_well(plugin: PluginStatus) -> bool:
    return plugin.state in (StateName.REGISTERED, StateName.OBSERVED) and plugin.serving is not False


def _log_plugin(plugin: PluginStatus, now: float, log: Logger) -> None:
    log.event(
        Level.INFO,
        "state",
        socket=plugin.socket,
        state=plugin.state.value,
        type=plugin.type,
        name=plugin.name,
        seconds=round(now - plugin.since, 3),
        serving=False if plugin.serving is False else None,
        cause=plugin.not_serving or plugin.cause or plugin.reason,
        attempt=plugin.attempt or None,
        next_try_in=None if plugin.next_try is None else round(max(0.0, plugin.next_try - now), 3),
        generation=plugin.generation,
    )


def _log_summary(snapshot: Snapshot, log: Logger) -> None:
    # The answer to a request is logged at every log level.
    level = next((level for level in (Level.INFO, Level.WARNING) if log.enabled(level)), Level.ERROR)
    listed = min(len(snapshot.plugins), MOST_LINES) if level is Level.INFO else 0
    log.event(
        level,
        "states",
        plugins=len(snapshot.plugins),
        listed=listed,
        by_state=", ".join(states_of(_counts(snapshot))) or None,
        roots=len(snapshot.roots),
        handlers=", ".join(snapshot.handlers),
    )


def _counts(snapshot: Snapshot) -> PluginCounts:
    states = Counter(plugin.state for plugin in snapshot.plugins)
    return PluginCounts(states, sum(plugin.serving is False for plugin in snapshot.plugins))

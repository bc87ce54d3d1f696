"""Checks the endpoints of registered plugins, by the rules of ``plugind.protocol.health.checks``.

A check is a call with a deadline, since a process that hangs keeps its connection. A node makes at most :data:`MOST`
checks at once. Checks that hang must not delay those of healthy plugins, of which there may be many more. So most slots
are for checks that may take their whole deadline. While all of these are taken, an endpoint whose last check was
answered is asked in one of the other slots, for a moment only. If it does not answer in that time, it waits for a long
slot and is asked again.

The first check of a new plugin begins at once, for callers that wait until the plugin is healthy, but at most
:data:`FIRST` of these begin at one time: a thousand plugins may be registered within a second. On later connections the
first check comes at a random time within the period, since a plugin may end each connection at once. The same goes for
a new device plugin, whose registration has just made the same call, and which is healthy when it sends its list.

Checks begin at times of a grid, so that many endpoints need few timers and wake-ups: a thousand endpoints have 33
checks a second, which begin at four times.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio
from grpclib.exceptions import GRPCError

from ...protocol.errors import PluginError
from ...protocol.health.checks import (
    GRID,
    CheckBegan,
    Checked,
    CheckFailed,
    CheckPassed,
    Connected,
    HealthChecks,
    silence,
    step,
)
from ...protocol.messages.status import HealthChecked, StatusMessage
from ...protocol.plugins.status import Outcome
from ...protocol.values import value
from ...protocol.wire.outcomes import status_text
from ..grpc.client.channel import Channel
from ..messaging.mailbox import report
from ..messaging.timed_queue import TimedQueue


class Alarms:
    """Times for which tasks wait, on Trio's clock. :meth:`run` wakes all tasks of one time together."""

    def __init__(self) -> None:
        self._events: dict[float, trio.Event] = {}
        self._times = TimedQueue[float]()

    async def until(self, time: float) -> None:
        """Wait until ``time``."""
        event = self._events.get(time)
        if event is None:
            event = self._events[time] = trio.Event()
            self._times.put(time, time)
        await event.wait()

    async def run(self) -> None:
        """Wake tasks when they are due, until cancelled. Can be run again."""
        while True:
            for time in await self._times.due():
                self._events.pop(time).set()


#: The limit of checks that may take their whole deadline, and of checks that may take only a moment.
LONG, SHORT = 10, 6
MOST = LONG + SHORT
#: The length of that moment in seconds.
MOMENT = 0.2
#: The limit of first checks that begin at one time of the grid.
FIRST = 25

#: Asks an endpoint how it is. Returns if all is well, and raises ``GRPCError`` or ``PluginError`` if not.
Check = Callable[[Channel], Awaitable[None]]
Note = Callable[[Checked], None]


@value
class _CheckEnd:
    """The result of a check, and the seconds that it took."""

    outcome: Outcome
    reason: str
    seconds: float


class EndpointChecks:
    """The checks of one node."""

    def __init__(
        self,
        rule: HealthChecks,
        status: trio.MemorySendChannel[StatusMessage],
        rng: random.Random,
    ) -> None:
        """Report each check to ``status``; ``rng`` spreads them."""
        self._rule = rule
        self._status = status
        self._rng = rng
        self._alarms = Alarms()
        self._long = trio.CapacityLimiter(LONG)
        self._short = trio.CapacityLimiter(SHORT)
        #: When the next first check may begin, and how many begin at that time of the grid.
        self._first_at, self._first_begun = -math.inf, 0

    @property
    def under_way(self) -> int:
        """The number of checks under way."""
        return int(self._long.borrowed_tokens + self._short.borrowed_tokens)

    def are_off(self, plugin_type: str) -> bool:
        """Whether plugins of this type are not checked."""
        return not self._rule.checks(plugin_type)

    async def serve(self) -> None:
        """Start checks when they are due, until cancelled."""
        await self._alarms.run()

    async def run(self, plugin_type: str, channel: Channel, check: Check, note: Note, *, at_once: bool = False) -> None:
        """Check the endpoint of ``channel`` repeatedly, until the channel fails. The caller may notice that first.

        The first check begins within the period, or ``at_once`` if not too many others do. If the plugin type is not
        checked, note that and only wait until the channel is closed.
        """
        off = self._rule.why_not_checked(plugin_type)
        if off is not None:
            note(Checked(reason=off))
            with suppress(trio.ClosedResourceError):
                await channel.wait_closed()
            return
        rule = self._rule.of_type(plugin_type)
        chance = self._rng.random()
        begins = Connected(self._first(), 0.0) if at_once else Connected(trio.current_time(), chance)
        state = step(rule, Checked(), begins)
        while True:
            await self._alarms.until(rule.on_grid(state.due))
            began, answer = await self._ask(channel, check, failing=state.failures > 0)
            if channel.closed or channel.connection.failure is not None:
                return
            state = step(rule, step(rule, state, CheckBegan(began)), self._result(answer))
            note(state)
            await report(self._status, HealthChecked(plugin_type, answer.outcome, answer.seconds))

    def _first(self) -> float:
        """Return when the next first check can begin."""
        now = math.floor(trio.current_time() / GRID) * GRID
        if now > self._first_at:
            self._first_at, self._first_begun = now, 0
        elif self._first_begun >= FIRST:
            self._first_at, self._first_begun = self._first_at + GRID, 0
        self._first_begun += 1
        return self._first_at

    def _result(self, answer: _CheckEnd) -> CheckPassed | CheckFailed:
        chance = self._rng.random()
        return CheckPassed(chance) if answer.outcome is Outcome.OK else CheckFailed(answer.reason, chance)

    async def _ask(self, channel: Channel, check: Check, *, failing: bool) -> tuple[float, _CheckEnd]:
        """Make a check; return when it began, and its result."""
        if not failing and self._long.available_tokens == 0:
            began, answer = await _within(self._short, channel, check, min(MOMENT, self._rule.deadline))
            if answer.outcome is not Outcome.TIMED_OUT:
                return began, answer
        return await _within(self._long, channel, check, self._rule.deadline)


async def _within(
    slots: trio.CapacityLimiter, channel: Channel, check: Check, deadline: float
) -> tuple[float, _CheckEnd]:
    """Make a check in one of ``slots``; return when it began, and its result."""
    # A free slot is taken without a pass of Trio's loop.
    if slots.available_tokens:
        slots.acquire_nowait()
    else:
        await slots.acquire()
    try:
        return trio.current_time(), await _answer(channel, check, deadline)
    finally:
        slots.release()


async def _answer(channel: Channel, check: Check, deadline: float) -> _CheckEnd:
    began = trio.current_time()
    outcome, reason = Outcome.TIMED_OUT, silence(deadline)
    with trio.move_on_after(deadline):
        try:
            # Nothing more is sent to a process that reads nothing.
            await channel.flushed(None, None)
            await check(channel)
        except GRPCError as error:
            outcome, reason = Outcome.FAILED, status_text(error)
        except PluginError as error:
            outcome, reason = Outcome.FAILED, str(error)
        except trio.ClosedResourceError:
            # The connection may have ended just when the check began.
            if not channel.closed:
                raise
        else:
            outcome, reason = Outcome.OK, ""
    return _CheckEnd(outcome, reason, trio.current_time() - began)

"""Follows one registered CSI driver: its connection, its health, and its facts about this node.

The checks call Probe by the rule for all endpoints (``plugind.protocol.health.checks``). A driver that is not ready is
*starting* for a while after its registration. A driver without Probe is healthy while it is connected. Nothing here
changes the registration: a driver that hangs or is away stays registered.

NodeGetInfo is called every ``CSIConfig.refresh`` seconds, and when somebody asks for the facts. If the call fails, the
facts stay as they were. A driver that has not told its capabilities is asked for them again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable

import attrs
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ....protocol.backoff import Backoff
from ....protocol.errors import NoConnectionError, PluginError
from ....protocol.handlers.csi import (
    STARTING_FOR,
    DriverFacts,
    DriverNotReadyError,
    NodeInfo,
    NotKnown,
    changes,
    shown_health,
)
from ....protocol.health.checks import Checked, disconnected
from ....protocol.logs.lines import timestamp
from ....protocol.messages.consumers import EventNoted, PluginEvent
from ....protocol.plugins.health import Health
from ....protocol.plugins.info import Plugin
from ...grpc.client.channel import Channel
from ..goes_away import GoesAwayError, check_takes_calls
from ..link import Link
from .driver import DriverCalls, probe

#: The pause before a lost connection is made again. It doubles after each connection that ended soon.
REDIALS = Backoff(initial=1.0, cap=30.0, jitter=0.0)
#: Seconds in which each of these attempts must reach the driver.
CONNECT_TIMEOUT = 1.0
#: The pause before a driver that has not told its capabilities is asked again. It doubles each time.
ASK_AGAIN = Backoff(initial=30.0, cap=480.0, jitter=0.0)
#: The largest fraction of a period by which one refresh is shifted, to spread drivers that registered together.
_JITTER = 0.2


@attrs.define
class DriverAnswers:
    """A registered driver's answers, and the warnings about them."""

    plugin: Plugin
    facts: DriverFacts
    #: ``trio.current_time()`` when the last required answer came.
    time: float
    warnings: tuple[str, ...] = ()


@attrs.frozen
class FollowedBy:
    """What the followers of all drivers share."""

    #: Seconds between two refreshes; None for no refreshes.
    refresh: float | None
    #: Checks and keeps a driver's facts about this node; returns the warnings.
    admit: Callable[[Plugin, NodeInfo], tuple[str, ...]]
    #: Reports the calls that have ended, and an event if there is one.
    report: Callable[[EventNoted | None], Awaitable[None]]
    #: Unix time.
    wall: Callable[[], float]
    rng: random.Random


class CSIFollower:
    """Follows one driver until it is cancelled."""

    def __init__(self, asked: DriverAnswers, calls: DriverCalls, link: Link, common: FollowedBy) -> None:
        self._asked = asked
        self._calls = calls
        self._link = link
        self._common = common
        self._checked = Checked()
        #: Runs the tasks that start when they are first needed.
        self._nursery: trio.Nursery
        self._is_asking = self._is_ending_start = False
        #: Whether the driver answered the last check that it is not ready.
        self._not_ready = False
        #: The channel on which the driver answered that it does not implement Probe.
        self._without_probe: Channel | None = None
        #: How often the driver was asked again for its capabilities.
        self._repeats = 0

    async def run(self) -> None:
        """Keep a connection, check it, and ask the driver for its facts again, forever."""
        if not self._is_connected:
            self._report_facts()
        async with trio.open_nursery() as self._nursery:
            self._link.when_facts_asked(self._start_asking)
            if self._common.refresh is not None or not self._asked.facts.is_complete:
                self._start_asking()
            try:
                await self._keep_connected()
            finally:
                self._link.when_facts_asked(None)

    @property
    def _is_connected(self) -> bool:
        """Whether there is a connection, as nearly always after Register; the first report can then have the facts."""
        try:
            return self._link.channel.takes_calls
        except NoConnectionError:
            return False

    # --- health -------------------------------------------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        soon = 0
        while True:
            began = trio.current_time()
            try:
                await self._check()
            except NoConnectionError as error:
                self._note(disconnected(error.lasting))
            except GoesAwayError:
                continue
            soon = 1 if trio.current_time() - began >= REDIALS.cap else soon + 1
            await trio.sleep(REDIALS.delay(soon))

    async def _check(self) -> None:
        """Connect, and check the driver until the connection has ended.

        Raises:
          NoConnectionError: if the driver cannot be reached.
        """
        await self._link.connect(timeout=CONNECT_TIMEOUT)
        self._checked = Checked()
        self._report_facts()
        await self._link.check(self._probe, self._note)

    async def _probe(self, channel: Channel) -> None:
        self._not_ready = False
        check_takes_calls(channel)
        if channel is self._without_probe:
            return
        try:
            await probe(channel)
        except DriverNotReadyError:
            self._not_ready = True
            if not self._is_ending_start:
                self._is_ending_start = True
                self._nursery.start_soon(self._end_start)
            raise
        except GRPCError as error:
            if error.status is not Status.UNIMPLEMENTED:
                raise
            self._without_probe = channel

    async def _end_start(self) -> None:
        """Report the health when the time in which a driver can be starting is over."""
        await trio.sleep_until(self._asked.time + STARTING_FOR)
        self._report()

    def _note(self, checked: Checked) -> None:
        self._checked = checked
        self._report()

    def _report(self) -> None:
        health, reason, failures = self._health()
        self._link.report(health, reason, failed_checks=failures)

    def _report_facts(self) -> None:
        health, reason, failures = self._health()
        facts = self._asked.facts.as_texts()
        self._link.report(health, reason, facts, failed_checks=failures, warnings=self._asked.warnings)

    def _health(self) -> tuple[Health, str, int]:
        is_new = trio.current_time() < self._asked.time + STARTING_FOR
        return shown_health(self._checked, may_start=self._not_ready and is_new)

    # --- facts --------------------------------------------------------------------------------------------------------

    def _start_asking(self) -> None:
        if not self._is_asking:
            self._is_asking = True
            self._nursery.start_soon(self._ask_again)

    async def _ask_again(self) -> None:
        due, repeat = self._next_refresh(), self._next_repeat()
        while True:
            with trio.move_on_at(min(due, repeat)) as waiting:
                await self._link.facts_asked()
            before, is_asked = self._asked.facts.as_texts(), not waiting.cancelled_caught
            if is_asked or trio.current_time() >= due:
                await self._refresh()
                due = self._next_refresh()
            if is_asked or trio.current_time() >= repeat:
                await self._ask_what_it_can_do()
                repeat = self._next_repeat()
            await self._tell(before)

    def _next_refresh(self) -> float:
        if self._common.refresh is None:
            return math.inf
        return trio.current_time() + self._common.refresh * (1 + _JITTER * (2 * self._common.rng.random() - 1))

    def _next_repeat(self) -> float:
        if self._asked.facts.is_complete:
            return math.inf
        self._repeats += 1
        return trio.current_time() + ASK_AGAIN.delay(self._repeats)

    async def _refresh(self) -> None:
        """Call NodeGetInfo again; if that fails, keep the previous answer."""
        asked = self._asked
        if asked.facts.node is None:
            await self._refresh_observed(asked)
            return
        try:
            node = await self._calls.node_get_info(self._link.channel)
            asked.warnings = self._common.admit(asked.plugin, node)
        except PluginError as error:
            answered = asked.facts.refreshed.partition(" ")[0]
            asked.facts = attrs.evolve(asked.facts, refreshed=f"{answered} (at {self._now()}: {error})")
        else:
            asked.facts = attrs.evolve(asked.facts, node=node, refreshed=self._now())

    async def _refresh_observed(self, asked: DriverAnswers) -> None:
        """Call GetPluginInfo of an observed driver. NodeGetInfo is left to the consumer that registers the driver."""
        try:
            version = await self._calls.get_plugin_info(self._link.channel)
        except PluginError as error:
            asked.warnings = (str(error),)
        else:
            asked.warnings = ()
            asked.facts = attrs.evolve(asked.facts, vendor_version=version, refreshed=self._now())

    async def _ask_what_it_can_do(self) -> None:
        asked = self._asked
        try:
            if isinstance(asked.facts.plugin_capabilities, NotKnown):
                said = await self._calls.get_plugin_capabilities(self._link.channel)
                asked.facts = attrs.evolve(asked.facts, plugin_capabilities=said)
            if isinstance(asked.facts.node_capabilities, NotKnown):
                said = await self._calls.node_get_capabilities(self._link.channel)
                asked.facts = attrs.evolve(asked.facts, node_capabilities=said)
        except NoConnectionError:
            # The call is repeated when the next repeat is due.
            return

    async def _tell(self, before: dict[str, str]) -> None:
        """Report the facts, and which of them have changed."""
        self._report_facts()
        changed, plugin = changes(before, self._asked.facts.as_texts()), self._asked.plugin
        event = EventNoted(plugin, PluginEvent.FACTS, changed, trio.current_time())
        await self._common.report(event if changed else None)

    def _now(self) -> str:
        return timestamp(self._common.wall())

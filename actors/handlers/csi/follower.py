"""Follows one registered CSI driver: its connection, its health, and what it says about this node.

The checks call Probe by the rule for all endpoints (``plugind.protocol.health.checks``). A driver that says that it is
not ready is *starting* for a while after its registration. One that does not implement Probe is healthy while it is
connected. Nothing here touches the registration: a driver that hangs or is away stays registered.

NodeGetInfo is called anew each ``CSIConfig.refresh``, or when somebody asks for the facts. If that fails, those from
before hold. What the driver can do is asked for again as long as it has not said so.
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

#: Seconds until a connection that has ended is made again: twice as long after each that ended soon.
REDIALS = Backoff(initial=1.0, cap=30.0, jitter=0.0)
#: Seconds in which a driver must listen then, each time that this is tried.
CONNECT_TIMEOUT = 1.0
#: Seconds until a driver that has not said what it can do is asked again: twice as long after each time.
ASK_AGAIN = Backoff(initial=30.0, cap=480.0, jitter=0.0)
#: The largest part of the time between two refreshes by which one is earlier or later, so that those of many drivers
#: that registered together are spread out.
_JITTER = 0.2


@attrs.define
class DriverAnswers:
    """What a registered driver has said, and with what warnings."""

    plugin: Plugin
    facts: DriverFacts
    #: ``trio.current_time()`` when it had said all that it must.
    time: float
    warnings: tuple[str, ...] = ()


@attrs.frozen
class FollowedBy:
    """What the followers of all drivers have in common."""

    #: Seconds between two refreshes; None for none.
    refresh: float | None
    #: Judges what a driver says about this node, and keeps it: it returns the warnings.
    admit: Callable[[Plugin, NodeInfo], tuple[str, ...]]
    #: Reports the calls that were made, and an event.
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
        #: Of the tasks that begin once there is something to wait for.
        self._nursery: trio.Nursery
        self._is_asking = self._is_ending_start = False
        #: Whether the driver has said that it is not ready when it was asked last.
        self._not_ready = False
        #: The channel on which it has said that it does not implement Probe.
        self._without_probe: Channel | None = None
        #: How often it was asked again for what it can do.
        self._repeats = 0

    async def run(self) -> None:
        """Keep a connection, check it, and ask the driver again, for ever."""
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
        """Whether there is a connection, as nearly always is from Register: what is reported at once has the facts."""
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
          NoConnectionError: if there is none.
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
        """Report at the end of the time for which a driver may be starting that it is no longer so."""
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
        """Ask for the facts from now on, each time when that is due or somebody wants it."""
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
        """Ask the driver for the node again; if that fails, what it has said before holds."""
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
        """Ask a driver that is only observed who it is; NodeGetInfo is left to the consumer that registers it."""
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
            # It is asked again when that is due next.
            return

    async def _tell(self, before: dict[str, str]) -> None:
        """Report the facts, and what of them has changed."""
        self._report_facts()
        changed, plugin = changes(before, self._asked.facts.as_texts()), self._asked.plugin
        event = EventNoted(plugin, PluginEvent.FACTS, changed, trio.current_time())
        await self._common.report(event if changed else None)

    def _now(self) -> str:
        return timestamp(self._common.wall())

"""Follows the connection to one instance of a DRA driver in observe mode, and nothing else."""

from __future__ import annotations

from typing import NoReturn

import trio

from ....protocol.errors import NoConnectionError, ValidationError
from ....protocol.handlers.dra_facts import CONNECTED, SERVICE, Clock
from ....protocol.health.checks import Checked
from ....protocol.plugins.health import Health
from ....protocol.plugins.info import Plugin, choose_dra_service
from ...grpc.client.channel import Channel
from ..goes_away import GoesAwayError, check_takes_calls
from ..link import Link
from .driver import RETRIES


class DRAObserver:
    """Observes one instance of a driver until it is cancelled."""

    def __init__(self, plugin: Plugin, link: Link, clock: Clock) -> None:
        self._link = link
        self._clock = clock
        self._facts: dict[str, str] = {}
        self._warnings: tuple[str, ...] = ()
        try:
            self._facts[SERVICE] = choose_dra_service(plugin.versions)
        except ValidationError as error:
            self._warnings = (str(error),)

    async def run(self) -> NoReturn:
        """Keep a connection to the instance, forever. As in the kubelet, the connection is the sign of life."""
        tries = 0
        while True:
            began = trio.current_time()
            try:
                await self._watch_connection()
            except NoConnectionError as error:
                self._report(Health.DISCONNECTED, error.lasting, "no")
            except GoesAwayError:
                continue
            tries = 1 if trio.current_time() - began >= RETRIES.cap else tries + 1
            await trio.sleep(RETRIES.delay(tries))

    async def _watch_connection(self) -> None:
        await self._link.connect(timeout=0)
        self._report(Health.HEALTHY, "", f"since {self._clock(trio.current_time())}")
        await self._link.check(_ask_nothing, self._note)

    def _note(self, checked: Checked) -> None:
        # No checks are made, so only the end of the connection is reported.
        if checked.health is Health.DISCONNECTED:
            self._report(checked.health, checked.reason, "no")

    def _report(self, health: Health, reason: str, connected: str) -> None:
        self._link.report(health, reason, {**self._facts, CONNECTED: connected}, warnings=self._warnings)


async def _ask_nothing(channel: Channel) -> None:
    """Raise :exc:`GoesAwayError` if the server goes away; otherwise do nothing."""
    check_takes_calls(channel)
    await trio.lowlevel.checkpoint()

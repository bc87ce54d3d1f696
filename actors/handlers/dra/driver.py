"""One instance of a DRA driver: its connection, its health and its facts.

As in the kubelet, the connection is the sign of life. It is made in the background once the driver is registered.
Failed or ended connections are tried again after 1 s, doubling up to 30 s. Of several instances, connected ones are
preferred. An instance counts as connected as long as its link has a connection, even if the task that follows it has
crashed.

A process that hangs keeps its connection. So a driver that serves gRPC's health service is checked by the rules in
``plugind.protocol.health.checks``; a driver without that service is asked once on each connection.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ....protocol.backoff import Backoff
from ....protocol.errors import NoConnectionError, PluginError
from ....protocol.handlers.dra import Drivers, key_of
from ....protocol.handlers.dra_facts import Clock, InstanceFacts
from ....protocol.health.checks import Checked, disconnected
from ....protocol.plugins.health import Health
from ....protocol.plugins.info import Plugin, choose_dra_service
from ....protocol.proto.health_v1_grpc import HealthStub
from ....protocol.proto.health_v1_pb2 import HealthCheckRequest, HealthCheckResponse
from ...grpc.client.channel import Channel
from ..goes_away import GoesAwayError, check_takes_calls
from ..link import Link
from .health import HealthFollower

#: The pauses between attempts to connect. A connection that lasted longer than the longest pause counts as a success.
RETRIES = Backoff(initial=1.0, cap=30.0, jitter=0.0)
NOT_TRIED = "its endpoint has not been connected to yet"
UNFOLLOWED = "it is not followed at present"

#: The answers of a server that has no health service, or no status of the server as a whole.
_NO_HEALTH = (Status.UNIMPLEMENTED, Status.NOT_FOUND)
#: The names of its statuses. A server can also send unknown numbers.
_WORDS = {number: word for word, number in HealthCheckResponse.ServingStatus.items()}


class DRAFollower:
    """Follows one instance of a DRA driver until it is cancelled."""

    def __init__(
        self,
        plugin: Plugin,
        link: Link,
        drivers: Drivers,
        changed: Callable[[str], None],
        clock: Clock,
        health_services: tuple[str, ...] = (),
    ) -> None:
        """Note in ``drivers`` whether the instance is connected, and then call ``changed`` with the driver's name.

        ``health_services`` are the services that may tell the health of its devices.
        """
        self.plugin = plugin
        self.link = link
        self.service = choose_dra_service(plugin.versions)
        self._drivers = drivers
        self._changed = changed
        self._clock = clock
        self._health = HealthFollower(health_services, self.report)
        #: The result of the last check, or why there is no connection.
        self._checked = Checked()
        self._is_followed = False
        #: Set when a call has made a connection, which ends the pause of the follow. Each pause has its own event.
        self._hurry = trio.Event()
        link.when_disconnected(self._note_disconnected)

    async def run(self) -> NoReturn:
        """Connect, and follow the driver, forever."""
        self._is_followed = True
        try:
            await self._keep_connected()
        finally:
            self._is_followed = False
            # The health of the devices is not followed now.
            self.report()

    async def _keep_connected(self) -> NoReturn:
        failures = 0
        while True:
            began = trio.current_time()
            try:
                channel = await self._connect()
            except NoConnectionError as error:
                self._checked = disconnected(error.lasting)
                self.report()
            else:
                if await self._follow_on(channel):
                    continue
            failures = 1 if trio.current_time() - began >= RETRIES.cap else failures + 1
            await self._pause(RETRIES.delay(failures))

    async def _pause(self, seconds: float) -> None:
        """Wait before the next attempt to connect. Return early once a call has connected."""
        self._hurry = trio.Event()
        # The link is up to date: the end of the last connection can be noted before or after this.
        with suppress(NoConnectionError):
            self.link.channel  # noqa: B018
            return
        with trio.move_on_after(seconds):
            await self._hurry.wait()

    async def connect(self) -> Channel:
        """Return the open channel to the driver, or connect if there is none.

        Raises:
          NoConnectionError: if there is no connection.
        """
        channel = await self._connect()
        self._hurry.set()
        return channel

    async def _connect(self) -> Channel:
        channel = await self.link.connect(timeout=0)
        if not self._is_connected:
            self._note_connected()
        return channel

    async def _follow_on(self, channel: Channel) -> bool:
        """Follow the driver until the connection ends; return True if the server took no more calls on it."""
        goes_away = False
        self._checked = Checked()
        self.report()
        async with trio.open_nursery() as nursery:
            if self._health.is_wanted:
                nursery.start_soon(self._health.run, channel)
            try:
                # The connection can end before the first check.
                with suppress(NoConnectionError):
                    await self.link.check(_Asking().ask, self._note_checked)
            except GoesAwayError:
                goes_away = True
            nursery.cancel_scope.cancel()
        return goes_away

    # --- what happens -------------------------------------------------------------------------------------------------

    @property
    def _is_connected(self) -> bool:
        return self._drivers.connected_since(self.plugin) is not None

    def _note_connected(self) -> None:
        self._drivers.connected(self.plugin, trio.current_time())
        self._checked = Checked()
        self.link.role(usable=True)
        self._tell()

    def _note_disconnected(self, why: str) -> None:
        self._drivers.disconnected(self.plugin, trio.current_time())
        self._checked = disconnected(why)
        self._health.lose()
        self.link.role(usable=False)
        self._tell()

    def _tell(self) -> None:
        self.report()
        self._changed(self.plugin.name)

    def _note_checked(self, checked: Checked) -> None:
        # The end of the connection was noted by ``_note_disconnected``.
        if checked.health is not Health.DISCONNECTED:
            self._checked = checked
            self.report()

    def report(self) -> None:
        """Report the health of the instance, and the facts about it and its driver."""
        health, reason, failures = self._shown_health()
        self.link.report(health, reason, self._facts().as_texts(self._clock), failed_checks=failures)

    def _shown_health(self) -> tuple[Health, str, int]:
        checked = self._checked
        if checked.health is Health.DISCONNECTED:
            return checked.health, checked.reason, 0
        if not self._is_connected:
            return Health.STARTING, NOT_TRIED, 0
        if not self._is_followed:
            return Health.UNKNOWN, UNFOLLOWED, 0
        if checked.health is Health.UNHEALTHY:
            return checked.health, checked.reason, checked.failures
        return Health.HEALTHY, "", 0

    def _facts(self) -> InstanceFacts:
        name = self.plugin.name
        used = self._drivers.active(name)
        is_used = used is not None and key_of(used) == key_of(self.plugin)
        return InstanceFacts(
            self.service,
            self._drivers.connected_since(self.plugin),
            self._drivers.usable_by(name),
            self._drivers.unusable_since(name),
            self._health.state,
            self._health.devices if is_used else None,
        )


class _Asking:
    """Checks the health of a driver on one connection, unless the driver has no health service."""

    def __init__(self) -> None:
        self._has_none = False

    async def ask(self, channel: Channel) -> None:
        """Ask gRPC's health service, if there is one.

        Raises:
          GRPCError: if the call fails.
          PluginError: if the driver does not serve.
          GoesAwayError: if the server takes no more calls on this connection.
        """
        check_takes_calls(channel)
        if self._has_none:
            return
        try:
            said = await channel.stub(HealthStub).Check(HealthCheckRequest())
        except GRPCError as error:
            if error.status not in _NO_HEALTH:
                raise
            self._has_none = True
            return
        if said.status != HealthCheckResponse.SERVING:
            raise PluginError(f"its health service says {_WORDS.get(said.status, said.status)}")

"""One instance of a DRA driver: its connection, which is made in the background, and what is known of it.

The connection is the sign of life, as in the kubelet. It is made once the driver is registered, again and again until
the driver listens, and again after it has ended: after 1 s first, and then after twice as long each time, up to 30 s.
Of several instances, those that are connected are preferred. An instance counts as connected as long as its link has a
connection, whether or not the task runs that follows it: a crash of that task is no end of the driver.

A process that hangs keeps its connection. So a driver that serves gRPC's health service is asked for its health, as
``plugind.protocol.health.checks`` says; one that does not implement it is asked once on each connection.
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

#: The pauses between tries to connect. A connection that lasted for longer than the longest counts as a success.
RETRIES = Backoff(initial=1.0, cap=30.0, jitter=0.0)
NOT_TRIED = "its endpoint has not been connected to yet"
UNFOLLOWED = "it is not followed at present"

#: How a server says that it has no health service, or has nothing to say of itself as a whole.
_NO_HEALTH = (Status.UNIMPLEMENTED, Status.NOT_FOUND)
#: The words for its answers. Any other number may come, too.
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
        """Note in ``drivers`` whether the instance is connected, and call ``changed`` with its name after that.

        ``health_services`` are asked for the health of its devices.
        """
        self.plugin = plugin
        self.link = link
        self.service = choose_dra_service(plugin.versions)
        self._drivers = drivers
        self._changed = changed
        self._clock = clock
        self._health = HealthFollower(health_services, self.report)
        #: What the checks have shown, or why there is no connection.
        self._checked = Checked()
        self._is_followed = False
        #: Set when a call has used the connection: if the follow pauses, it shall follow that one at once. Each pause
        #: has its own.
        self._hurry = trio.Event()
        link.when_disconnected(self._note_disconnected)

    async def run(self) -> NoReturn:
        """Connect, and follow what the driver says, for ever."""
        self._is_followed = True
        try:
            await self._keep_connected()
        finally:
            self._is_followed = False
            # Nothing is heard of the devices any more.
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
        """Wait before the next try to connect, unless a call has connected since the last one failed, or does now."""
        self._hurry = trio.Event()
        # The link knows it. That the last connection has ended may be noted before this or after it.
        with suppress(NoConnectionError):
            self.link.channel  # noqa: B018
            return
        with trio.move_on_after(seconds):
            await self._hurry.wait()

    async def connect(self) -> Channel:
        """Return the open channel to the driver, or connect now if there is none.

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
        """Follow the driver on one connection to its end, or until it goes away: then return True."""
        goes_away = False
        self._checked = Checked()
        self.report()
        async with trio.open_nursery() as nursery:
            if self._health.is_wanted:
                nursery.start_soon(self._health.run, channel)
            try:
                # The connection may have ended again.
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
        # The end of the connection is noted already.
        if checked.health is not Health.DISCONNECTED:
            self._checked = checked
            self.report()

    def report(self) -> None:
        """Report how the instance is, and what is known of it and of its driver."""
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
    """Asks a driver on one connection how it is, as long as it may have an answer."""

    def __init__(self) -> None:
        self._has_none = False

    async def ask(self, channel: Channel) -> None:
        """Ask gRPC's health service, unless there is none; the connection alone counts then.

        Raises:
          GRPCError: if it fails.
          PluginError: if the driver does not serve.
          GoesAwayError: if it takes no more calls on this connection.
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

"""Follows the lists of devices of one plugin, one stream at a time, and checks its health.

The kubelet never opens a stream again that has ended, so a plugin must register anew. plugind opens it again while the
plugin is registered; a strict node behaves like the kubelet.

A plugin is healthy if its stream is open and has sent a list, and it answers GetDevicePluginOptions, the call of the
checks (``plugind.protocol.health.checks``). The worse of the two findings is reported, and of equal ones that of the
stream: ``disconnected`` first, then ``ListAndWatch is not open`` or ``no device list after 10s``, then ``no answer
within 3s`` or another failure of the checks; then ``starting`` or healthy, by the stream. The checks change nothing
else: the devices of a plugin that hangs stay as in its last list.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from typing import NoReturn

import attrs
import trio
from grpclib.const import Cardinality, Status
from grpclib.exceptions import GRPCError

from ...protocol.backoff import Backoff
from ...protocol.devices.lists import DeviceListError, DeviceListReader
from ...protocol.devices.messages import InstanceMessage, InstanceRole, ListLost, ListReceived
from ...protocol.errors import NoConnectionError, PluginError
from ...protocol.health.checks import Checked, disconnected, is_worse
from ...protocol.messages.addresses import Address
from ...protocol.plugins.health import Health
from ...protocol.plugins.info import Plugin
from ...protocol.proto.deviceplugin_v1beta1_grpc import DevicePluginStub
from ...protocol.proto.deviceplugin_v1beta1_pb2 import Empty, ListAndWatchResponse
from ...protocol.wire.errors import WireError, WireProblem
from ...protocol.wire.outcomes import status_text
from ..grpc.client.channel import Channel
from ..grpc.client.stream import ClientStream
from ..handlers.goes_away import GoesAwayError, check_takes_calls
from ..handlers.link import Link
from ..handlers.paced import take_newest
from .calls import PluginCalls

#: Seconds until the first list of a stream is late.
FIRST_LIST = 10.0
NO_LIST = "no device list after 10s"
NO_DEVICES = "its list has no devices"
NOT_OPEN = "ListAndWatch is not open"
ENDED = "ListAndWatch has ended: "
#: The pause before a stream that has ended is opened again. It doubles after each stream that ended soon.
STREAMS = Backoff(initial=1.0, cap=30.0, jitter=0.0)
#: Seconds for each attempt to connect.
CONNECT_TIMEOUT = 1.0

#: The reason if another registration follows the lists of the same endpoint.
SHARED = "another registration of the same endpoint follows its lists"
#: Added to the reason for which the stream of a strict node has ended.
NOT_AGAIN = "; with --strict it is not opened again until the plugin registers anew"

LIST_AND_WATCH = "/v1beta1.DevicePlugin/ListAndWatch"

#: Locks for opening a stream, by the path of the endpoint and the process that listens there. A plugin can be
#: registered both by a call and by its socket, and some plugins split one channel of updates among all streams.
Turns = MutableMapping[tuple[str, int | None], trio.Lock]

_Lists = ClientStream[Empty, ListAndWatchResponse]


@attrs.frozen
class _StreamEnd:
    """How a stream ended, or that there was none."""

    reason: str
    health: Health = Health.UNHEALTHY
    #: The channel, if another stream on it would fail, too.
    useless: Channel | None = None
    #: Whether the stream is open, and no list came.
    is_open: bool = False

    @property
    def shown(self) -> str:
        """The reason, as it is shown in the plugin's health."""
        if self.is_open or self.health is not Health.UNHEALTHY:
            return self.reason
        return f"{NOT_OPEN}: {self.reason.removeprefix(ENDED)}"


class DeviceFollower:
    """Follows one device plugin until it is cancelled."""

    def __init__(
        self,
        plugin: Plugin,
        link: Link,
        devices: Address[InstanceMessage],
        turns: Turns,
        calls: PluginCalls,
        *,
        strict: bool = False,
    ) -> None:
        """Report to ``devices``, the devices actor, and to the ``link``; if ``strict``, open one stream only.

        ``calls`` are made while the plugin is followed. All followers share ``turns``.
        """
        self._plugin = plugin
        self._link = link
        self._devices = devices
        self._turns = turns
        self._calls = calls
        self._strict = strict
        self._reader = DeviceListReader()
        #: Whether a list has come and its stream is open.
        self._listed = False
        #: The health by the stream.
        self._health, self._reason = Health.STARTING, "its first list of devices has not come"
        #: The health by the checks.
        self._checked = Checked()
        #: The newest channel, and an event that is set when a new channel must be checked.
        self._channel: Channel | None = None
        self._connected = trio.Event()
        #: The channel of the open stream.
        self._streaming: Channel | None = None

    async def run(self) -> None:
        """Pass on roles and lists, and make calls, forever."""
        self._report()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._pass_roles)
            nursery.start_soon(self._follow_streams)
            nursery.start_soon(self._check_health)
            nursery.start_soon(self._calls.run, self._link)

    # --- health ---

    async def _check_health(self) -> None:
        soon = 0
        while True:
            await self._connected.wait()
            self._connected = trio.Event()
            self._note_checked(Checked())
            began = trio.current_time()
            # The channel can have ended again.
            with suppress(NoConnectionError, GoesAwayError):
                await self._link.check(ask_for_options, self._note_checked)
            soon = 1 if trio.current_time() - began >= STREAMS.cap else soon + 1
            await self._connect_beside_stream(soon)

    async def _connect_beside_stream(self, soon: int) -> None:
        """Make a new connection for the checks while the stream goes on, on a channel that takes no more calls.

        Without a stream, the next stream makes the connection.
        """
        while self._has_stream and not self._connected.is_set():
            with trio.move_on_after(STREAMS.delay(soon)):
                await self._connected.wait()
            soon += 1
            if self._has_stream:
                try:
                    await self._connect()
                except NoConnectionError as error:
                    self._note_checked(disconnected(error.lasting))

    @property
    def _has_stream(self) -> bool:
        channel = self._streaming
        return channel is not None and not channel.closed and channel.connection.failure is None

    def _note_checked(self, checked: Checked) -> None:
        self._checked = checked
        self._report()

    def _note_stream(self, health: Health, reason: str) -> None:
        self._health, self._reason = health, reason
        self._report()

    def _report(self) -> None:
        checked = self._checked
        if is_worse(checked.health, self._health):
            self._link.report(checked.health, checked.reason, failed_checks=checked.failures)
        else:
            self._link.report(self._health, self._reason)

    # --- lists ---

    async def _pass_roles(self) -> None:
        active = self._link.active
        while True:
            self._devices.send_nowait(InstanceRole(self._plugin.socket, self._plugin.generation, active))
            active = await self._link.role_changed()

    async def _follow_streams(self) -> None:
        soon = 0
        while True:
            began = trio.current_time()
            end = await self._follow_stream()
            self._lose(attrs.evolve(end, reason=end.reason + NOT_AGAIN) if self._strict else end)
            if self._strict:
                await self._wait_gone()
            if end.useless is not None:
                # Only another connection can reach a program that implements the method.
                await _wait_closed(end.useless)
            soon = 1 if trio.current_time() - began >= STREAMS.cap else soon + 1
            await trio.sleep(STREAMS.delay(soon))

    async def _wait_gone(self) -> NoReturn:
        """Keep a connection, forever: a failed attempt to connect finds out that the socket is gone."""
        failures = 0
        while True:
            try:
                channel = await self._connect()
            except NoConnectionError:
                failures += 1
            else:
                failures = 1
                await _wait_closed(channel)
            await trio.sleep(STREAMS.delay(failures))

    async def _connect(self) -> Channel:
        """Return the channel to the endpoint, and have it checked; report that the plugin has left if the socket is
        gone.

        Raises:
          NoConnectionError: if there is no connection.
        """
        try:
            channel = await self._link.connect(timeout=CONNECT_TIMEOUT)
        except NoConnectionError as error:
            if error.gone:
                self._link.gone(error.lasting)
            raise
        if channel is not self._channel:
            self._channel = channel
            self._connected.set()
        return channel

    async def _follow_stream(self) -> _StreamEnd:
        try:
            channel = await self._connect()
        except NoConnectionError as error:
            return _StreamEnd(error.lasting, Health.DISCONNECTED)
        turn = self._turns.setdefault((self._plugin.endpoint, _pid(channel)), trio.Lock())
        if turn.locked():
            self._note_stream(Health.UNKNOWN, SHARED)
        async with turn:
            return await self._follow_on(channel)

    async def _follow_on(self, channel: Channel) -> _StreamEnd:
        self._streaming = channel
        try:
            async with channel.request(LIST_AND_WATCH, Cardinality.UNARY_STREAM, Empty, ListAndWatchResponse) as stream:
                await stream.send_message(Empty(), end=True)
                await self._take_lists(stream)
        except GRPCError as error:
            return _end_of(error, channel)
        except DeviceListError as error:
            return _StreamEnd(f"the list of devices is refused: {error}")
        except trio.ClosedResourceError:
            return _StreamEnd("the connection to the endpoint was closed", Health.DISCONNECTED)
        finally:
            self._streaming = None
        return _StreamEnd("the plugin has ended ListAndWatch")

    async def _take_lists(self, stream: _Lists) -> None:
        await self._wait_first(stream)
        await take_newest(stream, self._pass_on)

    async def _wait_first(self, stream: _Lists) -> None:
        with trio.move_on_after(FIRST_LIST) as waiting:
            await stream.wait_message()
        if waiting.cancelled_caught:
            self._lose(_StreamEnd(NO_LIST, is_open=True))

    def _pass_on(self, message: bytes) -> Iterator[None]:
        yield from self._reader.steps(message)
        read, plugin = self._reader.newest, self._plugin
        self._devices.send_nowait(ListReceived(plugin.socket, plugin.generation, read.devices, trio.current_time()))
        if not self._listed:
            self._listed = True
            self._link.role(usable=True)
        self._note_stream(Health.HEALTHY, read.warning or ("" if read.devices else NO_DEVICES))

    def _lose(self, end: _StreamEnd) -> None:
        """Report that no lists come, and the reason."""
        plugin = self._plugin
        self._devices.send_nowait(ListLost(plugin.socket, plugin.generation, end.reason, trio.current_time()))
        if self._listed:
            self._listed = False
            self._link.role(usable=False)
        self._note_stream(end.health, end.shown)


def _end_of(error: GRPCError, channel: Channel) -> _StreamEnd:
    cause = error.__cause__
    if isinstance(cause, WireError) and cause.problem is WireProblem.MESSAGE_BYTES:
        return _StreamEnd(f"the list of devices is refused: {cause}")
    reason = ENDED + status_text(error)
    if channel.connection.failure is not None:
        return _StreamEnd(reason, Health.DISCONNECTED)
    return _StreamEnd(reason, useless=channel if error.status is Status.UNIMPLEMENTED else None)


def _pid(channel: Channel) -> int | None:
    return None if channel.peer is None else channel.peer.pid


async def ask_for_options(channel: Channel) -> None:
    """Call GetDevicePluginOptions to check a device plugin's health, and ignore the answer.

    Raises:
      PluginError: if the call fails.
      GoesAwayError: if the server takes no more calls on this connection.
    """
    check_takes_calls(channel)
    try:
        await channel.stub(DevicePluginStub).GetDevicePluginOptions(Empty())
    except GRPCError as error:
        raise PluginError(f"failed to get device plugin options: {status_text(error)}") from error


async def _wait_closed(channel: Channel) -> None:
    try:
        await channel.wait_closed()
    except trio.ClosedResourceError:
        return

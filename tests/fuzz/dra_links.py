"""What oracles of DRA drivers see of a link: its connections, whether or not a follow runs, and the streams on them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, cast

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from plugind.actors.grpc.client.channel import Channel
from plugind.actors.handlers.link import Link
from plugind.protocol.plugins.info import Plugin
from plugind.protocol.wire.grpc import Newest
from plugind.tests.fuzz.device_health_oracle import DeviceHealthOracle
from plugind.tests.fuzz.dra_oracle import DRAOracle

_WATCH = "/NodeWatchResources"


class WatchedLink:
    """A link that tells the oracles of its connections. Their ends are noticed by tasks of the script."""

    def __init__(
        self,
        link: Link,
        plugin: Plugin,
        oracle: DRAOracle,
        devices: DeviceHealthOracle,
        background: trio.Nursery,
    ) -> None:
        self._link = link
        self._key = plugin.socket, plugin.generation
        self._oracles = oracle, devices
        self._devices = devices
        self._background = background
        self._channel: Channel | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    async def connect(self, *, timeout: float = 10.0, gives_way: bool = False) -> Channel:
        """See :class:`~plugind.actors.handlers.link.Link`."""
        channel = await self._link.connect(timeout=timeout, gives_way=gives_way)
        if channel is not self._channel:
            # The link has another one only once that before has ended, which no task may have noticed so far.
            self._note_end()
            self._channel = channel
            for oracle in self._oracles:
                oracle.connected(self._key)
            self._background.start_soon(self._wait, channel)
        return cast("Channel", _WatchedChannel(channel, self._key, self._devices))

    async def _wait(self, channel: Channel) -> None:
        with suppress(trio.ClosedResourceError):
            await channel.wait_closed()
        if channel is self._channel:
            self._note_end()

    def _note_end(self) -> None:
        if self._channel is not None:
            self._channel = None
            for oracle in self._oracles:
                oracle.disconnected(self._key)


class _WatchedChannel:
    """A channel that tells the oracle of the streams of health."""

    def __init__(self, channel: Channel, key: tuple[str, int], devices: DeviceHealthOracle) -> None:
        self._channel = channel
        self._key = key
        self._devices = devices

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def request(self, name: str, *types: Any, **options: Any) -> Any:
        """See :class:`~plugind.actors.grpc.client.channel.Channel`."""
        stream = self._channel.request(name, *types, **options)
        if not name.endswith(_WATCH):
            return stream
        return _WatchedStream(stream, name[1:].removesuffix(_WATCH), self._channel, self._key, self._devices)


class _WatchedStream:
    """A stream of health that tells the oracle when it is opened, what is taken from it, and how it ends."""

    def __init__(
        self, stream: Any, service: str, channel: Channel, key: tuple[str, int], devices: DeviceHealthOracle
    ) -> None:
        self._stream = stream
        self._service = service
        self._channel = channel
        self._key = key
        self._devices = devices

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> _WatchedStream:
        await self._stream.__aenter__()
        self._devices.opened(self._key, self._service)
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, where: Any) -> None:
        seen = error
        try:
            await self._stream.__aexit__(kind, error, where)
        except GRPCError as raised:
            seen = raised
            raise
        finally:
            unimplemented = isinstance(seen, GRPCError) and seen.status is Status.UNIMPLEMENTED
            ended = self._channel.closed or self._channel.connection.failure is not None
            failed = ended or isinstance(seen, trio.Cancelled)
            self._devices.ended(self._key, unimplemented=unimplemented, failed=failed)

    async def recv_newest(self) -> Newest | None:
        """See :class:`~plugind.actors.grpc.client.stream.ClientStream`."""
        newest: Newest | None = await self._stream.recv_newest()
        if newest is not None:
            self._devices.took(self._key, newest.message)
        return newest

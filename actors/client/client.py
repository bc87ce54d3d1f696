"""The client of a daemon for programs that use Trio.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Generic, TypeVar

import trio

from ...protocol.devices import ResourceStatus
from ...protocol.status import PluginStatus
from ...protocol.status_values import plugin_from_json
from ..io.http_client import Lines, UnreachableError, ask
from . import requests
from .awaited import RECONNECT, Awaited, AwaitedDevices, AwaitedPlugins, Following
from .calls import ANSWER_TIMEOUT, Call, refusal, understood, watched
from .errors import ClientError, NoDaemonError
from .paths import default_status_path

T = TypeVar("T")


class Client:
    """Asks a running daemon in a program that uses Trio; each request has a connection of its own.

    ::

        from plugind.client import Client

        async def main() -> None:
            client = Client()
            await client.wait("csi.example.com")
            for plugin in await client.list():
                print(plugin.name, plugin.state)

    It has the methods of :class:`SyncClient`, with the same values and errors. It may be used by many tasks at once.
    """

    def __init__(self, path: str | None = None, *, timeout: float = ANSWER_TIMEOUT) -> None:
        """Choose a daemon by the path of its status socket; without one, as the commands do.

        ``timeout`` is how many seconds it may be silent.
        """
        self.path = default_status_path() if path is None else path
        self.timeout = timeout

    async def list(self, name: str | None = None, *, type: str | None = None) -> tuple[PluginStatus, ...]:  # noqa: A002
        """Return all plugins, or those of a name or type."""
        return await self._ask(requests.plugins(name, type))

    async def describe(self, target: str) -> tuple[PluginStatus, ...]:
        """Return the plugins of a name, or the one at the path of a socket, with their facts and histories.

        Raises:
          DaemonError: with the status 404 if there is none.
        """
        return await self._ask(requests.description(target))

    async def devices(self, resource: str | None = None) -> tuple[ResourceStatus, ...]:
        """Return all resources with their devices, or the one of that name.

        Raises:
          DaemonError: with the status 404 if there is none of that name.
        """
        return await self._ask(requests.devices(resource))

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[AsyncIterator[PluginStatus]]:
        """Follow the plugins: all of them first, then each that has changed, until the daemon stops.

        ::

            async with client.watch() as changes:
                async for plugin in changes:
                    print(plugin.socket, plugin.state)
        """
        async with self._lines("/watch") as found:
            yield _Values(found, self.path, lambda line: understood(plugin_from_json, line) if line else None)

    async def wait(self, *names: str, timeout: float = 60.0) -> None:
        """Wait until plugins of these names are registered. The daemon need not run yet.

        Raises:
          NotReadyError: if they are not within ``timeout`` seconds.
        """
        await self._follow(AwaitedPlugins(names), timeout)

    async def wait_for_devices(self, wanted: Mapping[str, int], *, timeout: float = 60.0) -> None:
        """Wait until each of these resources has so many healthy devices, leased or not. The daemon need not run yet.

        Raises:
          NotReadyError: if one has not within ``timeout`` seconds.
        """
        await self._follow(AwaitedDevices(wanted), timeout)

    async def _ask(self, call: Call[T]) -> T:
        with _talking(self.path):
            async with ask(self.path, call.method, call.target, call.body, timeout=self.timeout) as reply:
                status, body = reply.status, await reply.body()
        return call.answer(status, body)

    @asynccontextmanager
    async def _lines(self, path: str) -> AsyncIterator[Lines]:
        async with AsyncExitStack() as opened:
            with _talking(self.path):
                asking = ask(self.path, "GET", watched(path, self.timeout), timeout=self.timeout)
                reply = await opened.enter_async_context(asking)
                refused = None if reply.status == 200 else await reply.body()
            if refused is not None:
                raise refusal(reply.status, refused)
            yield reply.lines()

    async def _follow(self, awaited: Awaited, timeout: float) -> None:
        following = Following(awaited, trio.current_time() + timeout, trio.current_time)
        while not following.done:
            with trio.move_on_after(following.left):
                await self._follow_once(following)
            if following.done:
                return
            await trio.sleep(min(RECONNECT, following.left))  # There is no event for the start of a daemon.
            if not following.left:
                raise following.error(timeout)

    async def _follow_once(self, following: Following) -> None:
        try:
            async with self._lines(following.awaited.path) as found:
                following.begin()
                async for line in _Values(found, self.path, bytes):
                    if following.note(line):
                        return
        except ClientError as error:
            following.ended(error)


@contextmanager
def _talking(path: str) -> Iterator[None]:
    """Raise what goes wrong in the block as an error of the client.

    Raises:
      NoDaemonError: if the daemon does not answer.
    """
    try:
        yield
    except UnreachableError as error:
        raise NoDaemonError(path, error.reason, error.code) from error


class _Values(Generic[T]):
    """What the lines of a stream say. Unlike a generator, it need not be closed by a reader that stops early."""

    def __init__(self, lines: Lines, path: str, read: Callable[[bytes], T | None]) -> None:
        """Read ``lines`` of the daemon at ``path``; ``read`` returns None for one that says nothing."""
        self._lines = lines
        self._path = path
        self._read = read

    def __aiter__(self) -> _Values[T]:
        return self

    async def __anext__(self) -> T:
        while True:
            with _talking(self._path):
                line = await anext(self._lines)
            said = self._read(line)
            if said is not None:
                return said

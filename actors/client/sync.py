"""The synchronous client of a daemon, on plain sockets: importing it loads neither Trio nor a parser of HTTP.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from ...protocol.devices import ResourceStatus
from ...protocol.status import PluginStatus
from ...protocol.status_values import plugin_from_json
from . import requests
from .awaited import RECONNECT, Awaited, AwaitedDevices, AwaitedPlugins, Following
from .calls import ANSWER_TIMEOUT, Call, understood, watched
from .errors import ClientError
from .paths import default_status_path
from .sync_transport import answer, lines

T = TypeVar("T")


class SyncClient:
    """Asks a running daemon, without Trio; each request has a connection of its own.

    ::

        from plugind.client import SyncClient

        client = SyncClient()
        client.wait("csi.example.com")
        for plugin in client.list():
            print(plugin.name, plugin.state)

    The values are those of an embedded node, but for their times, which are Unix seconds by the clock of the daemon.
    Each method raises :class:`NoDaemonError` if no daemon answers in time, and :class:`DaemonError` if it refuses.
    """

    def __init__(self, path: str | None = None, *, timeout: float = ANSWER_TIMEOUT) -> None:
        """Choose a daemon by the path of its status socket; without one, as the commands do.

        ``timeout`` is how many seconds it may be silent.
        """
        self.path = default_status_path() if path is None else path
        self.timeout = timeout

    def list(self, name: str | None = None, *, type: str | None = None) -> tuple[PluginStatus, ...]:  # noqa: A002
        """Return all plugins, or those of a name or type."""
        return self._ask(requests.plugins(name, type))

    def describe(self, target: str) -> tuple[PluginStatus, ...]:
        """Return the plugins of a name, or the one at the path of a socket, with their facts and histories.

        Raises:
          DaemonError: with the status 404 if there is none.
        """
        return self._ask(requests.description(target))

    def devices(self, resource: str | None = None) -> tuple[ResourceStatus, ...]:
        """Return all resources with their devices, or the one of that name.

        Raises:
          DaemonError: with the status 404 if there is none of that name.
        """
        return self._ask(requests.devices(resource))

    @contextmanager
    def watch(self) -> Iterator[Iterator[PluginStatus]]:
        """Follow the plugins: all of them first, then each that has changed, until the daemon stops.

        ::

            with client.watch() as changes:
                for plugin in changes:
                    print(plugin.socket, plugin.state)
        """
        with lines(self.path, self._stream("/watch"), silence=self.timeout) as found:
            yield (understood(plugin_from_json, line) for line in found if line)

    def wait(self, *names: str, timeout: float = 60.0) -> None:
        """Wait until plugins of these names are registered. The daemon need not run yet.

        Raises:
          NotReadyError: if they are not within ``timeout`` seconds.
        """
        self._follow(AwaitedPlugins(names), timeout)

    def wait_for_devices(self, wanted: Mapping[str, int], *, timeout: float = 60.0) -> None:
        """Wait until each of these resources has so many healthy devices, leased or not. The daemon need not run yet.

        Raises:
          NotReadyError: if one has not within ``timeout`` seconds.
        """
        self._follow(AwaitedDevices(wanted), timeout)

    def _ask(self, call: Call[T]) -> T:
        return answer(self.path, call, seconds=self.timeout, silence=self.timeout)

    def _stream(self, path: str) -> Call[object]:
        return Call("GET", watched(path, self.timeout), lambda content: content)

    def _follow(self, awaited: Awaited, timeout: float) -> None:
        following = Following(awaited, time.monotonic() + timeout, time.monotonic)
        while not following.done:
            try:
                self._follow_once(following)
            except ClientError as error:
                following.ended(error)
            if following.done:
                return
            time.sleep(min(RECONNECT, following.left))  # There is no event for the start of a daemon.
            if not following.left:
                raise following.error(timeout)

    def _follow_once(self, following: Following) -> None:
        call = self._stream(following.awaited.path)
        with lines(self.path, call, silence=self.timeout, total=following.left) as found:
            following.begin()
            for line in found:
                if following.note(line):
                    return

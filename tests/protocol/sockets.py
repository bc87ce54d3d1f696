"""Messages about one socket, and an address and a handler to which nothing is sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from plugind.protocol.identity import Identity
from plugind.protocol.messages.discovery import SocketAppeared, SocketTouched, SocketVanished
from plugind.protocol.plugins.info import Plugin, PluginInfo
from plugind.protocol.plugins.status import Ending

SOCKET = "/reg/a.sock"
INFO = PluginInfo("T", "a", SOCKET, ("1.0.0",))


class Nowhere:
    """An address, and a handler, that no test uses: only its identity counts."""

    def send_nowait(self, message: object, /) -> None:
        raise AssertionError(f"no actor is there to receive {message}")

    def validate(self, plugin: Plugin) -> Awaitable[Ending]:
        raise AssertionError(f"nobody validates {plugin}")

    def register(self, plugin: Plugin, file: Identity | None, begins: Callable[[], bool]) -> Awaitable[Ending]:
        raise AssertionError(f"nobody registers {plugin} with {file} and {begins}")

    def deregister(self, plugin: Plugin) -> Awaitable[Ending]:
        raise AssertionError(f"nobody deregisters {plugin}")

    def give_way(self, plugin: Plugin) -> None:
        raise AssertionError(f"nobody waits for {plugin}")


NOWHERE = Nowhere()


def appeared(generation: int = 1, path: str = SOCKET) -> SocketAppeared:
    return SocketAppeared(path, generation, Identity(1, generation, generation), "/reg", 0.0)


def vanished(generation: int = 1, path: str = SOCKET) -> SocketVanished:
    return SocketVanished(path, generation)


TOUCHED = SocketTouched(SOCKET, 1)

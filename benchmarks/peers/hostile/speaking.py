"""Kinds that speak the protocol as a good plugin does, and misbehave with well-formed calls."""

from __future__ import annotations

import os
import select

from plugind.benchmarks.peers.hostile.server import Connection, HostileServer, Kind
from plugind.benchmarks.plugins.cheap_protocol import (
    AskInfo,
    BadClient,
    DeviceCall,
    Part,
    failure,
    not_implemented,
    plugin_info,
    success,
)

_UNAVAILABLE = 14


class Speaking(Kind):
    """Speaks the protocol as a good plugin does; subclasses choose the answers."""

    interest = select.EPOLLIN | select.EPOLLRDHUP

    def received(self, server: HostileServer, connection: Connection, data: bytes) -> None:
        """Answer the calls in ``data``."""
        try:
            transition = connection.node.transitions.get(data) or server.automaton.learn(connection.node, data)
        except BadClient:
            server.close(connection)
            return
        connection.node = transition.node
        if reply := b"".join(self.answer(server, connection, part) for part in transition.parts):
            server.send(connection, reply)

    def answer(self, server: HostileServer, connection: Connection, part: Part) -> bytes:
        """Return the bytes to send for a part of the conversation, and count what the plugin is told."""
        if isinstance(part, bytes):
            return part
        if isinstance(part, AskInfo):
            return self.info(server, connection, part.stream)
        if isinstance(part, DeviceCall):
            return self.device_call(server, connection, part)
        if part.registered:
            connection.owner.notified += 1
        else:
            connection.owner.refused += 1
        connection.owner.last = part.registered
        self.on_notified(server, connection)
        return b""

    def device_call(self, server: HostileServer, connection: Connection, call: DeviceCall) -> bytes:
        """Return the answer to a call of a device plugin or CSI driver."""
        return not_implemented(call.stream)

    def info(self, server: HostileServer, connection: Connection, stream: int) -> bytes:
        """Return the answer to GetInfo."""
        name = f"{server.name}-{connection.owner.index:05d}.example.com"
        path = str(server.directory / connection.owner.path)
        return success(stream, plugin_info("CSIPlugin", name, path, ("1.0.0",)))

    def on_notified(self, server: HostileServer, connection: Connection) -> None:
        """Do what follows a notification."""


class OwnNames(Speaking):
    """Not hostile: each plugin has a name of its own. It is what ``one-name`` is compared with."""


class OneName(Speaking):
    """All are instances of one CSI driver, with one endpoint."""

    versions: tuple[str, ...] = ("1.0.0",)

    def info(self, server: HostileServer, connection: Connection, stream: int) -> bytes:
        """Return the same name and endpoint for all."""
        endpoint = str(server.directory / server.file(0))
        return success(stream, plugin_info("CSIPlugin", f"{server.name}.example.com", endpoint, self.versions))


class ManyVersions(OneName):
    """All are instances of one CSI driver, with 128 versions each."""

    versions = tuple(f"1.{number}.0" for number in range(128))


class CrashLoop(Speaking):
    """Dies when it is told yes or no, and is started again at once."""

    def on_notified(self, server: HostileServer, connection: Connection) -> None:
        """Replace the socket, as a restarted program does."""
        if not server.calm:
            peer = connection.owner
            server.close(connection)
            server.stop_listening(peer)
            server.listen(peer.index)
            server.acts += 1


class NewNames(CrashLoop):
    """Dies when it is told yes or no, and has another name in each life."""

    def info(self, server: HostileServer, connection: Connection, stream: int) -> bytes:
        """Return a name that was never used before."""
        path = str(server.directory / connection.owner.path)
        return success(
            stream, plugin_info("CSIPlugin", f"new-{server.acts}-{connection.owner.index}", path, ("1.0.0",))
        )


class Chmod(Speaking):
    """Fails each GetInfo, and changes the mode of its socket all the time: 5,000 times a second in all."""

    rate = 5000

    def info(self, server: HostileServer, connection: Connection, stream: int) -> bytes:
        """Fail."""
        return failure(stream, _UNAVAILABLE, "not now")

    def act(self, server: HostileServer, number: int) -> None:
        """Change the mode of the next socket."""
        round_, index = divmod(number, len(server.sockets))
        os.chmod(server.sockets[index].path, 0o700 if round_ % 2 else 0o755)


class Invalid(Speaking):
    """Has a name that no plugin may have, so that it is told no again and again."""

    def info(self, server: HostileServer, connection: Connection, stream: int) -> bytes:
        """Return a name with a line break, which is no name."""
        path = str(server.directory / connection.owner.path)
        return success(stream, plugin_info("CSIPlugin", "no name\nlevel=error", path, ("1.0.0",)))


class HangNotify(Speaking):
    """Hangs whenever it is told that it is registered."""

    def answer(self, server: HostileServer, connection: Connection, part: Part) -> bytes:
        """Answer until there is a notification."""
        return b"" if connection.state == "hangs" else super().answer(server, connection, part)

    def on_notified(self, server: HostileServer, connection: Connection) -> None:
        """Answer nothing more; the client cannot know that the plugin was told."""
        connection.state = "hangs"
        connection.owner.last = None

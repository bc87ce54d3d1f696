"""The kinds of hostile plugins, by name. The docstring of each says what it does; ``--kind`` names it."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable
from pathlib import Path

import attrs

from plugind.benchmarks.peers.hostile import floods
from plugind.benchmarks.peers.hostile.floods import Answer, Endless, Flood, Windows
from plugind.benchmarks.peers.hostile.server import Connection, HostileServer, Kind
from plugind.benchmarks.plugins.cheap_protocol import PREFACE, AskInfo, BadClient, Part, failure, plugin_info, success

_UNAVAILABLE = 14
#: What the kinds that act on their own do in a second, all peers of a process together.
_ACTS_PER_SECOND = 5000
_BEAT = 0.01


class Silent(Kind):
    """Accepts each connection, and never answers."""


class FullBacklog(Kind):
    """Never accepts, and fills its own backlog, so that connect() fails with EAGAIN."""

    accepts = False

    def appear(self, server: HostileServer, index: int) -> None:
        """Listen without any place, and take the one that there is."""
        peer = server.listen(index, backlog=0)
        while True:
            filler = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            if filler.connect_ex(peer.path):
                filler.close()
                return
            peer.fillers.append(filler)


class Closing(Kind):
    """Accepts each connection and closes it at once."""

    def connected(self, server: HostileServer, connection: Connection) -> None:
        """Close it."""
        server.close(connection)


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
        if part.registered:
            connection.owner.notified += 1
        else:
            connection.owner.refused += 1
        self.on_notified(server, connection)
        return b""

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
        peer = connection.owner
        server.close(connection)
        server.stop_listening(peer)
        server.listen(peer.index)
        server.acts += 1


class Chmod(Speaking):
    """Fails each GetInfo, and changes the mode of its socket all the time: 5,000 times a second in all."""

    beat = _BEAT

    def info(self, server: HostileServer, connection: Connection, stream: int) -> bytes:
        """Fail."""
        return failure(stream, _UNAVAILABLE, "not now")

    def act(self, server: HostileServer, seconds: float) -> None:
        """Change the modes of the next sockets."""
        for number in range(server.acts, server.acts + min(int(seconds * _ACTS_PER_SECOND), _ACTS_PER_SECOND)):
            round_, index = divmod(number, len(server.sockets))
            os.chmod(server.sockets[index].path, 0o700 if round_ % 2 else 0o755)
            server.acts = number + 1


class Symlinks(Kind):
    """Puts 1,000 symbolic links to a socket into one directory, which all peers share."""

    accepts = False
    links = 1000

    def appear(self, server: HostileServer, index: int) -> None:
        """Make the links of one peer."""
        directory = Path("symlinks")
        directory.mkdir(exist_ok=True)
        if index == 0:
            server.listen(index)
        for number in range(index * self.links, (index + 1) * self.links):
            (directory / f"link-{number:07d}.sock").symlink_to(Path("..") / server.file(0))
            server.acts += 1


@attrs.define
class _Progress:
    """How much of a flood a connection has sent."""

    flood: Flood
    windows: Windows = attrs.Factory(Windows)
    #: Bytes of ``begin``, of ``frames`` and of ``end`` that were sent.
    begun: int = 0
    sent: int = 0
    ended: int = 0
    #: Bytes of ``frames`` whose DATA was taken from the windows.
    spent: int = 0


class Flooder(Kind):
    """Answers the first call with a flood."""

    interest = select.EPOLLIN | select.EPOLLRDHUP

    def __init__(self, about: str, flood: Callable[[], Flood]) -> None:
        self._about = about
        self._flood = flood

    @property
    def about(self) -> str:
        """Say what the flood is."""
        return self._about

    def received(self, server: HostileServer, connection: Connection, data: bytes) -> None:
        """Follow the client's frames until GetInfo is called; from then on only its windows."""
        if isinstance(connection.state, _Progress):
            connection.state.windows.read(data)
            server.want_room(connection, wanted=True)
            return
        history = connection.state if isinstance(connection.state, bytes) else b""
        try:
            transition = connection.node.transitions.get(data) or server.automaton.learn(connection.node, data)
        except BadClient:
            server.close(connection)
            return
        connection.node, connection.state = transition.node, history + data
        if any(isinstance(part, AskInfo) and part.stream == floods.FIRST_STREAM for part in transition.parts):
            progress = connection.state = _Progress(self._flood())
            progress.windows.read((history + data)[len(PREFACE) :])
            server.want_room(connection, wanted=True)

    def writable(self, server: HostileServer, connection: Connection) -> None:
        """Send the next part of the flood."""
        progress = connection.state
        assert isinstance(progress, _Progress)
        flood = progress.flood
        if progress.begun < len(flood.begin):
            progress.begun += server.send(connection, flood.begin[progress.begun :])
        elif isinstance(flood, Endless):
            progress.sent = (progress.sent + server.send(connection, flood.frames[progress.sent :])) % len(flood.frames)
        elif progress.sent < len(flood.frames):
            self._send_data(server, connection, progress, flood)
        elif progress.ended < len(flood.end):
            progress.ended += server.send(connection, flood.end[progress.ended :])
        else:
            server.want_room(connection, wanted=False)

    def _send_data(self, server: HostileServer, connection: Connection, progress: _Progress, answer: Answer) -> None:
        if progress.sent == progress.spent:
            allowed = min(progress.spent + answer.allowed(progress.windows.room), len(answer.frames))
            progress.windows.spend(answer.data_in(progress.spent, allowed))
            progress.spent = allowed
        if progress.sent == progress.spent:
            server.want_room(connection, wanted=False)
        else:
            progress.sent += server.send(connection, answer.frames[progress.sent : progress.spent])


#: All kinds by name.
KINDS: dict[str, Callable[[], Kind]] = {
    "silent": Silent,
    "full-backlog": FullBacklog,
    "tiny-data": lambda: Flooder("Answers with 4 MB in DATA frames of one byte.", floods.tiny_data),
    "informational": lambda: Flooder("Sends 1xx answers full of Huffman codes.", floods.informational),
    "settings": lambda: Flooder("Sends SETTINGS of 2,730 entries.", floods.settings),
    "pings": lambda: Flooder("Sends PINGs, each of which asks for an answer.", floods.pings),
    "big-info": lambda: Flooder("Answers with a PluginInfo of 4 MiB.", floods.big_info),
    "empty-versions": lambda: Flooder("Answers with 2.1 million empty versions.", floods.empty_versions),
    "many-versions": ManyVersions,
    "one-name": OneName,
    "chmod": Chmod,
    "crash-loop": CrashLoop,
    "symlinks": Symlinks,
    "closing": Closing,
    "own-names": OwnNames,
}

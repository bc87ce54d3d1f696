"""The loop that all kinds of hostile plugins share: one epoll for the listeners, the connections and the commands.

Lines on standard input are commands: ``counts`` prints what happened so far, ``words`` what each plugin was told last,
``calm`` ends what the kind does unasked, ``quit`` ends the process, and so does the end of the input. The events are
JSON, one per line.
"""

from __future__ import annotations

import json
import os
import select
import socket
import time
from pathlib import Path

from plugind.benchmarks.plugins.cheap_protocol import Automaton, Node

#: Connections that wait to be accepted.
BACKLOG = 128
#: Seconds between two turns of a kind that acts unasked.
_BEAT = 0.01
#: Bytes that are sent on a connection before the next one has its turn.
_TURN = 65_536


class HostileSocket:
    """A listening socket: its path and what happened to it."""

    __slots__ = ("dials", "ended", "fillers", "index", "last", "listener", "notified", "path", "refused")

    def __init__(self, index: int, path: str) -> None:
        self.index = index
        self.path = path
        self.listener: socket.socket | None = None
        #: Own connections that fill the backlog.
        self.fillers: list[socket.socket] = []
        #: Connections that were accepted, and how many of them are over.
        self.dials = self.ended = 0
        #: How often the plugin was told yes, and no.
        self.notified = self.refused = 0
        #: What the present socket at the path was told last.
        self.last: bool | None = None


class Connection:
    """An accepted connection."""

    __slots__ = ("descriptor", "node", "owner", "state")

    def __init__(self, owner: HostileSocket, descriptor: int, node: Node) -> None:
        self.owner = owner
        self.descriptor = descriptor
        self.node = node
        #: What the kind remembers of this connection.
        self.state: object = None


class Kind:
    """What the sockets of one kind do. This one accepts connections, and never reads or answers."""

    #: The events of a connection that wake the server. Without EPOLLIN nothing is ever read.
    interest = select.EPOLLRDHUP
    #: Whether connections are accepted.
    accepts = True
    #: How many times a second ``act`` is called, for all peers together; 0 if the kind only reacts.
    rate = 0

    @property
    def about(self) -> str:
        """Say in a sentence what the kind does."""
        return (type(self).__doc__ or "").partition("\n")[0]

    def appear(self, server: HostileServer, index: int) -> None:
        """Make the entries of one peer."""
        server.listen(index)

    def connected(self, server: HostileServer, connection: Connection) -> None:
        """Do what follows an accepted connection."""

    def received(self, server: HostileServer, connection: Connection, data: bytes) -> None:
        """Take what the client sent."""

    def writable(self, server: HostileServer, connection: Connection) -> None:
        """Send more; only called after ``HostileServer.want_room``."""

    def act(self, server: HostileServer, number: int) -> None:
        """Do something unasked, for the ``number``-th time."""


class HostileServer:
    """Serves the sockets of one kind, in the current directory."""

    def __init__(self, name: str, kind: Kind, directory: Path, peers: int) -> None:
        self.name = name
        self.directory = directory
        self.automaton = Automaton()
        self.sockets: dict[int, HostileSocket] = {}
        #: What the kind did on its own accord, such as a chmod.
        self.acts = 0
        #: Whether the kind is to do nothing unasked any more, and to die no more.
        self.calm = False
        self._kind = kind
        self.peers = peers
        self._acted_at = time.monotonic()
        self._epoll = select.epoll()
        self._listeners: dict[int, HostileSocket] = {}
        self._connections: dict[int, Connection] = {}
        self._commands = b""
        self._running = True

    def run(self) -> None:
        """Make all peers and serve them until ``quit`` or the end of standard input."""
        os.chdir(self.directory)  # Relative names keep every path short enough to bind.
        self._epoll.register(0, select.EPOLLIN)
        for index in range(self.peers):
            self._kind.appear(self, index)
        _print({"event": "ready"})
        while self._running:
            self._turn(_BEAT if self._kind.rate and not self.calm else -1)
            if self._kind.rate and not self.calm:
                self._act()

    def file(self, index: int) -> str:
        """Return the name of a peer's socket."""
        return f"{self.name}-{index:05d}.sock"

    def listen(self, index: int, backlog: int = BACKLOG) -> HostileSocket:
        """Bind and listen at the peer's path, whose counts go on if it did so before."""
        file = self.file(index)
        peer = self.sockets.setdefault(index, HostileSocket(index, file))
        peer.last = None
        listener = peer.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        listener.bind(file)
        listener.listen(backlog)
        if self._kind.accepts:
            self._listeners[listener.fileno()] = peer
            self._epoll.register(listener, select.EPOLLIN)
        return peer

    def stop_listening(self, peer: HostileSocket) -> None:
        """Close the listener and remove its file. Connections go on."""
        if peer.listener is not None:
            self._listeners.pop(peer.listener.fileno(), None)
            peer.listener.close()
            peer.listener = peer.last = None
            Path(peer.path).unlink(missing_ok=True)

    def send(self, connection: Connection, data: bytes | memoryview) -> int:
        """Return how many bytes were sent; a client that has gone ends the connection."""
        try:
            return os.write(connection.descriptor, data[:_TURN])
        except BlockingIOError:
            return 0
        except OSError:  # The client may disconnect at any time.
            self.close(connection)
            return 0

    def want_room(self, connection: Connection, *, wanted: bool) -> None:
        """Call ``Kind.writable`` whenever there is room to send, or no longer."""
        if connection.descriptor in self._connections:
            self._epoll.modify(connection.descriptor, self._kind.interest | (select.EPOLLOUT if wanted else 0))

    def close(self, connection: Connection) -> None:
        """End the connection."""
        if self._connections.pop(connection.descriptor, None) is not None:
            connection.owner.ended += 1
            os.close(connection.descriptor)

    def connections(self) -> list[Connection]:
        """Return those that are open."""
        return list(self._connections.values())

    def counts(self) -> dict[str, object]:
        """Return sums over all sockets."""
        peers = self.sockets.values()
        return {
            "sockets": len(self.sockets),
            "listening": len(self._listeners),
            "dials": sum(peer.dials for peer in peers),
            "most_dials": max((peer.dials for peer in peers), default=0),
            "ended": sum(peer.ended > 0 for peer in peers),
            "notified": sum(peer.notified for peer in peers),
            "most_notified": max((peer.notified for peer in peers), default=0),
            "refused": sum(peer.refused for peer in peers),
            "acts": self.acts,
            "cpu_s": time.process_time(),
        }

    def _act(self) -> None:
        """Catch up with the rate, but not with more than a second of it."""
        now = time.monotonic()
        due = min(now - self._acted_at, 1.0)
        for _ in range(int(due * self._kind.rate)):
            self._kind.act(self, self.acts)
            self.acts += 1
        if due * self._kind.rate >= 1:
            self._acted_at = now

    def _turn(self, patience: float) -> None:
        for descriptor, events in self._epoll.poll(patience, 256):
            if (connection := self._connections.get(descriptor)) is not None:
                self._serve(connection, events)
            elif (peer := self._listeners.get(descriptor)) is not None:
                self._accept(peer)
            elif descriptor == 0:
                self._read_commands()

    def _accept(self, peer: HostileSocket) -> None:
        assert peer.listener is not None
        try:
            # socket._accept() returns a bare descriptor; creating a socket object would cost more than the call.
            descriptor, _ = peer.listener._accept()  # type: ignore[attr-defined]
        except OSError:  # The client has gone already, or no descriptor is left: the next turn tries again.
            return
        os.set_blocking(descriptor, False)
        peer.dials += 1
        connection = self._connections[descriptor] = Connection(peer, descriptor, self.automaton.start)
        self._epoll.register(descriptor, self._kind.interest)
        self._kind.connected(self, connection)

    def _serve(self, connection: Connection, events: int) -> None:
        if events & select.EPOLLIN:
            try:
                data = os.read(connection.descriptor, 16384)
            except OSError:  # The client may disconnect at any time.
                data = b""
            if not data:
                self.close(connection)
                return
            self._kind.received(self, connection, data)
        elif events & (select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP):
            self.close(connection)
            return
        if events & select.EPOLLOUT and connection.descriptor in self._connections:
            self._kind.writable(self, connection)

    def _read_commands(self) -> None:
        chunk = os.read(0, 65536)
        self._running = bool(chunk)
        *lines, self._commands = (self._commands + chunk).split(b"\n")
        for line in lines:
            match line:
                case b"counts":
                    _print({"event": "counts"} | self.counts())
                case b"words":
                    _print({"event": "words", "words": self._words()})
                case b"calm":
                    self.calm = True
                case b"quit":
                    self._running = False
                case _:
                    _print({"event": "error", "reason": f"no such command: {line.decode()}"})

    def _words(self) -> dict[str, bool]:
        heard = (peer for peer in self.sockets.values() if peer.last is not None)
        return {str(self.directory / peer.path): bool(peer.last) for peer in heard}


def _print(event: dict[str, object]) -> None:
    print(json.dumps(event), flush=True)

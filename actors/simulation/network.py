"""Unix sockets in memory, to which a simulated node connects.

As in the kernel, a listener belongs to an inode of a :class:`~plugind.actors.simulation.directory.MemoryDirectory` and
not to a path: a renamed socket can still be dialed, and a socket that was unlinked and made again is another one.
Connections are those of ``plugind.actors.simulation.streams``. Errors and waits are those of
``plugind.actors.grpc.client.dial``.
"""

from __future__ import annotations

import enum
import errno
import os
from collections.abc import Awaitable, Callable
from functools import partial

import attrs
import trio

from ...protocol.discovery.sockets import EntryKind
from ...protocol.identity import Identity
from ...protocol.wire.learning import KnownConversations
from ..grpc.client.dial import Judge, check_peer, retry
from ..grpc.client.registration_channel import RegistrationChannel
from ..io.unix_socket import Credentials
from ..registration.dial_slots import DIAL_SLOTS
from .directory import MemoryDirectory
from .faults import InjectedError
from .inotify import Inode
from .lease_owners import MemoryOwnerProcesses
from .streams import ClientEnd, Gate, MemoryConnection, ServerEnd, memory_connection


class Accepting(enum.Enum):
    """What happens to connections to a socket."""

    #: It is served.
    SERVES = "serves"
    #: It is accepted and read, and nothing is sent back (fault 32).
    SILENT = "silent"
    #: It is closed as soon as it is accepted (fault 33).
    CLOSES = "closes"
    #: The backlog is full: nothing is accepted, and a dial waits (fault 30).
    BACKLOG_FULL = "backlog full"
    #: The permissions of the socket forbid it (fault 29).
    DENIED = "denied"
    #: The process listens, and does not serve yet: the connection waits, and its data is not read (fault 32).
    LATE = "late"


#: Serves one connection until it ends.
Serve = Callable[[ServerEnd], Awaitable[object]]


@attrs.define(eq=False)
class Process:
    """A process of a plugin. Another process can get its pid later."""

    credentials: Credentials
    #: Virtual seconds.
    started: float
    ended: bool = False
    watchers: list[Callable[[Process], None]] = attrs.Factory(list)
    #: Called after the watchers.
    on_end: Callable[[], None] = lambda: None
    #: Shut while the process is suspended.
    gate: Gate = attrs.Factory(Gate)

    def end(self) -> None:
        """End the process."""
        self.ended = True
        # Connections that another process has taken over go on.
        self.gate.reopen()
        watchers, self.watchers = self.watchers, []
        for watcher in watchers:
            watcher(self)
        self.on_end()


@attrs.define(eq=False)
class Listener:
    """A process's listener on an inode. :meth:`close` closes it, and ends the connections that it accepted."""

    #: Called for each new connection; returns the function that serves it.
    admit: Callable[[], Serve]
    #: The process that called listen(). Another process may have the listener now.
    process: Process
    _accepting: Accepting = attrs.field(default=Accepting.SERVES, alias="accepting")
    seconds_per_byte: float = 0.0
    #: How many connections there were.
    accepted: int = 0
    #: The scope of the serving process, cancelled when it dies.
    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)
    #: The open connections, oldest first.
    connections: list[MemoryConnection] = attrs.Factory(list)
    #: The connections that wait until the process serves.
    _backlog: list[tuple[MemoryConnection, Serve]] = attrs.Factory(list)
    _arrivals: trio.MemorySendChannel[tuple[MemoryConnection, Serve]] = attrs.field(init=False)
    _waiting: trio.MemoryReceiveChannel[tuple[MemoryConnection, Serve]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._arrivals, self._waiting = trio.open_memory_channel[tuple[MemoryConnection, Serve]](1024)

    @property
    def accepting(self) -> Accepting:
        """What happens to connections. Waiting connections are served or read when this changes to that."""
        return self._accepting

    @accepting.setter
    def accepting(self, accepting: Accepting) -> None:
        self._accepting = accepting
        if accepting in (Accepting.SERVES, Accepting.SILENT):
            backlog, self._backlog = self._backlog, []
            for waiting, serve in backlog:
                if accepting is Accepting.SILENT:
                    waiting.client.progress.drain()
                elif waiting in self.connections:
                    self._arrivals.send_nowait((waiting, serve))

    async def run(self) -> None:
        """Serve connections until the process dies."""
        with self.scope:
            async with trio.open_nursery() as nursery:
                async for accepted, serve in self._waiting:
                    nursery.start_soon(self._serve_one, accepted, serve)

    async def _serve_one(self, accepted: MemoryConnection, serve: Serve) -> None:
        try:
            await serve(accepted.server)
        finally:
            accepted.server.close()
            if accepted in self.connections:
                self.connections.remove(accepted)

    def connect(self) -> MemoryConnection:
        """Accept a connection, and return it."""
        made, serve = memory_connection(), self.admit()
        made.server.seconds_per_byte = self.seconds_per_byte
        made.server.gate = self.process.gate
        self.accepted += 1
        self.connections.append(made)
        match self._accepting:
            case Accepting.SILENT:
                made.client.progress.drain()
            case Accepting.CLOSES:
                self.connections.remove(made)
                made.server.close()
            case Accepting.SERVES:
                self._arrivals.send_nowait((made, serve))
            case Accepting.LATE:
                self._backlog.append((made, serve))
            case _:
                pass
        return made

    def reset(self) -> None:
        """Break every connection that is open."""
        connections, self.connections = self.connections, []
        for broken in connections:
            broken.reset()

    def close(self) -> None:
        """End the process. Its connections end as the kernel ends them, without a frame of HTTP/2."""
        connections, self.connections = self.connections, []
        for ended in connections:
            ended.server.close()
        self.scope.cancel()
        self._arrivals.close()


class MemoryNetwork:
    """Which process listens on which inode of ``directory``; with ``follow_symlinks`` a link stands for its target."""

    def __init__(self, directory: MemoryDirectory, *, follow_symlinks: bool = False) -> None:
        self._directory = directory
        self._follow_symlinks = follow_symlinks
        self._listeners: dict[Inode, Listener] = {}
        # By listener. A listener that was replaced on an inode is kept here until it ends.
        self._inodes: dict[Listener, list[Inode]] = {}
        #: The attempts to connect, refused ones included, with their virtual times.
        self.dials: list[tuple[float, str]] = []
        #: How many more attempts fail because no descriptors are left (fault 46); counting descriptors is an attempt,
        #: too.
        self.exhausted = 0
        #: How many concurrent conversations a started daemon has.
        self.dial_slots = DIAL_SLOTS
        #: By path, a function that is called once, after the look that found a socket and before the next attempt to
        #: connect.
        self.before_dial: dict[str, Callable[[], object]] = {}
        #: By path, the inode of the socket that was last connected to.
        self.reached: dict[str, Inode] = {}
        #: By path, the process that listened when the socket was last dialed, or the process was last looked for.
        self.met: dict[str, Process] = {}
        #: The recognized conversations of its plugins.
        self.conversations = KnownConversations()
        #: How many of the next dials crash the registration.
        self.crashes = 0
        #: The client's ends of all connections, with their paths; tests check that none is left open.
        self.opened: list[tuple[str, ClientEnd]] = []
        #: The client's ends of the connections of links, which can be open besides.
        self.linked: list[tuple[str, ClientEnd]] = []
        #: All processes of the machine, which can own leases.
        self.owners = MemoryOwnerProcesses()
        #: The last process of each process id.
        self.processes: dict[int, Process] = {}

    def start(self, credentials: Credentials) -> Process:
        """Start a process with the pid of ``credentials``."""
        now = trio.current_time() if trio.lowlevel.in_trio_run() else 0.0
        process = self.processes[credentials.pid] = Process(credentials, now)
        if credentials.pid:
            self.owners.start(credentials.pid)
            process.on_end = partial(self._end_process, process)
        return process

    def _end_process(self, process: Process) -> None:
        if self.processes[process.credentials.pid] is process:
            self.owners.end(process.credentials.pid)

    def count_descriptors(self, most: int) -> int:
        """Return how many descriptors are left, up to ``most``; while there are none, this counts as an attempt."""
        if self.exhausted:
            self.exhausted -= 1
            return 0
        return most

    def listen(self, path: str, listener: Listener) -> None:
        """Listen on the socket at ``path``. Raises FileNotFoundError if there is none."""
        node = self._directory.inode(path)
        self._listeners[node] = listener
        self._inodes.setdefault(listener, []).append(node)

    def end(self, listener: Listener) -> None:
        """Close ``listener``, and remove it if it still listens."""
        listener.close()
        for node in self._inodes.pop(listener, ()):
            if self._listeners.get(node) is listener:
                del self._listeners[node]

    async def dial(
        self,
        path: str,
        *,
        identity: Identity | None = None,
        root: str | None = None,  # noqa: ARG002 - nothing in memory is a link
        timeout: float,
        refused_grace: float = 1.0,
        judge: Judge | None = None,
    ) -> RegistrationChannel:
        """Connect like :func:`plugind.actors.grpc.client.dial.dial_registration`: a full backlog is an error.

        Raises:
          DialError: of the same kinds, after the same waits.
        """
        if self.crashes:
            self.crashes -= 1
            raise InjectedError
        listener: Listener | None = None

        def attempt() -> OSError | None:
            nonlocal listener
            self.dials.append((trio.current_time(), path))
            self.before_dial.pop(path, _nothing)()
            try:
                listener = self._listener(path, identity)
            except OSError as error:
                return error
            return None

        problem = attempt()
        if problem is not None:
            await retry(path, problem, attempt, timeout, refused_grace, wait_if_full=False)
        assert listener is not None
        self.reached[path] = self._inode_of(listener)
        self.met[path] = listener.process
        peer = listener.process.credentials
        made = listener.connect()
        try:
            check_peer(path, peer, judge)
        except BaseException:
            made.client.close()
            raise
        self.opened.append((path, made.client))
        return RegistrationChannel(made.client, self.conversations, peer=peer)

    def listens(self, path: str) -> bool | None:
        """Return whether somebody listens on the socket at ``path``; None if there is no socket, or connecting is
        denied.
        """
        try:
            listener = self._listeners.get(self._directory.inode(path))
        except OSError:
            return None
        if listener is None:
            return False
        return None if listener.accepting is Accepting.DENIED else True

    def is_met(self, path: str) -> bool:
        """Whether the daemon knows the process that listens at ``path`` now."""
        listener = self._listeners.get(self._directory.inode(path))
        return listener is not None and listener.process is self.met.get(path)

    def look(self, path: str, identity: Identity | None = None) -> Process:
        """Connect to the file ``identity`` at ``path``, or to any file there, and hang up; return the listening
        process.

        Raises:
          OSError: as connect() does.
        """
        process, connection = self.connect(path, identity)
        connection.close()
        return process

    def connect(self, path: str, identity: Identity | None = None) -> tuple[Process, ClientEnd]:
        """Connect to the file ``identity`` at ``path``, or to any file there; return the listening process and the
        connection.

        Raises:
          OSError: as connect() does.
        """
        if self.exhausted:
            raise _error(errno.EMFILE)
        listener = self._listener(path, identity)
        return listener.process, listener.connect().client

    def _inode_of(self, listener: Listener) -> Inode:
        return next(node for node in self._inodes[listener] if self._listeners.get(node) is listener)

    def _listener(self, path: str, identity: Identity | None) -> Listener:
        """Return the listener that accepts at ``path``, if the file ``identity`` is there.

        Raises:
          OSError: as connect() does.
        """
        if self.exhausted:
            self.exhausted -= 1
            raise _error(errno.EMFILE)
        node = self._directory.target(path) if self._follow_symlinks else self._directory.inode(path)
        if identity is not None and not self._directory.identity(node).is_same(identity):
            raise _error(errno.ESTALE)
        listener = self._listeners.get(node)
        if node.kind is not EntryKind.SOCKET or listener is None:
            raise _error(errno.ECONNREFUSED)
        if listener.accepting is Accepting.BACKLOG_FULL:
            raise _error(errno.EAGAIN)
        if listener.accepting is Accepting.DENIED:
            raise _error(errno.EACCES)
        return listener


def _nothing() -> None:
    """Do nothing: the default before a dial."""


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))

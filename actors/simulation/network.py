"""Unix sockets in memory: a simulated node dials through them.

A listener belongs to an inode of a :class:`~plugind.actors.simulation.directory.MemoryDirectory` and not to a path, as
in the kernel: a renamed socket can still be dialed, and a socket that was unlinked and made again is another one. The
connections are those of ``plugind.actors.simulation.streams``. Errors and waits are those of
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
    """What happens to a connection to a socket."""

    #: It is served.
    SERVES = "serves"
    #: It is accepted and read, and no byte ever comes back (fault 32).
    SILENT = "silent"
    #: It is closed as soon as it is accepted (fault 33).
    CLOSES = "closes"
    #: The backlog is full: nothing is accepted, and a dial waits (fault 30).
    BACKLOG_FULL = "backlog full"
    #: The permissions of the socket forbid it (fault 29).
    DENIED = "denied"
    #: The process listens, and does not serve yet: the connection waits, and what it is sent is not read (fault 32).
    LATE = "late"


#: Serves one connection until it ends.
Serve = Callable[[ServerEnd], Awaitable[object]]


@attrs.define(eq=False)
class Process:
    """A process of a plugin. Its process id may be used again by another one."""

    credentials: Credentials
    #: Virtual seconds.
    started: float
    ended: bool = False
    #: Called when it ends.
    watchers: list[Callable[[Process], None]] = attrs.Factory(list)
    #: Called after them.
    on_end: Callable[[], None] = lambda: None
    #: Shut while it is suspended.
    gate: Gate = attrs.Factory(Gate)

    def end(self) -> None:
        """End the process."""
        self.ended = True
        # What another process has of it goes on.
        self.gate.reopen()
        watchers, self.watchers = self.watchers, []
        for watcher in watchers:
            watcher(self)
        self.on_end()


@attrs.define(eq=False)
class Listener:
    """What a process listens on an inode with. :meth:`close` closes it, and ends the connections that it accepted."""

    #: Called for each connection when it is made, and returns what serves it.
    admit: Callable[[], Serve]
    #: The process that called listen(). Another one may have the listener by now.
    process: Process
    _accepting: Accepting = attrs.field(default=Accepting.SERVES, alias="accepting")
    seconds_per_byte: float = 0.0
    #: How many connections there have been so far.
    accepted: int = 0
    #: The process that serves: cancelled when it dies.
    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)
    #: The connections that are open now, in the order in which they were made.
    connections: list[MemoryConnection] = attrs.Factory(list)
    #: Those that wait until the process serves.
    _backlog: list[tuple[MemoryConnection, Serve]] = attrs.Factory(list)
    _arrivals: trio.MemorySendChannel[tuple[MemoryConnection, Serve]] = attrs.field(init=False)
    _waiting: trio.MemoryReceiveChannel[tuple[MemoryConnection, Serve]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._arrivals, self._waiting = trio.open_memory_channel[tuple[MemoryConnection, Serve]](1024)

    @property
    def accepting(self) -> Accepting:
        """What happens to connections. If they are served or read from now on, so are those that wait."""
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
        # The other way round; one that was replaced on an inode is still in here, until it ends.
        self._inodes: dict[Listener, list[Inode]] = {}
        #: The attempts to connect so far, refused ones included, with their virtual times.
        self.dials: list[tuple[float, str]] = []
        #: How many more attempts fail because there are no descriptors left (fault 46); a look for some is one, too.
        self.exhausted = 0
        #: How many conversations a daemon that is started has at once.
        self.dial_slots = DIAL_SLOTS
        #: By path, what is called once, between the look that found a socket and the next attempt to connect to it.
        self.before_dial: dict[str, Callable[[], object]] = {}
        #: By path, the inode of the socket that was connected to last.
        self.reached: dict[str, Inode] = {}
        #: By path, the process that listened when the socket was dialed, or when the process was looked for, last.
        self.met: dict[str, Process] = {}
        #: The conversations that its plugins have had.
        self.conversations = KnownConversations()
        #: The next so many dials crash the registration.
        self.crashes = 0
        #: The client's ends of all connections, with their paths: tests check that none is left open.
        self.opened: list[tuple[str, ClientEnd]] = []
        #: Those of links, which may be open besides.
        self.linked: list[tuple[str, ClientEnd]] = []
        #: All processes of the machine, which may own leases.
        self.owners = MemoryOwnerProcesses()
        #: The last process of each process id.
        self.processes: dict[int, Process] = {}

    def start(self, credentials: Credentials) -> Process:
        """Start a process; it has the process id of ``credentials`` from now on."""
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
        """Return how many descriptors are left, up to ``most``; while they are exhausted, this counts as an attempt."""
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
        """Close ``listener``, and forget it if it still listens."""
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
        """Connect as :func:`plugind.actors.grpc.client.dial.dial_registration` does: a full backlog is an error.

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
        """Return whether somebody listens on the socket at ``path``; None if there is none, or connecting is denied."""
        try:
            listener = self._listeners.get(self._directory.inode(path))
        except OSError:
            return None
        if listener is None:
            return False
        return None if listener.accepting is Accepting.DENIED else True

    def is_met(self, path: str) -> bool:
        """Whether the process that listens at ``path`` is known to the daemon, and not one that listens since."""
        listener = self._listeners.get(self._directory.inode(path))
        return listener is not None and listener.process is self.met.get(path)

    def look(self, path: str, identity: Identity | None = None) -> Process:
        """Connect to the file ``identity`` at ``path``, or to any there, and hang up.

        Returns the process that called listen().

        Raises:
          OSError: as connect() does.
        """
        process, connection = self.connect(path, identity)
        connection.close()
        return process

    def connect(self, path: str, identity: Identity | None = None) -> tuple[Process, ClientEnd]:
        """Connect to the file ``identity`` at ``path``, or to any there.

        Returns the process that called listen(), and the end of the connection.

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
    """The default: nothing happens before a dial."""


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))

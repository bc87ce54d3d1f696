"""The liveness actor: it finds out whether anybody listens on sockets that are not dialed.

The registration actors name the sockets, which are of two kinds. The process of a *registered* plugin may be killed and
leave its socket file behind (fault 39). Somebody may begin to listen on a *stale* socket (behaviour 15). No event
reports either.

A connect decides: ECONNREFUSED means that nobody listens. It is made when ``plugind.protocol.health.liveness`` says so,
and for all sockets of a process when that process has ended. Processes are watched by pidfds in one epoll, since a task
for each would cost a hundred times as much. The end of a process proves nothing: it may have handed its listener to
another process, and with socket activation another process always listens.

Results are sent to the status actor, for a stale socket to its registration, and for a registered plugin also to the
reconciler, since the life of a plugin ends with its listener (fault 49). The actor waits only for these inboxes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Protocol, assert_never

import trio

from ...protocol.health.liveness import ConnectAnswer, EndpointAnswer, Schedule, SocketOwners, Subject, answer_of
from ...protocol.identity import Identity
from ...protocol.messages.config import RootsChanged, TrustChanged
from ...protocol.messages.liveness import LivenessMessage, ProcessEnded, UnwatchLiveness, WatchLiveness
from ...protocol.messages.reconciler import ListenerChanged, ReconcilerMessage
from ...protocol.messages.registration import ListenerFound, ListenerLost
from ...protocol.messages.status import ServingChanged, StatusMessage
from ...protocol.values import value
from ..grpc.endpoints import EndpointRefusedError, Endpoints
from ..messaging.mailbox import Readable, report

#: Seconds between readings of the inbox. In a storm, reading many messages together costs less than waking up for each.
COALESCE = 0.1
#: The number of messages that are taken before other tasks run; each may open the descriptor of a process.
BATCH = 32
#: Seconds of looks after which other tasks run.
LONGEST_GO = 0.002


class ProcessPort(Protocol):
    """The port to processes and their listeners: ``plugind.actors.io.processes``, or a simulation in tests.

    Each watched process has a number, which is never used again.
    """

    def look(
        self, path: str, identity: Identity | None, *, root: str | None = None, take_process: bool
    ) -> tuple[ConnectAnswer, int | None]:
        """Connect to the file ``identity`` at ``path``, or to any file there, and close the connection.

        No directory between ``root`` and the file may be a link.

        Return the result and, with ``take_process``, the listening process, which is watched from now on; None if it
        cannot be watched.
        """

    def watch(self, pid: int, age: float) -> int | None:
        """Watch the process ``pid``, which is at least ``age`` seconds old; None if it cannot be watched."""

    def forget(self, process: int) -> None:
        """Stop watching the process. After its end this happens by itself."""

    async def ended(self) -> Sequence[int]:
        """Wait until processes have ended; return them."""

    def close(self) -> None:
        """Stop watching all processes."""


@value
class LivenessConfig:
    """The configuration of the liveness actor."""

    processes: Callable[[], ProcessPort]
    endpoints: Endpoints
    #: Seconds within which each refusing socket is looked at again.
    rescan: float
    deregister_not_serving: bool = False


async def run(
    config: LivenessConfig,
    address: trio.MemorySendChannel[LivenessMessage],
    inbox: Readable[LivenessMessage],
    status: trio.MemorySendChannel[StatusMessage],
    reconciler: trio.MemorySendChannel[ReconcilerMessage],
) -> None:
    """Watch the sockets named by messages, until cancelled; ``address`` is the address of ``inbox``."""
    with closing(config.processes()) as processes:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_watch_processes, processes, address)
            await _Liveness(config, processes, inbox, status, reconciler).run()


async def _watch_processes(processes: ProcessPort, address: trio.MemorySendChannel[LivenessMessage]) -> None:
    while True:
        for process in await processes.ended():
            await report(address, ProcessEnded(process))


class _Liveness:
    def __init__(
        self,
        config: LivenessConfig,
        processes: ProcessPort,
        inbox: Readable[LivenessMessage],
        status: trio.MemorySendChannel[StatusMessage],
        reconciler: trio.MemorySendChannel[ReconcilerMessage],
    ) -> None:
        self._deregister = config.deregister_not_serving
        self._processes = processes
        self._endpoints = config.endpoints
        self._inbox = inbox
        self._status = status
        self._reconciler = reconciler
        self._schedule = Schedule(config.rescan)
        self._owners = SocketOwners()

    async def run(self) -> None:
        while True:
            await self._receive()
            await self._look()

    # --- messages -----------------------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        """Wait for messages, or until a socket is due; take all pending messages."""
        with trio.move_on_at(self._schedule.next_time()):
            message = await self._inbox.receive()
            self._take(message)
            if not isinstance(message, ProcessEnded):
                await trio.sleep(COALESCE)
        while self._take_batch():
            await trio.lowlevel.checkpoint()

    def _take_batch(self) -> bool:
        """Take some messages; return whether there may be more."""
        for _ in range(BATCH):
            try:
                message = self._inbox.receive_nowait()
            except trio.WouldBlock:
                return False
            self._take(message)
        return True

    def _take(self, message: LivenessMessage) -> None:
        match message:
            case WatchLiveness():
                self._watch(message)
            case UnwatchLiveness():
                self._schedule.unwatch(message.path)
                self._disown(message.path)
            case ProcessEnded():
                for path in self._owners.end(message.process):
                    self._schedule.ask(path)
            case TrustChanged():
                self._endpoints = self._endpoints.trusting(message.distrust)
            case RootsChanged():
                self._endpoints = self._endpoints.within(message.endpoint_directories)
            case _:
                assert_never(message)

    def _watch(self, asked: WatchLiveness) -> None:
        self._disown(asked.path)
        now = trio.current_time()
        process = self._process_of(asked, now) if asked.registered else None
        self._schedule.watch(asked, now, process_is_watched=process is not None)
        if process is not None:
            self._owners.add(asked.path, process, asked.pid)

    def _process_of(self, asked: WatchLiveness, now: float) -> int | None:
        """Return the process that listened at the dial. Each process is watched once, however many sockets it has."""
        if not asked.pid:
            return None
        return self._owners.of_pid(asked.pid) or self._processes.watch(asked.pid, now - asked.dialed)

    def _disown(self, path: str) -> None:
        process = self._owners.remove(path)
        if process is not None:
            self._processes.forget(process)

    # --- looks --------------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Look at the sockets that are due, for :data:`LONGEST_GO` seconds at most."""
        await self._look_at_awaited_endpoints()
        began = before = trio.current_time()
        for subject in self._schedule.take(began):
            answer, endpoint = self._ask(subject)
            now = trio.current_time()
            self._schedule.spent(subject, now - before, now)
            found = self._schedule.judge(subject, answer, now, endpoint)
            if found is not None:
                await self._tell(subject, found)
            if now - began >= LONGEST_GO:
                return
            before = now

    async def _look_at_awaited_endpoints(self) -> None:
        now = trio.current_time()
        for subject in self._schedule.take_awaited(now):
            changed = self._schedule.judge_endpoint(subject, self._ask_endpoint(subject.asked.endpoint), now)
            if changed is not None:
                await report(self._status, changed)

    def _ask(self, subject: Subject) -> tuple[ConnectAnswer, EndpointAnswer | None]:
        """Connect to the socket and, if nobody listens there, to its endpoint elsewhere; return the results."""
        unowned = subject.asked.registered and self._owners.of_path(subject.path) is None
        asked = subject.asked
        answer, process = self._processes.look(subject.path, asked.identity, root=asked.root, take_process=unowned)
        if process is not None:
            self._owners.add(subject.path, process)
        if answer not in (ConnectAnswer.REFUSED, ConnectAnswer.MISSING) or subject.other_endpoint is None:
            return answer, None
        return answer, self._ask_endpoint(subject.other_endpoint)

    def _ask_endpoint(self, endpoint: str) -> EndpointAnswer:
        try:
            self._endpoints.connect(endpoint).close()
        except EndpointRefusedError as error:
            return EndpointAnswer(ConnectAnswer.FORBIDDEN, str(error))
        except OSError as error:
            return EndpointAnswer(answer_of(error))
        return EndpointAnswer(ConnectAnswer.ACCEPTED)

    async def _tell(self, subject: Subject, found: ServingChanged | ListenerFound) -> None:
        if isinstance(found, ListenerFound):
            subject.asked.reply.send_nowait(found)
            return
        await report(self._status, found)
        await report(self._reconciler, ListenerChanged(found.socket, found.generation, found.serving))
        # In an insecure directory other users can remove the file, which must not deregister a plugin (fault 3).
        if self._deregister and not found.serving and not subject.missing:
            lost = ListenerLost(found.socket, found.generation, found.reason or "")
            subject.asked.reply.send_nowait(lost)

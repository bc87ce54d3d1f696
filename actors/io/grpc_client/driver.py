"""One connection driven by the tasks that use it, without a task of its own.

Whoever waits for an answer reads for everybody: the first task that waits leads, and the others park until something
came for their call or the leader is done, when one of them leads. So a lone call costs no task, no lock and no queue,
and nothing outlives the caller.
"""

import contextlib
from collections.abc import Callable
from typing import Final, cast

import trio
from grpclib.const import Status

from ....protocol.wire.errors import WireError, WireProblem
from ....protocol.wire.grpc import CallOutcome, ClientCall, failure_outcome
from ....protocol.wire.http2 import ClientConnection
from ....protocol.wire.limits import Limits
from ..unix_socket import Credentials
from .transport import Transport

TIMED_OUT: Final = CallOutcome(Status.DEADLINE_EXCEEDED, "the deadline of the call passed")

_UNTIMED_FRAMES: Final = 8
"""Control frames that a connection has for nothing: the clock is read only after more of them."""


class Driver:
    """A connection and its transport, and the tasks that wait for it."""

    __slots__ = (
        "_leading",
        "_parked",
        "_period_began",
        "_senders",
        "_transport",
        "authority",
        "closed",
        "connection",
        "peer",
        "sender",
    )

    def __init__(self, transport: Transport, authority: str, limits: Limits, peer: Credentials | None) -> None:
        self._transport = transport
        self.authority = authority
        self.peer = peer
        self.connection = ClientConnection(limits)
        self.sender = self.connection.sender
        self.closed = False
        self._leading = False
        self._senders = 0
        self._parked: dict[ClientCall | None, list[trio.lowlevel.Task]] | None = None
        self._period_began: float | None = None

    def close(self) -> None:
        """Close the connection at once. Calls that still wait raise `trio.ClosedResourceError`. May be repeated."""
        if not self.closed:
            self.closed = True
            self._transport.close()
            parked, self._parked = self._parked, None
            for tasks in (parked or {}).values():
                for task in tasks:
                    trio.lowlevel.reschedule(task)

    # Sending.

    async def open(self, call: ClientCall, head: bytes, deadline: float | None, *, end: bool) -> None:
        """Begin a request, as soon as the peer takes one more. Not needed where `sender.can_open` is true."""
        sender = self.sender
        await self.until(self._may_open, call, deadline)
        if sender.refusal is not None:
            call.cancel(failure_outcome(sender.refusal))
        if call.outcome is None:
            sender.open(call, head, end=end)

    def _may_open(self) -> bool:
        return self.sender.can_open or self.sender.refusal is not None

    def request_now(self, call: ClientCall, head: bytes, data: bytes) -> bool:
        """Send a whole small request without waiting. False, with nothing done, if it is not that simple.

        Some of it may stay in `outgoing`.
        """
        if self.closed:
            raise trio.ClosedResourceError("this channel was closed")
        if not self.sender.can_open or not self.sender.request(call, head, data):
            return False
        if not self._transport.buffers:
            self._flush()
        return True

    def send_now(self, call: ClientCall, data: bytes, *, end: bool) -> int:
        """Send what goes of a framed message without waiting. Returns how much; some of it may stay in `outgoing`."""
        if self.closed:
            raise trio.ClosedResourceError("this channel was closed")
        sent = self.sender.send(call, data, end=end)
        if not self._transport.buffers:
            self._flush()
        return sent

    async def send_rest(self, call: ClientCall, data: bytes, sent: int, deadline: float | None, *, end: bool) -> None:
        """Send the rest of a framed message, waiting for room in the windows and in the socket."""
        await self.flush()
        rest = memoryview(data)[sent:]
        while rest and call.local_open:
            await self.until(call.can_send, call, deadline)
            if call.local_open:
                rest = rest[self.sender.send(call, rest, end=end) :]
        await self.flushed(call, deadline)

    async def flushed(self, call: ClientCall, deadline: float | None) -> None:
        """Wait until the transport has taken all that there is to send."""
        await self.flush()
        if self.connection.outgoing:
            self._senders += 1
            try:
                await self.until(self._is_flushed, call, deadline)
            finally:
                self._senders -= 1

    def _is_flushed(self) -> bool:
        return not self.connection.outgoing

    async def flush(self) -> None:
        """Send what goes without waiting for the peer."""
        if not self.connection.outgoing or self.closed:
            return
        self._flush()
        if self._transport.buffers:
            try:
                await self._transport.drain()
            except (OSError, trio.BrokenResourceError) as error:
                self._broken(error)

    def _flush(self) -> None:
        outgoing = self.connection.outgoing
        transport = self._transport
        try:
            sent = transport.send(outgoing)
        except OSError as error:
            self._broken(error)
            return
        if sent == len(outgoing):
            outgoing.clear()
        else:
            del outgoing[:sent]
            # A leader that waits for bytes only must wait for room too.
            transport.nudge()

    def _broken(self, error: OSError | trio.BrokenResourceError) -> None:
        """The peer takes no more bytes; what it said last may tell why."""
        try:
            while data := self._transport.receive_now():
                self.connection.receive(data)
        except OSError as later:
            error = later
        self._lost(error)
        self.connection.outgoing.clear()
        self._wake()

    def _lost(self, error: OSError | trio.BrokenResourceError) -> None:
        """The connection is no more. A reset is the end of a peer that left bytes of ours unread."""
        if isinstance(error, BrokenPipeError | ConnectionResetError | trio.BrokenResourceError):
            self.connection.receive_end()
        else:
            self.connection.fail(WireError(WireProblem.CLOSED, f"the connection broke: {error}"))

    # Waiting.

    async def until(self, ready: Callable[[], bool], call: ClientCall | None, deadline: float | None) -> None:
        """Return when `ready` is true, or when the deadline ended the call."""
        if ready():
            return
        if deadline is None:
            await self.wait(ready, call)
            return
        with trio.CancelScope(deadline=deadline) as scope:
            await self.wait(ready, call)
        if scope.cancelled_caught and call is not None:
            call.cancel(TIMED_OUT)
            await self.flush()

    async def wait(self, ready: Callable[[], bool], call: ClientCall | None) -> None:
        """Return when `ready` is true: lead, or park while another leads.

        To lead is to send what waits to be sent and to read once, on behalf of every call.
        """
        connection = self.connection
        try:
            while not ready():
                if self.closed:
                    raise trio.ClosedResourceError("this channel was closed")
                if self._leading:
                    await self._park(call)
                    continue
                if connection.outgoing:
                    await self._flush_as_leader()
                if connection.failure is not None:
                    return
                self._leading = True
                try:
                    data = await self._transport.receive(unsent=bool(connection.outgoing))
                except (OSError, trio.BrokenResourceError) as error:
                    self._lost(error)
                    data = None
                finally:
                    self._leading = False
                self._take(data)
        finally:
            if self._parked and not self._leading:
                self._wake_next()

    async def _flush_as_leader(self) -> None:
        self._leading = True
        try:
            await self.flush()
        finally:
            self._leading = False
        if self._senders and not self.connection.outgoing:
            self._wake(everyone=True)

    def _take(self, data: bytes | None) -> None:
        """Give the connection what was read, and wake those whom it concerns."""
        connection = self.connection
        if data:
            if connection.budgets.counted > _UNTIMED_FRAMES:
                self._mind_period()
            connection.receive(data)
        elif data is not None:
            connection.receive_end()
        if self._parked:
            self._wake()
        else:
            connection.touched.clear()
        if connection.failure is not None:
            self._say_goodbye()

    def _say_goodbye(self) -> None:
        """Send the GOAWAY that says why, as far as it goes; nothing else will be sent."""
        with contextlib.suppress(OSError):
            self._transport.send(self.connection.outgoing)
        self.connection.outgoing.clear()

    def _mind_period(self) -> None:
        """Fill the budgets of frames if their period is over."""
        now = trio.current_time()
        if self._period_began is None:
            self._period_began = now
        elif now - self._period_began >= self.connection.limits.budget_period:
            self._period_began = now
            self.connection.budgets.replenish()

    async def _park(self, call: ClientCall | None) -> None:
        """Wait until something came for the call, or this task is to lead."""
        if self._parked is None:
            self._parked = {}
        parked = self._parked
        if call is not None and not call.id:
            # A call that has not begun waits for others to end.
            call = None
        task = trio.lowlevel.current_task()
        parked.setdefault(call, []).append(task)

        def abort(_: object) -> trio.lowlevel.Abort:
            tasks = parked[call]
            tasks.remove(task)
            if not tasks:
                del parked[call]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def _wake(self, *, everyone: bool = False) -> None:
        """Wake the tasks whose calls got something, and those that wait to begin one if that may be."""
        connection = self.connection
        if self._parked:
            everyone = everyone or connection.failure is not None
            waiters: list[ClientCall | None] = (
                list(self._parked) if everyone else cast("list[ClientCall | None]", connection.touched)
            )
            if None in self._parked and self.sender.can_open and not everyone:
                waiters = [*waiters, None]
            for call in waiters:
                for task in self._parked.pop(call, ()):
                    trio.lowlevel.reschedule(task)
        connection.touched.clear()

    def _wake_next(self) -> None:
        """Let the one that has parked longest lead."""
        if self._parked:
            call, tasks = next(iter(self._parked.items()))
            trio.lowlevel.reschedule(tasks.pop(0))
            if not tasks:
                del self._parked[call]

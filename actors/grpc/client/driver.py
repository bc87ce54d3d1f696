"""One connection, which the tasks that use it drive; it has no task of its own.

A task that waits for an answer reads for all of them. The first task that waits leads: it reads, and the others park
until something has arrived for their call, or until the leader has finished and one of them leads. A single call
therefore needs no task, no lock and no queue, and nothing outlives the caller.

``Driver.__init__`` states the invariants of this scheme, field by field.
"""

import contextlib
from collections.abc import Awaitable, Callable
from typing import Final, Literal, cast

import trio
from grpclib.const import Status

from ....protocol.wire.errors import WireError, WireProblem
from ....protocol.wire.grpc import ClientCall
from ....protocol.wire.http2 import ClientConnection
from ....protocol.wire.limits import WireLimits
from ....protocol.wire.outcomes import CallOutcome, failure_outcome
from ...io.unix_socket import Credentials
from .transport import Transport
from .turns import TURN, Shared

#: The outcome of a call whose deadline has passed.
TIMED_OUT: Final = CallOutcome(Status.DEADLINE_EXCEEDED, "the deadline of the call passed")

#: How many control frames a connection may get before the driver reads the clock for their budget.
_UNTIMED_FRAMES: Final = 8

#: What a task waits for that waits for the end of the connection.
END: Final = "end"

_Key = ClientCall | Literal["end"] | None

#: How many reads follow a failed send: the reason comes first, and a flood would not end.
_LAST_READS: Final = 4


class Driver:
    """A connection, its transport, and the tasks that wait for it."""

    __slots__ = (
        "_flushers",
        "_kept",
        "_leading",
        "_parked",
        "_period_began",
        "_shared",
        "_transport",
        "_used_up",
        "authority",
        "closed",
        "connection",
        "on_idle",
        "on_used_up",
        "peer",
        "sender",
    )

    def __init__(
        self, transport: Transport, authority: str, limits: WireLimits, peer: Credentials | None, shared: Shared
    ) -> None:
        self._transport = transport
        self._shared = shared
        #: The ``:authority`` of every request.
        self.authority = authority
        #: The process that listens at the other end, where the kernel can tell.
        self.peer = peer
        #: The protocol state of all calls, without anything about tasks.
        self.connection = ClientConnection(limits)
        #: The sending half of ``connection``.
        self.sender = self.connection.sender

        #: True once ``close`` was called. From then on no task is parked, none parks, and the transport is not used.
        self.closed = False

        #: Called each time the connection has used up a turn, because its peer sent more than a small answer.
        self.on_used_up: Callable[[], None] | None = None

        #: Called when the last task that waited is done; nobody reads from then on.
        self.on_idle: Callable[[], None] | None = None

        #: True while the connection must wait for its next turn.
        self._used_up = False

        #: How many bytes of the account in ``_shared`` are charged for this connection.
        self._kept = 0

        #: True while a task, the leader, is in ``Transport.receive`` or waits for another turn.
        #:
        #: * At most one task leads. Nothing else reads, except ``_break``, which runs when sending has failed.
        #: * Only the leader sets it, immediately before the one ``await`` of a leader, and resets it immediately after,
        #:   cancelled or not.
        #: * All other changes of this object and of ``connection`` happen between two awaits. A task that finds
        #:   ``_leading`` false may therefore lead at once.
        self._leading = False

        #: The parked tasks, by the call that each waits for. The key None has the tasks that wait for something else:
        #: to begin a call, or for one of several. The key END has those that wait for the end of the connection alone.
        #: None instead of a mapping until the first task parks, since a connection with one call at a time never needs
        #: it.
        #:
        #: * Each task in it is suspended in ``_park``. It leaves the mapping exactly once: it is taken out by the code
        #:   that reschedules it, or by its own abort function when it is cancelled.
        #: * No list in it is empty. The keys are in the order in which their first task parked.
        #: * While a task is parked, another task leads, or runs in ``wait`` or is scheduled to. On its way out of
        #:   ``wait``, returning or raising, a task that leaves nobody leading reschedules the one that parked first.
        #:   Without that, the parked tasks would wait for ever.
        #: * A task is woken when its call gets an event, or anything has come (key None), when the connection fails,
        #:   and when ``outgoing`` is empty again (``_flushers``). After a wake-up each task must check its condition
        #:   again, and leads or parks again if it does not hold.
        self._parked: dict[_Key, list[trio.lowlevel.Task]] | None = None

        #: How many tasks are in ``flushed``, waiting until ``outgoing`` is empty. That event belongs to no call, so the
        #: leader wakes all parked tasks for it, if this is not 0.
        self._flushers = 0

        #: When the current period of the budgets began, on Trio's clock; None until there were enough frames to look.
        self._period_began: float | None = None

    def close(self) -> None:
        """Close the connection at once. Waiting calls raise ``trio.ClosedResourceError``. Can be repeated."""
        if not self.closed:
            self.closed = True
            self._transport.close()
            self._keep(0)
            parked, self._parked = self._parked, None
            for tasks in (parked or {}).values():
                for task in tasks:
                    trio.lowlevel.reschedule(task)

    # Sending.

    async def open(self, call: ClientCall, head: bytes, deadline: float | None, *, end: bool) -> None:
        """Begin a request as soon as the peer accepts one more. Not needed if ``sender.can_open`` is true."""
        sender = self.sender
        await self.until(self._may_open, call, deadline)
        if sender.refusal is not None:
            call.cancel(failure_outcome(sender.refusal))
        if call.outcome is None:
            sender.open(call, head, end=end)

    def _may_open(self) -> bool:
        return self.sender.can_open or self.sender.refusal is not None

    def request_now(self, call: ClientCall, head: bytes, data: bytes) -> bool:
        """Send a whole small request without waiting. Return False, with nothing done, if that is not possible.

        A part can stay in ``outgoing``.
        """
        if self.closed:
            raise trio.ClosedResourceError("this channel was closed")
        if not self.sender.can_open or not self.sender.request(call, head, data):
            return False
        self.flush()
        return True

    def send_now(self, call: ClientCall, data: bytes, *, end: bool) -> int:
        """Send as much of a framed message as possible without waiting. Return how much; a part can stay in
        ``outgoing``.
        """
        if self.closed:
            raise trio.ClosedResourceError("this channel was closed")
        sent = self.sender.send(call, data, end=end)
        self.flush()
        return sent

    async def send_rest(self, call: ClientCall, data: bytes, sent: int, deadline: float | None, *, end: bool) -> None:
        """Send the rest of a framed message, waiting for room in the windows and in the socket."""
        self.flush()
        rest = memoryview(data)[sent:]
        while rest and call.local_open:
            await self.until(call.can_send, call, deadline)
            if call.local_open:
                rest = rest[self.sender.send(call, rest, end=end) :]
        await self.flushed(call, deadline)

    async def flushed(self, call: ClientCall | None, deadline: float | None) -> None:
        """Wait until the transport has taken everything that is to be sent, or the connection has failed."""
        self.flush()
        if self.connection.outgoing:
            self._flushers += 1
            try:
                await self.until(self._is_flushed, call, deadline)
            finally:
                self._flushers -= 1

    def _is_flushed(self) -> bool:
        return not self.connection.outgoing

    def flush(self) -> None:
        """Send as much as possible without waiting."""
        outgoing = self.connection.outgoing
        if not outgoing or self.closed:
            return
        try:
            sent = self._transport.send(outgoing)
        except OSError as error:
            self._break(error)
            return
        if sent == len(outgoing):
            outgoing.clear()
        else:
            del outgoing[:sent]
            # A leader that waits for bytes only must wait for room too.
            self._transport.wake()

    def _break(self, error: OSError) -> None:
        """Handle a peer that accepts no more bytes; its last bytes can contain the reason."""
        self.connection.go_on()
        try:
            for _ in range(_LAST_READS):
                data = self._transport.receive_now()
                if not data:
                    break
                self.connection.receive(data)
        except OSError as later:
            error = later
        self._lose(error)
        self.connection.outgoing.clear()
        self._wake()

    def _lose(self, error: OSError) -> None:
        """End the connection. A peer that closes before it has read all our bytes causes a reset."""
        if isinstance(error, BrokenPipeError | ConnectionResetError):
            self.connection.receive_end()
        else:
            self.connection.fail(WireError(WireProblem.CLOSED, f"the connection broke: {error}"))

    # Waiting.

    async def until(self, ready: Callable[[], bool], call: ClientCall | None, deadline: float | None) -> None:
        """Return when ``ready`` is true, or when the deadline ended the call."""
        if ready():
            return
        if deadline is None:
            await self.wait(ready, call)
            return
        with trio.CancelScope(deadline=deadline) as scope:
            await self.wait(ready, call)
        if scope.cancelled_caught and call is not None:
            call.cancel(TIMED_OUT)
            self.flush()

    async def wait(self, ready: Callable[[], bool], call: _Key) -> None:
        """Return when ``ready`` is true or the connection has failed: lead, or park while another task leads.

        The leader sends ``outgoing`` and reads once, for all calls.
        """
        connection = self.connection
        try:
            while not ready():
                if self.closed:
                    raise trio.ClosedResourceError("this channel was closed")
                if self._leading:
                    if connection.outgoing:
                        # For example credit for messages that this task took. The leader may wait for long.
                        self._flush_for_all()
                        if ready():
                            return
                    await self._park(call)
                    continue
                if connection.outgoing:
                    self._flush_for_all()
                    if not connection.outgoing:
                        # ``ready`` may require only that.
                        continue
                if connection.failure is not None:
                    return
                self._leading = True
                try:
                    data = await self._receive()
                except OSError as error:
                    self._lose(error)
                    data = None
                finally:
                    self._leading = False
                self._take(data)
        finally:
            if not self._leading:
                if self._parked:
                    self._wake_next()
                elif self.on_idle is not None and not self.closed:
                    self.on_idle()

    async def look(self) -> None:
        """Let other tasks run, and take what has come by then. Often that is the answer, which then needs no deadline.

        A task whose calls have not ended must wait for them after that.
        """
        connection = self.connection
        if self._leading or self._used_up or connection.outgoing or connection.failure is not None:
            await trio.lowlevel.checkpoint()
            return
        try:
            self._leading = True
            try:
                await trio.lowlevel.checkpoint()
                data = None if self.closed else self._transport.receive_now()
            except OSError as error:
                self._lose(error)
                data = None
            finally:
                self._leading = False
            self._take(data)
        finally:
            if self._parked:
                self._wake_next()
            elif self.on_idle is not None and not self.closed and not self.sender.streams:
                self.on_idle()

    def _receive(self) -> Awaitable[bytes | None]:
        """Wait for bytes; or, if the turn is used up, wait for another one and return None."""
        if self._used_up:
            return self._go_on_later()
        return self._transport.receive(unsent=bool(self.connection.outgoing))

    async def _go_on_later(self) -> None:
        await self.wait_turn()
        self._used_up = False

    async def wait_turn(self) -> None:
        """Let other tasks run until this connection has its turn among the busy connections of the node."""
        await self._shared.turns.wait()

    def _flush_for_all(self) -> None:
        self.flush()
        if self._flushers and not self.connection.outgoing:
            self._wake(everyone=True)

    def _take(self, data: bytes | None) -> None:
        """Pass the bytes to the connection, and wake the tasks that wait for their contents."""
        connection = self.connection
        if data:
            if connection.budgets.counted > _UNTIMED_FRAMES:
                self._check_period()
            connection.receive(data, TURN)
        elif data is not None:
            connection.receive_end()
        elif connection.pending:
            connection.go_on(TURN)
        unparsed = connection.unparsed
        if unparsed != self._kept:
            self._account(unparsed)
        if connection.pending or (data and len(data) >= self._transport.read_bytes):
            self._use_up()
        if self._parked:
            self._wake()
        else:
            connection.touched.clear()
        if connection.failure is not None:
            self._send_goaway()

    def _use_up(self) -> None:
        """Make the connection wait for another turn before it goes on."""
        self._used_up = True
        if self.on_used_up is not None:
            self.on_used_up()

    def _account(self, unparsed: int) -> None:
        """Charge the account for what the connection holds; end the connection if there is no room."""
        error = self._keep(unparsed)
        if error is not None:
            self.connection.fail(error)
            self._keep(0)

    def _keep(self, size: int) -> WireError | None:
        """Change the charge for this connection; return an error if there is no room."""
        error = self._shared.unparsed.change(self._kept, size)
        if error is None:
            self._kept = size
        return error

    def _send_goaway(self) -> None:
        """Send as much as possible of the GOAWAY with the reason; nothing else will be sent."""
        with contextlib.suppress(OSError):
            self._transport.send(self.connection.outgoing)
        self.connection.outgoing.clear()

    def _check_period(self) -> None:
        """Refill the budgets of frames if their period is over."""
        now = trio.current_time()
        if self._period_began is None:
            self._period_began = now
        elif now - self._period_began >= self.connection.limits.budget_period:
            self._period_began = now
            self.connection.budgets.replenish()

    async def _park(self, call: _Key) -> None:
        """Wait until something has come for the call, or this task must lead."""
        if self._parked is None:
            self._parked = {}
        parked = self._parked
        if isinstance(call, ClientCall) and not call.id:
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
        """Wake the tasks whose calls have new events, and those that wait for any event."""
        connection = self.connection
        if self._parked:
            everyone = everyone or connection.failure is not None
            waiters: list[_Key] = list(self._parked) if everyone else cast("list[_Key]", connection.touched)
            if None in self._parked and not everyone:
                waiters = [*waiters, None]
            for call in waiters:
                for task in self._parked.pop(call, ()):
                    trio.lowlevel.reschedule(task)
        connection.touched.clear()

    def _wake_next(self) -> None:
        if self._parked:
            call, tasks = next(iter(self._parked.items()))
            trio.lowlevel.reschedule(tasks.pop(0))
            if not tasks:
                del self._parked[call]

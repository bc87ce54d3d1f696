"""A gRPC channel on Trio: what grpclib's generated stubs ask of `grpclib.client.Channel`, without asyncio.

One connection, no background task. Whoever waits for an answer reads for everybody: the first task that waits leads,
and the others park until something came for their call or the leader is done, when one of them leads. So a lone call
costs no task, no lock and no queue, and nothing outlives the caller.

An idle channel is not read. A task that wants to know of its end, and to have keep-alive answered meanwhile, waits in
`Channel.wait_closed`.
"""

from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Final, Generic, NoReturn, TypeVar, cast

import grpclib.client
import trio
from google.protobuf.message import DecodeError, Message
from grpclib.const import Cardinality, Status
from grpclib.exceptions import GRPCError, ProtocolError
from grpclib.metadata import Deadline
from multidict import MultiDict

from plugind.actors.io.transport import Transport
from plugind.protocol.grpc import (
    Call,
    MetadataLike,
    Outcome,
    failure_outcome,
    frame_message,
    metadata_fields,
    request_head,
    timeout_field,
)
from plugind.protocol.http2 import ClientConnection
from plugind.protocol.limits import DEFAULT_LIMITS, Limits
from plugind.protocol.metadata import decode_metadata
from plugind.protocol.wire_errors import Peer, WireError, WireProblem

SendT = TypeVar("SendT", bound=Message)
RecvT = TypeVar("RecvT", bound=Message)
StubT = TypeVar("StubT")

Metadata = MultiDict[str | bytes]

_UNTIMED_FRAMES: Final = 8
"""Control frames that a connection has for nothing: the clock is read only after more of them."""
_CANCELLED: Final = Outcome(Status.CANCELLED, "the call was cancelled")
_TIMED_OUT: Final = Outcome(Status.DEADLINE_EXCEEDED, "the deadline of the call passed")


class Channel:
    """One connection to a plugin, for any number of calls one after another or at once.

    `peer` is who listens at the other end, where the kernel can tell. Calls raise `grpclib.exceptions.GRPCError`; where
    the status is ours and not the plugin's, its `__cause__` is the `WireError` that says which rule or limit ended it.
    """

    __slots__ = ("_authority", "_closed", "_connection", "_leading", "_parked", "_period_began", "_transport", "peer")

    def __init__(
        self,
        transport: Transport,
        *,
        authority: str = "localhost",
        limits: Limits = DEFAULT_LIMITS,
        peer: Peer | None = None,
    ) -> None:
        self._transport = transport
        self._connection = ClientConnection(limits)
        self._authority = authority
        self.peer = peer
        self._closed = False
        self._leading = False
        self._parked: dict[Call | None, list[trio.lowlevel.Task]] | None = None
        self._period_began: float | None = None

    def request(
        self,
        name: str,
        cardinality: Cardinality,
        request_type: type[SendT],
        reply_type: type[RecvT],
        *,
        timeout: float | None = None,
        deadline: Deadline | float | None = None,
        metadata: MetadataLike | None = None,
    ) -> "Stream[SendT, RecvT]":
        """One call of the method `name`; nothing is sent yet. What generated stubs call.

        `timeout` is seconds from now; `deadline` is a time on Trio's clock, or grpclib's own kind; the earlier holds.
        """
        if isinstance(deadline, Deadline):
            deadline = trio.current_time() + deadline.time_remaining()
        if timeout is not None:
            soonest = trio.current_time() + timeout
            deadline = soonest if deadline is None else min(soonest, deadline)
        return Stream(self, name, cardinality, request_type, reply_type, deadline, metadata)

    def stub(self, stub: Callable[[grpclib.client.Channel], StubT]) -> StubT:
        """A generated stub on this channel: `channel.stub(RegistrationStub)`. Only its annotation asks for more."""
        return stub(cast(grpclib.client.Channel, self))

    async def wait_closed(self) -> WireError:
        """Read, and answer keep-alive, until the connection ends. Returns why."""
        await self._until(self._has_failed, None, None)
        assert self._connection.failure is not None
        return self._connection.failure

    def close(self) -> None:
        """Close the connection at once. Calls that still wait raise `trio.ClosedResourceError`. May be repeated."""
        if not self._closed:
            self._closed = True
            self._transport.close()
            parked, self._parked = self._parked, None
            for tasks in (parked or {}).values():
                for task in tasks:
                    trio.lowlevel.reschedule(task)

    async def __aenter__(self) -> "Channel":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def _has_failed(self) -> bool:
        return self._connection.failure is not None

    # Sending.

    async def _open(self, call: Call, head: bytes, deadline: float | None, *, end: bool) -> None:
        """Begin a request, as soon as the peer takes one more."""
        connection = self._connection
        if self._closed:
            raise trio.ClosedResourceError("this channel was closed")
        if not connection.can_open:
            await self._until(self._may_open, call, deadline)
            if connection.refusal is not None:
                call.cancel(failure_outcome(connection.refusal))
                return
        connection.open(call, head, end=end)

    def _may_open(self) -> bool:
        return self._connection.can_open or self._connection.refusal is not None

    async def _send(self, call: Call, data: bytes, deadline: float | None, *, end: bool) -> None:
        """Send a framed message, waiting for room in the windows and in the socket."""
        connection = self._connection
        sent = connection.send(call, data, end=end)
        if sent == len(data):
            await self._flush()
            if not connection.outgoing:
                return
        rest = memoryview(data)[sent:]
        while rest and call.local_open:
            await self._until(call.can_send, call, deadline)
            if call.local_open:
                rest = rest[connection.send(call, rest, end=end) :]
        await self._until(self._is_flushed, call, deadline)

    def _is_flushed(self) -> bool:
        return not self._connection.outgoing

    async def _flush(self) -> None:
        """Send what goes without waiting."""
        outgoing = self._connection.outgoing
        if not outgoing:
            return
        try:
            sent = await self._transport.send(outgoing)
        except (OSError, trio.BrokenResourceError) as error:
            self._broken(error)
            return
        del outgoing[:sent]
        if outgoing:
            # A leader that waits for bytes only must wait for room too.
            self._transport.nudge()

    def _broken(self, error: OSError | trio.BrokenResourceError) -> None:
        """The peer takes no more bytes; what it said last may tell why."""
        try:
            while data := self._transport.receive_now():
                self._feed(data)
        except OSError as later:
            error = later
        self._lost(error)
        self._connection.outgoing.clear()
        self._wake()

    def _lost(self, error: OSError | trio.BrokenResourceError) -> None:
        """The connection is no more. A reset is the end of a peer that left bytes of ours unread."""
        if isinstance(error, BrokenPipeError | ConnectionResetError | trio.BrokenResourceError):
            self._connection.receive_end()
        else:
            self._connection.fail(WireError(WireProblem.CLOSED, f"the connection broke: {error}"))

    # Waiting.

    async def _until(self, ready: Callable[[], bool], call: Call | None, deadline: float | None) -> None:
        """Return when `ready` is true, or when the deadline ended the call."""
        if ready():
            return
        if deadline is None:
            await self._wait(ready, call)
            return
        with trio.CancelScope(deadline=deadline) as scope:
            await self._wait(ready, call)
        if scope.cancelled_caught and call is not None:
            call.cancel(_TIMED_OUT)
            await self._flush()

    async def _wait(self, ready: Callable[[], bool], call: Call | None) -> None:
        try:
            while not ready():
                if self._closed:
                    raise trio.ClosedResourceError("this channel was closed")
                if self._leading:
                    await self._park(call)
                elif self._connection.failure is not None:
                    return
                else:
                    await self._lead()
        finally:
            if self._parked and not self._leading:
                self._wake_next()

    async def _lead(self) -> None:
        """Send what waits to be sent, then wait for the peer once, on behalf of every call."""
        self._leading = True
        try:
            await self._flush()
            if self._connection.failure is not None:
                return
            data = await self._transport.receive(unsent=bool(self._connection.outgoing))
        except (OSError, trio.BrokenResourceError) as error:
            self._lost(error)
            data = None
        finally:
            self._leading = False
        if data:
            self._feed(data)
        elif data is not None:
            self._connection.receive_end()
        self._wake()
        if self._connection.failure is not None:
            # The GOAWAY that says why, as far as it goes.
            await self._flush()
            self._connection.outgoing.clear()

    def _feed(self, data: bytes) -> None:
        """Give bytes to the connection, its budgets filled if their period is over."""
        connection = self._connection
        if connection.budgets.counted > _UNTIMED_FRAMES:
            now = trio.current_time()
            if self._period_began is None:
                self._period_began = now
            elif now - self._period_began >= connection.limits.budget_period:
                self._period_began = now
                connection.budgets.replenish()
        connection.receive(data)

    async def _park(self, call: Call | None) -> None:
        """Wait until something came for the call, or this task is to lead."""
        if self._parked is None:
            self._parked = {}
        parked = self._parked
        task = trio.lowlevel.current_task()
        parked.setdefault(call, []).append(task)

        def abort(_: object) -> trio.lowlevel.Abort:
            tasks = parked[call]
            tasks.remove(task)
            if not tasks:
                del parked[call]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def _wake(self) -> None:
        """Wake the tasks whose calls got something, and those that wait for no call."""
        connection = self._connection
        if self._parked:
            everyone = connection.failure is not None
            for call in list(self._parked) if everyone else [None, *connection.touched]:
                for task in self._parked.pop(cast("Call | None", call), ()):
                    trio.lowlevel.reschedule(task)
        connection.touched.clear()

    def _wake_next(self) -> None:
        """Let the one that has parked longest lead."""
        if self._parked:
            call, tasks = next(iter(self._parked.items()))
            trio.lowlevel.reschedule(tasks.pop(0))
            if not tasks:
                del self._parked[call]


class Stream(Generic[SendT, RecvT]):
    """One call, with the surface of `grpclib.client.Stream`.

    Used as `async with method.open() as stream`. Leaving the block waits for the end of a call that ended well so far,
    and resets one that did not, or that was cancelled.
    """

    __slots__ = (
        "_call",
        "_channel",
        "_deadline",
        "_ended",
        "_metadata",
        "_name",
        "_reply_type",
        "_request_type",
        "_sent",
        "_streams_in",
        "_streams_out",
    )

    def __init__(
        self,
        channel: Channel,
        name: str,
        cardinality: Cardinality,
        request_type: type[SendT],
        reply_type: type[RecvT],
        deadline: float | None,
        metadata: MetadataLike | None,
    ) -> None:
        self._channel = channel
        self._name = name
        self._streams_out, self._streams_in = cardinality.value
        self._request_type = request_type
        self._reply_type = reply_type
        self._deadline = deadline
        self._metadata = metadata
        self._call: Call | None = None
        self._ended = False
        self._sent = False

    @property
    def peer(self) -> Peer | None:
        """Who listens at the other end, where the kernel can tell."""
        return self._channel.peer

    @property
    def initial_metadata(self) -> Metadata | None:
        """The metadata of the response headers; None before they came."""
        if self._call is None or self._call.head is None:
            return None
        only_trailers = self._call.head is self._call.trailers
        return MultiDict() if only_trailers else MultiDict(decode_metadata(self._call.head.fields))

    @property
    def trailing_metadata(self) -> Metadata | None:
        """The metadata of the trailers; None before they came."""
        if self._call is None or self._call.trailers is None:
            return None
        return MultiDict(decode_metadata(self._call.trailers.fields))

    async def send_request(self, *, end: bool = False) -> None:
        """Send the request headers; `end` where a streaming request has no message at all."""
        if end and not self._streams_out:
            raise ProtocolError("a unary request needs its message before its end")
        call = await self._begin(end=end)
        await self._channel._until(self._channel._is_flushed, call, self._deadline)

    async def _begin(self, *, end: bool) -> Call:
        if self._call is not None:
            raise ProtocolError("the request was sent already")
        channel = self._channel
        head = request_head(self._name, channel._authority)
        if self._deadline is not None:
            remaining = self._deadline - trio.current_time()
            if remaining <= 0:
                raise GRPCError(_TIMED_OUT.status, _TIMED_OUT.message)
            head += timeout_field(remaining)
        if self._metadata:
            head += metadata_fields(self._metadata)
        call = self._call = Call(channel._connection, unary=not self._streams_in)
        self._ended = end
        await channel._open(call, head, self._deadline, end=end)
        return call

    async def send_message(self, message: SendT, *, end: bool = False) -> None:
        """Send a message, and the request headers before the first; the only one of a unary request ends it.

        Raises GRPCError if the call is over.
        """
        if self._ended:
            raise ProtocolError("the request was ended already")
        if not isinstance(message, self._request_type):
            raise TypeError(f"the message must be a {self._request_type.__name__}, not {message!r}")
        data = frame_message(message.SerializeToString())
        call = self._call or await self._begin(end=False)
        self._ended = end or not self._streams_out
        self._sent = True
        if call.outcome is None:
            await self._channel._send(call, data, self._deadline, end=self._ended)

    async def end(self) -> None:
        """End a streaming request that `send_message` did not end."""
        if self._call is None:
            raise ProtocolError("the request was not sent")
        if not self._streams_out:
            if not self._sent:
                raise ProtocolError("a unary request needs its message before its end")
            return
        if self._ended:
            raise ProtocolError("the request was ended already")
        self._ended = True
        if self._call.local_open:
            await self._channel._send(self._call, b"", self._deadline, end=True)

    async def recv_initial_metadata(self) -> None:
        """Wait for the response headers. Raises GRPCError if the call failed before or with them."""
        call = self._started()
        await self._channel._until(call.has_head, call, self._deadline)
        if call.outcome is not None and call.outcome.status is not Status.OK:
            _raise(call.outcome)

    async def recv_message(self) -> RecvT | None:
        """The next message; None at the end of the response. Raises GRPCError if the call failed."""
        call = self._started()
        if not call.messages:
            await self._channel._until(call.has_message, call, self._deadline)
        outcome = call.outcome
        if call.messages and (self._streams_in or outcome is None or outcome.status is Status.OK):
            return self._decode(call)
        if outcome is not None and outcome.status is not Status.OK:
            _raise(outcome)
        return None

    def _decode(self, call: Call) -> RecvT:
        try:
            return self._reply_type.FromString(call.take())
        except DecodeError as error:
            name = self._reply_type.__name__
            outcome = Outcome(Status.INTERNAL, f"the response is no valid {name}: {error}")
            call.cancel(outcome)
            raise GRPCError(outcome.status, outcome.message) from error

    async def recv_trailing_metadata(self) -> None:
        """Wait for the end of the response. Raises GRPCError if the call failed."""
        call = self._started()
        if not self._ended:
            raise ProtocolError("the request was not ended")
        await self._finish(call)

    async def _finish(self, call: Call) -> None:
        if call.outcome is None:
            while not call.has_ended():
                await self._channel._until(call.has_ended_or_message, call, self._deadline)
                while call.messages and call.outcome is None:
                    # Nobody will take these, and untaken messages hold the peer up.
                    call.take()
        assert call.outcome is not None
        if call.outcome.status is not Status.OK:
            _raise(call.outcome)

    def _started(self) -> Call:
        if self._call is None:
            raise ProtocolError("the request was not sent")
        return self._call

    async def cancel(self) -> None:
        """Reset the call, so that the peer works on it no longer."""
        self._started().cancel(_CANCELLED)
        await self._channel._flush()

    def __aiter__(self) -> AsyncIterator[RecvT]:
        return self

    async def __anext__(self) -> RecvT:
        message = await self.recv_message()
        if message is None:
            raise StopAsyncIteration
        return message

    async def __aenter__(self) -> "Stream[SendT, RecvT]":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        call = self._call
        if call is None:
            return
        outcome = call.outcome
        if outcome is None:
            if error is None and self._ended:
                try:
                    await self._finish(call)
                finally:
                    if call.outcome is None:
                        await self._give_up(call)
            else:
                await self._give_up(call)
        elif error is None and outcome.status is not Status.OK and outcome is not _CANCELLED:
            _raise(outcome)

    async def _give_up(self, call: Call) -> None:
        call.cancel(_CANCELLED)
        if not self._channel._closed:
            await self._channel._flush()


def _raise(outcome: Outcome) -> NoReturn:
    raise GRPCError(outcome.status, outcome.message) from outcome.cause

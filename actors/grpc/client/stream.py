"""One call on a ``Driver``, with the methods of ``grpclib.client.Stream``."""

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Final, Generic, NoReturn, TypeVar, cast

import trio
from google.protobuf.message import DecodeError, Message
from grpclib.const import Cardinality, Status
from grpclib.exceptions import GRPCError, ProtocolError
from multidict import MultiDict

from ....protocol.wire.grpc import (
    ClientCall,
    MetadataLike,
    Newest,
    frame_message,
    metadata_fields,
    request_head,
    timeout_field,
)
from ....protocol.wire.metadata import decode_metadata
from ....protocol.wire.outcomes import SUCCESS, CallOutcome
from ...io.unix_socket import Credentials
from .driver import TIMED_OUT, Driver

SendT = TypeVar("SendT", bound=Message)
RecvT = TypeVar("RecvT", bound=Message)

Metadata = MultiDict[str | bytes]

#: The outcome of a call that its caller gives up.
CANCELLED: Final = CallOutcome(Status.CANCELLED, "the call was cancelled")


class ClientStream(Generic[SendT, RecvT]):
    """One call, with the methods of ``grpclib.client.Stream``.

    Use it as ``async with method.open() as stream``. Leaving the block waits for the end of a call whose request has
    ended, and resets the call if its request has not ended or if the block raises.
    """

    __slots__ = (
        "_call",
        "_deadline",
        "_driver",
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
        driver: Driver,
        name: str,
        cardinality: Cardinality,
        request_type: type[SendT],
        reply_type: type[RecvT],
        deadline: float | None,
        metadata: MetadataLike | None,
    ) -> None:
        self._driver = driver
        self._name = name
        self._streams_out, self._streams_in = cardinality
        self._request_type = request_type
        self._reply_type = reply_type
        self._deadline = deadline
        self._metadata = metadata
        self._call: ClientCall | None = None
        self._ended = False
        self._sent = False

    @property
    def peer(self) -> Credentials | None:
        """The process that listens at the other end, if the kernel knows it."""
        return self._driver.peer

    @property
    def initial_metadata(self) -> Metadata | None:
        """The metadata of the response headers; None before they have come."""
        if self._call is None or self._call.head is None:
            return None
        only_trailers = self._call.head is self._call.trailers
        return MultiDict() if only_trailers else MultiDict(decode_metadata(self._call.head.fields))

    @property
    def trailing_metadata(self) -> Metadata | None:
        """The metadata of the trailers; None before they have come."""
        if self._call is None or self._call.trailers is None:
            return None
        return MultiDict(decode_metadata(self._call.trailers.fields))

    def resume(self, call: ClientCall) -> None:
        """Continue a unary call whose request was sent."""
        self._call, self._sent, self._ended = call, True, True

    async def send_request(self, *, end: bool = False) -> None:
        """Send the request headers; with ``end`` a streaming request has no message at all."""
        if end and not self._streams_out:
            raise ProtocolError("a unary request needs its message before its end")
        call = await self._begin(end=end)
        await self._driver.flushed(call, self._deadline)

    async def _begin(self, *, end: bool) -> ClientCall:
        if self._call is not None:
            raise ProtocolError("the request was sent already")
        call = self._open(end=end)
        if not call.id:
            await self._driver.open(call, self._head(), self._deadline, end=end)
        return call

    def _open(self, *, end: bool) -> ClientCall:
        """Begin the request if the peer accepts one more now; otherwise the call has no number."""
        driver = self._driver
        if driver.closed:
            raise trio.ClosedResourceError("this channel was closed")
        head = self._head()
        call = self._call = ClientCall(driver.sender, unary=not self._streams_in)
        self._ended = end
        if driver.sender.can_open:
            driver.sender.open(call, head, end=end)
        return call

    def _head(self) -> bytes:
        head = request_head(self._name, self._driver.authority)
        if self._deadline is not None:
            remaining = self._deadline - trio.current_time()
            if remaining <= 0:
                raise GRPCError(TIMED_OUT.status, TIMED_OUT.message)
            head += timeout_field(remaining)
        if self._metadata:
            head += metadata_fields(self._metadata)
        return head

    async def send_message(self, message: SendT, *, end: bool = False) -> None:
        """Send a message, and the request headers before the first. The only message of a unary request ends it.

        Raises:
            GRPCError: the deadline has passed.
        """
        if self._ended:
            raise ProtocolError("the request was ended already")
        if not isinstance(message, self._request_type):
            raise TypeError(f"the message must be a {self._request_type.__name__}, not {message!r}")
        self._sent = True
        data = frame_message(message.SerializeToString())
        if not end and self._streams_out:
            await self._send(data, end=False)
        elif self._call is not None or not self._send_whole(data):
            await self._send(data, end=True)
        elif self._driver.connection.outgoing:
            await self._driver.send_rest(self._started(), data, len(data), self._deadline, end=True)

    def _send_whole(self, data: bytes) -> bool:
        """Send the whole request at once, if possible; a part can stay in the connection."""
        driver = self._driver
        call = ClientCall(driver.sender, unary=not self._streams_in)
        if not driver.request_now(call, self._head(), data):
            return False
        self._call = call
        self._ended = True
        return True

    async def _send(self, data: bytes, *, end: bool) -> None:
        driver = self._driver
        call = self._call or self._open(end=False)
        self._ended = end
        if not call.id:
            await driver.open(call, self._head(), self._deadline, end=False)
        # The peer can answer or reset the call before it has the whole request.
        if call.local_open:
            sent = driver.send_now(call, data, end=end)
            if sent != len(data) or driver.connection.outgoing:
                await driver.send_rest(call, data, sent, self._deadline, end=end)

    async def end(self) -> None:
        """End a streaming request that ``send_message`` did not end."""
        if self._call is None:
            raise ProtocolError("the request was not sent")
        if not self._streams_out:
            if not self._sent:
                raise ProtocolError("a unary request needs its message before its end")
            return
        if self._ended:
            raise ProtocolError("the request was ended already")
        self._ended = True
        await self._send(b"", end=True)

    async def recv_initial_metadata(self) -> None:
        """Wait for the response headers.

        Raises:
            GRPCError: the call failed before or with them.
        """
        call = self._started()
        await self._driver.until(call.has_head, call, self._deadline)
        if call.outcome is not None and call.outcome.status is not Status.OK:
            _raise(call.outcome)

    async def recv_message(self) -> RecvT | None:
        """Return the next message; None at the end of the response.

        Raises:
            GRPCError: the call failed.
        """
        call = self._call or self._started()
        if not call.messages:
            await self._message_or_end(call)
        outcome = call.outcome
        if call.messages and (self._streams_in or outcome is None or outcome is SUCCESS):
            try:
                return self._reply_type.FromString(call.take())
            except DecodeError as error:
                self._undecodable(call, error)
        if outcome is not None and outcome is not SUCCESS:
            _raise(outcome)
        return None

    async def wait_message(self) -> None:
        """Wait until a message, or the end of the response, has come."""
        call = self._started()
        if not call.has_ended_or_message():
            await self._message_or_end(call)

    async def wait_end(self) -> None:
        """Wait until the end of the response has come, whether its messages were received or not."""
        call = self._started()
        await self._driver.until(call.has_ended, call, self._deadline)

    async def wait_turn(self) -> None:
        """Let other tasks run within the work for a message; only one connection does such work at a time."""
        await self._driver.wait_turn()

    async def recv_newest(self) -> Newest | None:
        """Return the newest message that has come, as bytes; None at the end of the response.

        Older unreceived messages are dropped. This is for streams in which each message replaces the one before. The
        peer can be ahead by the stream's window, so the waiting messages are bounded.

        Raises:
            GRPCError: the call failed.
        """
        call = self._started()
        if not call.messages:
            await self._message_or_end(call)
        if call.messages:
            return call.take_newest()
        if call.outcome is not None and call.outcome is not SUCCESS:
            _raise(call.outcome)
        return None

    async def _message_or_end(self, call: ClientCall) -> None:
        if self._deadline is None:
            await self._driver.wait(call.has_message, call)
        else:
            await self._driver.until(call.has_message, call, self._deadline)

    def _undecodable(self, call: ClientCall, error: DecodeError) -> NoReturn:
        outcome = undecodable(self._reply_type, error)
        call.cancel(outcome)
        raise GRPCError(outcome.status, outcome.message) from error

    async def recv_trailing_metadata(self) -> None:
        """Wait for the end of the response.

        Raises:
            GRPCError: the call failed.
        """
        call = self._started()
        if not self._ended:
            raise ProtocolError("the request was not ended")
        await self._finish(call)

    async def _finish(self, call: ClientCall) -> None:
        if call.outcome is None:
            while not call.has_ended():
                await self._driver.until(call.has_ended_or_message, call, self._deadline)
                while call.messages and call.outcome is None:
                    # Messages that are not taken would stop the peer.
                    call.take()
        assert call.outcome is not None
        if call.outcome.status is not Status.OK:
            _raise(call.outcome)

    def _started(self) -> ClientCall:
        if self._call is None:
            raise ProtocolError("the request was not sent")
        return self._call

    async def cancel(self) -> None:
        """Reset the call, so that the peer stops working on it."""
        self._started().cancel(CANCELLED)
        self._driver.flush()

    def __aiter__(self) -> AsyncIterator[RecvT]:
        return self

    async def __anext__(self) -> RecvT:
        message = await self.recv_message()
        if message is None:
            raise StopAsyncIteration
        return message

    async def __aenter__(self) -> "ClientStream[SendT, RecvT]":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        call = self._call
        if call is None or call.outcome is SUCCESS:
            return
        outcome = call.outcome
        if outcome is None:
            if error is None and self._ended:
                try:
                    await self._finish(call)
                finally:
                    if call.outcome is None:
                        self._give_up(call)
            else:
                self._give_up(call)
        elif error is None and outcome.status is not Status.OK and outcome is not CANCELLED:
            _raise(outcome)

    def _give_up(self, call: ClientCall) -> None:
        call.cancel(CANCELLED)
        if not self._driver.closed:
            self._driver.flush()


class _AtMost:
    """Replaces the class of an answer for parsing, and refuses one that is too long."""

    def __init__(self, parsed: type[Message], most: int) -> None:
        self._parsed = parsed
        self._most = most
        self.__name__ = parsed.__name__

    def FromString(self, message: bytes) -> Message:  # noqa: N802 - protobuf's name
        if len(message) > self._most:
            raise DecodeError(f"it has {len(message)} bytes, at most {self._most} are taken")
        return self._parsed.FromString(message)


def at_most(most: int, reply_type: type[RecvT]) -> type[RecvT]:
    """Return a parser of answers of at most ``most`` bytes. A longer one is refused before it is parsed.

    An answer of 4 MB can have two million entries; making objects of them takes a tenth of a second.
    """
    # A call uses only these attributes of the type of its answer.
    return cast("type[RecvT]", _AtMost(reply_type, most))


def undecodable(reply_type: type[Message], error: DecodeError) -> CallOutcome:
    """Return the outcome of a call whose answer is no valid message of this type (fault 72)."""
    return CallOutcome(Status.INTERNAL, f"the response is no valid {reply_type.__name__}: {error}")


def _raise(outcome: CallOutcome) -> NoReturn:
    raise GRPCError(outcome.status, outcome.message) from outcome.cause

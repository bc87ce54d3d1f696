"""The methods of generated stubs: what grpclib's classes of these names do on a channel, without their module.

``grpclib.client`` has a transport on asyncio, which nothing here uses and which takes as long to import as all of the
wire. A stub works on a channel of grpclib all the same, and a stub that grpclib's compiler plugin wrote works on ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from grpclib.const import Cardinality

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from grpclib.client import Channel, Stream

    Metadata = Mapping[str, str | bytes] | Collection[tuple[str, str | bytes]]

SendT = TypeVar("SendT")
RecvT = TypeVar("RecvT")


class ServiceMethod(Generic[SendT, RecvT]):
    """A method of a service, on one channel."""

    _cardinality: ClassVar[Cardinality]

    def __init__(self, channel: Channel, name: str, request_type: type[SendT], reply_type: type[RecvT]) -> None:
        self.channel = channel
        self.name = name
        self.request_type = request_type
        self.reply_type = reply_type

    def open(self, *, timeout: float | None = None, metadata: Metadata | None = None) -> Stream[SendT, RecvT]:
        """Return a call, of which nothing is sent yet; ``timeout`` is in seconds."""
        return self.channel.request(
            self.name, self._cardinality, self.request_type, self.reply_type, timeout=timeout, metadata=metadata
        )


class UnaryUnaryMethod(ServiceMethod[SendT, RecvT]):
    """A method with one request and one response."""

    _cardinality = Cardinality.UNARY_UNARY

    async def __call__(
        self, message: SendT, *, timeout: float | None = None, metadata: Metadata | None = None
    ) -> RecvT:
        """Call it and return the response."""
        async with self.open(timeout=timeout, metadata=metadata) as stream:
            await stream.send_message(message, end=True)
            reply = await stream.recv_message()
        assert reply is not None
        return reply


class UnaryStreamMethod(ServiceMethod[SendT, RecvT]):
    """A method with one request and a stream of responses."""

    _cardinality = Cardinality.UNARY_STREAM

    async def __call__(
        self, message: SendT, *, timeout: float | None = None, metadata: Metadata | None = None
    ) -> list[RecvT]:
        """Call it and return all responses."""
        async with self.open(timeout=timeout, metadata=metadata) as stream:
            await stream.send_message(message, end=True)
            return [message async for message in stream]

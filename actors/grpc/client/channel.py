"""A gRPC channel on Trio, with the part of ``grpclib.client.Channel`` that generated stubs use, without asyncio.

A channel is one connection without a background task: see ``plugind.actors.grpc.client.driver``. Nothing reads an idle
channel. A task that must learn when the connection ends, and have keep-alive answered meanwhile, waits in
``Channel.wait_closed``.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, cast

import trio
from grpclib.const import Cardinality
from grpclib.metadata import Deadline

from ....protocol.wire.grpc import MetadataLike
from ....protocol.wire.limits import DEFAULT_LIMITS, WireLimits
from ...io.unix_socket import Credentials
from .driver import END, Driver
from .stream import ClientStream, RecvT, SendT
from .transport import Transport
from .turns import Shared

if TYPE_CHECKING:
    # It imports asyncio.
    import grpclib.client

StubT = TypeVar("StubT")


async def the_answer(stream: ClientStream[SendT, RecvT]) -> RecvT:
    """Return the answer to a unary call whose request was sent."""
    reply = await stream.recv_message()
    assert reply is not None, "a unary call that ends well has a message"
    return reply


class Channel(Driver):
    """One connection to a plugin, for any number of successive or concurrent calls.

    ``peer`` is the process that listens at the other end, if the kernel knows it. ``shared`` is the state that the
    connections of a node share. Calls raise ``grpclib.exceptions.GRPCError``. If the status comes from plugind and not
    from the plugin, its ``__cause__`` is the ``WireError`` with the rule or limit that ended the call.
    """

    __slots__ = ()

    def __init__(
        self,
        transport: Transport,
        *,
        authority: str = "localhost",
        limits: WireLimits = DEFAULT_LIMITS,
        peer: Credentials | None = None,
        shared: Shared | None = None,
    ) -> None:
        super().__init__(transport, authority, limits, peer, shared or Shared())

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
    ) -> ClientStream[SendT, RecvT]:
        """Return a call of the method ``name``, of which nothing is sent yet. Generated stubs call this.

        ``timeout`` is in seconds from now; ``deadline`` is a time on Trio's clock or grpclib's ``Deadline``. The
        earlier one counts.
        """
        if isinstance(deadline, Deadline):
            deadline = trio.current_time() + deadline.time_remaining()
        if timeout is not None:
            soonest = trio.current_time() + timeout
            deadline = soonest if deadline is None else min(soonest, deadline)
        return ClientStream(self, name, cardinality, request_type, reply_type, deadline, metadata)

    def stub(self, stub: Callable[[grpclib.client.Channel], StubT]) -> StubT:
        """Return a generated stub on this channel: ``channel.stub(RegistrationStub)``."""
        # The stub's annotation requires grpclib's channel, but a stub uses only what is here.
        return stub(cast("grpclib.client.Channel", self))

    async def unary(self, path: str, request: SendT, reply_type: type[RecvT]) -> RecvT:
        """Make one call as a generated stub does, and return the answer.

        Raises:
            GRPCError: the call failed.
        """
        stream = self.request(path, Cardinality.UNARY_UNARY, type(request), reply_type)
        async with stream:
            await stream.send_message(request, end=True)
            return await the_answer(stream)

    @property
    def takes_calls(self) -> bool:
        """Whether more calls can be made: the connection has not failed, and the peer has not sent GOAWAY."""
        return self.connection.failure is None and self.connection.sender.refusal is None

    @property
    def is_idle(self) -> bool:
        """Whether no call is under way."""
        return not self.connection.sender.streams

    @property
    def needs_reader(self) -> bool:
        """Whether the channel is open and no task waits on it."""
        return not (self.closed or self._leading or self._parked)

    async def wait_closed(self) -> str:
        """Wait until the connection ends, and return why. Meanwhile it is read, and keep-alive is answered."""
        self._transport.expect_nothing()
        await self.wait(self._has_failed, END)
        assert self.connection.failure is not None
        return str(self.connection.failure)

    async def __aenter__(self) -> Channel:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def _has_failed(self) -> bool:
        return self.connection.failure is not None

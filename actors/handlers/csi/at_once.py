"""The calls that register a CSI driver, made concurrently on one connection.

A driver gets all calls together and can answer in any order. The answers are examined in the order of the calls. Each
call has as much time as if it were made after the end of the call before it.

Calls that a driver refuses because there are too many at once are made again, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from google.protobuf.message import DecodeError
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ....protocol.wire.grpc import ClientCall
from ....protocol.wire.outcomes import SUCCESS
from ...grpc.client.at_once import CallsAtOnce
from ...grpc.client.channel import Channel
from .methods import A, AnyMethod, Counted, Method, Q, ask


class AskedAtOnce:
    """Makes several calls to a driver at once. Leaving the block ends the calls whose answers were not examined."""

    def __init__(self, channel: Channel, methods: Sequence[AnyMethod], counted: Counted) -> None:
        self._channel = channel
        self._counted = counted
        self._under_way = CallsAtOnce(
            channel, [method.sent for method in methods], sum(method.timeout for method in methods)
        )
        #: The calls whose answers were not examined yet.
        self._left = dict(zip(methods, self._under_way.calls, strict=True))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._under_way.give_up()
        for method, call in self._left.items():
            if not self._under_way.is_refused(call):
                self._count(method, call)

    async def answer(self, method: Method[Q, A]) -> A | GRPCError:
        """Return the driver's answer to ``method``, or the error with which the call failed."""
        call = self._left[method]
        if call.outcome is None:
            await self._under_way.wait(call, method.timeout)
        del self._left[method]
        if self._under_way.is_refused(call):
            return await ask(self._channel, method, self._counted)
        said = _said(method, call)
        self._count(method, call, said)
        return said

    def _count(self, method: AnyMethod, call: ClientCall, said: object = None) -> None:
        assert call.outcome is not None, "it has ended"
        status = said.status if isinstance(said, GRPCError) else call.outcome.status
        self._counted(method, status, self._under_way.seconds(call))


def _said(method: Method[Q, A], call: ClientCall) -> A | GRPCError:
    """Return the answer to a call that has ended, or its error."""
    outcome = call.outcome
    assert outcome is not None, "it has ended"
    if outcome is not SUCCESS:
        error = GRPCError(outcome.status, outcome.message)
        error.__cause__ = outcome.cause
        return error
    try:
        return method.reply.FromString(call.take())
    except DecodeError as error:
        return GRPCError(Status.INTERNAL, f"the response is no valid {method.reply.__name__}: {error}")

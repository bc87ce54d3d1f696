"""Several unary calls of one connection that are made at once.

All requests go out in one piece, and one task waits for the answers, which often come in one piece too. Calls that are
made one after another cost a write, a deadline and a pass of Trio's loop or two each.
"""

from collections.abc import Sequence
from typing import Final

import attrs
import trio
from grpclib.const import Status

from ....protocol.wire.errors import WireProblem
from ....protocol.wire.grpc import ClientCall, request_head, timeout_field
from ....protocol.wire.outcomes import REFUSED, CallOutcome
from .driver import TIMED_OUT, Driver

_GIVEN_UP: Final = CallOutcome(Status.CANCELLED, "the call was given up")
_CLOSED: Final = CallOutcome(Status.UNAVAILABLE, "the connection to the endpoint was closed")


@attrs.frozen
class UnaryRequest:
    """The whole request of a call."""

    path: str
    #: The message behind gRPC's prefix.
    data: bytes


class CallsAtOnce:
    """The calls of one connection that were begun together. Only one task may wait for them."""

    __slots__ = ("_began", "_driver", "_ended", "_has_looked", "_last", "_pending", "calls")

    def __init__(self, driver: Driver, requests: Sequence[UnaryRequest], timeout: float) -> None:
        """Send all requests that the peer takes at once. It is told that each has ``timeout`` seconds."""
        sender, authority, field = driver.sender, driver.authority, timeout_field(timeout)
        self._driver = driver
        #: All calls, in the order of the requests. Those that were not begun have no number.
        self.calls: list[ClientCall] = []
        for request in requests:
            call = ClientCall(sender, unary=True)
            if sender.can_open and not driver.closed:
                sender.request(call, request_head(request.path, authority) + field, request.data)
            self.calls.append(call)
        driver.flush()
        self._pending = [call for call in self.calls if call.id]
        #: When they began, when each has ended, and when one ended last, on Trio's clock.
        self._began = self._last = trio.current_time()
        self._ended: dict[ClientCall, float] = {}
        self._has_looked = False

    def is_refused(self, call: ClientCall) -> bool:
        """Whether the peer did not take the call together with the others: it has done nothing about it."""
        if not call.id or call.outcome is REFUSED:
            return True
        # It may also call it a violation that there are more than it allows (RFC 9113 section 5.1.2), though it says
        # that only after they came.
        most, outcome = self._driver.sender.max_streams, call.outcome
        if most is None or most >= len(self.calls) or outcome is None or outcome.cause is None:
            return False
        return outcome.cause.problem is WireProblem.PROTOCOL and call.head is None

    def seconds(self, call: ClientCall) -> float:
        """Return how long a call took that has ended."""
        return self._ended.get(call, self._last) - self._began

    async def wait(self, call: ClientCall, timeout: float) -> None:
        """Wait until the call has ended. It has ``timeout`` seconds from the moment when another one ended last.

        A peer that answers one call at a time therefore has as much time for each as if they were made in turn.
        """
        try:
            if not self._has_looked:
                self._has_looked = True
                await self._driver.look()
                self._note_ended()
            while call.id and call.outcome is None:
                await self._wait(call, timeout)
        except trio.ClosedResourceError:
            self._end_all(_CLOSED)

    async def _wait(self, call: ClientCall, timeout: float) -> None:
        with trio.CancelScope(deadline=self._last + timeout) as scope:
            while call.outcome is None:
                await self._driver.wait(self._has_news, None)
                self._note_ended()
                scope.deadline = self._last + timeout
        if scope.cancelled_caught:
            call.cancel(TIMED_OUT)
            self._driver.flush()
            self._note_ended()

    def _has_news(self) -> bool:
        return any(call.outcome is not None for call in self._pending)

    def _note_ended(self) -> None:
        ended = [call for call in self._pending if call.outcome is not None]
        if ended:
            self._last = trio.current_time()
            self._ended.update(dict.fromkeys(ended, self._last))
            self._pending = [call for call in self._pending if call.outcome is None]

    def give_up(self) -> None:
        """Reset the calls that have not ended."""
        if self._pending:
            self._end_all(_GIVEN_UP)
            self._driver.flush()

    def _end_all(self, outcome: CallOutcome) -> None:
        for call in self._pending:
            call.cancel(outcome)
        self._note_ended()

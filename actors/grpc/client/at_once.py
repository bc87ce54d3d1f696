"""Several concurrent unary calls on one connection.

All requests are sent in one write, and one task waits for the answers, which often come in one read too. Successive
calls would each cost a write, a deadline and one or two passes of Trio's loop.
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
    #: The message with gRPC's prefix.
    data: bytes


class CallsAtOnce:
    """Concurrent calls on one connection. Only one task can wait for them."""

    __slots__ = ("_began", "_driver", "_ended", "_has_looked", "_last", "_pending", "calls")

    def __init__(self, driver: Driver, requests: Sequence[UnaryRequest], timeout: float) -> None:
        """Send all requests that the peer accepts at once; the peer is told that each has ``timeout`` seconds."""
        sender, authority, field = driver.sender, driver.authority, timeout_field(timeout)
        self._driver = driver
        #: All calls, in the order of the requests. Calls that were not begun have no number.
        self.calls: list[ClientCall] = []
        for request in requests:
            call = ClientCall(sender, unary=True)
            if sender.can_open and not driver.closed:
                sender.request(call, request_head(request.path, authority) + field, request.data)
            self.calls.append(call)
        driver.flush()
        self._pending = [call for call in self.calls if call.id]
        #: When the calls began, when each ended, and when the last one so far ended, on Trio's clock.
        self._began = self._last = trio.current_time()
        self._ended: dict[ClientCall, float] = {}
        self._has_looked = False

    def is_refused(self, call: ClientCall) -> bool:
        """Whether the peer refused the call because there were too many; then it has done nothing for it."""
        if not call.id or call.outcome is REFUSED:
            return True
        # A peer can also treat too many streams as a violation (RFC 9113 section 5.1.2), even if it sent its limit
        # late.
        most, outcome = self._driver.sender.max_streams, call.outcome
        if most is None or most >= len(self.calls) or outcome is None or outcome.cause is None:
            return False
        return outcome.cause.problem is WireProblem.PROTOCOL and call.head is None

    def seconds(self, call: ClientCall) -> float:
        """Return how long a call took that has ended."""
        return self._ended.get(call, self._last) - self._began

    async def wait(self, call: ClientCall, timeout: float) -> None:
        """Wait until the call has ended. It has ``timeout`` seconds from the end of the call that ended last.

        So a peer that answers one call at a time has as much time for each as for successive calls.
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

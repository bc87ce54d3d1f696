"""One request on a stream, and the answer to it: the bytes of both.

A request of the usual form is read at one look (``plugind.protocol.http.simple_requests``). h11 reads all others, and
frames the answers that are sent piece by piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
import trio

from ...protocol.http.simple_requests import SimpleRequest, head_of, read
from ..io.client_streams import ClientStream
from .errors import check_head

if TYPE_CHECKING:
    from .machine import Machine

Headers = Sequence[tuple[str, str]]


@attrs.define(eq=False)
class HttpExchange:
    """What is received and sent on one connection."""

    stream: trio.abc.Stream
    _most_header: int
    _most_body: int
    #: All that was received, if it was a request of the usual form.
    _received: bytes = b""
    #: The version of the status socket in which the client is answered.
    version: int = 1
    _machine: Machine | None = None

    async def receive(self) -> SimpleRequest:
        """Return the request, once it is whole.

        Raises:
          BadRequestError: if it is none.
          TooLargeError: if its body is over the limit.
          trio.BrokenResourceError: if the client left before it sent anything, or in the midst of it.
        """
        first = bytes(await self.stream.receive_some(65536))
        if not first:
            raise trio.BrokenResourceError("the client closed before it sent a request")
        request = read(first)
        if request is None or len(request.body) > self._most_body:
            self._machine = self._new_machine(first)
            return await self._machine.receive(self.stream, self._most_body)
        check_head(len(first) - len(request.body), self._most_header)
        self._received = first
        return request

    def _new_machine(self, received: bytes) -> Machine:
        from .machine import Machine

        return Machine(received, self._most_header)

    # --- the answer ---------------------------------------------------------------------------------------------------

    async def send(self, status: int, headers: Headers, body: bytes, length: int, seconds: float) -> None:
        """Send a whole answer within ``seconds``; ``length`` is that of its body, which is left out for HEAD.

        Raises:
          trio.TooSlowError: if the client does not take it in time.
          OSError: if the client has left; so does trio.BrokenResourceError.
        """
        answer = head_of(status, (*headers, ("Content-Length", str(length)))) + body
        sent = self._send_at_once(answer)
        if sent < len(answer):
            with trio.fail_after(seconds):
                await self.stream.send_all(answer[sent:])

    def _send_at_once(self, data: bytes) -> int:
        """Send as much as there is room for; return how much that is. Most answers need no deadline therefore."""
        return self.stream.send_now(data) if isinstance(self.stream, ClientStream) else 0

    async def close(self) -> None:
        """End the connection."""
        if isinstance(self.stream, ClientStream):
            self.stream.close()  # Without the turn of the loop that a stream gives to others.
        else:
            await trio.aclose_forcefully(self.stream)

    def begin(self, status: int, headers: Headers) -> bytes:
        """Return the head of an answer that is sent piece by piece."""
        if self._machine is None:
            self._machine = self._new_machine(self._received)
            self._machine.skip_request()
        return self._machine.begin(status, headers)

    def go_on(self, piece: bytes) -> bytes:
        """Return the bytes of one piece of the body."""
        return self._begun.go_on(piece)

    def end(self) -> bytes:
        """Return the bytes of the end of the body."""
        return self._begun.end()

    @property
    def _begun(self) -> Machine:
        assert self._machine is not None, "the answer has begun"
        return self._machine

"""One request on a stream, and the answer to it: the bytes of both.

A request of the usual form is read at one look (``plugind.protocol.simple_requests``). h11 reads all others, and frames
the answers that are sent piece by piece.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

import attrs
import h11
import trio

from ...protocol.simple_requests import SimpleRequest, head_of, read
from .client_streams import ClientStream

Headers = Sequence[tuple[str, str]]


class TooLargeError(Exception):
    """The body is over the limit."""


@attrs.define(eq=False)
class HttpExchange:
    """What is received and sent on one connection."""

    stream: trio.abc.Stream
    _most_header: int
    _most_body: int
    #: All that was received, if it was a request of the usual form.
    _received: bytes = b""
    _machine: h11.Connection | None = None

    async def receive(self) -> SimpleRequest:
        """Return the request, once it is whole.

        Raises:
          h11.RemoteProtocolError: if it is none.
          TooLargeError: if its body is over the limit.
          trio.BrokenResourceError: if the client left before it sent anything, or in the midst of it.
        """
        first = bytes(await self.stream.receive_some(65536))
        if not first:
            raise trio.BrokenResourceError("the client closed before it sent a request")
        request = read(first)
        if request is None or len(request.body) > self._most_body:
            self._machine = self._new_machine(first)
            return await self._receive_by(self._machine)
        self._received = first
        return request

    def _new_machine(self, received: bytes) -> h11.Connection:
        machine = h11.Connection(h11.SERVER, max_incomplete_event_size=self._most_header)
        machine.receive_data(received)
        return machine

    async def _receive_by(self, machine: h11.Connection) -> SimpleRequest:
        head: h11.Request | None = None
        body = bytearray()
        while True:
            event = machine.next_event()
            if event is h11.NEED_DATA:
                await self._receive_more(machine)
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > self._most_body:
                    raise TooLargeError
            elif head is None:
                raise trio.BrokenResourceError("the client closed before it sent a request")
            else:
                return _simple(head, bytes(body))

    async def _receive_more(self, machine: h11.Connection) -> None:
        if machine.they_are_waiting_for_100_continue:
            await self.stream.send_all(_sent(machine, h11.InformationalResponse(status_code=100, headers=[])))
        data = bytes(await self.stream.receive_some(65536))
        if not data and machine.their_state is h11.IDLE and not machine.trailing_data[0]:
            raise trio.BrokenResourceError("the client closed before it sent a request")
        machine.receive_data(data)

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
            while not isinstance(self._machine.next_event(), h11.EndOfMessage):
                pass
        phrase = HTTPStatus(status).phrase.encode("ascii")
        headers = [*headers, ("Connection", "close")]
        return _sent(self._machine, h11.Response(status_code=status, headers=headers, reason=phrase))

    def go_on(self, piece: bytes) -> bytes:
        """Return the bytes of one piece of the body."""
        return _sent(self._begun, h11.Data(data=piece))

    def end(self) -> bytes:
        """Return the bytes of the end of the body."""
        return _sent(self._begun, h11.EndOfMessage())

    @property
    def _begun(self) -> h11.Connection:
        assert self._machine is not None, "the answer has begun"
        return self._machine


def _sent(machine: h11.Connection, event: h11.Event) -> bytes:
    return machine.send(event) or b""


def _simple(head: h11.Request, body: bytes) -> SimpleRequest:
    if head.http_version not in (b"1.0", b"1.1"):
        raise h11.RemoteProtocolError("only HTTP/1.1 is supported", error_status_hint=505)
    try:
        return SimpleRequest(head.method.decode("ascii"), head.target.decode("ascii"), body)
    except ValueError as error:
        raise h11.RemoteProtocolError(f"the request's target cannot be read: {error}") from error

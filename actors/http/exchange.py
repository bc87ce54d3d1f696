"""One request on a stream, which h11 reads, and the answer to it, which h11 frames."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

import h11
import trio

from ...protocol.values import value
from ...protocol.version import STATUS_FIELD, spoken
from ..io.client_streams import AcceptedStream

Headers = Sequence[tuple[str, str]]
#: How h11 shows the bytes that it could not read.
_SHOWN_BYTES: Final = re.compile(r"""bytearray\(b('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\)""")


class BadRequestError(Exception):
    """What was received is no request; ``status`` is that of the answer."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


class TooLargeError(Exception):
    """The body of a request is over the limit."""


@value
class Received:
    """A request as it was sent: the target is percent-encoded."""

    method: str
    target: str
    body: bytes
    #: The header ``Host``; None if there is none, which HTTP/1.0 permits.
    host: str | None
    #: The header ``Authorization``; None if there is none, or more than one.
    authorization: str | None
    #: In which version of the status socket the client is answered.
    version: int
    #: Whether the header ``Accept`` asks for text alone.
    plain: bool


class HttpExchange:
    """What is received and sent on one connection."""

    def __init__(self, stream: trio.abc.Stream, most_header: int, most_body: int) -> None:
        self.stream = stream
        #: The version of the status socket in which the client is answered.
        self.version = 1
        #: Whether the client asks for errors as text.
        self.plain = False
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=most_header)
        self._most_header = most_header
        self._most_body = most_body
        #: How many bytes were received.
        self._received = 0

    async def receive(self) -> Received:
        """Return the request, once it is whole.

        Raises:
          BadRequestError: if it is none.
          TooLargeError: if its body is over the limit.
          trio.BrokenResourceError: if the client left before it sent anything, or in the midst of it.
        """
        try:
            return await self._receive()
        except h11.RemoteProtocolError as error:
            if error.error_status_hint == 431:
                raise self._head_too_long() from error
            # h11 shows the bytes as its buffer has them.
            raise BadRequestError(_SHOWN_BYTES.sub(r"\1", str(error)), error.error_status_hint) from error

    def _head_too_long(self) -> BadRequestError:
        return BadRequestError(f"its head is over {self._most_header} bytes", 431)

    async def _receive(self) -> Received:
        head: h11.Request | None = None
        body = bytearray()
        while True:
            event = self._h11.next_event()
            if event is h11.NEED_DATA:
                await self._receive_more(head)
            elif isinstance(event, h11.Request):
                head = event
                # h11 has a limit only for a head that is not whole yet.
                if self._received - len(self._h11.trailing_data[0]) > self._most_header:
                    raise self._head_too_long()
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > self._most_body:
                    raise TooLargeError
            elif head is None:
                raise trio.BrokenResourceError("the client closed before it sent a request")
            else:
                return _request(head, bytes(body))

    async def _receive_more(self, head: h11.Request | None) -> None:
        if self._h11.they_are_waiting_for_100_continue:
            if head is not None and _least_body(head) > self._most_body:
                raise TooLargeError
            await self.stream.send_all(self._framed(h11.InformationalResponse(status_code=100, headers=[])))
        data = bytes(await self.stream.receive_some(65536))
        if not data and self._h11.their_state is h11.IDLE and not self._h11.trailing_data[0]:
            raise trio.BrokenResourceError("the client closed before it sent a request")
        self._received += len(data)
        self._h11.receive_data(data)

    # --- the answer ---------------------------------------------------------------------------------------------------

    async def send(self, status: int, headers: Headers, body: bytes, length: int, seconds: float) -> None:
        """Send a whole answer within ``seconds``; ``length`` is that of its body, which is left out for HEAD.

        Raises:
          trio.TooSlowError: if the client does not take it in time.
          OSError: if the client has left; so does trio.BrokenResourceError.
        """
        answer = self.begin(status, (*headers, ("Content-Length", str(length))))
        answer += self.go_on(body) + self.end()
        # Most answers have room at once, and need no deadline therefore.
        sent = self.stream.send_now(answer) if isinstance(self.stream, AcceptedStream) else 0
        if sent < len(answer):
            with trio.fail_after(seconds):
                await self.stream.send_all(answer[sent:])

    def begin(self, status: int, headers: Headers) -> bytes:
        """Return the head of an answer, after which the connection is closed."""
        reason = HTTPStatus(status).phrase.encode("ascii")
        return self._framed(
            h11.Response(status_code=status, headers=[*headers, ("Connection", "close")], reason=reason)
        )

    def go_on(self, piece: bytes) -> bytes:
        """Return the bytes of one piece of the body."""
        return self._framed(h11.Data(data=piece)) if piece else b""

    def end(self) -> bytes:
        """Return the bytes of the end of the body."""
        return self._framed(h11.EndOfMessage())

    def _framed(self, event: h11.Event) -> bytes:
        return self._h11.send(event) or b""

    async def close(self) -> None:
        """End the connection."""
        if isinstance(self.stream, AcceptedStream):
            self.stream.close()  # Without the turn of the loop that a stream gives to others.
        else:
            await trio.aclose_forcefully(self.stream)


def _least_body(head: h11.Request) -> int:
    """Return how many bytes the body has that is announced; of one in chunks only that it has some is known."""
    length = next((int(text) for name, text in head.headers if name == b"content-length"), None)
    return 1 if length is None else length


def _request(head: h11.Request, body: bytes) -> Received:
    if head.http_version not in (b"1.0", b"1.1"):
        raise BadRequestError("only HTTP/1.0 and HTTP/1.1 are supported", 505)
    # h11 refuses a second one.
    host = next((text.decode("latin-1") for name, text in head.headers if name == b"host"), None)
    credentials = [text.decode("latin-1") for name, text in head.headers if name == b"authorization"]
    authorization = credentials[0] if len(credentials) == 1 else None
    version = spoken(next((text for name, text in head.headers if name == STATUS_FIELD), None))
    # Some libraries accept JSON, plain text and all else: they get JSON.
    plain = [text for name, text in head.headers if name == b"accept"] == [b"text/plain"]
    try:
        method, target = head.method.decode("ascii"), head.target.decode("ascii")
        return Received(method, target, body, host, authorization, version, plain)
    except ValueError as error:
        raise BadRequestError(f"the request's target cannot be read: {error}") from error

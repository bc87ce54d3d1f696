"""A request of any form on a stream, which h11 reads, and an answer that it frames.

Few requests need it, so it is imported for the first of them: that takes as long as all the rest of the server.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Final

import h11
import trio

from ...protocol.http.simple_requests import SimpleRequest
from ...protocol.version import STATUS_FIELD, spoken
from .errors import BadRequestError, TooLargeError, check_head

Headers = Sequence[tuple[str, str]]
_SHOWN_BYTES: Final = re.compile(r"""bytearray\(b('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\)""")


class Machine:
    """One request, and the answer to it."""

    def __init__(self, received: bytes, most_header: int) -> None:
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=most_header)
        self._most_header = most_header
        self._received = 0
        self._receive_data(received)

    async def receive(self, stream: trio.abc.Stream, most_body: int) -> SimpleRequest:
        """Return the request, once it is whole.

        Raises:
          BadRequestError: if it is none.
          TooLargeError: if its body is over the limit.
          trio.BrokenResourceError: if the client left before it sent anything, or in the midst of it.
        """
        with _refusing():
            return await self._receive(stream, most_body)

    async def _receive(self, stream: trio.abc.Stream, most_body: int) -> SimpleRequest:
        head: h11.Request | None = None
        body = bytearray()
        while True:
            event = self._h11.next_event()
            if event is h11.NEED_DATA:
                await self._receive_more(stream, head, most_body)
            elif isinstance(event, h11.Request):
                head = event
                # h11 has a limit only for a head that is not whole yet.
                check_head(self._received - len(self._h11.trailing_data[0]), self._most_header)
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > most_body:
                    raise TooLargeError
            elif head is None:
                raise trio.BrokenResourceError("the client closed before it sent a request")
            else:
                return _simple(head, bytes(body))

    async def _receive_more(self, stream: trio.abc.Stream, head: h11.Request | None, most_body: int) -> None:
        if self._h11.they_are_waiting_for_100_continue:
            if head is not None and _least_body(head) > most_body:
                raise TooLargeError
            await stream.send_all(self._sent(h11.InformationalResponse(status_code=100, headers=[])))
        data = bytes(await stream.receive_some(65536))
        if not data and self._h11.their_state is h11.IDLE and not self._h11.trailing_data[0]:
            raise trio.BrokenResourceError("the client closed before it sent a request")
        self._receive_data(data)

    def _receive_data(self, data: bytes) -> None:
        self._received += len(data)
        self._h11.receive_data(data)

    def skip_request(self) -> None:
        """Take note of a request that was read already."""
        while not isinstance(self._h11.next_event(), h11.EndOfMessage):
            pass

    # --- the answer ---------------------------------------------------------------------------------------------------

    def begin(self, status: int, headers: Headers) -> bytes:
        """Return the head of an answer that is sent piece by piece."""
        phrase = HTTPStatus(status).phrase.encode("ascii")
        headers = [*headers, ("Connection", "close")]
        return self._sent(h11.Response(status_code=status, headers=headers, reason=phrase))

    def go_on(self, piece: bytes) -> bytes:
        """Return the bytes of one piece of the body."""
        return self._sent(h11.Data(data=piece))

    def end(self) -> bytes:
        """Return the bytes of the end of the body."""
        return self._sent(h11.EndOfMessage())

    def _sent(self, event: h11.Event) -> bytes:
        return self._h11.send(event) or b""


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except h11.RemoteProtocolError as error:
        # h11 shows the bytes as its buffer has them.
        raise BadRequestError(_SHOWN_BYTES.sub(r"\1", str(error)), error.error_status_hint) from error


def _least_body(head: h11.Request) -> int:
    """Return how many bytes the body has that is announced; of one in chunks only that it has some is known."""
    length = next((int(text) for name, text in head.headers if name == b"content-length"), None)
    return 1 if length is None else length


def _simple(head: h11.Request, body: bytes) -> SimpleRequest:
    if head.http_version not in (b"1.0", b"1.1"):
        raise BadRequestError("only HTTP/1.1 is supported", 505)
    # h11 refuses a second one.
    host = next((text.decode("latin-1") for name, text in head.headers if name == b"host"), None)
    credentials = [text.decode("latin-1") for name, text in head.headers if name == b"authorization"]
    authorization = credentials[0] if len(credentials) == 1 else None
    version = spoken(next((text for name, text in head.headers if name == STATUS_FIELD), None))
    try:
        method, target = head.method.decode("ascii"), head.target.decode("ascii")
        return SimpleRequest(method, target, body, host, authorization, version)
    except ValueError as error:
        raise BadRequestError(f"the request's target cannot be read: {error}") from error

"""What a client of the status socket sends and reads, without a socket: h11 frames the request and reads the answer."""

from __future__ import annotations

from typing import Final, NamedTuple

import h11

from ...protocol.version import STATUS_HEADER, STATUS_VERSION, incompatibility

_NOT_HTTP: Final = "the answer is not whole or not HTTP"
#: A daemon that is killed does that to those who wait in line.
_CUT_OFF: Final = "it closed the connection before the end of the answer, as when it is killed: ask again"


class NotHttpError(Exception):
    """The answer is not whole, too large, not HTTP, or of a daemon that cannot be asked; the text says which."""


class Head(NamedTuple):
    """The status and the headers of an answer."""

    status: int
    headers: dict[str, str]
    #: The version of the status socket; None with a daemon that does not say it.
    version: str | None


class Asking:
    """One request, and its answer as it arrives."""

    def __init__(self, method: str, target: str, body: bytes) -> None:
        self._http = h11.Connection(h11.CLIENT)
        headers = [
            *(("Host", "plugind"), ("Connection", "close"), ("Content-Length", str(len(body)))),
            (STATUS_HEADER, str(STATUS_VERSION)),
        ]
        events = (h11.Request(method=method, target=target, headers=headers), h11.Data(data=body), h11.EndOfMessage())
        self._closed = False
        #: The bytes to send.
        self.sent = b"".join([self._http.send(event) or b"" for event in events])

    def receive(self, data: bytes) -> None:
        """Take what came; nothing is the end."""
        self._closed = not data
        try:
            self._http.receive_data(data)
        except h11.RemoteProtocolError as error:
            raise NotHttpError(f"{_NOT_HTTP}: {error}") from error

    def head(self) -> Head | None:
        """Return the head of the answer; None if more has to come.

        Raises:
          NotHttpError: if it is no head, or that of a daemon that cannot be asked.
        """
        event = self._next()
        if event is h11.NEED_DATA:
            return None
        if not isinstance(event, h11.Response):
            raise NotHttpError(_CUT_OFF if event.__class__ is h11.ConnectionClosed else _NOT_HTTP)
        headers = {name.decode("ascii"): text.decode("latin-1") for name, text in event.headers}
        version = headers.get(STATUS_HEADER.lower())
        if (why := incompatibility(version)) is not None:
            raise NotHttpError(why)
        return Head(event.status_code, headers, version)

    def piece(self) -> bytes | None:
        """Return the next part of the body, nothing at its end; None if more has to come.

        Raises:
          NotHttpError: if the body is not whole.
        """
        event = self._next()
        if event is h11.NEED_DATA:
            return None
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    def _next(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        try:
            return self._http.next_event()
        except h11.RemoteProtocolError as error:
            raise NotHttpError(_CUT_OFF if self._closed else f"{_NOT_HTTP}: {error}") from error

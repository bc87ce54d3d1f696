"""GET requests in HTTP/1.1 to a server of this machine, on a TCP port, with or without TLS.

Each request has a connection of its own and one deadline, and its answer is kept whole, up to a limit.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Final

import h11
import trio

from ...protocol.values import value

if TYPE_CHECKING:
    import ssl

_PORTS: Final = {"http": 80, "https": 443}


class HttpGetError(Exception):
    """There is no answer of use; the text says why."""


@value
class Tls:
    """By what a server is known, and we are."""

    #: The file with the certificates of authorities; None for those of the system.
    authorities: str | None = None
    #: The files with the certificate and the key of the client; the key may be in the first one.
    certificate: str | None = None
    key: str | None = None
    #: The name that is in the certificate of the server; None for that in the address.
    name: str | None = None


@value
class Origin:
    """A server, by its address."""

    host: str
    port: int
    #: None for no TLS.
    tls: Tls | None = None

    def __str__(self) -> str:
        """Return the address without its scheme."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def origin(address: str, tls: Tls) -> Origin:
    """Return the server at an address such as ``https://127.0.0.1:4646``.

    Raises:
      ValueError: if it is no such address.
    """
    # Only those who give an address need this module.
    from urllib.parse import urlsplit

    parts = urlsplit(address)
    usual = _PORTS.get(parts.scheme)
    if usual is None or not parts.hostname or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError("it is no address such as http://127.0.0.1:4646")
    if parts.username is not None or not address.isascii():
        raise ValueError("it is no address without a user's name")
    return Origin(parts.hostname, parts.port or usual, tls if parts.scheme == "https" else None)


async def get(server: Origin, target: str, headers: Mapping[str, str], *, timeout: float, most: int) -> bytes:
    """Return the body of the answer, which has the status 200 and at most so many bytes.

    Raises:
      HttpGetError: if there is no such answer within ``timeout`` seconds.
    """
    try:
        with trio.fail_after(timeout):
            async with _connected(server) as stream:
                return await _answer(stream, _request(server, target, headers), most)
    except trio.TooSlowError as error:
        raise HttpGetError(f"{server} has not answered within {timeout:g} s") from error
    except h11.ProtocolError as error:
        raise HttpGetError(f"{server} does not answer in HTTP: {error}") from error
    except (OSError, trio.BrokenResourceError) as error:
        raise HttpGetError(f"{server} does not answer: {_why(error)}") from error


def _why(error: BaseException) -> str:
    """Return the reason, which Trio has as the cause of its own errors."""
    cause = error.__cause__ or error
    if isinstance(cause, BaseExceptionGroup):
        # A name has several addresses, of which none can be reached.
        cause = cause.exceptions[0]
    if isinstance(cause, ConnectionError) and cause.errno is not None:
        # Trio's own text has the address once more.
        return os.strerror(cause.errno)
    return (cause.strerror if isinstance(cause, OSError) else None) or str(cause) or type(cause).__name__


@contextlib.asynccontextmanager
async def _connected(server: Origin) -> AsyncIterator[trio.abc.Stream]:
    # The files first: without them nobody need be asked.
    context = None if server.tls is None else _context(server.tls)
    connection = await trio.open_tcp_stream(server.host, server.port)
    try:
        _check_local(connection.socket.getpeername()[0], connection.socket.getsockname()[0])
        if context is None or server.tls is None:
            yield connection
        else:
            name = server.tls.name or server.host
            yield trio.SSLStream(connection, context, server_hostname=name, https_compatible=True)
    finally:
        await trio.aclose_forcefully(connection)


def _check_local(theirs: str, ours: str) -> None:
    """Refuse a server elsewhere, which would tell of another machine; the secret in a header does not go there either.

    Raises:
      HttpGetError: if it is elsewhere.
    """
    if theirs != ours and not ipaddress.ip_address(theirs).is_loopback:
        raise HttpGetError(f"{theirs} is no address of this machine")


def _context(tls: Tls) -> ssl.SSLContext:
    import ssl

    try:
        context = ssl.create_default_context(cafile=tls.authorities)
        if tls.certificate is not None:
            context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
    except OSError as error:
        raise HttpGetError(f"the files for TLS cannot be used: {_why(error)}") from error
    return context


def _no_password() -> str:
    raise HttpGetError("the key of the client's certificate has a password")


def _request(server: Origin, target: str, headers: Mapping[str, str]) -> h11.Request:
    own = {"Host": str(server), "Connection": "close", "Accept": "application/json"}
    return h11.Request(method="GET", target=target, headers=[*(own | {**headers}).items()])


async def _answer(stream: trio.abc.Stream, request: h11.Request, most: int) -> bytes:
    http = h11.Connection(h11.CLIENT)
    await stream.send_all((http.send(request) or b"") + (http.send(h11.EndOfMessage()) or b""))
    body = bytearray()
    while True:
        match http.next_event():
            case h11.NEED_DATA:
                received = bytes(await stream.receive_some(65536))
                if not received and http.their_state is h11.SEND_RESPONSE:
                    raise HttpGetError("the connection was closed before an answer came")
                http.receive_data(received)
            case h11.Response(status_code=status):
                if status != 200:
                    raise HttpGetError(f"the answer is {status}, and not 200")
            case h11.Data(data=piece):
                body += piece
                if len(body) > most:
                    raise HttpGetError(f"the answer is over {most} bytes")
            case h11.EndOfMessage():
                return bytes(body)
            case h11.InformationalResponse():
                pass  # It comes before the answer. So many at once as one read has are no burden for others.
            case event:
                raise HttpGetError(f"the answer is none: {event!r}")

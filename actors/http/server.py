"""HTTP/1.1 on a stream: one request for each connection, under limits and deadlines (fault 93).

Each kind of request has its own places, so that health is answered even if streams or listings occupy all of theirs. A
connection occupies a place for unread requests until its request is complete. If all of these places, or all of those
for health, are taken, the connection that has had one longest loses it: a correct client needs its place only briefly.

An allocation may take as long as the client likes, so it ends when the client leaves; see :class:`LateResponse`.

Each answer says ``Connection: close``: a new connection costs a local client microseconds, and a client cannot abuse
connections that do not stay open. A broken connection affects no other; an error of our own is raised in the
actor that serves.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol
from urllib.parse import parse_qsl, urlsplit

import attrs
import trio

from ...protocol.text import escaped
from ...protocol.values import value
from ...protocol.version import STATUS_HEADER
from ..io.accepting import Acceptor
from ..io.client_streams import AcceptedStream, ClientWatch
from ..io.descriptors import DescriptorReserve
from ..io.unix_socket import Credentials, peer_credentials, peer_groups
from .exchange import BadRequestError, HttpExchange, Received, TooLargeError
from .limits import HttpLimits, Place
from .places import AllPlaces, Connection, Standing

__all__ = [
    "TEXT",
    "Guests",
    "HttpLimits",
    "HttpRequest",
    "HttpResponse",
    "LateResponse",
    "RequestHandler",
    "Send",
    "busy",
    "json_response",
    "problem",
    "query",
    "serve",
    "serve_connection",
    "text_response",
]

Send = Callable[[bytes], Awaitable[None]]


@value
class HttpRequest:
    """A whole request. ``path`` is percent-encoded, as it was sent, and without the query.

    A parameter that the ``query`` gives no value is in it with an empty one. ``peer`` is None where the kernel does not
    tell who asks, as on a TCP port. ``host`` is whom the client means: the target names it, or the header ``Host``.
    ``authorization`` is the header of that name, if there is exactly one.
    """

    method: str
    path: str
    query: Mapping[str, str]
    body: bytes
    peer: Credentials | None = None
    host: str | None = None
    authorization: str | None = None
    #: In which version of the status socket the client is answered.
    version: int = 1
    #: Whether the client asks for text in the place of JSON.
    plain: bool = False
    #: Whether the client may not see what is of other users: it is a guest of no kind that sees everything.
    own_only: bool = False


@value
class HttpResponse:
    """An answer: a whole ``body``, or one that ``write`` sends piece by piece; ``endless`` ones end with the client."""

    status: int
    content_type: str
    body: bytes = b""
    write: Callable[[Send], Awaitable[None]] | None = None
    endless: bool = False
    headers: tuple[tuple[str, str], ...] = ()
    #: What was wrong, which a client that asks for text gets in the place of the body.
    error: str | None = None


@value
class LateResponse(HttpResponse):
    """An answer that may take as long as the client stays, for which it has to be made first: ``make`` returns it.

    What the other attributes say is not used.
    """

    status: int = 0
    content_type: str = ""
    make: Callable[[], Awaitable[HttpResponse]] = attrs.field(kw_only=True)
    #: Called if the client has not got the whole answer: it left before (True), or the connection was ended here.
    undelivered: Callable[[bool], None] = attrs.field(kw_only=True)


#: The type of text in the place of JSON.
TEXT = "text/plain; charset=utf-8"
#: Seconds for which a connection may keep a descriptor of the reserve while others wait for one.
_RESERVED_FOR = 1.0


def json_response(
    status: int, value: object, headers: tuple[tuple[str, str], ...] = (), error: str | None = None
) -> HttpResponse:
    """A response of one JSON value and a newline."""
    return HttpResponse(status, "application/json", json.dumps(value).encode() + b"\n", headers=headers, error=error)


def text_response(status: int, text: str, headers: tuple[tuple[str, str], ...] = ()) -> HttpResponse:
    """A response of lines of text, in which what is not UTF-8 is escaped."""
    body = text.encode("utf-8", "backslashreplace")
    return HttpResponse(status, TEXT, body, headers=headers)


def problem(status: int, error: str, headers: tuple[tuple[str, str], ...] = ()) -> HttpResponse:
    """A response that says what was wrong."""
    return json_response(status, {"error": error}, headers, error)


def wrong_method(allowed: str, headers: tuple[tuple[str, str], ...] = ()) -> HttpResponse:
    """A response to a method that is not among the ``allowed`` ones."""
    return problem(405, f"only {allowed} is answered here", (("Allow", allowed), *headers))


@value
class Guests:
    """Users who may ask for some things. Together they have at most half of the places of each kind."""

    uids: frozenset[int] = frozenset()
    #: All members of this group, too.
    group: int | None = None
    #: Whether they may send this request.
    may: Callable[[HttpRequest], bool] = lambda _: False
    #: What the answer says if not.
    refusal: str = "guests may not ask that"
    #: Whether they see what is of other users.
    sees_all: bool = False

    def include(self, connection: trio.socket.SocketType, peer: Credentials) -> bool:
        """Whether the process at the other end is one of them."""
        if peer.uid in self.uids or self.group is None:
            return peer.uid in self.uids
        return self.group == peer.gid or self.group in peer_groups(connection)


class RequestHandler(Protocol):
    """An async function from a request to its answer."""

    async def __call__(self, request: HttpRequest, /) -> HttpResponse:
        """Return the answer to ``request``."""


def query(_: HttpRequest) -> Place:
    """Give every request the same kind of place."""
    return Place.QUERY


def busy(_: Place, why: str) -> HttpResponse:
    """Answer that a request has no place now."""
    return problem(503, why)


async def serve(
    listener: Acceptor,
    handler: RequestHandler,
    limits: HttpLimits,
    *,
    allowed: frozenset[int] | None,
    guests: Sequence[Guests] = (),
    place: Callable[[HttpRequest], Place] = query,
    full: Callable[[Place, str], HttpResponse] = busy,
    reserve: DescriptorReserve | None = None,
    stranger: str = "only the user of the daemon and root may ask",
) -> None:
    """Serve connections on ``listener`` until it is closed; a client whose user id is not in ``allowed`` gets 403.

    So do ``guests`` for what they may not ask; who is of several kinds may ask what any of them may. Where ``allowed``
    is None, it is not asked who connects: on a TCP port the kernel does not tell. ``place`` says which places limit a
    request, and ``full`` returns the answer to one for which there is none, and why. While the process has no
    descriptors left, the connections take theirs from ``reserve`` (fault 46). ``stranger`` is the text of the 403.
    """
    admission = _Admission(handler, limits, allowed, guests, place, full, reserve or DescriptorReserve(0), stranger)
    with contextlib.closing(admission.watch):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(admission.watch.run)
            await _accept(listener, admission)
            nursery.cancel_scope.cancel()


async def _accept(listener: Acceptor, admission: _Admission) -> None:
    async with trio.open_nursery() as nursery:
        while True:
            try:
                connection = await listener.accept(admission.on_exhausted)
            except trio.ClosedResourceError:
                return  # The connections that are open are still served.
            admission.admit(connection, nursery)


@attrs.define
class _Admission:
    """Admits connections to one listener, and requests to their places."""

    _handler: RequestHandler
    _limits: HttpLimits
    _allowed: frozenset[int] | None
    _guests: Sequence[Guests]
    _place: Callable[[HttpRequest], Place]
    _full: Callable[[Place, str], HttpResponse]
    _reserve: DescriptorReserve
    _stranger: str
    watch: ClientWatch = attrs.field(init=False, factory=ClientWatch)
    _places: AllPlaces = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._places = AllPlaces(self._limits.number_of)

    def admit(self, accepted: trio.socket.SocketType, nursery: trio.Nursery) -> None:
        """Serve a connection in ``nursery``; close it if the kernel does not tell whose it is (fault 85)."""
        reserved = not self._reserve.refill()
        try:
            peer = None if self._allowed is None else peer_credentials(accepted)
        except OSError:
            accepted.close()
            self._reserve.refill()
            return
        scope = trio.CancelScope(deadline=trio.current_time() + self._limits.request)
        kinds = self._kinds_of(accepted, peer)
        standing = Standing.ALLOWED if kinds is None else Standing.GUEST if kinds else Standing.STRANGER
        connection = Connection(AcceptedStream(accepted), peer, standing, reserved, scope)
        # The connection is counted here, since several may be accepted before the task of the first one runs.
        self._places.take(connection, Place.UNREAD)
        nursery.start_soon(self._serve, connection, kinds or ())

    def _kinds_of(self, accepted: trio.socket.SocketType, peer: Credentials | None) -> Sequence[Guests] | None:
        """Return the kinds of guests that a client is of; None if it may ask everything."""
        if self._allowed is None or peer is None or peer.uid in self._allowed:
            return None
        return tuple(kind for kind in self._guests if kind.include(accepted, peer))

    async def _serve(self, connection: Connection, kinds: Sequence[Guests]) -> None:
        async def answer(request: HttpRequest) -> HttpResponse:
            if kinds and not any(kind.sees_all for kind in kinds):
                request = attrs.evolve(request, own_only=True)
            return self._refusal(connection, kinds, request) or await self._handler(request)

        try:
            await serve_connection(
                connection.stream,
                answer,
                self._limits,
                peer=connection.peer,
                scope=connection.scope,
                watch=self.watch,
            )
        finally:
            self._places.leave(connection)
            self._reserve.refill()

    def on_exhausted(self, _: OSError) -> bool:
        """Take a descriptor from the reserve; if it is empty, try to get one back. Return whether there was one.

        The connection that has had one longest loses it, if that is long enough for an honest client.
        """
        if self._reserve.close_one():
            return True
        reserved = (connection for connection in self._places if connection.reserved)
        oldest = min(reserved, key=lambda connection: connection.since, default=None)
        if oldest is not None and oldest.since + _RESERVED_FOR <= trio.current_time():
            oldest.scope.cancel()
        return False

    def _refusal(self, connection: Connection, kinds: Sequence[Guests], request: HttpRequest) -> HttpResponse | None:
        """Give a connection the place that its request needs, or return the answer that there is none."""
        if connection.standing is Standing.STRANGER:
            return problem(403, self._stranger)
        if connection.standing is Standing.GUEST and not any(kind.may(request) for kind in kinds):
            return problem(403, kinds[0].refusal)
        place = self._place(request)
        if (why := self._places.why_none(connection, place)) is not None:
            return self._full(place, why)
        self._places.leave(connection)
        self._places.take(connection, place)
        return None


#: The client has closed, or does not read, so no answer can be sent.
_NO_CLIENT = (OSError, trio.BrokenResourceError, trio.TooSlowError)


async def serve_connection(
    stream: trio.abc.Stream,
    handler: RequestHandler,
    limits: HttpLimits,
    *,
    peer: Credentials | None = None,
    scope: trio.CancelScope | None = None,
    watch: ClientWatch | None = None,
) -> None:
    """Serve the one request of ``stream`` and close it.

    To cancel ``scope`` ends the connection; it has the deadline of the request. ``watch`` notices that the client of a
    :class:`LateResponse` has left.
    """
    scope = scope or trio.CancelScope(deadline=trio.current_time() + limits.request)
    exchange = HttpExchange(stream, limits.header_bytes, limits.body_bytes)
    request: HttpRequest | None = None
    try:
        with scope:
            try:
                request = _request_of(await exchange.receive(), peer)
                exchange.version, exchange.plain = request.version, request.plain
            except BadRequestError as error:
                answer = problem(error.status, f"bad request: {error}")
            except TooLargeError:
                answer = problem(413, f"the body is over {limits.body_bytes} bytes")
            else:
                scope.deadline = trio.current_time() + limits.response
                answer = await handler(request)
            scope.deadline = math.inf  # From here on each part has one of its own.
            await _answer(exchange, request, answer, limits, watch, scope)
        if scope.cancelled_caught and scope.deadline <= trio.current_time():
            await _answer(exchange, request, _late(request, limits), limits, watch, scope)
    except _NO_CLIENT:
        pass
    finally:
        await exchange.close()


async def _answer(
    exchange: HttpExchange,
    request: HttpRequest | None,
    answer: HttpResponse,
    limits: HttpLimits,
    watch: ClientWatch | None,
    scope: trio.CancelScope,
) -> None:
    if isinstance(answer, LateResponse):
        await _respond_late(exchange, answer, limits, watch, scope)
    else:
        bodiless = request is not None and request.method == "HEAD"
        await _respond(exchange, answer, limits, bodiless=bodiless)


def _late(request: HttpRequest | None, limits: HttpLimits) -> HttpResponse:
    if request is None:
        return problem(408, f"the request did not arrive within {limits.request:g} seconds")
    return problem(503, f"no answer within {limits.response:g} seconds")


def _request_of(received: Received, peer: Credentials | None) -> HttpRequest:
    path, query, host = received.target, {}, received.host
    if not path.startswith("/") or "?" in path or "#" in path or path.startswith("//"):
        try:
            target = urlsplit(path)
            # A target that names a host takes the place of the header (RFC 9112, 3.2.2).
            path, host = target.path, target.netloc or host
            query = dict(parse_qsl(target.query, keep_blank_values=True, errors="surrogateescape", max_num_fields=16))
        except ValueError as error:
            raise BadRequestError(f"the request's target cannot be read: {error}") from error
    return HttpRequest(
        received.method,
        path,
        query,
        received.body,
        peer,
        host,
        received.authorization,
        received.version,
        received.plain,
    )


async def _respond_late(
    exchange: HttpExchange, late: LateResponse, limits: HttpLimits, watch: ClientWatch | None, scope: trio.CancelScope
) -> None:
    left = delivered = False

    def leave() -> None:
        nonlocal left
        left = True
        scope.cancel()

    try:
        response = await _made_while_there(exchange.stream, late, limits.body_bytes, watch, leave)
        await _respond(exchange, response, limits, bodiless=False)
        delivered = True
    except _NO_CLIENT:
        left = True
        raise
    finally:
        if not delivered:
            late.undelivered(left)


async def _made_while_there(
    stream: trio.abc.Stream, late: LateResponse, most: int, watch: ClientWatch | None, leave: Callable[[], None]
) -> HttpResponse:
    """Make the answer; call ``leave`` if the client leaves before. What it still sends is ignored, up to ``most``."""
    if watch is None or not isinstance(stream, AcceptedStream):
        return await _made_while_read(stream, late, most, leave)
    try:
        watch.add(stream, most, leave)
    except OSError as error:
        return problem(503, f"plugind could not notice that you leave: {error.strerror}; ask again later")
    try:
        return await late.make()
    finally:
        watch.remove(stream)


async def _made_while_read(
    stream: trio.abc.Stream, late: LateResponse, most: int, leave: Callable[[], None]
) -> HttpResponse:
    """As :func:`_made_while_there`, for a stream that is no socket: a task reads it meanwhile."""
    async with trio.open_nursery() as nursery:

        async def notice_the_end() -> None:
            left = most
            with contextlib.suppress(trio.BrokenResourceError):
                while left >= 0 and (piece := await stream.receive_some(65536)):
                    left -= len(piece)
            leave()

        nursery.start_soon(notice_the_end)
        response = await late.make()
        nursery.cancel_scope.cancel()
    return response


async def _respond(exchange: HttpExchange, response: HttpResponse, limits: HttpLimits, *, bodiless: bool) -> None:
    if exchange.plain and response.error is not None:
        response = text_response(response.status, f"{escaped(response.error)}\n", response.headers)
    headers = (("Content-Type", response.content_type), (STATUS_HEADER, str(exchange.version)), *response.headers)
    if response.write is None:
        body = b"" if bodiless else response.body
        await exchange.send(response.status, headers, body, len(response.body), limits.piece)
        return

    async def send_all(data: bytes) -> None:
        with trio.fail_after(limits.piece):
            await exchange.stream.send_all(data)

    head = exchange.begin(response.status, headers)
    if bodiless:
        await send_all(head + exchange.end())
        return

    async def send(piece: bytes) -> None:
        await send_all(exchange.go_on(piece))

    with trio.fail_after(math.inf if response.endless else limits.response):
        await send_all(head)
        if not response.endless:
            await response.write(send)
            await send_all(exchange.end())
            return
    await _write_while_there(exchange.stream, response.write, send)
    # The client has all of the answer: one that has waited for the last line may be gone.
    with contextlib.suppress(*_NO_CLIENT):
        await send_all(exchange.end())


async def _write_while_there(stream: trio.abc.Stream, write: Callable[[Send], Awaitable[None]], send: Send) -> None:
    """Write an endless stream until the client closes, stops reading, or sends anything.

    Raises:
      trio.BrokenResourceError: if the client ended it.
    """
    finished = False
    async with trio.open_nursery() as nursery:

        async def notice_the_end() -> None:
            with contextlib.suppress(trio.BrokenResourceError):
                await stream.receive_some(1)
            nursery.cancel_scope.cancel()

        nursery.start_soon(notice_the_end)
        with contextlib.suppress(trio.BrokenResourceError, trio.TooSlowError):
            await write(send)
            finished = True
        nursery.cancel_scope.cancel()
    if not finished:
        raise trio.BrokenResourceError("the client closed")

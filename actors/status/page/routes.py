"""The server of ``plugind page``: it serves the page to everybody, and the state of the node to clients with the token.

Every local user can connect to a port of the loopback address, so reading needs a token. It is a header of each
request, because cookies of one port are sent to all other ports of the same host, whoever listens there. Pages of other
origins cannot send that header, since no answer permits it (CORS), and a page whose name is resolved to this address
(DNS rebinding) does not name this host.

At a Unix socket there is no token: the mode of the socket says who may connect, and a proxy asks who its clients are.
"""

from __future__ import annotations

import hmac
from typing import Final
from urllib.parse import quote

import attrs

from ....protocol.status.metrics_config import HostRule
from ...http.client import UnreachableError
from ...http.limits import HttpLimits
from ...http.on_trio import ask
from ...http.places import Place
from ...http.server import HttpRequest, HttpResponse, problem, wrong_method
from .board import Board
from .documents import CONTENT_TYPE, SAFE_HEADERS, Document

#: Everybody on this machine can connect, so the limits are tighter than on the status socket. Clients without the token
#: have the places for health, where the oldest connection makes room.
LIMITS: Final = HttpLimits(
    unread=64,
    connections=16,
    streams=8,
    health=16,
    leases=0,
    header_bytes=8 * 1024,
    body_bytes=0,
    request=5.0,
    response=15.0,
    piece=30.0,
)
STREAM: Final = "/events"
_HEADERS: Final = (*SAFE_HEADERS, ("Cache-Control", "no-store"), ("Referrer-Policy", "no-referrer"))
_LOOPBACK: Final = HostRule(loopback=True, names=frozenset())
_SCHEME: Final = "Bearer "


@attrs.frozen
class AskedDaemon:
    """The daemon to ask: the path of its status socket, and for how many seconds it can be silent."""

    path: str
    timeout: float


@attrs.frozen
class Routes:
    """Answers requests."""

    #: None if everybody who can connect may read.
    _token: str | None
    _page: Document
    _board: Board
    _daemon: AskedDaemon

    def place(self, request: HttpRequest) -> Place:
        """Return which limit applies to ``request``."""
        if not self._has_token(request):
            return Place.HEALTH
        return Place.STREAM if request.path == STREAM else Place.QUERY

    async def __call__(self, request: HttpRequest, /) -> HttpResponse:
        """Return the answer to ``request``."""
        if not _LOOPBACK.admits(request.host):
            return problem(421, "this is not the host that was asked for: ask by localhost or 127.0.0.1", _HEADERS)
        if request.method not in ("GET", "HEAD"):
            return wrong_method("GET", _HEADERS)
        if request.path == "/":
            return HttpResponse(200, CONTENT_TYPE, self._page.body, headers=self._page.headers)
        if not self._has_token(request):
            why = "this needs the token that 'plugind page' prints, as 'Authorization: Bearer TOKEN'"
            return problem(401, why, (("WWW-Authenticate", "Bearer"), *_HEADERS))
        return await self._about_node(request)

    async def _about_node(self, request: HttpRequest) -> HttpResponse:
        match request.path:
            case "/events":
                return HttpResponse(200, "text/event-stream", write=self._board.stream, endless=True, headers=_HEADERS)
            case "/plugin":
                return await self._asked("/plugins/", request.query.get("socket"))
            case "/devices" if "resource" not in request.query:
                return await self._answer("/v1/devices")
            case "/devices":
                return await self._asked("/v1/devices?resource=", request.query.get("resource"))
            case _:
                return problem(404, "there is nothing of that name here", _HEADERS)

    async def _asked(self, target: str, what: str | None) -> HttpResponse:
        """Return the answer of the daemon about one object."""
        if not what:
            return problem(400, "the request does not say what it is about", _HEADERS)
        return await self._answer(target + quote(what, safe="", errors="surrogateescape"))

    async def _answer(self, target: str) -> HttpResponse:
        try:
            async with ask(self._daemon.path, "GET", target, timeout=self._daemon.timeout) as reply:
                return HttpResponse(reply.status, "application/json", await reply.body(), headers=_HEADERS)
        except UnreachableError as error:
            return problem(502, f"no daemon answers: {error.reason}", _HEADERS)

    def _has_token(self, request: HttpRequest) -> bool:
        if self._token is None:
            return True
        given = (request.authorization or "").encode("utf-8", "surrogateescape")
        return hmac.compare_digest(given, (_SCHEME + self._token).encode("ascii"))

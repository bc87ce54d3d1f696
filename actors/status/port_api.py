"""The routes of the metrics port: whatever changes nothing, and names neither paths nor processes by itself.

A part of the status actor. Every local user can connect to a port of the loopback address, so nobody is known here, and
a web browser can be led to it by a name of others: each request has to name a host that this machine certainly has.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import trio

from ...protocol.metrics_config import HostRule
from ...protocol.text import encodable
from ..io.http_places import Place
from ..io.http_server import Request, Response, problem

#: Seconds in which all who ask for metrics get one text, so that nobody can occupy the node with making it.
SHARED_FOR = 1.0
#: Browsers take the answers for what they are, and no page of another origin may include them.
_HEADERS = (("X-Content-Type-Options", "nosniff"), ("Cross-Origin-Resource-Policy", "same-origin"))
_WHOSE = (
    "this is not the host that was asked for: ask by localhost or an IP address, or have plugind know the name with"
    " --metrics-host"
)
_GETTING = ("GET", "HEAD")


def place(request: Request) -> Place:
    """Return which places limit ``request``."""
    return Place.HEALTH if request.path == "/metrics" else Place.QUERY


@attrs.define
class PortApi:
    """Answers what is asked on the port."""

    _hosts: HostRule
    #: Makes the answer to a request for metrics.
    _metrics: Callable[[Request], Awaitable[Response]]
    _making: trio.Lock = attrs.field(init=False, factory=trio.Lock)
    #: The last answer, and when it was begun.
    _made: Response | None = attrs.field(init=False, default=None)
    _begun: float = attrs.field(init=False, default=0.0)

    async def __call__(self, request: Request, /) -> Response:
        """Return the answer to ``request``."""
        if not self._hosts.admits(request.host):
            return problem(421, _WHOSE, _HEADERS)
        if request.path != "/metrics":
            return problem(404, f"there is no {encodable(request.path)} here: ask the status socket", _HEADERS)
        if request.method not in _GETTING:
            return problem(405, "only GET is answered here", (("Allow", "GET"), *_HEADERS))
        return await self._scraped(request)

    async def _scraped(self, request: Request) -> Response:
        """Return the metrics, made anew if they are older than :data:`SHARED_FOR`."""
        async with self._making:
            now = trio.current_time()
            if self._made is None or now - self._begun >= SHARED_FOR:
                self._made, self._begun = await self._whole(request), now
            return self._made

    async def _whole(self, request: Request) -> Response:
        answer = await self._metrics(request)
        body = bytearray(answer.body)

        async def add(piece: bytes) -> None:
            body.extend(piece)

        if answer.write is not None:
            await answer.write(add)
        return Response(answer.status, answer.content_type, bytes(body), headers=(*answer.headers, *_HEADERS))

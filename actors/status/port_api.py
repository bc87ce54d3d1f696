"""The routes of the metrics port, which only read, and do not name paths or processes unless configured to.

They run in the status actor. Every local user can connect to a port of the loopback address, so clients are not
identified. A browser can be led to the port by a foreign name, so each request must name a host that certainly belongs
to this machine.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import attrs
import trio

from ...protocol.plugins.status import StateName
from ...protocol.status.metrics_config import HostRule
from ...protocol.text import encodable
from ...protocol.version import STATUS_VERSION
from ..http.places import Place
from ..http.server import HttpRequest, HttpResponse, problem, wrong_method
from .page.documents import CONTENT_TYPE, SAFE_HEADERS, CountsPage

#: Seconds for which clients share one text, so that nobody can keep the node busy with rendering.
SHARED_FOR = 1.0
_WHOSE = (
    "this is not the host that was asked for: ask by localhost or {addresses}, or have plugind know the name with"
    " --metrics-host"
)
_GETTING = ("GET", "HEAD")


def place(request: HttpRequest) -> Place:
    """Return which limit applies to ``request``."""
    return Place.HEALTH if request.path == "/metrics" else Place.QUERY


@attrs.define
class _Shared:
    """An answer that is shared by the requests within :data:`SHARED_FOR`."""

    _make: Callable[[HttpRequest], Awaitable[HttpResponse]]
    _making: trio.Lock = attrs.field(init=False, factory=trio.Lock)
    #: The last answer, and when its rendering began.
    _made: HttpResponse | None = attrs.field(init=False, default=None)
    _begun: float = attrs.field(init=False, default=0.0)

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """Return the answer; make a new one if it is too old."""
        async with self._making:
            now = trio.current_time()
            if self._made is None or now - self._begun >= SHARED_FOR:
                self._made, self._begun = await self._make(request), now
            return self._made


@attrs.define
class PortApi:
    """Answers what is asked on the port."""

    _hosts: HostRule
    _metrics: Callable[[HttpRequest], Awaitable[HttpResponse]]
    #: Returns the number of sockets by state and type.
    _counts: Callable[[], Mapping[tuple[StateName, str], int]]
    _page: CountsPage
    #: By path and version of the status socket.
    _shared: Mapping[tuple[str, int], _Shared] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        versions, whole = range(1, STATUS_VERSION + 1), _Shared(self._whole)
        self._shared = {("/", version): _Shared(self._counted) for version in versions}
        self._shared |= {("/metrics", version): whole for version in versions}

    async def __call__(self, request: HttpRequest, /) -> HttpResponse:
        """Return the answer to ``request``."""
        if not self._hosts.admits(request.host):
            addresses = "a loopback address" if self._hosts.loopback else "an IP address"
            return problem(421, _WHOSE.format(addresses=addresses), SAFE_HEADERS)
        shared = self._shared.get((request.path, request.version))
        if shared is None:
            return problem(404, f"there is no {encodable(request.path)} here: ask the status socket", SAFE_HEADERS)
        if request.method not in _GETTING:
            return wrong_method("GET", SAFE_HEADERS)
        return await shared.answer(request)

    async def _counted(self, request: HttpRequest) -> HttpResponse:
        body = self._page.filled(self._counts(), request.version)
        return HttpResponse(200, CONTENT_TYPE, body, headers=self._page.headers)

    async def _whole(self, request: HttpRequest) -> HttpResponse:
        answer = await self._metrics(request)
        body = bytearray(answer.body)

        async def add(piece: bytes) -> None:
            body.extend(piece)

        if answer.write is not None:
            await answer.write(add)
        return HttpResponse(answer.status, answer.content_type, bytes(body), headers=(*answer.headers, *SAFE_HEADERS))

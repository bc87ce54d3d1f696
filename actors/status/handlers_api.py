"""The routes of the status socket for handlers in other processes (``docs/remote-handlers.md``).

``GET /v1/handlers/TYPE`` is the stream of what a handler is asked; the process that has it serves the type. What it
says and answers comes in requests of their own, with the token of its session.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from urllib.parse import unquote_to_bytes

import attrs
import trio

from ...protocol.client.asks_forms import CountedAnswer, HeldAnswer, Line
from ...protocol.client.asks_json import (
    HealthPosted,
    answers_from_json,
    event_to_json,
    health_from_json,
    held_from_json,
    hello_to_json,
)
from ...protocol.errors import ValidationError
from ...protocol.handlers.remote import HandlerRefusedError
from ...protocol.leases.asked_json import RequestError
from ...protocol.status.metrics import Metrics
from ...protocol.text import encodable
from ..handlers.remote import HEARTBEAT, RemoteHandlers, Reported, Session
from ..http.server import HttpRequest, HttpResponse, Send, json_response, problem, wrong_method
from ..io.unix_socket import Credentials
from .allocations import new_token
from .streams import JSON_LINES, heartbeat_headers

PATH = "/v1/handlers"
#: Seconds in which a handler has to say what it holds.
HOLD_WITHIN = 60.0


def is_about_handlers(path: str) -> bool:
    """Whether a path is about handlers."""
    return path.startswith(PATH + "/")


def is_handler_stream(request: HttpRequest) -> bool:
    """Whether a request is the stream of a handler."""
    return is_about_handlers(request.path) and request.path.count("/") == PATH.count("/") + 1


@attrs.define(eq=False)
class HandlersApi:
    """Answers requests about handlers."""

    handlers: RemoteHandlers
    #: The users who may serve all types.
    allowed: frozenset[int]
    metrics: Metrics

    def end(self) -> None:
        """End the streams of handlers."""
        self.handlers.end()

    def answer(self, request: HttpRequest) -> HttpResponse:
        """Answer a request about handlers."""
        assert request.peer is not None, "the status socket is a unix socket"
        # Bytes, because a client can send anything.
        parts = request.path.removeprefix(PATH + "/").split("/")
        plugin_type = unquote_to_bytes(parts[0]).decode("utf-8", "surrogateescape")
        if request.peer.uid not in self.allowed | self.handlers.uids.get(plugin_type, frozenset()):
            return problem(403, f"you may not serve {encodable(plugin_type)}: name your user in handler_uids")
        if len(parts) == 1:
            return self._open(request.peer, plugin_type) if request.method == "GET" else wrong_method("GET")
        routes = {"held": self._hold, "answers": self._take_answers, "health": self._take_health}
        route = routes.get(parts[1]) if len(parts) == 2 else None
        if route is None:
            return problem(404, f"there is no {encodable(request.path)}")
        if request.method != "POST":
            return wrong_method("POST")
        try:
            return route(partial(self._session, plugin_type, request.peer.uid), request.body)
        except RequestError as error:
            return problem(400, str(error))
        except HandlerRefusedError as error:
            return problem(409, str(error))

    def _open(self, peer: Credentials, plugin_type: str) -> HttpResponse:
        # Opened here and not by the stream, so that a refusal has a status.
        try:
            session = self.handlers.open(plugin_type, new_token(), peer.uid, peer.pid)
        except HandlerRefusedError as error:
            return problem(409, str(error))
        except ValidationError as error:
            return problem(400, str(error))
        write = partial(self._write, session)
        return HttpResponse(200, JSON_LINES, write=write, endless=True, headers=heartbeat_headers(HEARTBEAT))

    async def _write(self, session: Session, send: Send) -> None:
        handler = session.handler
        try:
            await send(_lines([hello_to_json(handler.plugin_type, handler.epoch, session.token, HEARTBEAT)]))
            while not session.over.is_set():
                events = await session.next()
                now = trio.current_time()
                await send(_lines(event_to_json(event, now) for event in events) or b"\n")
                if not session.synced and now >= session.since + HOLD_WITHIN:
                    return await send(_lines([{"error": f"what it holds was not said within {HOLD_WITHIN:g} s"}]))
        finally:
            self.handlers.close(session)

    def _session(self, plugin_type: str, uid: int, token: str) -> Session:
        session = self.handlers.find(plugin_type, token, uid)
        if session is None:
            raise HandlerRefusedError("there is no such session: it has ended, or is another user's; connect again")
        return session

    def _hold(self, find: Callable[[str], Session], body: bytes) -> HttpResponse:
        token, instances, more = held_from_json(body)
        find(token).hold(instances, more=more)
        noted: HeldAnswer = {"held": len(instances)}
        return json_response(200, noted)

    def _take_answers(self, find: Callable[[str], Session], body: bytes) -> HttpResponse:
        token, verdicts = answers_from_json(body)
        try:
            session = find(token)
        except HandlerRefusedError:
            self.metrics.foreign_answers += len(verdicts)
            raise
        taken = [session.answer(number, verdict) for number, verdict in verdicts]
        self.metrics.unawaited_answers += taken.count(False)
        return _counted(taken)

    def _take_health(self, find: Callable[[str], Session], body: bytes) -> HttpResponse:
        token, plugins = health_from_json(body)
        handler = find(token).handler
        return _counted([_report(handler.links.get(plugin.instance), plugin) for plugin in plugins])


def _counted(taken: list[bool]) -> HttpResponse:
    counted: CountedAnswer = {"taken": sum(taken), "dropped": len(taken) - sum(taken)}
    return json_response(200, counted)


def _lines(lines: Iterable[Line]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def _report(link: Reported | None, posted: HealthPosted) -> bool:
    """Report what a handler posted of an instance; return False if it does not follow the instance."""
    if link is None:
        return False
    if posted.health is not None:
        link.report(posted.health, posted.reason, posted.facts, warnings=posted.warnings)
    if posted.usable is not None:
        link.role(usable=posted.usable)
    if posted.gone is not None:
        link.gone(posted.gone)
    return True

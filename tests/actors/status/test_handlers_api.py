"""Handlers of other processes on the status socket: who may serve, what is answered, and what bad requests get."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import jsonschema
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.actors.http.server import HttpRequest, HttpResponse
from plugind.actors.io.unix_socket import Credentials
from plugind.actors.simulation.node import DEFAULT_CONFIG
from plugind.actors.status.handlers_api import HOLD_WITHIN, HandlersApi, is_handler_stream
from plugind.protocol.client.asks_forms import MOST_AT_ONCE
from plugind.protocol.client.asks_json import Asked, event_from_json, hello_from_json
from plugind.protocol.client.status_values import StatusFormError
from plugind.protocol.handlers.remote import MOST_LISTS, AskKind, Instance, RoleTold, Synced, Withdrawn
from plugind.protocol.status.metrics import Metrics
from plugind.testing import FakePlugin, SimulatedNode
from plugind.tests.tools.schemas import check

AGENT, OTHER = 1000, 1001
CONFIG = attrs.evolve(DEFAULT_CONFIG, handler_uids={"Sensor": frozenset({AGENT})})
PATH = "/v1/handlers/Sensor"


@attrs.define
class Served:
    """The routes of a simulated node, and the stream of the handler that was opened last."""

    node: SimulatedNode
    nursery: trio.Nursery
    api: HandlersApi
    lines: list[Any] = attrs.field(factory=list)

    def ask(self, method: str, path: str, body: object = None, uid: int = AGENT) -> HttpResponse:
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.api.answer(HttpRequest(method, path, {}, text, Credentials(77, uid, uid)))

    def post(self, what: str, **body: object) -> tuple[int, Any]:
        said = {"session": self.session, **body}
        response = self.ask("POST", f"{PATH}/{what}", said)
        answer = json.loads(response.body)
        check(what, said)
        check("error" if response.status != 200 else "heldAnswer" if what == "held" else "countedAnswer", answer)
        return response.status, answer

    async def open(self) -> None:
        response = self.ask("GET", PATH)
        assert response.status == 200
        assert response.write is not None
        assert response.endless
        self.nursery.start_soon(response.write, self._take)
        await wait_all_tasks_blocked()

    async def _take(self, piece: bytes) -> None:
        await trio.lowlevel.checkpoint()
        for line in piece.decode().splitlines():
            self.lines.append(json.loads(line) if line else None)
            if line:
                check("line", self.lines[-1])

    @property
    def session(self) -> str:
        return hello_from_json(self.lines[0]).session


@asynccontextmanager
async def served() -> AsyncIterator[Served]:
    async with SimulatedNode(CONFIG) as node, trio.open_nursery() as nursery:
        yield Served(node, nursery, HandlersApi(node.supervisor.internals.remote_handlers(), frozenset({0}), Metrics()))
        nursery.cancel_scope.cancel()


async def test_a_handler_is_asked_line_by_line_and_answers_in_requests(autojump_clock: MockClock) -> None:
    async with served() as routes:
        await routes.open()
        assert routes.post("held", held=[]) == (200, {"held": 0})
        routes.node.plug("a.sock", FakePlugin("Sensor", "a"))
        await trio.sleep(0.1)
        asked = event_from_json(routes.lines[-1])
        assert isinstance(asked, Asked)
        assert (asked.kind, asked.seconds) == (AskKind.VALIDATE, 60.0)
        assert asked.instance is not None
        plugin = asked.instance.plugin
        assert plugin is not None
        assert (plugin.type, plugin.name, plugin.socket) == ("Sensor", "a", "/plugins/a.sock")
        answer = {"id": asked.id}
        assert routes.post("answers", answers=[answer, answer, {"id": 999}]) == (200, {"taken": 1, "dropped": 2})
        assert routes.api.metrics.unawaited_answers == 2
        await trio.sleep(0.1)
        register = event_from_json(routes.lines[-1])
        assert isinstance(register, Asked)
        routes.post("answers", answers=[{"id": register.id, "error": "no room", "cause": "full"}])
        await trio.sleep(0.1)
        assert routes.node.history("a.sock")[-1].cause == "plugin registration failed: full"


async def test_all_that_a_session_says_from_a_plugins_start_to_its_end_is_valid(autojump_clock: MockClock) -> None:
    """The routes check each line and each body."""
    async with served() as routes:
        await routes.open()
        routes.post("held", held=[{"instance": "older-3", "name": "a", "socket": "/plugins/a.sock"}])
        plugin = routes.node.plug("a.sock", FakePlugin("Sensor", "a"))
        done = 0
        for kind in ("deregister", "validate", "register", "follow", "unfollow", "deregister"):
            await trio.sleep(0.1)
            if kind == "unfollow":
                plugin.stop()
                await trio.sleep(0.1)
            asks = [asked for line in routes.lines if isinstance(asked := event_from_json(line), Asked)]
            assert [asked.kind for asked in asks[done:]] == [kind]
            routes.post("answers", answers=[{"id": asks[-1].id, "error": None}])
            if kind == "follow":
                assert asks[-1].instance is not None
                health = {"instance": asks[-1].instance.id, "health": "healthy", "facts": {"unit": "celsius"}}
                assert routes.post("health", plugins=[health]) == (200, {"taken": 1, "dropped": 0})
            done = len(asks)
        assert {"synced": True} in routes.lines
        assert [line["role"]["active"] for line in routes.lines if line and "role" in line][-1]


async def test_a_quiet_stream_has_heartbeats_and_a_handler_that_never_says_what_it_has_is_ended(
    autojump_clock: MockClock,
) -> None:
    async with served() as routes:
        await routes.open()
        await trio.sleep(HOLD_WITHIN + 1)
        assert routes.lines[1:] == [None] * 4 + [{"error": "what it holds was not said within 60 s"}]
        await routes.open()
        assert routes.post("held", held=[])[0] == 409  # The token is that of the session before.


async def test_what_a_handler_has_can_come_in_pieces_and_is_said_once(autojump_clock: MockClock) -> None:
    async with served() as routes:
        await routes.open()
        older = {"instance": "older-3", "name": "a", "socket": "/plugins/a.sock"}
        routes.post("held", held=[older], more=True)
        await wait_all_tasks_blocked()
        assert len(routes.lines) == 1
        routes.post("held", held=[{**older, "instance": "older-4", "name": "b"}])
        await wait_all_tasks_blocked()
        events = [event_from_json(line) for line in routes.lines[1:]]
        assert [event.instance for event in events if isinstance(event, Asked)] == [
            Instance("older-3", "a", "/plugins/a.sock"),
            Instance("older-4", "b", "/plugins/a.sock"),
        ]
        assert events[-1] == Synced()
        assert routes.post("held", held=[])[0] == 409


async def test_what_a_handler_has_is_said_in_a_limited_number_of_lists(autojump_clock: MockClock) -> None:
    async with served() as routes:
        await routes.open()
        for _ in range(MOST_LISTS):
            assert routes.post("held", held=[], more=True)[0] == 200
        status, said = routes.post("held", held=[])
        assert (status, said["error"]) == (
            409,
            f"what it holds was said in {MOST_LISTS} lists: fill each, or hold less",
        )
        await trio.sleep(HOLD_WITHIN + 1)
        assert routes.lines[-1] == {"error": "what it holds was not said within 60 s"}


@pytest.mark.parametrize(
    ("method", "path", "uid", "status", "error"),
    [
        ("GET", PATH, OTHER, 403, "you may not serve Sensor: name your user in handler_uids"),
        ("GET", "/v1/handlers/Other", AGENT, 403, "you may not serve Other: name your user in handler_uids"),
        ("GET", "/v1/handlers/CSIPlugin", 0, 409, "plugind has a handler for CSIPlugin itself"),
        ("GET", "/v1/handlers/", 0, 400, "the plugin's type is empty"),
        ("GET", "/v1/handlers/%FF", 0, 400, "control characters"),
        ("POST", PATH, AGENT, 405, "only GET is answered here"),
        ("GET", f"{PATH}/answers", AGENT, 405, "only POST is answered here"),
        ("POST", f"{PATH}/thoughts", AGENT, 404, "there is no /v1/handlers/Sensor/thoughts"),
        ("POST", f"{PATH}/answers/7", AGENT, 404, "there is no /v1/handlers/Sensor/answers/7"),
    ],
)
async def test_who_may_not_serve_and_what_is_not_there(
    method: str, path: str, uid: int, status: int, error: str, autojump_clock: MockClock
) -> None:
    async with served() as routes:
        response = routes.ask(method, path, {}, uid)
        assert response.status == status
        assert error in json.loads(response.body)["error"]


@pytest.mark.parametrize(
    ("what", "body", "error"),
    [
        ("held", b"{", "the body is no JSON object"),
        ("held", {"held": []}, "there is no session: give the token of the line hello"),
        ("held", {"session": "x", "held": {}}, "held is an empty object: give a list of at most 256"),
        ("held", {"session": "x", "held": [{}] * (MOST_AT_ONCE + 1)}, "give a list of at most 256"),
        ("held", {"session": "x", "held": [{"instance": "e-1", "name": "a"}]}, "there is no held.socket"),
        ("held", {"session": "x", "held": [], "mode": 1}, "mode is not known here"),
        ("answers", {"session": "x", "answers": [{"id": True}]}, "answers.id is true: give the id of an ask"),
        ("answers", {"session": "x", "answers": [{"id": 1, "error": 5}]}, "answers.error is 5"),
        ("health", {"session": "x", "plugins": [{"instance": "e-1", "health": "fine"}]}, "give one of"),
        ("health", {"session": "x", "plugins": [{"instance": "e-1", "facts": {"a": 1}}]}, "give an object of texts"),
    ],
)
async def test_a_body_that_is_not_understood_says_what_to_give(
    what: str, body: object, error: str, autojump_clock: MockClock
) -> None:
    async with served() as routes:
        response = routes.ask("POST", f"{PATH}/{what}", body)
        assert response.status == 400
        assert error in json.loads(response.body)["error"]
        with pytest.raises(jsonschema.ValidationError):
            check(what, body)


async def test_a_token_counts_for_its_user_and_type_alone(autojump_clock: MockClock) -> None:
    async with served() as routes:
        await routes.open()
        body = {"session": routes.session, "held": []}
        assert routes.ask("POST", f"{PATH}/held", body, uid=0).status == 409
        assert routes.ask("POST", "/v1/handlers/Other/held", body, uid=0).status == 409
        assert routes.ask("POST", f"{PATH}/held", body).status == 200
        answers = {"session": routes.session, "answers": [{"id": 1}, {"id": 2}]}
        assert routes.ask("POST", f"{PATH}/answers", answers, uid=0).status == 409
        assert (routes.api.metrics.foreign_answers, routes.api.metrics.unawaited_answers) == (2, 0)


def test_the_stream_of_a_handler_has_a_place_of_its_own() -> None:
    requests = [HttpRequest("GET", path, {}, b"") for path in (PATH, f"{PATH}/held", "/v1/leases/watch", "/watch")]
    assert [is_handler_stream(request) for request in requests] == [True, False, False, False]


@pytest.mark.parametrize(
    ("line", "event"),
    [
        ({"withdrawn": 7}, Withdrawn(7)),
        ({"role": {"instance": "e-1", "active": True}}, RoleTold("e-1", active=True)),
        ({"synced": True}, Synced()),
        ({"ask": "ping", "id": 3}, Asked(3, AskKind.PING, None, None)),
        ({"something": "newer"}, None),
    ],
)
def test_a_client_reads_each_line_and_ignores_what_it_does_not_know(line: object, event: object) -> None:
    assert event_from_json(line) == event


@pytest.mark.parametrize("line", [{"ask": "dance", "id": 1}, {"ask": "validate", "id": 1, "plugin": {"name": "a"}}])
def test_a_client_refuses_an_ask_that_it_cannot_read(line: object) -> None:
    with pytest.raises(StatusFormError):
        event_from_json(line)

"""The routes of the status socket, which ``docs/status-socket.md`` describes.

They run in the status actor, and read the view without changing it.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar
from urllib.parse import unquote_to_bytes

import attrs
import trio

from ...protocol.handlers.facts_asking import RefreshFacts, ask_for_facts
from ...protocol.health.progress import ActorHealth, Condition
from ...protocol.logs.lines import timestamp
from ...protocol.messages.addresses import Address
from ...protocol.messages.config import ConfigurationAsked, ConfigurationShown, ReloadAsked, Reloaded, ReloaderMessage
from ...protocol.messages.reconciler import ReconcilerMessage, RetryAnswer, RetryAnswered, RetryAsked
from ...protocol.messages.status import HealthReported, LoopBlocked, PluginChanged, RootStatus
from ...protocol.plugins.info import DEVICE
from ...protocol.plugins.status import PluginStatus, StateName, Watching
from ...protocol.settings.rules import rules_to_json
from ...protocol.status.json import Json, described_to_json, plugin_to_json, retried_to_json
from ...protocol.status.metrics import expected_useful, healthy_devices, watched
from ...protocol.status.view import Row
from ...protocol.text import encodable
from ...protocol.version import STATUS_VERSION, __version__
from ..http.places import Place
from ..http.server import HttpRequest, HttpResponse, Send, json_response, problem, wrong_method
from ..io import own_process
from .devices_api import NO_ANSWER, DevicesApi
from .handlers_api import HandlersApi, is_about_handlers, is_handler_stream
from .history_api import HistoryApi, is_about_history
from .leases_api import DRAINS, LeasesApi, is_about_leases, is_allocation
from .memory import LastCrash, Memory, StatusConfig
from .streams import AnswerStream, OpenWatches, Unsent, Watched, listed, send_pieces

__all__ = [
    "METRICS_DEADLINE",
    "REQUESTS",
    "Api",
    "LastCrash",
    "Memory",
    "StatusConfig",
    "changes_nothing",
    "is_for_lease_users",
    "place",
]

T = TypeVar("T")

#: Seconds to wait for the devices and lease actors; the metrics go without them after that.
METRICS_DEADLINE = 1.0
#: Seconds for a reload.
RELOAD_DEADLINE = 20.0
#: The actor that is degraded as long as it cannot lease devices.
_LEASES = "leases"
#: The actor whose inbox holds the sockets that are queued for a dial.
_DIAL_SLOTS = "dial slots"
#: The requests that ``GET /`` lists.
REQUESTS = {
    "GET /": "this list, and versions",
    "GET /plugins": "every socket; ?name= and ?type= keep those of one name or type",
    "GET /plugins/TARGET": "the plugins of one name, or the one at the path of a socket, with their histories",
    "GET /watch": "every socket, then each change, as JSON lines; ?heartbeat=S adds an empty line every S seconds",
    "GET /v1/devices": "every device that device plugins list; ?resource= keeps those of one resource",
    "GET /v1/devices/refused": "the last refused Register call for each resource, if none was accepted since then",
    "GET /v1/devices/watch": "every resource, then each change, as JSON lines; heartbeat as for /watch",
    "GET /v1/leases": "every lease; ?prefix= keeps those whose id begins so",
    "GET /v1/leases/ID": "one lease",
    "GET /v1/leases/watch": "every lease, then each change, as JSON lines; heartbeat as for /watch",
    "GET /v1/history": "who had which devices; ?device=, resource=, uid=, since= and until= keep some rows",
    "GET /v1/history/usage": "for how long; by=user, resource, label or label:KEY",
    "POST /v1/leases": 'lease devices; the body is {"resources": {R: N}, "owner": {"kind": KIND}, …}',
    "POST /v1/leases/ID/renew": "let the time of a lease begin again",
    "POST /v1/leases/ID/bind": "bind a lease to a container, as its hook does",
    "POST /v1/leases/ID/resume": 'own a lease by this connection after a restart; the body is {"token": TOKEN}',
    "POST /v1/leases/recover": 'say that no leased device is in use; the body is {"none_held": true}',
    "DELETE /v1/leases/ID": "release a lease",
    "POST /v1/drains": 'take something out of service; the body is {"resource": R, "device": ID, "reason": WHY, …}',
    "POST /v1/drains/end": 'let it be given again; the body is {"resource": R, "device": ID}',
    "GET /v1/handlers/TYPE": "serve a plugin type: what its handler is asked, as JSON lines; its answers are posted",
    "POST /retry": 'try plugins now; the body is {"target": NAME or SOCKET}; with "facts": true, ask for facts anew',
    "POST /reload": "read the configuration again, and use what needs no restart; answered when that is done",
    "GET /config": "the settings that are in force, where each comes from, and what waits for a restart",
    "GET /rules": "whose plugins the daemon takes, and from where",
    "GET /healthz": "whether the daemon works; 503 if not",
    "GET /readyz": "whether the daemon is ready; 503 if not; with ?healthy, expected plugins must be healthy, too",
    "GET /metrics": "metrics in the text format of Prometheus",
}
#: Requests that have their own limits; all others share the limit for queries.
_PLACES = {
    "/watch": Place.STREAM,
    "/v1/devices/watch": Place.STREAM,
    "/v1/leases/watch": Place.STREAM,
    "/healthz": Place.HEALTH,
    "/readyz": Place.HEALTH,
    "/metrics": Place.HEALTH,
}


def is_for_lease_users(request: HttpRequest) -> bool:
    """Whether users who can only see and lease devices may send ``request``."""
    path = request.path
    return is_about_leases(path) or is_about_history(path) or path == "/v1/devices" or path.startswith("/v1/devices/")


def changes_nothing(request: HttpRequest) -> bool:
    """Whether users who can only read may send ``request``."""
    return request.method in ("GET", "HEAD")


def place(request: HttpRequest) -> Place:
    """Return which limit of the HTTP server applies to ``request``. Open streams must not delay health requests."""
    if is_allocation(request):
        return Place.LEASE
    return Place.HANDLER if is_handler_stream(request) else _PLACES.get(request.path, Place.QUERY)


@attrs.define
class Api:
    """Answers requests from the state of the status actor."""

    config: StatusConfig
    memory: Memory
    reconciler: Address[ReconcilerMessage]
    health: Callable[[], tuple[ActorHealth, ...]] = tuple
    devices: DevicesApi = attrs.field(factory=lambda: DevicesApi(time.time))
    leases: LeasesApi = attrs.field(factory=lambda: LeasesApi(time.time))
    history: HistoryApi = attrs.field(factory=lambda: HistoryApi(time.time))
    refresh_facts: RefreshFacts | None = None
    #: Makes the routes for handlers in other processes, at the first request; None for none.
    remote: Callable[[], HandlersApi] | None = None
    unsent: Unsent = attrs.field(factory=Unsent)
    _watches: OpenWatches = attrs.field(init=False)
    _handlers: HandlersApi | None = None

    def __attrs_post_init__(self) -> None:
        self._watches = OpenWatches(self.unsent)

    def end_watches(self) -> None:
        """End the streams of changes."""
        self.devices.watches.end()
        self.leases.end_watches()
        if self._handlers is not None:
            self._handlers.end()
        self._watches.end()

    async def __call__(self, request: HttpRequest, /) -> HttpResponse:
        """Return the answer to ``request``."""
        if is_about_leases(request.path) or request.path in DRAINS:
            return await self.leases.answer(request)
        if is_about_history(request.path):
            return await self.history.answer(request)
        if is_about_handlers(request.path) and self.remote is not None:
            self._handlers = self._handlers or self.remote()
            return self._handlers.answer(request)
        route = {
            "/": self._index,
            "/plugins": self._list,
            "/watch": self._watch,
            "/rules": lambda _: json_response(200, rules_to_json(self.memory.rules(self.config))),
            "/healthz": self._health,
            "/v1/devices/watch": self.devices.watch,
            "/v1/devices/refused": self.devices.refused,
        }.get(request.path)
        # These routes ask other actors.
        asking = {
            "/v1/devices": self.devices.answer,
            "/metrics": self.metrics,
            "/readyz": self._ready,
            "/config": self._configuration,
        }.get(request.path)
        if request.path == "/reload":
            return await self._reload() if request.method == "POST" else wrong_method("POST")
        if request.path == "/retry":
            return await self._retry(request) if request.method == "POST" else wrong_method("POST")
        if route is None and asking is None and re.fullmatch(r"/plugins/.+", request.path) is None:
            return problem(404, f"there is no {request.path}")
        if request.method not in ("GET", "HEAD"):
            return wrong_method("GET")
        return route(request) if route is not None else await (asking or self._describe)(request)

    def _index(self, _: HttpRequest) -> HttpResponse:
        return json_response(200, {"version": __version__, "status_version": STATUS_VERSION, "paths": REQUESTS})

    def _list(self, request: HttpRequest) -> HttpResponse:
        # An unknown filter must be refused: ignoring it would return too much.
        if unknown := request.query.keys() - {"name", "type"}:
            return problem(400, f"there is no parameter {encodable(min(unknown))}; {request.path} takes name and type")
        name, plugin_type = request.query.get("name"), request.query.get("type")
        rows = [
            row
            for row in self.memory.view.rows.values()
            if (name is None or row.name == name) and (plugin_type is None or row.type == plugin_type)
        ]
        return HttpResponse(
            200,
            "application/json",
            write=self.unsent.counted(partial(_write_list, rows, self.config.wall, request.version)),
        )

    async def _describe(self, request: HttpRequest) -> HttpResponse:
        # Bytes, because the path of a socket need not be UTF-8 (fault 21).
        target = _fsdecode(unquote_to_bytes(request.path.removeprefix("/plugins/")))
        rows = self.memory.view.find(target)
        if not rows:
            return self._unknown(target, await self.devices.why_known(target))
        devices = await self._devices_of(rows)
        now, unix = trio.current_time(), self.config.wall()
        described = ((row, described_to_json(self._with_warnings(row), now, unix, request.version)) for row in rows)
        return json_response(200, [plugin | devices.get(row.last.socket, {}) for row, plugin in described])

    async def _devices_of(self, rows: list[Row]) -> dict[str, dict[str, Json]]:
        """Return the descriptions of the device plugins among ``rows``, by socket."""
        asked = [(row.name, row.last.socket, row.last.generation) for row in rows if row.type == DEVICE and row.name]
        if not asked:
            return {}
        answers = zip(asked, await self.devices.describe(asked), strict=True)
        return {socket: {"device_plugin": answer} for (_, socket, _), answer in answers if answer is not None}

    def _with_warnings(self, row: Row) -> PluginStatus:
        """Return the status with its history, and with the warnings about the directories of its socket."""
        status = row.status_with_history
        return attrs.evolve(status, warnings=(*status.warnings, *self.memory.view.directory_warnings(row.last.socket)))

    def _unknown(self, target: str, resource: str | None) -> HttpResponse:
        """Answer that no plugin is known as ``target``, with the state of a ``resource`` and possible reasons."""
        parts = [f"no plugin has the name, and no socket the path, {encodable(target)}"]
        refused = self.memory.refused_calls.words(target, trio.current_time())
        parts += [said for said in (resource, refused) if said is not None]
        alike = len(self.memory.view.with_file_name(target))
        if alike > 1:
            parts.append(f"{alike} sockets have that file name, so give the path of one")
        parts += [
            f"root {encodable(report.root)} is {report.watching}: {encodable(report.reason or '')}"
            for report in self.memory.view.roots.values()
            if report.watching in (Watching.UNAVAILABLE, Watching.ABSENT, Watching.INSECURE, Watching.TAKEN)
        ]
        parts += self.memory.view.why_not_taken(target)
        return problem(404, "; ".join(parts))

    def _watch(self, request: HttpRequest) -> HttpResponse:
        """Stream the plugins: all of them first, then each change."""
        version, audience = request.version, self.memory.audience

        async def write_first(_: object, send: AnswerStream) -> bool:
            rows = list(self.memory.view.rows.values())
            await send_pieces((self._line(version, row.status, trio.current_time()) for row in rows), send)
            return True

        change = partial(self._change, version)
        plugins = Watched(PluginChanged, change, write_first, audience.subscribers.append, audience.remove)
        return self._watches.answer(request, plugins)

    def _change(self, version: int, change: PluginChanged) -> bytes:
        return b"" if change.only_facts else self._line(version, change.plugin, change.time, change.event)

    def _line(self, version: int, status: PluginStatus, then: float, event: str | None = None) -> bytes:
        """Return a JSON line for the status at ``then``, with the wall clock time, and the ``event`` of that time."""
        unix = round(self.config.wall() - trio.current_time() + then, 6)
        happened = {} if event is None else {"event": encodable(event)}
        content = {"time": timestamp(unix), **plugin_to_json(status, then, unix, version), **happened}
        return json.dumps(content).encode() + b"\n"

    async def _retry(self, request: HttpRequest) -> HttpResponse:
        asked = _retry_asked(request.body)
        if asked is None:
            return problem(
                400, 'the body is to be {"target": NAME or SOCKET}, and may have "facts": true, and nothing else'
            )
        target, for_facts = asked
        # By path: the view also has the names of sockets without a claim, and accepts escaped paths.
        rows = [row for row in self.memory.view.find(target) if row.last.state is not StateName.GONE]
        if for_facts and self.refresh_facts is not None and rows:
            return json_response(200, retried_to_json(ask_for_facts(self.refresh_facts, [row.last for row in rows])))
        if for_facts:
            return self._unknown(target, await self.devices.why_known(target))
        replies: list[trio.MemoryReceiveChannel[RetryAnswered]] = []
        try:
            for socket in [row.last.socket for row in rows] or [target]:
                # One channel for each: an actor can answer twice, and its second answer must not count for another
                # actor.
                writer, reader = trio.open_memory_channel[RetryAnswered](1)
                self.reconciler.send_nowait(RetryAsked(socket, writer))
                replies.append(reader)
        except trio.WouldBlock:
            return problem(503, "the node is busy; ask again", (("Retry-After", "1"),))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return problem(503, "the node is about to stop")
        with trio.move_on_after(self.config.retry):
            answers = [answer for reply in replies for answer in (await reply.receive()).answers]
            if not answers:
                return self._unknown(target, await self.devices.why_known(target))
            return json_response(200, retried_to_json([_with_liveness(answer, rows) for answer in answers]))
        return problem(503, f"no answer within {self.config.retry:g} seconds")

    async def _reload(self) -> HttpResponse:
        writer, reader = trio.open_memory_channel[Reloaded](1)
        return await self._ask_reloader(ReloadAsked(writer), reader, _reloaded)

    async def _configuration(self, _: HttpRequest) -> HttpResponse:
        writer, reader = trio.open_memory_channel[ConfigurationShown](1)
        return await self._ask_reloader(ConfigurationAsked(writer), reader, _shown)

    async def _ask_reloader(
        self, message: ReloaderMessage, answer: trio.MemoryReceiveChannel[T], shown: Callable[[T], HttpResponse]
    ) -> HttpResponse:
        if self.config.reload is None:
            return problem(409, "this node is embedded in a program, which gives it its configuration")
        try:
            self.config.reload.send_nowait(message)
        except trio.WouldBlock:
            return problem(503, "the configuration is being read again already; ask again", (("Retry-After", "1"),))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return problem(503, "the node is about to stop")
        with trio.move_on_after(RELOAD_DEADLINE):
            return shown(await answer.receive())
        return problem(503, f"no answer within {RELOAD_DEADLINE:g} seconds")

    def counts(self) -> dict[tuple[StateName, str], int]:
        """Return the number of sockets by state and by the type's label."""
        return self.memory.metrics.plugins(self.memory.view.rows.values())

    async def metrics(self, _: HttpRequest) -> HttpResponse:
        """Return the current metrics."""
        # The renderer is a tenth of all imports of a daemon. It is imported early only with a metrics port. After an
        # upgrade, its files can be gone or replaced.
        try:
            from . import exposition, exposition_of_node
        except (ImportError, OSError, SyntaxError) as error:
            return problem(503, f"what renders metrics cannot be imported: {error}: restart plugind after an upgrade")

        devices = await self.devices.snapshot(METRICS_DEADLINE)
        leases = await self.leases.snapshot(METRICS_DEADLINE)
        view = self.memory.view
        rows, expectation = list(view.rows.values()), self.memory.expected(self.config)
        # If there is no answer, no device counts as healthy.
        there = healthy_devices(expectation.devices, () if devices is None else devices.resources)
        node = exposition_of_node.OfNode(
            expected_useful(expectation.expected, rows, healthy=expectation.healthy),
            {name: max(0, number - there[name]) for name, number in expectation.devices.items()},
            watched(view.roots.values()),
            own_process.figures(),
        )
        pieces = exposition.render(
            self.memory.metrics,
            self.memory.calls,
            rows,
            self.health(),
            devices,
            leases,
            node=node,
            path_metrics=self.config.path_metrics,
            max_paths=self.config.max_path_metrics,
        )

        async def write(send: Send) -> None:
            for piece in pieces:
                await send(piece)
                await trio.lowlevel.checkpoint()

        return HttpResponse(200, exposition.CONTENT_TYPE, write=write)

    def _health(self, _: HttpRequest) -> HttpResponse:
        now = trio.current_time()
        reports = self.memory.view.roots
        names = dict.fromkeys((*self.memory.roots(self.config), *reports))
        roots = [self._root_health(root, reports.get(root), now) for root in names]
        actors = self._actors_health(now)
        words = {part["status"] for part in (*roots, *actors)}
        worst = next(word for word in ("failed", "degraded", "starting", "ok") if word in words)
        queued = next((part["waiting"] for part in actors if part["name"] == _DIAL_SLOTS), 0)
        answer = {"status": worst, "roots": roots, "actors": actors, "queued": queued}
        return json_response(503 if worst == "failed" else 200, answer)

    def _actors_health(self, now: float) -> list[dict[str, Json]]:
        actors: dict[str, dict[str, Json]] = {"status": _actor("status", Condition.OK, None)}
        for health in self.health():
            inbox: dict[str, Json] = {"waiting": health.waiting, "oldest_wait": round(health.oldest_wait, 3)}
            actors[health.actor] = _actor(health.actor, health.condition, health.reason) | inbox
        for name, crash in self.memory.restarts.items():
            actor = actors.setdefault(encodable(name), _actor(name, Condition.OK, None))
            actor["restarts"] = crash.count
            if actor["status"] == Condition.OK and now - crash.time < self.config.remember_restart:
                actor["status"] = Condition.DEGRADED
                actor["reason"] = f"crashed {now - crash.time:.0f} s ago: {encodable(crash.error)}"
        others = (self._socket_health(now), self._loop_health(now), self._configuration_health(now))
        return [*actors.values(), *itertools.chain.from_iterable(others)]

    def _configuration_health(self, now: float) -> Iterator[dict[str, Json]]:
        """Yield the configuration in the form of an actor, once it was reloaded (fault 89)."""
        read = self.memory.configuration
        if read is None:
            return
        if read.refused is None:
            yield _actor("configuration", Condition.OK, None)
        else:
            reason = f"what was read {now - read.time:.0f} s ago is not used: {encodable(read.refused)}"
            yield _actor("configuration", Condition.DEGRADED, reason)

    def _socket_health(self, now: float) -> Iterator[dict[str, Json]]:
        """Yield the status socket in the form of an actor, once it could not be made again."""
        unmade = self.memory.unmade
        if unmade is not None:
            recent = now - unmade.time < self.config.remember_restart
            reason = (
                f"it could not be made again (failures in all: {unmade.count}), the last time {now - unmade.time:.0f} s"
                f" ago: {encodable(unmade.error)}"
            )
            condition = Condition.DEGRADED if recent else Condition.OK
            yield _actor("status socket", condition, reason if recent else None)

    def _loop_health(self, now: float) -> Iterator[dict[str, Json]]:
        """Yield the loop in the form of an actor, once it was blocked."""
        blocked = self.memory.blocked
        if blocked is not None:
            recent = now - blocked.time < self.config.remember_blocked
            times = self.memory.metrics.blocks
            reason = (
                f"{_what_blocked(blocked)}, {now - blocked.time:.0f} s ago (blocks in all: {times})" if recent else None
            )
            yield _actor("loop", Condition.DEGRADED if recent else Condition.OK, reason)

    def _root_health(self, root: str, report: RootStatus | None, now: float) -> dict[str, Json]:
        if report is None:
            return {"root": encodable(root), "status": "starting", "reason": "not scanned yet"}
        age = now - report.time
        status, reason = "ok", report.reason
        if report.watching in (Watching.UNAVAILABLE, Watching.TAKEN):
            status = "failed"
        elif age > self.config.heartbeat:
            status, reason = "degraded", f"not scanned for {age:.0f} s"
        elif report.watching in (Watching.POLLING, Watching.INSECURE):
            status = "degraded"
        elif report.degraded_by is not None:
            status, reason = "degraded", report.degraded_by.reason
        return {
            "root": encodable(root),
            "status": status,
            "reason": None if reason is None else encodable(reason),
            "watching": report.watching,
            "sockets": [row.last.root for row in self.memory.view.rows.values()].count(root),
            "scans": report.scans,
            "scan_failures": report.scan_failures,
            "overflows": report.overflows,
            "reported": round(age, 3),
            "directories": [
                {
                    "path": encodable(directory.path),
                    "condition": directory.condition.value,
                    "reason": encodable(directory.reason),
                }
                for directory in report.directories
            ],
            "directories_in_all": sum(number for _, number in report.conditions),
        }

    async def _ready(self, request: HttpRequest) -> HttpResponse:
        """Answer whether the node is ready; with ``?healthy``, expected plugins must be healthy, too."""
        if unknown := request.query.keys() - {"healthy"}:
            return problem(400, f"there is no parameter {encodable(min(unknown))}; {request.path} takes healthy")
        healthy = "healthy" in request.query or self.memory.expected(self.config).healthy
        awaited = [*self._awaited(healthy=healthy), *await self._awaited_devices()]
        return json_response(503 if awaited else 200, {"ready": not awaited, "awaiting": awaited})

    def _awaited(self, *, healthy: bool) -> Iterable[str]:
        view = self.memory.view
        for health in self.health():
            if health.condition is Condition.FAILED:
                yield f"the actor {encodable(health.actor)} ({health.reason})"
            elif health.actor == _LEASES and health.condition is Condition.DEGRADED:
                # A node that leases no devices must not get work that needs devices.
                yield f"leases ({encodable(health.reason or '')})"
        for root in self.memory.roots(self.config):
            report = view.roots.get(root)
            if report is None:
                yield f"the first scan of {encodable(root)}"
            elif not report.ready:
                yield f"the root {encodable(root)} ({encodable(report.reason or '')})"
        useful = {row.name for row in view.rows.values() if (row.healthy if healthy else row.useful)}
        for name in self.memory.expected(self.config).expected:
            if name not in useful:
                # Several sockets can have the name, and the same reason.
                why = dict.fromkeys(_awaited_for(row) for row in view.rows.values() if row.name == name)
                why = why or {"no socket has given this name": None}
                yield f"the plugin {encodable(name)}" + "".join(f" ({encodable(reason)})" for reason in why)

    async def _awaited_devices(self) -> list[str]:
        expected = self.memory.expected(self.config).devices
        if not expected:
            return []
        snapshot = await self.devices.snapshot()
        if snapshot is None:
            return [f"the expected devices ({NO_ANSWER})"]
        there = healthy_devices(expected, snapshot.resources)
        return [
            f"{number} devices of {encodable(name)} ({there[name]} are healthy)"
            for name, number in expected.items()
            if there[name] < number
        ]


def _awaited_for(row: Row) -> str:
    """Return why an expected plugin is not of use yet: it does not serve, or it is not registered or not healthy."""
    if row.unserved is not None:
        return row.unserved.reason or "it does not serve"
    if row.useful:
        return "its handler reports no health" if row.health is None else _health_words(row.health)
    step, cause = row.last.step, row.last.cause or row.last.reason
    state = row.last.state.value if step is None else f"{StateName.REGISTERING} ({step})"
    return f"{state}: {cause}" if cause else state


def _health_words(health: HealthReported) -> str:
    """Return the health of a plugin and the reason."""
    return f"{health.health}: {health.reason}" if health.reason else health.health.value


def _reloaded(answer: Reloaded) -> HttpResponse:
    if answer.refused:
        return json_response(
            422, {"error": encodable(answer.refused[0]), "problems": [*map(encodable, answer.refused)]}
        )
    return json_response(200, {"changed": list(answer.changed), "needs_restart": list(answer.needs_restart)})


def _shown(answer: ConfigurationShown) -> HttpResponse:
    return json_response(200, {"files": answer.files, "settings": answer.settings, "waiting": answer.waiting})


def _actor(name: str, condition: Condition, reason: str | None) -> dict[str, Json]:
    return {"name": encodable(name), "status": condition, "restarts": 0, "reason": reason}


async def _write_list(rows: list[Row], wall: Callable[[], float], version: int, send: AnswerStream) -> None:
    statuses = (plugin_to_json(row.status, trio.current_time(), wall(), version) for row in rows)
    await send_pieces(listed(statuses), send)


def _with_liveness(answer: RetryAnswer, rows: list[Row]) -> RetryAnswer:
    """Return the answer to a retry, with the reason why a registered plugin does not serve (fault 39)."""
    for row in rows:
        if row.last.socket == answer.socket and row.unserved is not None and not answer.tried:
            return attrs.evolve(answer, why=f"{answer.why}; not serving: {row.unserved.reason}")
    return answer


def _retry_asked(body: bytes) -> tuple[str, bool] | None:
    """Return the target of a retry, and whether only its facts are asked for; None if the body is not valid."""
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(asked, dict) or asked.keys() - {"target", "facts"}:
        return None
    target, facts = asked.get("target"), asked.get("facts", False)
    return (target, facts) if isinstance(target, str) and target and isinstance(facts, bool) else None


def _fsdecode(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def _what_blocked(blocked: LoopBlocked) -> str:
    """Return how long the loop was blocked, and by what, in words."""
    step = blocked.step
    by = "something" if step is None else f"{step.call} of {encodable(step.plugin.name)} in the handler for {step.type}"
    return f"blocked for {blocked.seconds:.1f} s, of which it used {blocked.cpu_seconds:.1f} s of CPU, by {by}"

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.actors.console.client import HEARTBEATS
from plugind.actors.io.http_server import Request, Response
from plugind.actors.status import actor as status
from plugind.actors.status.api import Api, Memory, StatusConfig
from plugind.actors.status.streams import LEAST_HEARTBEAT, MOST_HEARTBEAT, PIECE
from plugind.protocol import directories
from plugind.protocol.health import ActorHealth, Condition
from plugind.protocol.logs import Field, Level
from plugind.protocol.messages import (
    ActorRestarted,
    EntryIgnored,
    HandlersChanged,
    Lagged,
    LoopBlocked,
    PluginChanged,
    ReconcilerMessage,
    RetryAnswer,
    RetryAnswered,
    RetryAsked,
    RoleChanged,
    RootReported,
    ScansAwaited,
    Snapshot,
    SnapshotAsked,
    StateChanged,
    StatusMessage,
    StepBlocked,
    Subscribed,
    Unsubscribed,
    ViewMessage,
)
from plugind.protocol.plugins import Plugin, PluginInfo
from plugind.protocol.status import Finished, Operation, Outcome, PluginStatus, StateName, Watching
from plugind.protocol.text import escaped

ROOT = "/r"


def changed(name: str, state: StateName, time: float = 0.0, generation: int = 1) -> StateChanged:
    return StateChanged(f"/r/{name}.sock", ROOT, generation, state, time)


def info(name: str) -> PluginInfo:
    return PluginInfo("CSIPlugin", name, f"/r/{name}.sock", ("1.0.0",))


@attrs.define
class RecordingLogger:
    """A logger that records its events."""

    level: Level = Level.DEBUG
    events: list[tuple[Level, str, dict[str, Field]]] = attrs.field(factory=list)

    def enabled(self, level: Level) -> bool:
        return level >= self.level

    def event(self, level: Level, message: str, /, **fields: Field) -> None:
        if self.enabled(level):
            self.events.append((level, message, fields))


@attrs.define
class Bench:
    """A status actor with its inbox and without a socket; its routes are called directly."""

    inbox: trio.MemorySendChannel[StatusMessage]
    reconciler: trio.MemoryReceiveChannel[ReconcilerMessage]
    memory: Memory
    log: RecordingLogger
    api: Api

    async def take(self, *messages: StatusMessage) -> None:
        for message in messages:
            await self.inbox.send(message)
        await wait_all_tasks_blocked()

    async def snapshot(self) -> Snapshot:
        reply, answer = trio.open_memory_channel[Snapshot](1)
        await self.inbox.send(SnapshotAsked(reply))
        return await answer.receive()

    async def subscribe(self, size: int = 100) -> trio.MemoryReceiveChannel[ViewMessage]:
        subscriber, stream = trio.open_memory_channel[ViewMessage](size)
        await self.take(Subscribed(subscriber))
        return stream

    async def get(self, path: str, **query: str) -> Response:
        return await self.api(Request("GET", path, query, b""))

    async def json(self, path: str, **query: str) -> object:
        return json.loads(await body_of(await self.get(path, **query)))


async def body_of(response: Response) -> bytes:
    whole = bytearray(response.body)

    async def send(piece: bytes) -> None:
        whole.extend(piece)

    if response.write is not None:
        await response.write(send)
    return bytes(whole)


@asynccontextmanager
async def bench(config: StatusConfig | None = None, level: Level = Level.DEBUG) -> AsyncIterator[Bench]:
    config = config or StatusConfig(roots=(ROOT,), wall=lambda: trio.current_time() + 1000.0)
    to_status, inbox = trio.open_memory_channel[StatusMessage](1000)
    to_reconciler, asked = trio.open_memory_channel[ReconcilerMessage](2)
    memory, log = Memory(), RecordingLogger(level)
    async with trio.open_nursery() as nursery:

        async def run() -> None:
            await status.run(config, inbox=inbox, reconciler=to_reconciler, log=log, memory=memory)

        nursery.start_soon(run)
        with to_reconciler, asked:
            yield Bench(to_status, asked, memory, log, Api(config, memory, to_reconciler))
        to_status.close()


def drained(stream: trio.MemoryReceiveChannel[ViewMessage]) -> list[ViewMessage]:
    messages: list[ViewMessage] = []
    while True:
        try:
            messages.append(stream.receive_nowait())
        except (trio.WouldBlock, trio.EndOfChannel):
            return messages


# --- snapshots and subscribers ---------------------------------------------------------------------------------------


async def test_a_snapshot_is_the_whole_view_with_its_histories(autojump_clock: MockClock) -> None:
    async with bench() as node:
        report = RootReported(ROOT, Watching.EVENTS, 0.0, ready=True)
        await node.take(
            report,
            HandlersChanged(("CSIPlugin",)),
            changed("a", StateName.DIALING),
            changed("a", StateName.WAITING, 1.0),
            changed("b", StateName.STALE),
        )
        snapshot = await node.snapshot()
    assert (snapshot.roots, snapshot.handlers) == ((report,), ("CSIPlugin",))
    assert [(p.socket, p.state, len(p.history)) for p in snapshot.plugins] == [
        ("/r/a.sock", StateName.WAITING, 2),
        ("/r/b.sock", StateName.STALE, 1),
    ]


async def test_a_subscriber_gets_the_present_view_and_then_each_change_once(autojump_clock: MockClock) -> None:
    async with bench() as node:
        await node.take(changed("a", StateName.DIALING))
        stream = await node.subscribe()
        await node.take(
            changed("a", StateName.REGISTERED, 2.0),
            RoleChanged("/r/a.sock", 1, active=False),
            RoleChanged("/r/a.sock", 1, active=False),
            changed("a", StateName.GONE, 3.0),
            changed("a", StateName.GONE, 3.0),
        )
        messages = drained(stream)
    first = messages.pop(0)
    assert isinstance(first, Snapshot)
    assert first.plugins == (PluginStatus("/r/a.sock", ROOT, 1, StateName.DIALING, 0.0),)
    registered = PluginStatus("/r/a.sock", ROOT, 1, StateName.REGISTERED, 2.0, active=True, serving=True)
    assert messages == [
        PluginChanged(2.0, registered),
        PluginChanged(0.0, attrs.evolve(registered, active=False)),
        PluginChanged(3.0, PluginStatus("/r/a.sock", ROOT, 1, StateName.GONE, 3.0)),
    ]


async def test_a_subscriber_that_lags_is_dropped_and_lagged_is_its_last_message(autojump_clock: MockClock) -> None:
    """Fault 86: a loss is never silent, and no actor waits for the reader."""
    async with bench() as node:
        slow, quick = await node.subscribe(size=3), await node.subscribe()
        for number in range(10):
            await node.take(changed(f"p{number}", StateName.DIALING))
        assert len(drained(quick)) == 11
        assert [type(message) for message in drained(slow)] == [Snapshot, PluginChanged, PluginChanged]
        await node.take(changed("late", StateName.DIALING))
        await node.take(changed("later", StateName.DIALING))
        assert drained(slow) == [Lagged()]
        assert len(drained(quick)) == 2


async def test_a_subscriber_that_closed_its_stream_is_removed(autojump_clock: MockClock) -> None:
    async with bench() as node:
        gone = await node.subscribe()
        subscriber, stream = trio.open_memory_channel[ViewMessage](10)
        await node.take(Subscribed(subscriber), Unsubscribed(subscriber))
        gone.close()
        await node.take(changed("a", StateName.DIALING))
        assert node.memory.subscribers == []
        assert [type(message) for message in drained(stream)] == [Snapshot]


async def test_a_large_snapshot_lets_other_tasks_run(autojump_clock: MockClock) -> None:
    async with bench() as node:
        for number in range(1000):
            await node.inbox.send(changed(f"p{number}", StateName.WAITING))
        await wait_all_tasks_blocked()
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            snapshot = await node.snapshot()
            nursery.cancel_scope.cancel()
        assert len(snapshot.plugins) == 1000
        assert turns >= 7


# --- logged events ----------------------------------------------------------------------------------------------------


async def test_changes_that_matter_are_logged_once_and_repeats_are_not(autojump_clock: MockClock) -> None:
    """Kubernetes issue 94827: repeated failures must not fill the log."""

    def waiting(time: float, reason: str, attempt: int) -> StateChanged:
        return attrs.evolve(changed("a", StateName.WAITING, time), reason=reason, attempt=attempt, next_try=time + 0.5)

    async with bench(level=Level.INFO) as node:
        await node.take(
            changed("a", StateName.DIALING),
            waiting(1.0, "no answer", 1),
            changed("a", StateName.DIALING, 2.0),
            waiting(3.0, "no answer", 2),
            changed("a", StateName.DIALING, 4.0),
            waiting(5.0, "refused", 3),
            attrs.evolve(changed("a", StateName.REGISTERED, 6.0), info=info("a"), registered_in=6.0, attempt=4),
            changed("a", StateName.LEAVING, 7.0),
            attrs.evolve(changed("a", StateName.GONE, 7.0), reason="the socket was removed"),
        )
    logged = [(message, fields["cause"], fields["attempt"], fields["name"]) for _, message, fields in node.log.events]
    assert logged == [
        ("plugin waiting", "no answer", 1, None),
        ("plugin waiting", "refused", 3, None),
        ("plugin registered", None, 4, "a"),
        ("plugin gone", "the socket was removed", None, "a"),
    ]


async def test_with_the_level_warning_each_failure_is_shown_once_for_each_cause(autojump_clock: MockClock) -> None:
    """Kubernetes issue 94827: two causes that take turns are two lines.

    A success makes both news again, and so does a newer socket.
    """

    def failed(state: StateName, reason: str) -> StateChanged:
        return attrs.evolve(changed("a", state), reason=reason, attempt=1)

    hung = failed(StateName.WAITING, "no answer")
    refused = failed(StateName.WAITING, "refused")
    stale = failed(StateName.STALE, "nobody listens")
    parked = failed(StateName.PARKED, "no handler")
    dialing, registered = changed("a", StateName.DIALING), changed("a", StateName.REGISTERED)
    async with bench(level=Level.WARNING) as node:
        for change in (hung, refused, hung, refused, stale, hung, stale, parked, stale, parked):
            await node.take(dialing, change)
        await node.take(registered, dialing, hung, attrs.evolve(hung, generation=2), changed("a", StateName.GONE))
    logged = [(level, message, fields["cause"]) for level, message, fields in node.log.events]
    assert logged == [
        (Level.WARNING, "plugin waiting", "no answer"),
        (Level.WARNING, "plugin waiting", "refused"),
        (Level.WARNING, "plugin stale", "nobody listens"),
        (Level.WARNING, "plugin parked", "no handler"),
        (Level.WARNING, "plugin waiting", "no answer"),
        (Level.WARNING, "plugin waiting", "no answer"),
    ]


@pytest.mark.parametrize(("outcome", "level"), [(Outcome.OK, Level.INFO), (Outcome.FAILED, Level.WARNING)])
async def test_a_plugin_that_could_not_be_deregistered_is_a_warning(
    autojump_clock: MockClock, outcome: Outcome, level: Level
) -> None:
    """Fault 84."""
    deregistered = Finished(Operation.DEREGISTER, outcome, 0.1)
    async with bench() as node:
        await node.take(changed("a", StateName.REGISTERED), changed("a", StateName.LEAVING))
        node.log.events.clear()
        await node.take(attrs.evolve(changed("a", StateName.GONE), finished=deregistered))
    assert [event[:2] for event in node.log.events] == [(level, "plugin gone")]


async def test_a_caller_learns_when_a_scan_of_each_root_was_tried(autojump_clock: MockClock) -> None:
    """Behaviour 2: a root that cannot be read was tried, too."""
    async with bench(StatusConfig(roots=("/r", "/s"))) as node:
        replies = [trio.open_memory_channel[bool](1) for _ in range(3)]
        for reply, _ in replies[:2]:
            await node.take(ScansAwaited(reply))
        await node.take(RootReported("/r", Watching.EVENTS, 0.0, ready=True))
        with pytest.raises(trio.WouldBlock):
            replies[0][1].receive_nowait()
        await node.take(RootReported("/s", Watching.UNAVAILABLE, 0.0), ScansAwaited(replies[2][0]))
        assert [answer.receive_nowait() for _, answer in replies] == [True, True, True]


async def test_a_root_that_was_made_is_logged(autojump_clock: MockClock) -> None:
    """Behaviour 1."""
    async with bench() as node:
        made = RootReported(ROOT, Watching.EVENTS, 0.0, ready=True, made=True)
        await node.take(made, attrs.evolve(made, made=False, scans=2))
    assert [event[:2] for event in node.log.events] == [
        (Level.INFO, "root was missing and was made"),
        (Level.INFO, "root is watched"),
    ]


async def test_what_only_looks_like_a_socket_is_logged_once(autojump_clock: MockClock) -> None:
    """Fault 6: a watcher that is restarted reports it again."""
    fifo, directory = EntryIgnored("/r/a.sock", ROOT), EntryIgnored("/r/b.sock", ROOT, directory=True)
    async with bench() as node:
        await node.take(fifo, directory, fifo, directory)
    assert [(level, message, fields["path"]) for level, message, fields in node.log.events] == [
        (Level.WARNING, "not a socket", "/r/a.sock"),
        (Level.WARNING, "a directory has the name of a socket", "/r/b.sock"),
    ]


async def test_no_more_than_a_hundred_refused_entries_of_a_root_are_logged(autojump_clock: MockClock) -> None:
    """Fault 7: the hundred and first is only counted, in one line; its end is not logged either."""
    refused = [attrs.evolve(changed(f"link{number}", StateName.PARKED), cause="a link") for number in range(103)]
    report = RootReported(ROOT, Watching.EVENTS, 0.0, ready=True)
    async with bench(level=Level.INFO) as node:
        await node.take(*refused, report, attrs.evolve(report, scans=2))
        said = [(message, fields.get("more")) for _, message, fields in node.log.events]
        assert said[:100] == [("plugin parked", None)] * 100
        assert sorted(said[100:], key=str) == [
            ("more entries are refused than are logged", 3),
            ("root is watched", None),
        ]
        node.log.events.clear()
        await node.take(*(attrs.evolve(entry, state=StateName.GONE, cause=None, time=1.0) for entry in refused[99:101]))
        assert [fields["socket"] for _, _, fields in node.log.events] == ["/r/link99.sock"]
        # Another root has a hundred lines of its own.
        await node.take(attrs.evolve(refused[0], socket="/s/link.sock", root="/s"))
        assert node.log.events[-1][1] == "plugin parked"


async def test_problems_of_a_root_and_crashes_are_warnings(autojump_clock: MockClock) -> None:
    async with bench(level=Level.INFO) as node:
        well = RootReported(ROOT, Watching.EVENTS, 0.0, ready=True)
        await node.take(
            well,
            attrs.evolve(well, scans=2),
            attrs.evolve(well, watching=Watching.POLLING, reason="no watches left"),
            attrs.evolve(well, watching=Watching.UNAVAILABLE, reason="Permission denied", ready=False),
            ActorRestarted("registration /r/a.sock", "Traceback (most recent call last):\n  …\nKeyError: 1\n"),
        )
    assert [
        (level, message, fields.get("reason") or fields.get("error")) for level, message, fields in node.log.events
    ] == [
        (Level.INFO, "root is watched", None),
        (Level.WARNING, "root is polled", "no watches left"),
        (Level.WARNING, "root is unavailable", "Permission denied"),
        (Level.WARNING, "actor crashed and was restarted", "KeyError: 1"),
    ]


async def test_a_plugin_in_a_deprecated_root_is_registered_with_a_warning(autojump_clock: MockClock) -> None:
    """Behaviour 16: the help promised it, and the line was like any other."""
    old = attrs.evolve(changed("old", StateName.REGISTERED), deprecated=True)
    async with bench(level=Level.INFO) as node:
        await node.take(changed("a", StateName.REGISTERED), old, attrs.evolve(old, time=1.0))
    assert [(level, fields["socket"], fields["warning"]) for level, _, fields in node.log.events] == [
        (Level.INFO, "/r/a.sock", None),
        (Level.WARNING, "/r/old.sock", "the socket lies in a deprecated directory"),
    ]


async def test_a_socket_that_is_removed_during_a_dial_is_no_warning(autojump_clock: MockClock) -> None:
    """Only a deregistration that failed is one (fault 84)."""
    gone = changed("a", StateName.GONE)
    superseded = Finished(Operation.DIAL, Outcome.SUPERSEDED, 0.1)
    failed = Finished(Operation.DEREGISTER, Outcome.FAILED, 0.1)
    async with bench(level=Level.INFO) as node:
        for finished in (superseded, failed):
            await node.take(changed("a", StateName.DIALING), attrs.evolve(gone, finished=finished))
    assert [(level, message, fields["outcome"]) for level, message, fields in node.log.events] == [
        (Level.INFO, "plugin gone", "dial superseded"),
        (Level.WARNING, "plugin gone", "deregister failed"),
    ]


# --- routes -----------------------------------------------------------------------------------------------------------


async def test_ten_thousand_plugins_are_listed_in_pieces(autojump_clock: MockClock) -> None:
    """A listing blocks the event loop for one piece at a time."""
    async with bench() as node:
        for number in range(10_000):
            node.memory.view.apply(changed(f"p{number:05}", StateName.WAITING))
        response = await node.get("/plugins")
        pieces: list[bytes] = []

        async def send(piece: bytes) -> None:
            pieces.append(piece)
            # Changes in the meantime do not affect this listing.
            node.memory.view.apply(changed(f"p{9999 - len(pieces):05}", StateName.GONE))

        assert response.write is not None
        await response.write(send)
    assert len(pieces) == 10_000 // PIECE + 1
    listed = json.loads(b"".join(pieces))
    assert [plugin["socket"] for plugin in listed] == [f"/r/p{number:05}.sock" for number in range(10_000)]


async def test_a_listing_can_be_narrowed_and_an_empty_one_is_a_list(autojump_clock: MockClock) -> None:
    async with bench() as node:
        assert await node.json("/plugins") == []
        for name in ("a", "b"):
            node.memory.view.apply(attrs.evolve(changed(name, StateName.REGISTERED), info=info(name)))
        node.memory.view.apply(changed("nameless", StateName.WAITING))
        for query, count in (({}, 3), ({"name": "a"}, 1), ({"type": "CSIPlugin"}, 2), ({"type": "Odd"}, 0)):
            listed = await node.json("/plugins", **query)
            assert isinstance(listed, list)
            assert len(listed) == count


@pytest.mark.parametrize("target", ["a", "%2Fr%2Fa.sock", "/r/a.sock"])
async def test_one_plugin_is_described_by_name_and_by_path(target: str, autojump_clock: MockClock) -> None:
    async with bench() as node:
        node.memory.view.apply(attrs.evolve(changed("a", StateName.REGISTERED), info=info("a")))
        described = await node.json(f"/plugins/{target}")
    assert isinstance(described, list)
    (plugin,) = described
    assert plugin["name"] == "a"
    assert plugin["history"] == [
        {
            "ago": 0.0,
            "at": "1970-01-01T00:16:40.000Z",
            "state": "registered",
            "reason": None,
            "cause": None,
            "attempt": 0,
        }
    ]


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/nothing", 404),
        ("POST", "/", 405),
        ("GET", "/plugins/none", 404),
        ("GET", "/plugins/", 404),
        ("GET", "/metrics/x", 404),
        ("DELETE", "/plugins", 405),
        ("POST", "/watch", 405),
        ("GET", "/retry", 405),
        ("POST", "/retry", 400),
    ],
)
async def test_invalid_requests_get_an_error_in_json(
    method: str, path: str, code: int, autojump_clock: MockClock
) -> None:
    async with bench() as node:
        response = await node.api(Request(method, path, {}, b""))
    assert response.status == code
    assert isinstance(json.loads(response.body)["error"], str)


async def test_watching_streams_the_present_view_and_then_every_change_with_its_time(autojump_clock: MockClock) -> None:
    async with bench() as node:
        await node.take(attrs.evolve(changed("a", StateName.REGISTERED), info=info("a")))
        response = await node.get("/watch")
        assert response.endless
        assert response.write is not None
        lines: list[dict[str, object]] = []

        async def send(piece: bytes) -> None:
            lines.extend(json.loads(line) for line in piece.splitlines())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(response.write, send)
            await trio.sleep(5)
            await node.take(changed("a", StateName.LEAVING, 4.0), changed("a", StateName.GONE, 5.0))
            node.api.end_watches()
        assert node.memory.subscribers == []
    assert [(line["time"], line["name"], line["state"], line["age"]) for line in lines] == [
        ("1970-01-01T00:16:40.000Z", "a", "registered", 0.0),
        ("1970-01-01T00:16:44.000Z", "a", "leaving", 0.0),
        ("1970-01-01T00:16:45.000Z", "a", "gone", 0.0),
    ]


async def test_a_watch_with_heartbeats_shows_when_the_list_is_complete_and_that_the_daemon_runs(
    autojump_clock: MockClock,
) -> None:
    async with bench() as node:
        await node.take(attrs.evolve(changed("a", StateName.REGISTERED), info=info("a")))
        response = await node.api(Request("GET", "/watch", {"heartbeat": "2"}, b""))
        assert response.headers == (("Heartbeat", "2"),)
        assert response.write is not None
        came: list[tuple[float, str]] = []

        async def send(piece: bytes) -> None:
            states = [json.loads(line)["state"] if line else "" for line in piece.splitlines()]
            came.extend((trio.current_time(), state) for state in states)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(response.write, send)
            await trio.sleep(3)
            await node.take(changed("a", StateName.GONE, 3.0))
            await trio.sleep(3)
            node.api.end_watches()
    assert came == [(0.0, "registered"), (0.0, ""), (2.0, ""), (3.0, "gone"), (5.0, "")]


async def test_a_watch_has_no_heartbeats_unless_it_asks_for_some(autojump_clock: MockClock) -> None:
    """An older client would not understand an empty line."""
    async with bench() as node:
        assert (await node.get("/watch")).headers == ()


@pytest.mark.parametrize("pause", ["", "soon", "nan", "inf", "-1", "0", "1e9"])
async def test_a_heartbeat_out_of_range_is_refused_with_what_is_allowed(pause: str, autojump_clock: MockClock) -> None:
    """It was ignored, so a client waited for heartbeats that never came."""
    async with bench() as node:
        refused = await node.get("/watch", heartbeat=pause)
    assert refused.status == 400
    assert json.loads(refused.body) == {"error": f"heartbeat is {pause!r}: it must be seconds from 0.02 to 3600"}


async def test_an_unknown_parameter_of_a_watch_is_refused(autojump_clock: MockClock) -> None:
    async with bench() as node:
        refused = await node.get("/watch", heartbeat="2", heart="2")
    assert refused.status == 400
    assert json.loads(refused.body) == {"error": "there is no parameter heart; /watch takes heartbeat"}


async def test_the_heartbeats_that_the_commands_ask_for_are_allowed() -> None:
    """``--answer-timeout`` may be a tenth of a second."""
    assert LEAST_HEARTBEAT <= 0.1 / HEARTBEATS
    assert MOST_HEARTBEAT >= 3600.0 / HEARTBEATS


async def test_a_watch_that_reads_too_slowly_ends_with_an_error(autojump_clock: MockClock) -> None:
    async with bench() as node:
        response = await node.get("/watch")
        assert response.write is not None
        pieces: list[bytes] = []
        release = trio.Event()

        async def send(piece: bytes) -> None:
            await release.wait()
            pieces.append(piece)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(response.write, send)
            await wait_all_tasks_blocked()
            for number in range(6000):
                await node.inbox.send(changed(f"p{number}", StateName.DIALING))
            await wait_all_tasks_blocked()
            release.set()
            await wait_all_tasks_blocked()
            await node.take(changed("one more", StateName.DIALING))
    assert json.loads(pieces[-1].splitlines()[-1]) == {"error": "too slow: changes were lost; watch again"}


async def test_a_retry_request_is_sent_to_the_reconciler_by_path(autojump_clock: MockClock) -> None:
    async with bench() as node:
        node.memory.view.apply(attrs.evolve(changed("a", StateName.WAITING), info=info("a")))
        answers: list[Response] = []

        async def ask(target: str) -> None:
            answers.append(await node.api(Request("POST", "/retry", {}, json.dumps({"target": target}).encode())))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "a")
            message = await node.reconciler.receive()
            assert isinstance(message, RetryAsked)
            assert message.path == "/r/a.sock"
            message.reply.send_nowait(RetryAnswered((RetryAnswer(message.path, tried=True, why="tried now"),)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "unknown")
            message = await node.reconciler.receive()
            assert isinstance(message, RetryAsked)
            message.reply.send_nowait(RetryAnswered(()))
    assert [(answer.status, json.loads(answer.body)) for answer in answers] == [
        (
            200,
            {
                "sockets": ["/r/a.sock"],
                "answers": [{"socket": "/r/a.sock", "tried": True, "why": "tried now"}],
            },
        ),
        (404, {"error": "no plugin has the name, and no socket the path, unknown"}),
    ]


async def test_a_retry_does_not_wait_for_a_reconciler_that_is_busy(autojump_clock: MockClock) -> None:
    """Fault 86."""
    async with bench() as node:
        asked = Request("POST", "/retry", {}, b'{"target": "a"}')
        answers: list[int] = []

        async def ask() -> None:
            answers.append((await node.api(asked)).status)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
        # Two requests wait in the inbox until their deadline; the third one finds the inbox full.
        assert answers == [503, 503, 503]
        assert trio.current_time() == StatusConfig().retry


async def test_health_shows_roots_and_actors(autojump_clock: MockClock) -> None:
    async def health(node: Bench) -> tuple[int, str, str, str | None]:
        response = await node.get("/healthz")
        body = json.loads(response.body)
        return response.status, body["status"], body["roots"][0]["status"], body["roots"][0]["reason"]

    async with bench() as node:
        assert await health(node) == (200, "starting", "starting", "not scanned yet")
        well = RootReported(ROOT, Watching.EVENTS, 0.0, ready=True)
        await node.take(well)
        assert await health(node) == (200, "ok", "ok", None)
        await node.take(attrs.evolve(well, watching=Watching.POLLING, reason="no watches left"))
        assert await health(node) == (200, "degraded", "degraded", "no watches left"), "fault 17"
        await node.take(attrs.evolve(well, watching=Watching.UNAVAILABLE, reason="Permission denied"))
        assert await health(node) == (503, "failed", "failed", "Permission denied"), "behaviour 2"
        await node.take(well)
        await trio.sleep(61)
        assert await health(node) == (200, "degraded", "degraded", "not scanned for 61 s"), "k3s 14418"
        await node.take(attrs.evolve(well, time=61.0), ActorRestarted("watcher /r", "KeyError: 1"))
        assert await health(node) == (200, "degraded", "ok", None), "fault 85"
        await trio.sleep(301)
        await node.take(attrs.evolve(well, time=362.0))
        assert await health(node) == (200, "ok", "ok", None)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (directories.Condition.INSECURE, "degraded"),
        (directories.Condition.FULL, "degraded"),
        (directories.Condition.GROUP_WRITABLE, "ok"),
    ],
)
async def test_a_directory_that_takes_nothing_new_degrades_the_health_and_is_named(
    autojump_clock: MockClock, condition: directories.Condition, expected: str
) -> None:
    """Faults 3 and 48: health said ok while links filled the table and no plugin was taken."""
    wrong = directories.DirectoryReport("/r/hog", condition, "what is wrong")
    async with bench() as node:
        await node.take(
            RootReported(ROOT, Watching.EVENTS, 0.0, ready=True, directories=(wrong,), conditions=((condition, 20),))
        )
        response = await node.get("/healthz")
        report = json.loads(response.body)
        (root,) = report["roots"]
        assert (response.status, report["status"], root["status"]) == (200, expected, expected)
        assert root["reason"] == ("what is wrong" if expected == "degraded" else None)
        shown = {"path": "/r/hog", "condition": condition.value, "reason": "what is wrong"}
        assert (root["directories"], root["directories_in_all"]) == ([shown], 20)
        text = (await body_of(await node.get("/metrics"))).decode()
        assert f'plugind_directories{{condition="{condition.value}"}} 20.0' in text.splitlines()


async def test_a_socket_that_is_not_taken_because_of_its_directory_is_not_only_unknown(
    autojump_clock: MockClock,
) -> None:
    """Fault 3: describe and retry said "no plugin", and nothing of the directory and what to do about it."""
    wrong = [
        directories.DirectoryReport(f"/r/{condition}", condition, "mend it") for condition in directories.Condition
    ]
    async with bench() as node:
        await node.take(RootReported(ROOT, Watching.EVENTS, 0.0, ready=True, directories=tuple(wrong)))

        async def said(path: str) -> str:
            response = await node.get(f"/plugins/{path}")
            assert response.status == 404
            text: str = json.loads(response.body)["error"]
            return text.removeprefix(f"no plugin has the name, and no socket the path, {path}")

        assert await said("/r/insecure/a/b.sock") == "; directory /r/insecure is insecure: mend it"
        assert await said("/r/full/a.sock") == "; directory /r/full is full: mend it"
        assert await said("/r/group-writable/a.sock") == ""
        assert await said("/r/insecure-not/a.sock") == ""

        counted = ((directories.Condition.INSECURE, 20),)
        await node.take(
            RootReported(ROOT, Watching.EVENTS, 0.0, ready=True, directories=(wrong[0],), conditions=counted)
        )
        assert await said("/r/other/a.sock") == (
            "; nothing new is taken from 20 directories below /r, of which 'plugind ls' names 1: mend those first"
        )
        assert await said("/elsewhere/a.sock") == ""


async def test_each_change_of_a_directory_is_logged_once_and_an_insecure_root_as_a_root_alone(
    autojump_clock: MockClock,
) -> None:
    """Fault 3: the log said at each try that the root, which still was insecure, no longer was."""
    insecure = directories.DirectoryReport(ROOT, directories.Condition.INSECURE, "everybody may write")
    of_group = directories.DirectoryReport(ROOT, directories.Condition.GROUP_WRITABLE, "its group may write")
    well = RootReported(ROOT, Watching.EVENTS, 0.0, ready=True)
    bad = attrs.evolve(
        well, watching=Watching.INSECURE, ready=False, reason="everybody may write", directories=(insecure,)
    )
    async with bench() as node:
        for report in well, bad, bad, bad, well, attrs.evolve(well, directories=(of_group,)):
            await node.take(report, attrs.evolve(report, time=1.0))
        await node.take(well)
    assert [(level, message, fields.get("reason")) for level, message, fields in node.log.events] == [
        (Level.INFO, "root is watched", None),
        (Level.WARNING, "root is insecure", "everybody may write"),
        (Level.INFO, "root is watched", None),
        (Level.WARNING, "directory is group-writable", "its group may write"),
        (Level.INFO, "directory is no longer group-writable", None),
    ]


async def test_crashes_of_registrations_are_counted_together_in_health_and_metrics(autojump_clock: MockClock) -> None:
    """Fault 85: they end nothing, so they must be seen."""
    async with bench() as node:
        await node.take(
            RootReported(ROOT, Watching.EVENTS, 0.0, ready=True),
            ActorRestarted("registration /r/a.sock", "AssertionError: planted"),
            ActorRestarted("registration /r/b.sock", "MemoryError"),
        )
        response = await node.get("/healthz")
        report = json.loads(response.body)
        (crashed,) = [actor for actor in report["actors"] if actor["name"] == "registration"]
        assert (response.status, report["status"], crashed["status"], crashed["restarts"]) == (
            200,
            "degraded",
            "degraded",
            2,
        )
        text = (await body_of(await node.get("/metrics"))).decode()
        assert 'plugind_actor_restarts_total{actor="registration"} 2.0' in text.splitlines()


async def test_health_says_for_a_while_what_blocked_the_loop(autojump_clock: MockClock) -> None:
    """Fault 83: it is logged at ``error``, counted, and degraded for five minutes."""

    async def loop(node: Bench) -> list[tuple[str, str | None]]:
        actors = json.loads((await node.get("/healthz")).body)["actors"]
        return [(actor["status"], actor["reason"]) for actor in actors if actor["name"] == "loop"]

    async with bench() as node:
        assert await loop(node) == []
        plugin = Plugin("T", "x", "/r/a.sock", ("1.0.0",), "/r/a.sock", 1)
        await node.take(LoopBlocked(0.0, 2.5, "register (a.py:1)", StepBlocked("T", "register", plugin, 2.5), 0.2))
        words = (
            "blocked for 2.5 s, of which it used 0.2 s of CPU, by register of x in the handler for T, 0 s ago"
            " (blocks in all: 1)"
        )
        assert await loop(node) == [("degraded", words)]
        await trio.sleep(10)
        await node.take(LoopBlocked(10.0, 1.0, None, None, 1.0))
        assert await loop(node) == [
            ("degraded", "blocked for 1.0 s, of which it used 1.0 s of CPU, by something, 0 s ago (blocks in all: 2)")
        ]
        text = (await body_of(await node.get("/metrics"))).decode()
        assert {"plugind_loop_blocks_total 2.0", "plugind_loop_blocked_seconds_total 3.5"} <= set(text.splitlines())
        await trio.sleep(301)
        assert await loop(node) == [("ok", None)]


async def test_readiness_waits_for_first_scans_and_for_expected_plugins(autojump_clock: MockClock) -> None:
    """Behaviour 40; Kubernetes issue 128043."""
    config = StatusConfig(roots=(ROOT, "/s"), expected=("a",))

    async def ready(node: Bench) -> tuple[int, list[str]]:
        response = await node.get("/readyz")
        body = json.loads(response.body)
        assert body["ready"] is (response.status == 200)
        return response.status, body["awaiting"]

    async with bench(config) as node:
        unknown = "the plugin a (no socket has given this name)"
        assert await ready(node) == (503, ["the first scan of /r", "the first scan of /s", unknown])
        await node.take(
            RootReported(ROOT, Watching.EVENTS, 0.0, ready=True),
            RootReported("/s", Watching.UNAVAILABLE, 0.0, reason="Permission denied"),
        )
        assert await ready(node) == (503, ["the root /s (Permission denied)", unknown])
        await node.take(RootReported("/s", Watching.POLLING, 0.0, ready=True))
        tried = attrs.evolve(changed("a", StateName.WAITING), info=info("a"), reason="all of it", cause="no answer")
        await node.take(
            tried, attrs.evolve(tried, socket="/r/b.sock", state=StateName.DIALING, cause=None, reason=None)
        )
        assert await ready(node) == (503, ["the plugin a (waiting: no answer) (dialing)"])
        await node.take(
            attrs.evolve(changed("a", StateName.REGISTERED), info=info("a")),
        )
        assert await ready(node) == (200, [])


HUNG = "it hangs: it has taken no message for 70 s, and 3 wait"


async def test_an_actor_that_hangs_makes_health_fail_and_the_node_not_ready(autojump_clock: MockClock) -> None:
    """With the reconciler hung for 70 s, health said ok and ready; only the watchers' heartbeat was looked at."""
    condition = Condition.FAILED
    async with bench() as node:

        def health() -> tuple[ActorHealth, ...]:
            reason = None if condition is Condition.OK else HUNG
            return (
                ActorHealth("status", Condition.OK, None, 0, 0.0),
                ActorHealth("reconciler", condition, reason, 3, 70.25),
                ActorHealth("handler A", Condition.OK, None, 1, 0.5),
                ActorHealth("handler B", Condition.OK, None, 2, 0.25),
            )

        api = attrs.evolve(node.api, health=health)

        async def get(path: str) -> Response:
            return await api(Request("GET", path, {}, b""))

        await node.take(RootReported(ROOT, Watching.EVENTS, 0.0, ready=True), ActorRestarted("reconciler", "KeyError"))
        answer = await get("/healthz")
        report = json.loads(answer.body)
        assert (answer.status, report["status"]) == (503, "failed")
        assert report["actors"][1] == {
            "name": "reconciler",
            "status": "failed",
            "restarts": 1,
            "reason": HUNG,
            "waiting": 3,
            "oldest_wait": 70.25,
        }
        answer = await get("/readyz")
        assert (answer.status, json.loads(answer.body)["awaiting"]) == (503, [f"the actor reconciler ({HUNG})"])
        text = (await body_of(await get("/metrics"))).decode()
        for line in (
            'plugind_mailbox_depth{actor="reconciler"} 3.0',
            'plugind_mailbox_depth{actor="handler"} 3.0',
            'plugind_mailbox_oldest_wait_seconds{actor="reconciler"} 70.25',
            'plugind_mailbox_oldest_wait_seconds{actor="handler"} 0.5',
            'plugind_actors_hanging{actor="reconciler"} 1.0',
            'plugind_actors_hanging{actor="handler"} 0.0',
        ):
            assert line in text.splitlines()
        condition = Condition.DEGRADED
        answer = await get("/healthz")
        assert (answer.status, json.loads(answer.body)["status"]) == (200, "degraded")
        assert (await get("/readyz")).status == 200
        await trio.sleep(301)
        condition = Condition.OK
        await node.take(RootReported(ROOT, Watching.EVENTS, trio.current_time(), ready=True))
        answer = await get("/healthz")
        assert (answer.status, json.loads(answer.body)["status"]) == (200, "ok")


async def test_metrics_are_shown_with_one_series_for_each_path_and_world(autojump_clock: MockClock) -> None:
    """TestMetricCollection: one count per state; behaviour 39."""
    async with bench(StatusConfig(path_metrics=True)) as node:
        for number in range(120):
            node.memory.view.apply(changed(f"p{number:03}", StateName.REGISTERED))
        node.memory.view.apply(attrs.evolve(changed('odd"\n\udcff', StateName.WAITING), attempt=1))
        text = (await body_of(await node.get("/metrics"))).decode()
    series = [line for line in text.splitlines() if line.startswith("plugin_manager_total_plugins{")]
    assert len(series) == len(set(series)) == 241
    assert 'plugin_manager_total_plugins{socket_path="/r/p007.sock",state="actual_state_of_world"} 1.0' in series
    assert 'plugin_manager_total_plugins{socket_path="/r/p007.sock",state="desired_state_of_world"} 1.0' in series
    assert series[-1] == (
        'plugin_manager_total_plugins{socket_path="/r/odd\\"\\\\n\\\\xff.sock",state="desired_state_of_world"} 1.0'
    )
    assert text.count("# HELP plugin_manager_total_plugins Number of plugins in Plugin Manager\n") == 1
    assert "# TYPE plugind_operations_total counter\n" in text
    assert 'plugind_operations_total{operation="notify",outcome="timed-out",plugin_type="DRAPlugin"} 0.0\n' in text
    assert 'plugind_plugins{plugin_type="unknown",state="registered"} 120.0\n' in text
    assert 'plugind_registration_seconds_bucket{le="+Inf"} 0.0\n' in text
    assert "plugind_path_metrics_suppressed 0.0\n" in text


@pytest.mark.parametrize(
    ("config", "suppressed"),
    [
        pytest.param(StatusConfig(), "0.0", id="not asked for"),
        pytest.param(StatusConfig(path_metrics=True, max_path_metrics=5), "1.0", id="too many"),
    ],
)
async def test_without_path_labels_the_gauge_of_the_kubelet_counts_each_world(
    config: StatusConfig, suppressed: str, autojump_clock: MockClock
) -> None:
    """Fault 92, behaviour 39: sums over the kubelet's series stay what they were."""
    async with bench(config) as node:
        for number in range(6):
            node.memory.view.apply(changed(f"p{number}", StateName.REGISTERED))
        node.memory.view.apply(changed("p6", StateName.DIALING))
        text = (await body_of(await node.get("/metrics"))).decode()
    assert [line for line in text.splitlines() if line.startswith("plugin_manager_total_plugins")] == [
        'plugin_manager_total_plugins{state="actual_state_of_world"} 6.0',
        'plugin_manager_total_plugins{state="desired_state_of_world"} 7.0',
    ]
    assert "/r/" not in text
    assert f"plugind_path_metrics_suppressed {suppressed}\n" in text


#: Texts of plugins and file names that would deceive a terminal, or break a line of the exposition.
HOSTILE = (
    'quote"',
    "back\\slash",
    "line\nend",
    "\x1b[2J",
    "\r",
    "\x00",
    "\x85",
    "\u202ecod.exe",
    "\u2028",
    "\u200b",
    "\udcff",
)


async def test_metrics_hold_no_character_that_does_not_print_and_parse_to_distinct_labels(
    autojump_clock: MockClock,
) -> None:
    """Faults 91 and 92: ESC, bidirectional controls and line ends in paths, types and the names of actors."""
    paths = [f"/r/{text}.sock" for text in (*HOSTILE, *(escaped(text) for text in HOSTILE if not text.isprintable()))]
    async with bench(StatusConfig(path_metrics=True)) as node:
        await node.take(HandlersChanged(HOSTILE), *(ActorRestarted(text, "KeyError") for text in HOSTILE))
        for number, path in enumerate(paths):
            shown = attrs.evolve(changed("a", StateName.REGISTERED), socket=path)
            plugin = attrs.evolve(info("a"), type=HOSTILE[number % len(HOSTILE)])
            finished = Finished(Operation.REGISTER, Outcome.OK, 0.1)
            await node.take(attrs.evolve(shown, info=plugin, finished=finished))
        text = (await body_of(await node.get("/metrics"))).decode()
    assert [line for line in text.split("\n") if not line.isprintable()] == []
    families = {family.name: family for family in text_string_to_metric_families(text)}
    labels = [sample.labels["socket_path"] for sample in families["plugin_manager_total_plugins"].samples]
    assert len(set(labels)) == len(paths) == len(labels) / 2
    assert {sample.labels["plugin_type"] for sample in families["plugind_operations"].samples} >= {
        escaped(text.replace("\\", r"\\")) for text in HOSTILE
    }

"""Facts that change, calls that are counted, and callers who want facts asked for anew."""

from __future__ import annotations

import json

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.actors.http.server import HttpRequest
from plugind.actors.status.api import StatusConfig
from plugind.protocol.handlers.facts_asking import ASKED, NO_FACTS
from plugind.protocol.messages.consumers import CallEnded, CallFamily, CallsEnded, EventNoted, PluginEvent
from plugind.protocol.messages.status import HealthReported, PluginChanged
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.info import Plugin
from plugind.protocol.plugins.status import StateName
from plugind.tests.actors.status.bench import Bench, bench, body_of, changed, drained, info

REGISTERED = attrs.evolve(changed("a", StateName.REGISTERED), info=info("a"))
PLUGIN = Plugin("CSIPlugin", "a", "/r/a.sock", ("1.0.0",), "/r/a.sock", 1)
EVENT = EventNoted(PLUGIN, PluginEvent.FACTS, "max-volumes is 8, was 16", 5.0)
REMARK = "facts: max-volumes is 8, was 16"


async def test_a_change_of_facts_is_in_the_history_in_watches_and_in_the_log(autojump_clock: MockClock) -> None:
    async with bench() as node:
        await node.take(REGISTERED)
        changes = await node.subscribe()
        changes.receive_nowait()
        await node.take(EVENT)
        change = changes.receive_nowait()
        (plugin,) = (await node.snapshot()).plugins
    assert isinstance(change, PluginChanged)
    assert (change.event, change.plugin.state, plugin.reason) == (REMARK, StateName.REGISTERED, None)
    assert [(entry.time, entry.state, entry.reason) for entry in plugin.history][-1] == (
        5.0,
        StateName.REGISTERED,
        REMARK,
    )
    assert [fields["cause"] for _, said, fields in node.log.events if said == "facts of a plugin have changed"] == [
        EVENT.text
    ]


async def test_facts_alone_are_no_line_of_a_watch_which_does_not_show_them(autojump_clock: MockClock) -> None:
    """A driver whose facts are refreshed each few seconds gave a line each time, and nothing in it had changed.

    A program that embeds the node does see facts. With heartbeats, an empty line shows that the daemon runs.
    """
    first = HealthReported("/r/a.sock", 1, Health.HEALTHY, "", (("refreshed", "1"),), 1.0)
    async with bench() as node:
        await node.take(REGISTERED, first)
        response = await node.api(HttpRequest("GET", "/watch", {"heartbeat": "1"}, b""))
        changes, came = await node.subscribe(), list[tuple[float, str | None]]()
        changes.receive_nowait()
        assert response.write is not None

        async def send(piece: bytes) -> None:
            lines = [json.loads(line)["health_reason"] if line else "-" for line in piece.splitlines()]
            came.extend((trio.current_time(), line) for line in lines)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(response.write, send)
            for number in range(2, 5):
                await trio.sleep(0.75)
                await node.take(attrs.evolve(first, facts=(("refreshed", str(number)),)))
            await node.take(attrs.evolve(first, facts=(("refreshed", "5"),), reason="odd"))
            node.api.end_watches()
        seen = [change for change in drained(changes) if isinstance(change, PluginChanged)]
    assert came == [(0.0, None), (0.0, "-"), (0.75, "-"), (1.5, "-"), (2.25, "-"), (2.25, "odd")]
    assert [(dict(change.plugin.facts)["refreshed"], change.only_facts) for change in seen] == [
        ("2", True),
        ("3", True),
        ("4", True),
        ("5", False),
    ]


@pytest.mark.parametrize("late", [attrs.evolve(PLUGIN, generation=0), attrs.evolve(PLUGIN, socket="/r/b.sock")])
async def test_an_event_of_another_generation_came_too_late(late: Plugin, autojump_clock: MockClock) -> None:
    """It is in the log alone, with the name of the plugin: it had none if more plugins had left than are kept."""
    async with bench() as node:
        await node.take(REGISTERED)
        before = await node.snapshot()
        await node.take(attrs.evolve(EVENT, plugin=late))
        assert await node.snapshot() == before


async def test_each_warning_is_shown_and_logged_once(autojump_clock: MockClock) -> None:
    first = HealthReported("/r/a.sock", 1, Health.HEALTHY, "", (("a", "1"),), 1.0, ("odd",))
    async with bench() as node:
        await node.take(REGISTERED, first, attrs.evolve(first, warnings=("odd", "very odd")), first)
        (plugin,) = (await node.snapshot()).plugins
    assert plugin.warnings == ("odd",)
    assert [fields["cause"] for _, said, fields in node.log.events if said == "warning about a plugin"] == [
        "odd",
        "very odd",
    ]


async def test_calls_of_drivers_are_counted(autojump_clock: MockClock) -> None:
    call = CallEnded(CallFamily.CSI, 'a"b', "/csi.v1.Node/NodeGetInfo", "UNAVAILABLE", 0.3)
    async with bench() as node:
        await node.take(CallsEnded((call, call, attrs.evolve(call, family=CallFamily.DRA))))
        lines = (await body_of(await node.get("/metrics"))).decode().splitlines()
    labels = 'driver_name="a\\"b",grpc_status_code="Unavailable"'
    method = 'method_name="/csi.v1.Node/NodeGetInfo"'
    assert f'csi_operations_seconds_bucket{{{labels},le="0.25",{method},migrated="false"}} 0.0' in lines
    assert f'csi_operations_seconds_bucket{{{labels},le="0.5",{method},migrated="false"}} 2.0' in lines
    assert f"dra_grpc_operations_duration_seconds_count{{{labels},{method}}} 1.0" in lines


@attrs.define
class Links:
    """Links of which some heed callers who want facts."""

    heeds: bool = True
    asked: list[tuple[str, int]] = attrs.Factory(list)

    def refresh_facts(self, socket: str, generation: int) -> bool:
        self.asked.append((socket, generation))
        return self.heeds


async def answers(node: Bench, body: object) -> tuple[int, object]:
    response = await node.api(HttpRequest("POST", "/retry", {}, json.dumps(body).encode()))
    content = json.loads(await body_of(response))
    return response.status, [(answer["tried"], answer["why"]) for answer in content.get("answers", [])] or content[
        "error"
    ]


@pytest.mark.parametrize(("heeds", "why"), [(True, ASKED), (False, NO_FACTS)])
async def test_a_caller_may_want_facts_asked_for_anew(heeds: bool, why: str, autojump_clock: MockClock) -> None:
    links = Links(heeds)
    async with bench(StatusConfig(roots=("/r",))) as node:
        node.api.refresh_facts = links.refresh_facts
        await node.take(REGISTERED, changed("b", StateName.WAITING))
        assert await answers(node, {"target": "a", "facts": True}) == (200, [(heeds, why)])
        waiting = "it is waiting, and has facts only once it is registered"
        assert await answers(node, {"target": "/r/b.sock", "facts": True}) == (200, [(False, waiting)])
        assert (await answers(node, {"target": "c", "facts": True}))[0] == 404
        assert await answers(node, {"target": "a", "facts": "yes"}) == (
            400,
            'the body is to be {"target": NAME or SOCKET}, and may have "facts": true, and nothing else',
        )
        # What a newer client knows is not ignored.
        assert (await answers(node, {"target": "a", "soon": True}))[0] == 400
    assert links.asked == [("/r/a.sock", 1)]

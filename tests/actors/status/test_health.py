from __future__ import annotations

import json

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.actors.http.server import HttpRequest, HttpResponse
from plugind.actors.status.api import StatusConfig
from plugind.protocol.health.progress import ActorHealth, Condition
from plugind.protocol.messages.status import (
    ActorRestarted,
    HealthReported,
    LoopBlocked,
    RootStatus,
    StepBlocked,
)
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.info import Plugin
from plugind.protocol.plugins.status import StateName, Watching
from plugind.protocol.trust import directories
from plugind.protocol.words import Step
from plugind.tests.actors.status.bench import ROOT, Bench, bench, body_of, changed, info


async def test_health_shows_roots_and_actors(autojump_clock: MockClock) -> None:
    async def health(node: Bench) -> tuple[int, str, str, str | None]:
        response = await node.get("/healthz")
        body = json.loads(response.body)
        return response.status, body["status"], body["roots"][0]["status"], body["roots"][0]["reason"]

    async with bench() as node:
        assert await health(node) == (200, "starting", "starting", "not scanned yet")
        well = RootStatus(ROOT, Watching.EVENTS, 0.0, ready=True)
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
        (directories.DirectoryCondition.INSECURE, "degraded"),
        (directories.DirectoryCondition.FULL, "degraded"),
        (directories.DirectoryCondition.GROUP_WRITABLE, "ok"),
    ],
)
async def test_a_directory_that_takes_nothing_new_degrades_the_health_and_is_named(
    autojump_clock: MockClock, condition: directories.DirectoryCondition, expected: str
) -> None:
    """Faults 3 and 48: health said ok while links filled the table and no plugin was taken."""
    wrong = directories.DirectoryReport("/r/hog", condition, "what is wrong")
    async with bench() as node:
        await node.take(
            RootStatus(ROOT, Watching.EVENTS, 0.0, ready=True, directories=(wrong,), conditions=((condition, 20),))
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
        directories.DirectoryReport(f"/r/{condition}", condition, "mend it")
        for condition in directories.DirectoryCondition
    ]
    async with bench() as node:
        await node.take(RootStatus(ROOT, Watching.EVENTS, 0.0, ready=True, directories=tuple(wrong)))

        async def said(path: str) -> str:
            response = await node.get(f"/plugins/{path}")
            assert response.status == 404
            text: str = json.loads(response.body)["error"]
            return text.removeprefix(f"no plugin has the name, and no socket the path, {path}")

        assert await said("/r/insecure/a/b.sock") == "; directory /r/insecure is insecure: mend it"
        assert await said("/r/full/a.sock") == "; directory /r/full is full: mend it"
        assert await said("/r/group-writable/a.sock") == ""
        assert await said("/r/insecure-not/a.sock") == ""

        counted = ((directories.DirectoryCondition.INSECURE, 20),)
        await node.take(RootStatus(ROOT, Watching.EVENTS, 0.0, ready=True, directories=(wrong[0],), conditions=counted))
        assert await said("/r/other/a.sock") == (
            "; nothing new is taken from 20 directories below /r, of which 'plugind ls' names 1: mend those first"
        )
        assert await said("/elsewhere/a.sock") == ""


async def test_crashes_of_registrations_are_counted_together_in_health_and_metrics(autojump_clock: MockClock) -> None:
    """Fault 85: they end nothing, so they must be seen."""
    async with bench() as node:
        await node.take(
            RootStatus(ROOT, Watching.EVENTS, 0.0, ready=True),
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
            RootStatus(ROOT, Watching.EVENTS, 0.0, ready=True),
            RootStatus("/s", Watching.UNAVAILABLE, 0.0, reason="Permission denied"),
        )
        assert await ready(node) == (503, ["the root /s (Permission denied)", unknown])
        await node.take(RootStatus("/s", Watching.POLLING, 0.0, ready=True))
        tried = attrs.evolve(changed("a", StateName.WAITING), info=info("a"), reason="all of it", cause="no answer")
        await node.take(
            tried,
            attrs.evolve(tried, socket="/r/b.sock", state=StateName.DIALING, step=Step.DIAL, cause=None, reason=None),
        )
        assert await ready(node) == (503, ["the plugin a (waiting: no answer) (registering (dial))"])
        await node.take(
            attrs.evolve(changed("a", StateName.REGISTERED), info=info("a")),
        )
        assert await ready(node) == (200, [])


async def test_expected_plugins_may_have_to_be_healthy(autojump_clock: MockClock) -> None:
    """Behaviour 40: ``--ready-when healthy``; without it, a request may ask for that."""
    config = StatusConfig(roots=(ROOT,), expected=("a",), ready_when="healthy")
    async with bench(config) as node:
        registered = attrs.evolve(changed("a", StateName.REGISTERED), info=info("a"))
        await node.take(RootStatus(ROOT, Watching.EVENTS, 0.0, ready=True), registered)
        assert json.loads((await node.get("/readyz")).body)["awaiting"] == [
            "the plugin a (its handler reports no health)"
        ]
        for health, status in ((Health.UNHEALTHY, 503), (Health.HEALTHY, 200), (Health.DISCONNECTED, 503)):
            await node.take(HealthReported(registered.socket, registered.generation, health, "", (), 0.0))
            assert (await node.get("/readyz")).status == status


HUNG = "it hangs: it has taken no message for 70 s, and 3 wait"


async def test_a_node_that_cannot_lease_devices_is_not_ready_and_says_why(autojump_clock: MockClock) -> None:
    """It said that it was ready while all devices were withheld, so it got work that failed."""
    said: dict[str, str | None] = {"leases": None, "reconciler": "held up"}
    async with bench() as node:
        await node.take(RootStatus(ROOT, Watching.EVENTS, 0.0, ready=True))

        def health() -> tuple[ActorHealth, ...]:
            found = ((name, Condition.OK if why is None else Condition.DEGRADED, why) for name, why in said.items())
            return tuple(ActorHealth(name, condition, why, 0, 0.0) for name, condition, why in found)

        async def ready() -> tuple[int, list[str]]:
            answer = await attrs.evolve(node.api, health=health)(HttpRequest("GET", "/readyz", {}, b""))
            return answer.status, json.loads(answer.body)["awaiting"]

        assert await ready() == (200, [])
        said["leases"] = "all devices are withheld: the state was lost"
        assert await ready() == (503, ["leases (all devices are withheld: the state was lost)"])


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

        async def get(path: str) -> HttpResponse:
            return await api(HttpRequest("GET", path, {}, b""))

        await node.take(RootStatus(ROOT, Watching.EVENTS, 0.0, ready=True), ActorRestarted("reconciler", "KeyError"))
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
        await node.take(RootStatus(ROOT, Watching.EVENTS, trio.current_time(), ready=True))
        answer = await get("/healthz")
        assert (answer.status, json.loads(answer.body)["status"]) == (200, "ok")

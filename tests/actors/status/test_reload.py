"""What the status socket shows of a configuration that was read again, and the request for that."""

from __future__ import annotations

import json
from collections.abc import Sequence

import attrs
import pytest
import trio

from plugind.actors.http.server import HttpRequest, HttpResponse
from plugind.actors.status.api import StatusConfig
from plugind.protocol.messages.config import (
    ConfigurationAsked,
    ConfigurationRead,
    ConfigurationShown,
    ExpectationChanged,
    ReloadAsked,
    Reloaded,
    ReloaderMessage,
    RootsChanged,
    TrustChanged,
)
from plugind.protocol.messages.status import RootStatus
from plugind.protocol.plugins.status import Watching
from plugind.protocol.settings.config import Root
from plugind.protocol.settings.rules import Rules
from plugind.protocol.trust.users import Trust, Users
from plugind.tests.actors.status.bench import Bench, bench, body_of


def body(response: HttpResponse) -> dict[str, object]:
    decoded = json.loads(response.body)
    assert isinstance(decoded, dict)
    return decoded


async def ready(node: Bench) -> Sequence[object]:
    awaiting = body(await node.get("/readyz"))["awaiting"]
    assert isinstance(awaiting, list)
    return awaiting


async def test_other_plugins_are_expected_from_the_message_on_also_by_the_next_api() -> None:
    async with bench(StatusConfig(expected=("a",))) as node:
        assert await ready(node) == ["the plugin a (no socket has given this name)"]
        await node.take(ExpectationChanged(("b", "c"), healthy=False))
        awaited = ["the plugin b (no socket has given this name)", "the plugin c (no socket has given this name)"]
        assert await ready(node) == awaited
        # A status actor that is started again makes another one, with the same memory.
        again = attrs.evolve(node.api)
        assert body(await again(HttpRequest("GET", "/readyz", {}, b"")))["awaiting"] == awaited
        await node.take(ExpectationChanged((), healthy=False, devices={"v.com/gpu": 2}))
        assert await ready(node) == ["2 devices of v.com/gpu (0 are healthy)"]
        await node.take(ExpectationChanged((), healthy=False))
        assert await ready(node) == []


async def test_the_rules_name_those_who_are_trusted_since_the_last_change() -> None:
    async with bench(StatusConfig(rules=Rules(Trust((1000,)), endpoint_directories=("/run",)))) as node:
        await node.take(TrustChanged(Trust(("csi", (5, 6))), Users(own=7, by_name={"csi": 1001})))
        rules = body(await node.get("/rules"))
        assert (rules["trusted_uids"], rules["uid"], rules["endpoint_directories"]) == (["1001", "5-6"], 7, ["/run"])


async def test_a_configuration_that_is_not_used_is_in_health_and_metrics_until_one_is() -> None:
    """Fault 89."""
    async with bench(StatusConfig()) as node:
        before = body(await node.get("/healthz"))
        assert "configuration" not in {actor["name"] for actor in before["actors"]}  # type: ignore[attr-defined]
        metrics = (await body_of(await node.get("/metrics"))).decode()
        assert 'plugind_config_reloads_total{result="used"} 0.0\n' in metrics
        assert "plugind_config_refused 0.0\n" in metrics

        await node.take(ConfigurationRead(trio.current_time(), "/etc/p.toml:3: unknown key x"))
        health = body(await node.get("/healthz"))
        (shown,) = [actor for actor in health["actors"] if actor["name"] == "configuration"]  # type: ignore[attr-defined]
        assert (health["status"], shown["status"]) == ("degraded", "degraded")
        assert shown["reason"] == "what was read 0 s ago is not used: /etc/p.toml:3: unknown key x"
        metrics = (await body_of(await node.get("/metrics"))).decode()
        assert 'plugind_config_reloads_total{result="refused"} 1.0\n' in metrics
        assert "plugind_config_refused 1.0\n" in metrics

        await node.take(ConfigurationRead(trio.current_time()))
        health = body(await node.get("/healthz"))
        (shown,) = [actor for actor in health["actors"] if actor["name"] == "configuration"]  # type: ignore[attr-defined]
        assert (health["status"], shown["status"], shown["reason"]) == ("ok", "ok", None)
        metrics = (await body_of(await node.get("/metrics"))).decode()
        assert 'plugind_config_reloads_total{result="used"} 1.0\n' in metrics
        assert 'plugind_config_reloads_total{result="refused"} 1.0\n' in metrics
        assert "plugind_config_refused 0.0\n" in metrics


POST = HttpRequest("POST", "/reload", {}, b"")


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        (Reloaded(), 200, {"changed": [], "needs_restart": []}),
        (Reloaded(("a.b",), ("c",)), 200, {"changed": ["a.b"], "needs_restart": ["c"]}),
        (Reloaded(refused=("x: 1", "x: 2")), 422, {"error": "x: 1", "problems": ["x: 1", "x: 2"]}),
    ],
)
async def test_a_client_that_asks_for_a_reload_is_answered_once_it_is_done(
    answer: Reloaded, status: int, said: object
) -> None:
    asked, requests = trio.open_memory_channel[ReloaderMessage](1)
    async with bench(StatusConfig(reload=asked)) as node, trio.open_nursery() as nursery:

        async def reload() -> None:
            message = await requests.receive()
            assert isinstance(message, ReloadAsked)
            message.reply.send_nowait(answer)

        nursery.start_soon(reload)
        response = await node.api(POST)
        assert (response.status, body(response)) == (status, said)


async def test_a_client_that_asks_for_the_configuration_is_answered_by_the_reloader() -> None:
    asked, requests = trio.open_memory_channel[ReloaderMessage](1)
    row = {"key": "rescan", "value": 5.0}
    async with bench(StatusConfig(reload=asked)) as node, trio.open_nursery() as nursery:

        async def show() -> None:
            message = await requests.receive()
            assert isinstance(message, ConfigurationAsked)
            message.reply.send_nowait(ConfigurationShown(("/etc/p.toml",), (row,), ()))

        nursery.start_soon(show)
        response = await node.get("/config")
        said = {"files": ["/etc/p.toml"], "settings": [row], "waiting": []}
        assert (response.status, body(response)) == (200, said)


async def test_a_reload_is_refused_where_nobody_reads_a_configuration_or_too_many_ask() -> None:
    async with bench(StatusConfig()) as node:
        assert (await node.api(POST)).status == 409
        assert (await node.get("/reload")).status == 405
        assert (await node.get("/config")).status == 409
    asked, requests = trio.open_memory_channel[ReloaderMessage](0)
    async with bench(StatusConfig(reload=asked)) as node:
        assert (await node.api(POST)).status == 503
        requests.close()
        assert (await node.api(POST)).status == 503


async def test_other_roots_are_shown_and_awaited_from_the_message_on() -> None:
    async with bench(StatusConfig(roots=("/a", "/b"))) as node:
        for root in ("/a", "/b"):
            await node.take(RootStatus(root, Watching.EVENTS, trio.current_time(), ready=True))
        assert await ready(node) == []
        await node.take(RootsChanged((Root("/b"), Root("/c")), ("/b", "/c"), ("/run",)))
        assert await ready(node) == ["the first scan of /c"]
        health = body(await node.get("/healthz"))
        roots = [(root["root"], root["status"]) for root in health["roots"]]  # type: ignore[attr-defined]
        assert roots == [("/b", "ok"), ("/c", "starting")]
        metrics = (await body_of(await node.get("/metrics"))).decode()
        assert 'plugind_roots{watching="events"} 1.0\n' in metrics
        rules = body(await node.get("/rules"))
        shown = [root["root"] for root in rules["roots"]]  # type: ignore[attr-defined]
        assert (shown, rules["endpoint_directories"]) == (["/b", "/c"], ["/run"])
        # A status actor that is started again makes another one, with the same memory.
        again = attrs.evolve(node.api)
        assert body(await again(HttpRequest("GET", "/readyz", {}, b"")))["awaiting"] == ["the first scan of /c"]
        await node.take(RootStatus("/c", Watching.EVENTS, trio.current_time(), ready=True))
        assert await ready(node) == []

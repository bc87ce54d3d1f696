"""How it is shown how healthy a plugin is, as its handler reports and as checks find out."""

from __future__ import annotations

import json

import attrs
from trio.testing import MockClock

from plugind.actors.status.api import StatusConfig
from plugind.protocol.messages.status import HealthChecked, HealthReported, PluginChanged, RootStatus
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.status import Outcome, StateName, Watching
from plugind.tests.actors.status.bench import ROOT, Bench, bench, body_of, changed, info

SILENT = "no answer within 3s"
REGISTERED = attrs.evolve(changed("a", StateName.REGISTERED), info=info("a"))
WELL = HealthReported("/r/a.sock", 1, Health.HEALTHY, "", (), 1.0)
ILL = HealthReported("/r/a.sock", 1, Health.UNHEALTHY, SILENT, (), 5.0, failed_checks=3)


async def ready(node: Bench, **query: str) -> tuple[int, list[str]]:
    response = await node.get("/readyz", **query)
    return response.status, json.loads(await body_of(response))["awaiting"]


async def test_one_more_failed_check_is_shown_and_no_news(autojump_clock: MockClock) -> None:
    """Hundreds of plugins that hang must not flood those who watch."""
    async with bench() as node:
        await node.take(REGISTERED, WELL)
        changes = await node.subscribe()
        changes.receive_nowait()
        await node.take(ILL, *(attrs.evolve(ILL, time=5.0 + n, failed_checks=3 + n) for n in range(1, 10)))
        streamed = [changes.receive_nowait() for _ in range(changes.statistics().current_buffer_used)]
        (plugin,) = (await node.snapshot()).plugins
    assert [change.plugin.failed_checks for change in streamed if isinstance(change, PluginChanged)] == [3]
    assert (plugin.health, plugin.failed_checks, plugin.health_since) == (Health.UNHEALTHY, 12, 5.0)
    assert [said for _, said, _ in node.log.events if said.startswith("plugin is")] == [
        "plugin is healthy",
        "plugin is unhealthy",
    ]


async def test_readiness_can_ask_that_expected_plugins_are_healthy(autojump_clock: MockClock) -> None:
    config = StatusConfig(roots=(ROOT,), expected=("a",))
    async with bench(config) as node:
        await node.take(RootStatus(ROOT, Watching.EVENTS, 0.0, ready=True), REGISTERED)
        assert await ready(node) == (200, [])
        assert await ready(node, healthy="") == (503, ["the plugin a (its handler reports no health)"])
        await node.take(ILL)
        assert await ready(node) == (200, [])
        assert await ready(node, healthy="") == (503, [f"the plugin a (unhealthy: {SILENT})"])
        await node.take(attrs.evolve(WELL, time=9.0))
        assert await ready(node, healthy="") == (200, [])
        await node.take(changed("a", StateName.LEAVING))
        assert (await ready(node, healthy=""))[0] == 503


async def test_checks_are_counted_by_type_and_result(autojump_clock: MockClock) -> None:
    """A rate needs a first value, so each result of a built-in type is there from the start."""
    async with bench() as node:
        await node.take(
            HealthChecked("DevicePlugin", Outcome.OK, 0.002),
            HealthChecked("DevicePlugin", Outcome.TIMED_OUT, 3.0),
            HealthChecked("Colour", Outcome.FAILED, 0.1),
        )
        lines = (await body_of(await node.get("/metrics"))).decode().splitlines()
    for line in (
        'plugind_health_checks_total{plugin_type="DevicePlugin",result="ok"} 1.0',
        'plugind_health_checks_total{plugin_type="DevicePlugin",result="timed-out"} 1.0',
        'plugind_health_checks_total{plugin_type="DevicePlugin",result="failed"} 0.0',
        'plugind_health_checks_total{plugin_type="CSIPlugin",result="ok"} 0.0',
        'plugind_health_checks_total{plugin_type="other",result="failed"} 1.0',
        'plugind_health_check_duration_seconds_count{plugin_type="DevicePlugin"} 2.0',
        'plugind_health_check_duration_seconds_bucket{le="0.0025",plugin_type="DevicePlugin"} 1.0',
        'plugind_health_check_duration_seconds_sum{plugin_type="DevicePlugin"} 3.002',
    ):
        assert line in lines

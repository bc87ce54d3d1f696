"""How it is shown that nobody listens on the socket of a registered plugin."""

from __future__ import annotations

import json

import attrs
from trio.testing import MockClock

from plugind.actors.status.api import StatusConfig
from plugind.protocol.logs.lines import Level
from plugind.protocol.messages.status import PluginChanged, RootStatus, ServingChanged
from plugind.protocol.plugins.info import PluginInfo
from plugind.protocol.plugins.status import StateName, Watching
from plugind.tests.actors.status.bench import ROOT, Bench, bench, body_of, changed, info

NOBODY = "nobody listens on its socket"
DEAD = ServingChanged("/r/a.sock", 1, False, 5.0, NOBODY)
BACK = ServingChanged("/r/a.sock", 1, True, 9.0)
REGISTERED = attrs.evolve(changed("a", StateName.REGISTERED), info=info("a"), pid=7)


async def ready(node: Bench) -> tuple[int, list[str]]:
    response = await node.get("/readyz")
    return response.status, json.loads(await body_of(response))["awaiting"]


async def metric(node: Bench) -> str:
    text = (await body_of(await node.get("/metrics"))).decode()
    return next(line for line in text.splitlines() if line.startswith('plugind_plugins_not_serving{plugin_type="CSIP'))


async def test_each_change_is_logged_once_and_streamed(autojump_clock: MockClock) -> None:
    """Fault 39: a warning once; the state stays as it is."""
    async with bench() as node:
        await node.take(REGISTERED)
        changes = await node.subscribe()
        changes.receive_nowait()
        await node.take(DEAD, attrs.evolve(DEAD, time=6.0), BACK, attrs.evolve(BACK, time=10.0))
        streamed = [changes.receive_nowait() for _ in range(changes.statistics().current_buffer_used)]
    assert [
        (change.time, change.plugin.state, change.plugin.serving, change.plugin.not_serving)
        for change in streamed
        if isinstance(change, PluginChanged)
    ] == [(5.0, StateName.REGISTERED, False, NOBODY), (9.0, StateName.REGISTERED, True, None)]
    said = {"socket": "/r/a.sock", "type": "CSIPlugin", "name": "a", "generation": 1, "pid": 7}
    assert [event for event in node.log.events if "serve" in event[1]] == [
        (Level.WARNING, "plugin does not serve", said | {"cause": NOBODY}),
        (Level.INFO, "plugin serves again", said | {"cause": None}),
    ]


async def test_a_plugin_that_is_registered_again_serves(autojump_clock: MockClock) -> None:
    """Fault 39: it has just answered. A report for a status actor that lost its view changes nothing."""
    async with bench() as node:
        await node.take(REGISTERED, DEAD, REGISTERED)
        assert (await node.snapshot()).plugins[0].serving is False
        await node.take(changed("a", StateName.LEAVING), REGISTERED)
        assert (await node.snapshot()).plugins[0].serving is True


async def test_the_time_since_when_a_plugin_does_not_serve_stays_when_its_reason_changes(
    autojump_clock: MockClock,
) -> None:
    """Fault 39."""
    async with bench() as node:
        await node.take(REGISTERED)
        assert (await node.snapshot()).plugins[0].not_serving_since is None
        await node.take(DEAD, attrs.evolve(DEAD, reason="another", time=8.0))
        (plugin,) = (await node.snapshot()).plugins
        assert (plugin.not_serving, plugin.not_serving_since) == ("another", 5.0)
        await node.take(BACK)
        assert (await node.snapshot()).plugins[0].not_serving_since is None


async def test_what_comes_too_late_is_ignored(autojump_clock: MockClock) -> None:
    """The plugin is not registered any more, in another generation, or gone."""
    async with bench() as node:
        await node.take(DEAD, changed("a", StateName.LEAVING), DEAD)
        assert (await node.snapshot()).plugins[0].serving is None
        await node.take(attrs.evolve(REGISTERED, generation=2), DEAD)
        assert (await node.snapshot()).plugins[0].serving is True


async def test_plugins_that_do_not_serve_are_counted_by_type(autojump_clock: MockClock) -> None:
    """Fault 39."""
    async with bench() as node:
        await node.take(REGISTERED)
        assert (await metric(node)).endswith(" 0.0")
        await node.take(DEAD)
        assert (await metric(node)).endswith(" 1.0")
        await node.take(changed("a", StateName.GONE, 9.0))
        assert (await metric(node)).endswith(" 0.0")


async def test_the_node_is_not_ready_while_nobody_listens_on_the_endpoint_of_an_expected_plugin(
    autojump_clock: MockClock,
) -> None:
    """Fault 39, behaviour 40: a dead registrar does not mean a dead driver, unless its endpoint refuses too."""
    driver = PluginInfo("CSIPlugin", "a", "/run/csi.sock", ("1.0.0",))
    async with bench(StatusConfig(roots=(ROOT,), expected=("a",))) as node:
        await node.take(RootStatus(ROOT, Watching.EVENTS, 0.0, ready=True), REGISTERED)
        assert await ready(node) == (200, [])
        await node.take(DEAD)
        assert await ready(node) == (503, [f"the plugin a ({NOBODY})"])
        await node.take(BACK)
        assert await ready(node) == (200, [])
        await node.take(attrs.evolve(REGISTERED, info=driver))
        await node.take(attrs.evolve(DEAD, reason="somebody listens there", endpoint_serves=True))
        assert await ready(node) == (200, [])
        await node.take(attrs.evolve(DEAD, reason="nobody listens either"))
        assert await ready(node) == (503, ["the plugin a (nobody listens either)"])

"""The programs of docs/handlers.md are complete, and do what the page says."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from plugind import Handler, Health
from plugind.actors.console.answers import Daemon
from plugind.actors.console.client import fetch
from plugind.actors.console.fake import FakeSpec, run_fake
from plugind.testing import FakePlugin, SimulatedNode
from plugind.tests.actors.node.test_following_example import NOT_SERVING, Registration, Service
from plugind.tests.end_to_end.processes import DEADLINE

PAGE = (Path(__file__).parents[3] / "docs" / "handlers.md").read_text()
BLOCKS = [piece.split("```")[0] for piece in PAGE.split("```python\n")[1:]]


def block(name: str) -> str:
    """Return the block in which ``name`` is defined or called."""
    (found,) = (text for text in BLOCKS if f"class {name}:" in text or f"\n{name}" in text)
    return found


def names(name: str) -> dict[str, Any]:
    """Return what the block of ``name`` defines, run by itself as a module is."""
    module: dict[str, Any] = {"__name__": "pasted"}
    exec(block(name), module)
    return module


def handler(name: str) -> Handler:
    made: Handler = names(name)[name]()
    return made


def test_each_block_is_tested_here() -> None:
    tested = ["ColourHandler", "FollowingHandler", "AskingHandler", "trio.run(", "CheckingHandler", "ConnectingHandler"]
    assert [*map(block, tested), block("class Sick")] == BLOCKS


async def test_a_handler_that_does_not_follow_is_complete(autojump_clock: MockClock) -> None:
    async with SimulatedNode(handlers={"WatchedPlugin": handler("ColourHandler")}) as node:
        node.plug("w.sock", [Registration(), Service()])
        await node.settled()
        assert node.state("w.sock") == "registered"


async def test_a_handler_that_follows_reports_what_the_plugin_says(autojump_clock: MockClock) -> None:
    service = Service()
    async with SimulatedNode(handlers={"WatchedPlugin": handler("FollowingHandler")}) as node:
        node.plug("w.sock", [Registration(), service])
        await node.settled()
        await trio.sleep(2)
        healthy = node.status("w.sock")
        service.changes.send_nowait(NOT_SERVING)
        await trio.sleep(2)
        unhealthy = node.status("w.sock")
    assert healthy is not None
    assert unhealthy is not None
    assert (healthy.health, unhealthy.health) == (Health.HEALTHY, Health.UNHEALTHY)


@pytest.mark.parametrize(("implemented", "registered"), [(True, True), (False, False)])
async def test_register_asks_the_plugin(autojump_clock: MockClock, *, implemented: bool, registered: bool) -> None:
    async with SimulatedNode(handlers={"WatchedPlugin": handler("AskingHandler")}) as node:
        node.plug("w.sock", [Registration(), Service(implemented=implemented)])
        await trio.sleep(2)
        assert (node.state("w.sock") == "registered") is registered


@pytest.mark.parametrize(("implemented", "health"), [(True, Health.HEALTHY), (False, Health.UNHEALTHY)])
async def test_a_handler_that_checks_reports_how_the_plugin_is(
    autojump_clock: MockClock, *, implemented: bool, health: Health
) -> None:
    async with SimulatedNode(handlers={"WatchedPlugin": handler("CheckingHandler")}) as node:
        node.plug("w.sock", [Registration(), Service(implemented=implemented)])
        await trio.sleep(60)
        status = node.status("w.sock")
    assert status is not None
    assert status.health is health


async def test_the_test_of_a_handler_passes(autojump_clock: MockClock) -> None:
    (test,) = (value for name, value in names("ConnectingHandler").items() if name.startswith("test_"))
    await test(autojump_clock)


async def test_the_test_of_a_call_passes() -> None:
    await names("class Sick")["test_a_sick_plugin_does_not_serve"]()


async def test_the_program_shows_what_the_handler_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake plugin does not serve the health service, so ``follow`` raises."""
    program = block("trio.run(")
    assert program.count('"/tmp/plugins"') == program.count('"/tmp/plugind.sock"') == 1
    started: list[Callable[[], Awaitable[None]]] = []
    monkeypatch.setattr(trio, "run", started.append)
    monkeypatch.setitem(sys.modules, "colours", SimpleNamespace(**names("FollowingHandler")))
    exec(program.replace("/tmp/", f"{tmp_path}/"), {"__name__": "pasted"})
    (tmp_path / "plugins").mkdir()
    plugin = FakePlugin("ColourPlugin", "red.example.com")
    with trio.fail_after(DEADLINE):
        async with trio.open_nursery() as nursery:
            spec = FakeSpec(f"{tmp_path}/plugins/red.sock", plugin)
            await nursery.start(partial(run_fake, spec, on_call=lambda _: None))
            nursery.start_soon(started[0])
            shown = await reported(f"{tmp_path}/plugind.sock")
            nursery.cancel_scope.cancel()
    assert (shown["name"], shown["state"], shown["health"]) == ("red.example.com", "registered", "unknown")
    assert "UNIMPLEMENTED" in shown["health_reason"]


async def reported(socket: str) -> dict[str, Any]:
    """Return the one plugin once something is said of its health."""
    while not Path(socket).exists():  # noqa: ASYNC110, ASYNC240 - the program says nothing of it
        await trio.sleep(0.01)
    while True:
        plugins = json.loads(await trio.to_thread.run_sync(fetch, Daemon(socket, DEADLINE), "/plugins"))
        if plugins and plugins[0].get("health_reason"):
            found: dict[str, Any] = plugins[0]
            return found
        await trio.sleep(0.01)

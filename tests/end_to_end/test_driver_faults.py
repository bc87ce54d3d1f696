"""Drivers, registrars and daemons as processes, and what real ones do: they are killed, hang, and lack calls."""

from __future__ import annotations

import signal
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import trio

from plugind import Config, DRACallError, DRAClaim, DRADriver, Root, Supervisor
from plugind.actors.handlers.dra import calls as dra_calls
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.status import StateName
from plugind.tests.end_to_end.node_health import FAST, until
from plugind.tests.end_to_end.processes import DEADLINE, Daemon, PluginProcess, number, plugin_process
from plugind.tests.end_to_end.sockets import place

NAME = "faults.example.com"


def fake(kind: str, name: str, socket: Path, *options: str) -> AbstractAsyncContextManager[PluginProcess]:
    words = ["--type", kind, "--name", name, "--socket", str(socket), *options]
    return plugin_process([sys.executable, "-m", "plugind", "fake", *words])


def registrar(socket: Path, endpoint: Path) -> AbstractAsyncContextManager[PluginProcess]:
    return fake("CSIPlugin", NAME, socket, "--endpoint", str(endpoint), "--registrar-only")


async def test_a_registrar_is_killed_while_its_driver_hangs_and_again_once_it_is_registered(shared: Daemon) -> None:
    """The sockets of killed processes stay. Proposal 8: a NodeGetInfo that hangs does not keep a restarted driver out.

    As with the kubelet, a driver stays registered when its registrar is killed, until the registrar's socket goes.
    """
    directory = await place(shared, "faults")
    socket, endpoint = directory / "csi-reg.sock", directory / ".csi.sock"
    async with shared.watch() as watch, fake("CSIPlugin", NAME, endpoint, "--command", "hang node-info") as driver:
        async with registrar(socket, endpoint) as first:
            await driver.line(call="NodeGetInfo", outcome="hung")
            await watch.state(socket, "register")
            await first.end(signal.SIGKILL)
        await driver.command("answer node-info")
        async with registrar(socket, endpoint) as second:
            await second.notified_registered()
            registered = await watch.state(socket, "registered")
            facts = await shared.facts(NAME, lambda facts: "node-id" in facts)
            await second.end(signal.SIGKILL)
        await watch.until(lambda watch: watch.now[str(socket)]["serving"] is False)
        alone = watch.now[str(socket)]
        assert (await shared.facts(NAME, lambda _: True))["node-id"] == "node-1"
        socket.unlink()
        await watch.state(socket, "gone")
        assert await shared.facts(NAME, lambda facts: not facts) == {}
        async with registrar(socket, endpoint) as third:
            await third.notified_registered()
            again = await watch.state(socket, "registered", after=number(registered["generation"]))
    assert (facts["node-id"], registered["generation"] != again["generation"]) == ("node-1", True)
    assert (alone["state"], alone["generation"]) == ("registered", registered["generation"])


@pytest.mark.parametrize("serves_health", [True, False])
async def test_a_dra_driver_that_is_stopped_stays_usable_and_only_its_health_service_tells(
    serves_health: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consumers C.2: it keeps its connection. A call to it has a deadline; SIGSTOP and SIGCONT."""
    monkeypatch.setattr(dra_calls, "CALL_TIMEOUT", 0.5)
    config = Config(roots=(Root(tmp_path),), health_checks=FAST)
    options = ["--serve", "grpc.health.v1.Health"] * serves_health
    claim = DRAClaim("default", "8c1ae4a7-6a3f", "train")
    async with (
        Supervisor(config) as node,
        fake("DRAPlugin", NAME, tmp_path / "dra.sock", *options) as plugin,
    ):
        with trio.fail_after(DEADLINE):
            await node.wait_for(NAME)
        before = await until(node, Health.HEALTHY)
        driver = node.dra_driver(NAME)
        plugin.process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(DRACallError, match=r"DEADLINE_EXCEEDED: no answer within 0\.5 s"):
                await driver.prepare([claim])
            if serves_health:
                await until(node, Health.UNHEALTHY)
            (hung,) = (await node.snapshot()).plugins
        finally:
            plugin.process.send_signal(signal.SIGCONT)
        await until(node, Health.HEALTHY)
        with trio.fail_after(DEADLINE):
            while not await prepares(driver, claim):  # noqa: ASYNC110 - another process may be slow
                await trio.sleep(0.05)
    assert (hung.generation, hung.state, hung.active) == (before.generation, StateName.REGISTERED, True)
    assert dict(hung.facts)["usable"] == "yes, by 1 instance"
    assert hung.health is (Health.UNHEALTHY if serves_health else Health.HEALTHY)


async def prepares(driver: DRADriver, claim: DRAClaim) -> bool:
    """Whether the driver prepares the claim in time."""
    try:
        return claim.uid in await driver.prepare([claim])
    except DRACallError:
        return False

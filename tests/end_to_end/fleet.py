"""A fleet on one machine: daemons as nodes, which Debian's Prometheus watches by the rules of ``deploy/prometheus``.

Each node has a CSI driver and a device plugin with four devices, and one device of the first node is leased. On some
nodes the driver is killed; the alerts for exactly these nodes have to fire, and to end once it runs again.

The plugins of the other nodes are served by one process for all of them. ``tests/tools/fleet.py`` runs it with 50
nodes, and the suite with three.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import trio

from plugind.actors.grpc.server.serve import serve_listener
from plugind.actors.io.unix_socket import listen
from plugind.actors.simulation.device_plugins import FakeDevices
from plugind.actors.simulation.plugins import FakePlugin, FakeRegistration
from plugind.protocol.plugins.devices import Device
from plugind.tests.end_to_end.leasing import allocate, listed
from plugind.tests.end_to_end.packages import program
from plugind.tests.end_to_end.processes import (
    DEADLINE,
    PATIENT,
    PLUGIND,
    Daemon,
    PluginProcess,
    daemon,
    plugin_process,
)
from plugind.tests.end_to_end.prometheus_servers import Labels, Monitoring, monitoring, until

DRIVER: Final = "csi.example.com"
RESOURCE: Final = "example.com/gpu"
DEVICES: Final = 4
#: What is said of a node whose driver was killed.
ABOUT_A_KILLED_DRIVER: Final = frozenset(
    {"PlugindExpectedPluginMissing", "PlugindPluginsDoNotServe", "PlugindPluginsUnhealthy"}
)
PAGE: Final = Path(__file__).parents[2] / "docs" / "fleet.md"
_MISSING: Final = "PlugindExpectedPluginMissing"
#: The queries of the inventories, on the page.
_QUERY: Final = re.compile(r"^    jq .*?^$", re.MULTILINE | re.DOTALL)
_LACKING: Final = f'node_name:plugind_expected_plugin:missing{{name="{DRIVER}"}} == 1'

#: Takes a line about what was done.
Say = Callable[[str], None]


@attrs.frozen
class _Node:
    name: str
    daemon: Daemon
    address: str


async def campaign(directory: Path, nodes: int, broken: Collection[int], say: Say) -> None:
    """Run so many nodes, kill the drivers of those with the numbers ``broken``, and start them again.

    Raises:
      AssertionError: if what Prometheus or Alertmanager says is not what has happened.
    """
    names = {f"node-{number:02}" for number in broken}
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(_fleet(directory, nodes, set(broken)))
        affected = [fleet[number].daemon for number in sorted(broken)]
        async with _drivers(affected):
            assert (await allocate(fleet[0].daemon, RESOURCE))[0] == 201
            say(f"{nodes} daemons serve their metrics; one device is leased")
            targets = [(node.name, node.address) for node in fleet]
            watched = await stack.enter_async_context(monitoring(directory, targets, interval=1 if nodes < 10 else 2))
            await until(partial(_all_up, watched, nodes))
            wanted = {
                "resource:plugind_devices:healthy": DEVICES * nodes,
                "resource:plugind_devices:leased": 1,
                f'name:plugind_expected_plugin:nodes{{name="{DRIVER}"}}': nodes,
            }
            await until(partial(_are, watched, wanted))
            assert await watched.query(_LACKING) == []
            assert await watched.firing() == []
            say(
                f"{nodes} targets are up, {DEVICES * nodes} devices are healthy and 1 is leased, no node lacks {DRIVER}"
            )
        # Killed processes leave their sockets behind.
        say(f"the drivers of {', '.join(sorted(names))} are killed")
        await until(partial(_fires_for, watched, names))
        await until(partial(_lack, watched, names))
        await until(partial(_are_told_of, watched, names))
        say(f"{_MISSING} fires for {', '.join(sorted(names))} and for no other node")
        async with _drivers(affected):
            say("the drivers run again")
            await until(partial(_has_ended_for, watched, names))
            # Groups of rules are evaluated at instants of their own.
            await until(partial(_lack, watched, set()))
            # Nothing was sent about another node.
            assert {labels["node"] for _, labels in watched.received.alerts} == names, watched.received.alerts
            say(f"{_MISSING} has ended for {', '.join(sorted(names))}")
            say(await _sizes(watched))


async def inventory(directory: Path, nodes: int, broken: int, say: Say) -> None:
    """Collect the inventories of so many nodes, and ask them the questions of ``docs/fleet.md``.

    The first node has a lease and a drained device, and the driver of the node ``broken`` was killed.

    Raises:
      AssertionError: if an answer is not what has happened.
    """
    names = [f"node-{number:02}" for number in range(nodes)]
    (collected := directory / "inventory").mkdir()
    async with _fleet(directory, nodes, {broken}) as fleet:
        first = fleet[0].daemon
        assert (await allocate(first, RESOURCE, ids=["gpu-1"], id="train"))[0] == 201
        drain = {"resource": RESOURCE, "device": "gpu-2", "reason": "broken fan"}
        assert (await first.get("/v1/drains", method="POST", body=json.dumps(drain).encode()))[0] == 200
        async with _driver(fleet[broken].daemon):
            say(f"{nodes} daemons run; {names[0]} has a lease and a drained device")
        for number, node in enumerate(fleet):
            await listed(node.daemon, RESOURCE)
            await node.daemon.metric(f'plugind_expected_plugin{{name="{DRIVER}"}} {float(number != broken)}')
        for node in fleet:
            command = [*PLUGIND, "inventory", "--node", node.name, "--status", node.daemon.status]
            done = await trio.run_process(command, capture_stdout=True)
            (collected / f"{node.name}.json").write_bytes(done.stdout)
        where = await _queried(collected, "gpu-1")
        assert [line.split("\t") for line in where] == [
            [name, RESOURCE, "gpu-1", "Healthy", *(("root", "train") if name == names[0] else ("-", "-"))]
            for name in names
        ], where
        unwell = await _queried(collected, ".problems")
        assert [line.split("\t")[:2] for line in unwell] == [
            [names[0], f"{RESOURCE} gpu-2"],
            [names[broken], DRIVER],
        ], unwell
        assert await _queried(collected, "now") == []
        say(f"gpu-1 is on {len(where)} nodes, and {names[0]} has leased it; unwell: {'; '.join(unwell)}")


async def _queried(collected: Path, word: str) -> list[str]:
    """Return what the query of the page that has this word says of the inventories."""
    (query,) = [query for query in _QUERY.findall(PAGE.read_text()) if word in query]
    text = query.replace("    ", "", 1).replace("/srv/inventory", str(collected))
    command = ["sh", "-c", f"PATH={Path(program('jq')).parent}:$PATH; {text}"]
    done = await trio.run_process(command, capture_stdout=True, stderr=subprocess.STDOUT, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout.decode().splitlines()


async def _sizes(watched: Monitoring) -> str:
    """Return what the fleet takes in Prometheus, in words."""
    samples = [value for _, value in await watched.query("scrape_samples_scraped")]
    series = await watched.own_metric("prometheus_tsdb_head_series")
    memory = await watched.own_metric("process_resident_memory_bytes")
    return (
        f"samples of a scrape: {min(samples):g} to {max(samples):g}; series in Prometheus, with those of rules and"
        f" alerts: {series:g}; its memory: {memory / 2**20:.0f} MiB"
    )


async def _all_up(watched: Monitoring, nodes: int) -> bool:
    targets = await watched.targets()
    return len(targets) == nodes and all(health == "up" for _, health in targets)


async def _are(watched: Monitoring, wanted: Mapping[str, float]) -> bool:
    found = {query: [value for _, value in await watched.query(query)] for query in wanted}
    return found == {query: [value] for query, value in wanted.items()}


def _nodes_of(alerts: Collection[Labels]) -> set[str]:
    return {labels["node"] for labels in alerts if labels.get("name") == DRIVER}


async def _fires_for(watched: Monitoring, names: set[str]) -> bool:
    return _nodes_of(watched.received.with_status("firing", _MISSING)) == names


async def _lack(watched: Monitoring, names: set[str]) -> bool:
    return {labels["node"] for labels, _ in await watched.query(_LACKING)} == names


async def _are_told_of(watched: Monitoring, names: set[str]) -> bool:
    """Whether Prometheus and Alertmanager have alerts of exactly these nodes. A late scrape may end one for a while."""
    told = (await watched.firing(), await watched.at_alertmanager())
    for alerts in told:
        assert {labels["node"] for labels in alerts} <= names, alerts
        assert {labels["alertname"] for labels in alerts} <= ABOUT_A_KILLED_DRIVER, alerts
    return all({labels["node"] for labels in alerts} == names for alerts in told)


async def _has_ended_for(watched: Monitoring, names: set[str]) -> bool:
    resolved = _nodes_of(watched.received.with_status("resolved", _MISSING)) == names
    return resolved and not await watched.firing()


# --- the nodes --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _fleet(directory: Path, nodes: int, broken: set[int]) -> AsyncIterator[list[_Node]]:
    """Run the daemons and their plugins; the drivers of ``broken`` nodes are not among them."""
    async with AsyncExitStack() as stack, trio.open_nursery() as plugins:
        daemons = []
        for number in range(nodes):
            (own := directory / f"n{number}").mkdir()
            options = ["--metrics", "0", "--expect", DRIVER, "--health", "off"]
            state = ["--state", str(own / "state")] if not number else []
            daemons.append(stack.enter_context(daemon(own, *options, *state, timeouts=PATIENT)))
            # A few at once: fifty would be late on a busy machine.
            await daemons[max(0, number - 3)].logged("started")
        for number, started in enumerate(daemons):
            await started.logged("started")
            devices = FakeDevices(Device(f"gpu-{n}", "Healthy") for n in range(DEVICES))
            gpus = FakePlugin("DevicePlugin", RESOURCE, ("v1beta1",), serves=[devices])
            await plugins.start(_serve, started.root / "gpu.sock", gpus)
            if number not in broken:
                await plugins.start(_serve, started.root / "csi.sock", FakePlugin("CSIPlugin", DRIVER))
        await listed(daemons[0], RESOURCE)
        yield [_Node(f"node-{number:02}", daemon, await _address(daemon)) for number, daemon in enumerate(daemons)]
        plugins.cancel_scope.cancel()


async def _serve(path: Path, plugin: FakePlugin, task_status: trio.TaskStatus[None]) -> None:
    """Serve a plugin on a socket, as long as it is not cancelled."""
    with listen(str(path)) as listener:
        task_status.started()
        registration = FakeRegistration(plugin, lambda _call: None, lambda: None)
        await serve_listener([registration, *plugin.serves], listener)


@asynccontextmanager
async def _drivers(nodes: Sequence[Daemon]) -> AsyncIterator[None]:
    """Run the drivers of some nodes, and kill them at the end of the block."""
    async with AsyncExitStack() as stack:
        for node in nodes:
            await stack.enter_async_context(_driver(node))
        yield


@asynccontextmanager
async def _driver(node: Daemon) -> AsyncIterator[PluginProcess]:
    """Run the driver of a node as a process, and kill it at the end of the block."""
    path = node.root / "csi.sock"
    command = [*PLUGIND, "fake", "--socket", str(path), "--type", "CSIPlugin", "--name", DRIVER, "--version", "1.0.0"]
    async with plugin_process(command) as plugin:
        await node.metric(f'plugind_expected_plugin{{name="{DRIVER}"}} 1.0')
        yield plugin
        await plugin.end(signal.SIGKILL)


async def _address(node: Daemon) -> str:
    """Return where the daemon serves its metrics."""
    with trio.fail_after(DEADLINE):
        (line,) = await node.logged("metrics are served")
    address = str(line["address"])
    assert re.fullmatch(r"127\.0\.0\.1:\d+", address)
    return address

"""A daemon leases the devices of device plugins on other implementations of gRPC, some of which misbehave."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs
import pytest
import trio

from plugind.tests.end_to_end.device_clients import Running, running
from plugind.tests.end_to_end.device_plugins import ALL, GRPCIO, DevicePluginProgram
from plugind.tests.end_to_end.leasing import allocate, ended, leases, listed, release
from plugind.tests.end_to_end.processes import DEADLINE, Daemon, daemon

#: Plugins on grpcio that run during all tests, by the resource that each offers.
PLUGINS = {
    "example.com/numa": ("--plain", "--preferred", "--by-numa", "--pre-start"),
    "example.com/bad": ("--nonsense", "each", "--devices", "7"),
}
#: A call that no plugin answers in the test of it: the resource, what its plugin is told, and which deadline is met.
HANGS = {
    "Allocate": ("example.com/hang", ("--plain", "--hang", "Allocate"), "ALLOCATE_TIMEOUT"),
    "PreStartContainer": (
        "example.com/start",
        ("--plain", "--pre-start", "--hang", "PreStartContainer"),
        "PRE_START_TIMEOUT",
    ),
}
#: The other deadlines: all calls that are answered are answered in time, even on a busy machine.
TIMEOUTS = {f"actors.devices.calls.{name}": DEADLINE for _, _, name in HANGS.values()}
#: Seconds that a plugin has which does not answer; fewer than in a real daemon.
SOON = 0.5


@attrs.frozen
class Node:
    """A daemon and its device plugins."""

    daemon: Daemon
    directory: Path
    plugins: dict[str, Running]


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with running_node(TIMEOUTS, PLUGINS) as started:
        yield started


@contextmanager
def running_node(timeouts: Mapping[str, float], plugins: Mapping[str, tuple[str, ...]]) -> Iterator[Node]:
    """Run a daemon with these deadlines, and a plugin on grpcio for each resource with its options."""
    with ExitStack() as stack:
        # The path of a device plugin's socket may have 107 bytes.
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
        directory = place / "device-plugins"
        directory.mkdir()
        started = stack.enter_context(daemon(place, f"--device-plugins={directory}", timeouts=timeouts))
        yield Node(
            started,
            directory,
            {
                name: stack.enter_context(running(_command(GRPCIO, directory, name, *options)))
                for name, options in plugins.items()
            },
        )


def _command(program: DevicePluginProgram, directory: Path, resource: str, *options: str) -> list[str]:
    return program.command(directory, f"{resource.rpartition('/')[2]}.sock", resource, *options)


@pytest.mark.parametrize("program", ALL, ids=lambda program: program.label)
async def test_a_plugin_gives_devices_and_is_told_nothing_at_their_end(
    program: DevicePluginProgram, node: Node
) -> None:
    resource = f"example.com/{program.label}"
    short = program.label
    with running(_command(program, node.directory, resource, "--plain", "--preferred")) as plugin:
        await listed(node.daemon, resource)
        status, lease = await allocate(node.daemon, resource, 2, include=[f"{short}-3"])
        assert status == 201, lease
        assert lease["devices"] == {resource: [f"{short}-0", f"{short}-3"]}
        assert lease["answer"]["env"] == {"VISIBLE_DEVICES": f"{short}-0,{short}-3"}
        plugin.line(call="GetPreferredAllocation")
        assert plugin.line(call="Allocate")["ids"] == [f"{short}-0", f"{short}-3"]
        status, failure = await allocate(node.daemon, resource, 3)
        text = f"requested number of devices unavailable for {resource}. Requested: 3, Available: 2"
        assert (status, failure["error"]) == (409, text)
        await release(node.daemon, lease["id"])
        status, lease = await allocate(node.daemon, resource, 4)
        # All four: there is no choice. A plugin that was connected anew is asked for its options again.
        called = next(line["call"] for line in iter(plugin.line, None) if line["call"] != "GetDevicePluginOptions")
        assert (status, called) == (201, "Allocate")
        await release(node.daemon, lease["id"])


async def test_devices_of_one_numa_node_are_preferred_and_made_ready(node: Node) -> None:
    """The devices with even numbers are near to node 0, and the others to node 1."""
    resource = "example.com/numa"
    await listed(node.daemon, resource)
    status, lease = await allocate(node.daemon, resource, 2, include=["numa-3"])
    assert (status, lease["devices"]) == (201, {resource: ["numa-1", "numa-3"]})
    assert node.plugins[resource].line(call="PreStartContainer")["ids"] == ["numa-1", "numa-3"]
    status, other = await allocate(node.daemon, resource, 2)
    assert (status, other["devices"]) == (201, {resource: ["numa-0", "numa-2"]})
    for held in (lease, other):
        await release(node.daemon, held["id"])


@pytest.mark.parametrize("call", HANGS)
async def test_a_plugin_that_hangs_delays_no_other(call: str, node: Node) -> None:
    """It has all the time that the other one needs. When it is killed, its lease ends."""
    resource, options, _ = HANGS[call]
    with running(_command(GRPCIO, node.directory, resource, *options)) as plugin:
        await listed(node.daemon, resource, "example.com/numa")
        failures: list[tuple[int, str]] = []
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                status, failure = await allocate(node.daemon, resource, id="stuck")
                failures.append((status, failure["error"]))

            nursery.start_soon(ask)
            await trio.to_thread.run_sync(lambda: plugin.line(call=call))
            status, lease = await allocate(node.daemon, "example.com/numa")
            assert (status, failures) == (201, [])
            await release(node.daemon, lease["id"])
            plugin.process.send_signal(signal.SIGKILL)
        ((status, text),) = failures
        assert (status, "UNAVAILABLE: the peer closed the connection" in text) == (502, True), text
        await ended(node.daemon, "stuck")


@pytest.mark.parametrize("call", HANGS)
async def test_the_devices_of_a_plugin_that_hangs_are_withheld_until_its_process_ends(call: str) -> None:
    resource, options, name = HANGS[call]
    short = resource.rpartition("/")[2]
    deadlines = {**TIMEOUTS, f"actors.devices.calls.{name}": SOON}
    with running_node(deadlines, {resource: options}) as node:
        await listed(node.daemon, resource)
        status, failure = await allocate(node.daemon, resource, id="stuck")
        assert (status, f"no answer within {SOON:g} s" in failure["error"]) == (502, True), failure
        stuck = (await leases(node.daemon))["stuck"]
        assert (stuck["state"], stuck["devices"]) == ("uncertain", {resource: [f"{short}-0"]})
        status, failure = await allocate(node.daemon, resource, 4)
        assert (status, failure["error"].endswith("Requested: 4, Available: 3")) == (409, True)
        node.plugins[resource].process.send_signal(signal.SIGKILL)
        await ended(node.daemon, "stuck")


#: What the plugin answers for each of its devices, in order, and what is said of that.
NONSENSE = (
    "no containers return in allocation response",
    "2 containers return in allocation response, and one was asked for",
    'the host path "null" is not absolute',
    r'the host path "/dev/nu\nll" has a control character',
    "limit of 4194304 (limit message_bytes)",
    "the response is no valid AllocateResponse",
)


async def test_a_plugin_that_answers_nonsense_or_dies_holds_nothing(node: Node) -> None:
    resource = "example.com/bad"
    await listed(node.daemon, resource)
    for number, text in enumerate(NONSENSE):
        status, failure = await allocate(node.daemon, resource, ids=[f"bad-{number}"])
        assert (status, text in failure["error"]) == (502, True), failure
        assert await leases(node.daemon) == {}
    status, failure = await allocate(node.daemon, resource, ids=["bad-6"], id="dying")
    assert (status, failure["error"]) == (502, f"{resource}: UNAVAILABLE: the peer closed the connection")
    await ended(node.daemon, "dying")  # With the process, and not after a minute.

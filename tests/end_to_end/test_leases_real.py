"""A daemon leases the devices of device plugins on other implementations of gRPC, and of one that hangs."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from plugind.tests.end_to_end.device_clients import running
from plugind.tests.end_to_end.device_plugins import ALL, GRPCIO, DevicePluginProgram
from plugind.tests.end_to_end.leasing import allocate, ended, leases, listed, release
from plugind.tests.end_to_end.processes import DEADLINE, Daemon, daemon

#: Seconds that a plugin has which does not answer; fewer than in a real daemon.
SOON = 0.5


@contextmanager
def running_node(allocate_timeout: float) -> Iterator[tuple[Daemon, Path]]:
    """Run a daemon that serves Register in a directory."""
    # The path of a device plugin's socket may have 107 bytes.
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        directory = Path(place) / "device-plugins"
        directory.mkdir()
        timeouts = {"actors.devices.calls.ALLOCATE_TIMEOUT": allocate_timeout}
        with daemon(Path(place), f"--device-plugins={directory}", timeouts=timeouts) as started:
            yield started, directory


@pytest.fixture(scope="module")
def node() -> Iterator[tuple[Daemon, Path]]:
    with running_node(DEADLINE) as started:
        yield started


def _command(program: DevicePluginProgram, directory: Path, resource: str, *options: str) -> list[str]:
    return program.command(directory, f"{resource.rpartition('/')[2]}.sock", resource, *options)


@pytest.mark.parametrize("program", ALL, ids=lambda program: program.label)
async def test_a_plugin_gives_devices_and_is_told_nothing_at_their_end(
    program: DevicePluginProgram, node: tuple[Daemon, Path]
) -> None:
    started, directory = node
    resource = f"example.com/{program.label}"
    short = program.label
    with running(_command(program, directory, resource, "--plain", "--preferred")) as plugin:
        await listed(started, resource)
        status, lease = await allocate(started, resource, 2, include=[f"{short}-3"])
        assert status == 201, lease
        assert lease["devices"] == {resource: [f"{short}-0", f"{short}-3"]}
        assert lease["answer"]["env"] == {"VISIBLE_DEVICES": f"{short}-0,{short}-3"}
        plugin.line(call="GetPreferredAllocation")
        assert plugin.line(call="Allocate")["ids"] == [f"{short}-0", f"{short}-3"]
        status, failure = await allocate(started, resource, 3)
        text = f"requested number of devices unavailable for {resource}. Requested: 3, Available: 2"
        assert (status, failure["error"]) == (409, text)
        await release(started, lease["id"])
        status, lease = await allocate(started, resource, 4)
        # All four: there is no choice. A plugin that was connected anew is asked for its options again.
        called = next(line["call"] for line in iter(plugin.line, None) if line["call"] != "GetDevicePluginOptions")
        assert (status, called) == (201, "Allocate")
        await release(started, lease["id"])


async def test_the_devices_of_a_plugin_that_hangs_are_withheld_until_its_process_ends() -> None:
    resource = "example.com/hang"
    with (
        running_node(SOON) as (started, directory),
        running(_command(GRPCIO, directory, resource, "--plain", "--hang", "Allocate")) as plugin,
    ):
        await listed(started, resource)
        status, failure = await allocate(started, resource, id="stuck")
        assert (status, f"no answer within {SOON:g} s" in failure["error"]) == (502, True), failure
        stuck = (await leases(started))["stuck"]
        assert (stuck["state"], stuck["devices"]) == ("uncertain", {resource: ["hang-0"]})
        status, failure = await allocate(started, resource, 4)
        assert (status, failure["error"].endswith("Requested: 4, Available: 3")) == (409, True)
        plugin.process.send_signal(signal.SIGKILL)
        await ended(started, "stuck")

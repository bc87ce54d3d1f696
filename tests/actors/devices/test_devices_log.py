"""What the log says of devices that are there no more, in a whole simulated node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.actors.simulation.device_nodes import MemoryNodes
from plugind.actors.simulation.device_plugins import FakeDevices
from plugind.protocol.devices.shortfalls import PATIENCE
from plugind.protocol.logs.lines import Field, Level
from plugind.protocol.plugins.devices import Device
from plugind.protocol.plugins.static_devices import StaticResource
from plugind.protocol.settings.config import Config
from plugind.testing import FakePlugin, PluggedIn, SimulatedNode

GPU = "vendor.com/gpu"
FOUR = tuple(Device(f"gpu-{number}") for number in range(4))
#: A line: its text, and some of its fields.
Line = tuple[str, dict[str, Field]]


@attrs.define
class Log:
    """Keeps the lines of devices that came or went."""

    lines: list[Line] = attrs.field(factory=list)

    def enabled(self, level: Level) -> bool:
        return True

    def event(self, level: Level, message: str, /, **fields: Field) -> None:
        if level < Level.INFO or not ("listed" in message or "expected devices" in message):
            return
        assert fields["name"] == GPU
        assert (level is Level.WARNING) == ("advice" in fields)
        found: dict[str, Field] = {name: value for name, value in fields.items() if name not in ("name", "advice")}
        self.lines.append((message, {name: value for name, value in found.items() if value is not None}))

    def take(self) -> list[Line]:
        lines, self.lines = self.lines, []
        return lines


@attrs.define
class Watched:
    """A node with its log, and a plugin at ``a.sock``."""

    node: SimulatedNode
    log: Log
    devices: FakeDevices = attrs.field(factory=lambda: FakeDevices(FOUR))

    def plug(self, devices: FakeDevices) -> PluggedIn:
        return self.node.plug("a.sock", FakePlugin("DevicePlugin", GPU, ("v1beta1",), serves=[devices]))

    async def show(self, *devices: Device) -> list[Line]:
        """Have the plugin list ``devices``, and return what the log says of that."""
        self.devices.show(*devices)
        return await self.after(1.0)

    async def after(self, seconds: float) -> list[Line]:
        await trio.sleep(seconds)
        return self.log.take()


def listed(socket: str, number: int) -> Line:
    return "devices are listed", {"socket": socket, "capacity": number, "allocatable": number}


@asynccontextmanager
async def watching() -> AsyncIterator[tuple[Watched, PluggedIn]]:
    """Run a node with a plugin that has listed four devices, which are expected."""
    log = Log()
    async with SimulatedNode(Config(expected_devices={GPU: 4}), log=log) as node:
        watched = Watched(node, log)
        plugged = watched.plug(watched.devices)
        assert await watched.after(1.0) == [listed(plugged.path, 4)]
        yield watched, plugged


async def test_devices_that_leave_the_list_of_their_plugin_are_named_once_and_so_is_their_return(
    autojump_clock: MockClock,
) -> None:
    async with watching() as (watched, plugged):
        fields = {"socket": plugged.path, "devices": "gpu-1, gpu-3"}
        assert await watched.show(FOUR[0], FOUR[2]) == [("devices are no longer listed", fields)]
        assert await watched.show(FOUR[2], FOUR[0]) == []
        assert await watched.show(*FOUR) == [("more devices are listed", fields)]


async def test_a_plugin_that_lists_fewer_devices_than_before_a_restart_of_plugind_is_named(
    autojump_clock: MockClock,
) -> None:
    async with watching() as (watched, plugged):
        await watched.node.kill()
        plugged.stop()
        watched.log.take()
        path = watched.plug(FakeDevices(FOUR[:3])).path
        await watched.node.start()
        fewer = "fewer devices are listed than before the restart", {"socket": path, "capacity": 3, "before": 4}
        assert await watched.after(5.0) == [listed(path, 3), fewer]


@pytest.mark.parametrize("enough", [2, 4])
async def test_a_lasting_shortfall_of_expected_devices_is_logged_once_and_so_is_its_end(
    autojump_clock: MockClock, enough: int
) -> None:
    """It ends when enough devices are healthy, or fewer are expected."""
    async with watching() as (watched, plugged):
        await watched.show(*FOUR[:2], Device("gpu-2", "Sick"))
        fields = {"expected": 4, "healthy": 2, "listed": 3, "unhealthy": "gpu-2", "socket": plugged.path}
        assert await watched.after(PATIENCE) == [("expected devices are missing", fields)]
        assert watched.node.crash("devices")
        assert await watched.after(3600.0) == []
        if enough == 4:
            watched.devices.show(*FOUR)
        else:
            await watched.node.reconfigure(attrs.evolve(watched.node.config, expected_devices={GPU: enough}))
        end = "expected devices are there again", {"expected": enough, "healthy": enough}
        assert [line for line in await watched.after(1.0) if "expected" in line[1]] == [end]


async def test_a_short_absence_of_expected_devices_is_no_shortfall(autojump_clock: MockClock) -> None:
    async with watching() as (watched, _):
        for _ in range(3):
            await watched.show(*FOUR[:2])
            await watched.after(PATIENCE - 2.0)
            await watched.show(*FOUR)
        assert await watched.after(PATIENCE) == []


async def test_expected_devices_that_no_plugin_lists_are_missing(autojump_clock: MockClock) -> None:
    log = Log()
    async with SimulatedNode(Config(expected_devices={GPU: 4}), log=log):
        await trio.sleep(PATIENCE + 1.0)
    fields = {"expected": 4, "healthy": 0, "listed": 0, "reason": "there is no such resource"}
    assert log.take() == [("expected devices are missing", fields)]


async def test_static_devices_that_match_nothing_at_the_start_are_a_warning(autojump_clock: MockClock) -> None:
    log = Warnings()
    resources = {name: StaticResource((f"/dev/{name[4:]}*",)) for name in ("lab/tty", "lab/vid")}
    node = SimulatedNode(Config(devices=resources), log=log)
    node.device_nodes.plug("/dev/tty0", "c4:0")
    async with node:
        await trio.sleep(60)
        assert [line[:3] for line in log.lines] == [("no device matches", "lab/vid", "/dev/vid*")]


async def test_a_daemon_that_sees_no_devices_warns_of_that(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryNodes, "why_hidden", lambda _: "all are hidden")
    log = Warnings()
    async with SimulatedNode(Config(devices={"lab/vid": StaticResource(("/dev/vid*",))}), log=log):
        await trio.sleep(60)
        assert log.lines == [("no device matches", "lab/vid", "/dev/vid*", "all are hidden")]


@attrs.define
class Warnings:
    """Keeps the warnings about resources that the configuration names."""

    lines: list[tuple[str, Field, Field, Field]] = attrs.field(factory=list)

    def enabled(self, level: Level) -> bool:
        return True

    def event(self, level: Level, message: str, /, **fields: Field) -> None:
        if level is Level.WARNING and "match" in fields:
            self.lines.append((message, fields["name"], fields["match"], fields["advice"]))

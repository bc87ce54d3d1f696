"""The demo: its plugins, its guide, and its layout in terminals of different sizes."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
from rich.console import Console

from plugind.actors.console.answers import Plugin
from plugind.actors.console.demo import (
    LEGEND,
    guide,
    steady_plugins,
)
from plugind.actors.console.demo_devices import DeviceLines
from plugind.actors.console.demo_display import MOST_ROWS, Display, screen
from plugind.protocol.plugins.devices import (
    HEALTHY,
    UNHEALTHY,
    Device,
    DeviceList,
    ResourceState,
    ResourceStatus,
)
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.info import BUILT_IN_TYPES
from plugind.protocol.plugins.status import PluginStatus, StateName
from plugind.protocol.status.json import plugin_to_json

STATUS = "/tmp/plugind-demo-12345678/status.sock"
FACTS = ["csi.example.com: node id node-7, 16 volumes, zone=z1"]
DEVICES = ["example.com/gpu: 3 of 4 devices healthy; gpu-1 unhealthy for 3.4s"]


def test_the_demo_has_a_good_plugin_of_each_type_and_some_faulty_ones() -> None:
    plugins = [spec.plugin for spec in steady_plugins("/r")]
    good = {plugin.type for plugin in plugins if plugin.hang is None and not plugin.get_info_fails}
    assert set(BUILT_IN_TYPES) < good
    assert [plugin.get_info_fails for plugin in plugins if plugin.get_info_fails] == [2]
    assert [plugin.hang for plugin in plugins if plugin.hang] == ["get-info"]


def status(name: str, state: StateName = StateName.REGISTERED, since: float = 0.0) -> PluginStatus:
    return PluginStatus(
        f"/r/{name}.sock", "/r", 1, state, since, attempt=1, type="CSIPlugin", name=f"{name}.example.com"
    )


def shown(width: int, height: int, count: int = MOST_ROWS) -> list[str]:
    rows: list[Plugin] = [plugin_to_json(status(f"plugin{number}"), 1.0, 1_700_000_000.0) for number in range(count)]
    with open(os.devnull, "w") as nowhere:
        console = Console(file=nowhere, record=True, width=width, height=height, force_terminal=True)
        console.print(screen(guide(STATUS), rows, DEVICES, FACTS, width, height))
    return console.export_text().splitlines()


@pytest.mark.parametrize("count", [0, MOST_ROWS - 1, MOST_ROWS])
@pytest.mark.parametrize("size", [(80, 24), (100, 30), (140, 50)])
def test_heading_legend_and_commands_fit_a_usual_terminal(
    size: tuple[int, int], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["plugind"])
    lines = shown(*size, count)
    assert len(lines) < size[1]
    assert "Ctrl-C ends it" in lines[0]
    assert [line for line in lines if line in DEVICES + FACTS] == DEVICES + FACTS
    assert [name for name, _ in LEGEND if not any(line.startswith(name) for line in lines)] == []
    pasted = [f"  {command}" for command in guide(STATUS).commands]
    # The interpreter's path may be longer than a line; the other commands are whole lines.
    assert lines[-3:] == pasted[-3:]
    assert all(len(command) <= 80 for command in pasted[-3:])


@pytest.mark.parametrize("width", [40, 60])
def test_on_a_narrow_terminal_lines_are_folded_and_commands_can_still_be_pasted(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "plugind"
    program.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(program)])
    lines = shown(width, 60)
    assert max(map(len, lines)) <= width
    assert "Ctrl-C ends it." in " ".join(lines[:2])
    assert all(any(line.startswith(name) for line in lines) for name, _ in LEGEND)
    assert "parked, until a program adds one" in " ".join(" ".join(lines).split())
    below = "\n".join(lines[lines.index("From a second terminal:") + 1 :])
    assert "\\\n" in below
    pasted = [shlex.split(command) for command in below.replace("\\\n", "").splitlines()]
    assert pasted == [shlex.split(command) for command in guide(STATUS).commands]


def resource(*unhealthy: str, since: float = 0.0, count: int = 4, lost_since: float | None = None) -> ResourceStatus:
    listed = DeviceList(
        Device(name, UNHEALTHY if name in unhealthy else HEALTHY) for name in map("gpu-{}".format, range(count))
    )
    state = ResourceState.LISTED if lost_since is None else ResourceState.LOST
    changed = dict.fromkeys(listed.devices, since)
    return ResourceStatus("example.com/gpu", state, 0.0, listed=listed, changed=changed, lost_since=lost_since)


def test_devices_have_one_line_for_each_resource_with_those_that_are_unhealthy() -> None:
    devices = DeviceLines()
    assert (devices.lines(0.0), devices.at_rest) == ([], False)
    assert devices.take(resource(count=0)) == []
    healthy = ["example.com/gpu: 4 of 4 devices healthy"]
    assert (devices.take(resource()), devices.lines(2.0)) == (healthy, healthy)
    assert devices.at_rest
    one = devices.take(resource("gpu-1", since=3.0))
    assert one == ["example.com/gpu: 3 of 4 devices healthy; gpu-1 unhealthy"]
    assert devices.lines(6.4) == DEVICES
    assert not devices.at_rest
    # A list that says the same again is not said again.
    assert devices.take(resource("gpu-1", since=3.0)) == []
    lost = devices.take(resource(lost_since=8.0))
    assert lost == ["example.com/gpu: 0 of 4 devices healthy; gpu-0 and 3 more unhealthy"]
    gone = attrs.evolve(resource(), state=ResourceState.GONE)
    assert (devices.take(gone), devices.lines(9.0)) == ([], [])


def driver_with_facts() -> PluginStatus:
    return attrs.evolve(status("csi"), facts=(("node-id", "node-7"), ("max-volumes", "16"), ("topology.zone", "z1")))


def test_what_a_csi_driver_has_told_is_a_line_that_is_said_once() -> None:
    display = Display(guide(STATUS), live=False, once=True)
    display.take(resource())
    assert display.take(status("csi")) == []
    assert not display.has_settled(lambda sockets: True)
    assert display.take(driver_with_facts()) == FACTS
    assert display.take(attrs.evolve(driver_with_facts(), health=Health.HEALTHY)) == []
    assert display.facts == FACTS
    assert display.has_settled(lambda sockets: True)
    display.take(attrs.evolve(driver_with_facts(), state=StateName.GONE))
    assert display.facts == []


@pytest.mark.parametrize("name", ["plugind", "a directory/plugind", "it's/plugind"])
def test_the_command_to_paste_runs_the_program_that_shows_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / name
    program.parent.mkdir(exist_ok=True)
    program.write_text("#!/bin/sh\necho ran: $1\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(program)])
    first = guide(STATUS).commands[0]
    script = f"shopt -s expand_aliases\n{first}\nplugind ls"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("ran: ls\n", "")

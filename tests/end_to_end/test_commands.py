"""The output and the exit codes of the commands, run as processes beside a daemon."""

from __future__ import annotations

import json
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import trio

from plugind.tests.end_to_end.foreign import GRPCIO, GRPCLIB
from plugind.tests.end_to_end.processes import (
    DEADLINE,
    PLUGIND,
    SOON,
    Daemon,
    Done,
    Plugin,
    daemon,
    number,
    plugin_process,
)

#: The keys that programs which read the JSON can rely on.
CONTRACT = {
    "socket",
    "root",
    "type",
    "name",
    "endpoint",
    "versions",
    "state",
    "reason",
    "cause",
    "attempt",
    "next_try_in",
    "generation",
    "age",
    "since",
    "next_try_at",
    "registered_in",
    "steps",
}


def attempts(changes: list[Plugin]) -> set[tuple[object, object]]:
    return {(said["socket"], said["attempt"]) for said in changes}


async def all_done(commands: Mapping[str, list[str]], status: str) -> dict[str, Done]:
    """Run commands side by side, and return the exit code and the output of each."""
    done: dict[str, Done] = {}

    async def run_one(label: str, arguments: list[str]) -> None:
        options = [] if arguments[0] == "probe" else ["--status", status]
        with trio.fail_after(DEADLINE):
            ended = await trio.run_process(
                [*PLUGIND, *arguments, *options], check=False, capture_stdout=True, capture_stderr=True
            )
        done[label] = Done(ended.returncode, ended.stdout.decode(), ended.stderr.decode())

    async with trio.open_nursery() as nursery:
        for label, arguments in commands.items():
            nursery.start_soon(run_one, label, arguments)
    return done


@pytest.mark.usefixtures("real_processes")
async def test_each_command_shows_the_plugins_and_has_its_exit_code(shared: Daemon) -> None:
    directory = shared.root / "commands"
    await shared.ready()
    directory.mkdir()
    good, hung = directory / "good.sock", directory / "hung.sock"
    name, nobody = "commands.example.com/gpu", "nobody.example.com"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(hung))
        silent.listen()
        async with shared.watch() as watch, plugin_process(GRPCLIB.command(good, name, good)) as plugin:
            await plugin.notified_registered()
            registered = await watch.state(good, "registered")
            waiting = await watch.state(hung, "waiting")
            seen = len(watch.changes)
            done = await all_done(
                {
                    "ls": ["ls"],
                    "ls json": ["ls", "--json"],
                    "describe": ["describe", name],
                    "describe json": ["describe", str(good), "--json"],
                    "wait as another type": ["wait", name, "--type", "CSIPlugin", "--timeout", SOON],
                    "wait for nobody": ["wait", name, nobody, "--timeout", SOON],
                    "retry": ["retry", str(hung)],
                    "probe": ["probe", str(good), "--json"],
                    "probe hung": ["probe", str(hung), "--timeout", SOON],
                },
                shared.status,
            )
            # A retry starts again with the first attempt of the same generation.
            await watch.until(lambda watch: (str(hung), 1) in attempts(watch.changes[seen:]))
            assert watch.now[str(hung)]["generation"] == waiting["generation"]

    assert {label: (ended.code, ended.err) for label, ended in done.items() if ended.code} == {
        "wait as another type": (
            1,
            f"plugind: {name} is not registered: it is there as DevicePlugin, not as CSIPlugin\n",
        ),
        "wait for nobody": (1, done["wait for nobody"].err),
        "probe hung": (1, ""),
    }
    assert {ended.err for ended in done.values() if ended.code == 0} == {""}
    assert done["wait for nobody"].err.startswith(f"plugind: {nobody} is not registered: no plugin has that name")
    assert f"{hung} is " in done["wait for nobody"].err
    assert "GetInfo" in done["probe hung"].out

    line = next(line for line in done["ls"].out.splitlines() if str(good) in line)
    assert line.split()[:3] == ["registered", name, "DevicePlugin"]
    listed = {plugin["socket"]: plugin for plugin in json.loads(done["ls json"].out)}
    assert listed.keys() >= {str(good), str(hung)}
    assert all(plugin.keys() >= CONTRACT for plugin in listed.values())
    same = CONTRACT - {"age", "since"}
    assert {key: listed[str(good)][key] for key in same} == {key: registered[key] for key in same}
    assert f"Name:       {name}\n" in done["describe"].out
    (described,) = json.loads(done["describe json"].out)
    assert described["history"][-1]["state"] == "registered"
    assert [entry["attempt"] for entry in described["history"]] == [1] * len(described["history"])
    # An attempt may be under way, which takes one second.
    under_way = {f"{hung}: an attempt is under way: {step}\n" for step in ("dial", "info")}
    assert done["retry"].out in {f"{hung}: tried now\n", *under_way}
    assert json.loads(done["probe"].out)["ok"] is True


@pytest.mark.usefixtures("real_processes")
async def test_watch_prints_a_json_line_for_each_change_until_the_daemon_stops(tmp_path: Path) -> None:
    with daemon(tmp_path) as node:
        await node.ready()
        path = node.root / "a.sock"
        # PluginProcess reads lines of JSON, which this command prints too.
        async with plugin_process([*PLUGIND, "watch", "--json", "--status", node.status]) as watch:
            async with plugin_process(GRPCIO.command(path, GRPCIO.name, path)) as plugin:
                said = await watch.line(state="registered")
                assert said.keys() >= CONTRACT | {"time"}
                assert (said["socket"], said["name"]) == (str(path), GRPCIO.name)
                assert await plugin.end() == 0
                await watch.line(state="gone", generation=said["generation"])
            generations = {number(line["generation"]) for line in watch.lines}
            assert generations == {said["generation"]}
            node.process.send_signal(signal.SIGTERM)
            with trio.fail_after(DEADLINE):
                assert await watch.process.wait() == 69
        assert await node.ended() == 0


async def test_the_command_is_installed_beside_its_python() -> None:
    with trio.fail_after(DEADLINE):
        done = await trio.run_process(
            [str(Path(sys.executable).with_name("plugind")), "--version"], capture_stdout=True
        )
    assert done.stdout.startswith(b"plugind ")

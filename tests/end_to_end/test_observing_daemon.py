"""``plugind run --observe`` as a process, beside a consumer that registers the plugins, and arranged as in its pod.

The consumer is a daemon of plugind on the same root. To its plugins it is what the kubelet's plugin manager is.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from plugind.actors.grpc.server.serve import serve_listener
from plugind.actors.io.unix_socket import listen
from plugind.actors.simulation.plugins import Call, FakePlugin, FakeRegistration
from plugind.tests.end_to_end.csi_drivers import GRPCIO, CSIDriverProgram
from plugind.tests.end_to_end.go_programs import peer
from plugind.tests.end_to_end.packages import program
from plugind.tests.end_to_end.processes import (
    DEADLINE,
    PATIENT,
    Daemon,
    Plugin,
    Watch,
    daemon,
    daemon_process,
    plugin_process,
    run,
)

NAME = "csi.example.com"
NOTIFY = "NotifyRegistrationStatus"
PLUGINS = 60


@contextmanager
def observer(directory: Path, root: Path, *options: str) -> Iterator[Daemon]:
    """Run a daemon that observes ``root``, and looks for plugins that have ended as often as it may."""
    directory.mkdir()
    with daemon(directory, "--observe", "--endpoint-dir", str(root), *options, root=root, timeouts=PATIENT) as started:
        yield started


async def described(node: Daemon, path: Path) -> Plugin:
    return (await node.plugins())[str(path)]


async def healthy(watch: Watch, path: Path) -> None:
    await watch.until(lambda watch: watch.now.get(str(path), {}).get("health") == "healthy")


def count(printed: str, before: list[dict[str, object]]) -> Counter[str]:
    """Count the calls that a plugin has printed."""
    said = [*before, *(json.loads(line) for line in printed.splitlines())]
    return Counter(str(line["call"]) for line in said if "call" in line)


@pytest.mark.parametrize("driver", [GRPCIO], ids=lambda driver: driver.label)
async def test_a_driver_beside_a_consumer_is_told_once_and_observed_until_it_is_killed(
    driver: CSIDriverProgram, tmp_path: Path
) -> None:
    """The consumer goes on to show it as registered, as the kubelet does; the daemon that observes finds out."""
    (kubelet := tmp_path / "kubelet").mkdir()
    root = kubelet / "root"
    path = root / "a-reg.sock"
    with daemon(kubelet, "--health", "off", "--endpoint-dir", str(root), timeouts=PATIENT) as registering:
        await registering.ready()
        with observer(tmp_path / "observer", root, "--health", "1", "--expect", NAME) as observing:
            await observing.logged("started")
            assert (await observing.get("/readyz"))[0] == 503
            async with observing.watch() as watch, registering.watch() as registered:
                command = driver.command(path, NAME, root / ".driver.sock")
                async with plugin_process(command) as plugin:
                    await registered.state(path, "registered")
                    await watch.state(path, "observed")
                    await healthy(watch, path)
                    await observing.ready()
                    facts = await observing.facts(NAME, lambda facts: "capabilities.plugin" in facts)
                    assert facts["vendor-version"] == "2.1.0"
                    assert "node-id" not in facts
                    listed = await trio.to_thread.run_sync(lambda: run("ls", status=observing.status))
                    assert "1 plugin: 1 observed" in listed.out
                    assert set(watch.states(path)) <= {"dial", "info", "observed"}
                    await plugin.end(signal.SIGKILL)
                    await watch.state(path, "stale")
                    calls = count(await plugin.rest(), plugin.lines)
            assert (await described(observing, path))["health"] is None
            assert (await described(registering, path))["state"] == "registered"
    assert (calls["NotifyRegistrationStatus"], calls["NodeGetInfo"]) == (1, 1)
    # Each of the two has asked once what the plugin is.
    assert (calls["GetInfo"], calls["GetPluginInfo"]) == (2, 2)
    assert calls["Probe"] > 0


@contextmanager
def reference(directory: Path, root: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the kubelet's own plugin manager."""
    with (directory / "reference").open("wb") as log:
        process = subprocess.Popen([peer("kubelet-pm"), str(root)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@pytest.mark.extended
async def test_in_a_storm_beside_the_reference_each_plugin_is_told_once_by_the_reference_alone(tmp_path: Path) -> None:
    """Behaviour 45: plugins come together, and their processes know who has called."""
    (root := tmp_path / "root").mkdir(mode=0o755)
    calls: dict[int, list[Call]] = {number: [] for number in range(PLUGINS)}

    async def serve(number: int) -> None:
        plugin = FakePlugin("CSIPlugin", f"csi-{number}.example.com")
        registration = FakeRegistration(plugin, calls[number].append, lambda: None)
        with listen(str(root / f"{number}.sock")) as listener:
            await serve_listener([registration, *plugin.serves], listener)

    with reference(tmp_path, root) as consumer, observer(tmp_path / "observer", root) as observing:
        await observing.ready()
        async with observing.watch() as watch, trio.open_nursery() as plugins:
            for number in calls:
                plugins.start_soon(serve, number)
            await watch.all([root / f"{number}.sock" for number in calls], "observed")
            with trio.fail_after(DEADLINE):
                while any(NOTIFY not in methods(made) for made in calls.values()):  # noqa: ASYNC110 - another process
                    await trio.sleep(0.05)
            plugins.cancel_scope.cancel()
    for made in calls.values():
        notified = [(call.peer_pid, call.registered) for call in made if call.method == NOTIFY]
        assert notified == [(consumer.pid, True)]
        assert {call.peer_pid for call in made if call.method == "GetInfo"} == {consumer.pid, observing.process.pid}


def methods(made: list[Call]) -> set[str]:
    return {call.method for call in made}


# --- arranged as in its pod -------------------------------------------------------------------------------------------

#: Mounts the root of plugins read-only, drops all capabilities, and runs the command that follows.
_ARRANGE = """
set -e
mount --bind "$1" "$1"
mount -o remount,bind,ro "$1"
root=$1
shift
if touch "$root/probe" 2>/dev/null; then echo "the root can be written to" >&2; exit 99; fi
exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make mounts")
async def test_a_daemon_arranged_as_in_its_pod_observes_plugins_of_other_namespaces(tmp_path: Path) -> None:
    """The root is read-only, there is no capability, and the processes of plugins cannot be seen."""
    program("setpriv")
    unshare = [program("unshare"), "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if (await trio.run_process([*unshare, "true"], check=False, capture_stderr=True)).returncode:
        pytest.skip("this machine permits no namespaces")
    (root := tmp_path / "root").mkdir(mode=0o755)
    status, path = tmp_path / "status.sock", root / "a-reg.sock"
    options = ["--observe", "--root", str(root), "--endpoint-dir", str(root), "--status", str(status)]
    # A connect to a plugin that serves is made once a minute.
    often = json.dumps({**PATIENT, "protocol.health.liveness.PLUGIN_PERIOD": 0.5})
    run_often = [sys.executable, str(Path(__file__).with_name("patient.py")), often]
    command = [*unshare, "sh", "-c", _ARRANGE, "sh", str(root), *run_often, "--config", "/dev/null", *options]
    with (tmp_path / "log").open("ab") as log:
        async with plugin_process(GRPCIO.command(path, NAME, root / ".driver.sock")) as plugin:
            await plugin.line(listening=str(path))
            assert stat.S_IMODE(path.stat().st_mode) & 0o022 == 0, "nobody but root may connect to it"
            with daemon_process([*command, "--log-format", "json", "--rescan", "1"], log) as process:
                node = Daemon(root, str(status), process, tmp_path / "log")
                async with node.watch() as watch:
                    shown = await watch.state(path, "observed")
                    assert (shown["uid"], shown["pid"]) == (0, 0)
                    await healthy(watch, path)
                    await plugin.end(signal.SIGKILL)
                    # Without a pidfd it is a connect that finds out.
                    await watch.state(path, "stale")

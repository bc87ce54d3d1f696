"""``plugind probe`` as a process: its verdict is that of a daemon, and the plugin is not affected."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import attrs
import pytest
import trio

from plugind.testing import FakePlugin
from plugind.tests.end_to_end.foreign import ALL, PLUGINS, Foreign
from plugind.tests.end_to_end.processes import DEADLINE, PLUGIND, Daemon, Done, daemon, plugin_process
from plugind.tests.end_to_end.sockets import place, serving, stale


async def probed(path: Path, *options: str) -> Done:
    with trio.fail_after(DEADLINE):
        ended = await trio.run_process(
            [*PLUGIND, "probe", str(path), *options], check=False, capture_stdout=True, capture_stderr=True
        )
    return Done(ended.returncode, ended.stdout.decode(), ended.stderr.decode())


async def found(path: Path, *options: str) -> tuple[int, dict[str, object]]:
    """Return the exit code of a probe, and what it found."""
    done = await probed(path, "--json", *options)
    assert done.err == ""
    result: dict[str, object] = json.loads(done.out)
    return done.code, result


def steps(result: dict[str, object]) -> dict[str, tuple[str, str]]:
    """Return the verdict and the detail of each step."""
    listed = result["steps"]
    assert isinstance(listed, list)
    return {step["step"]: (step["verdict"], step["detail"]) for step in listed}


# --- plugins on other implementations of gRPC -------------------------------------------------------------------------


@pytest.mark.parametrize("foreign", ALL, ids=lambda foreign: foreign.label)
async def test_a_probe_does_not_affect_a_registered_plugin(foreign: Foreign, patient: Daemon) -> None:
    """The probe opens a call of NotifyRegistrationStatus and does not complete it: no server hands that on."""
    path = await place(patient, f"probe-{foreign.label}") / "a.sock"
    async with (
        patient.watch() as watch,
        plugin_process(foreign.command(path, foreign.name, path.with_name(".service.sock"))) as plugin,
    ):
        await plugin.notified_registered()
        await watch.state(path, "registered")
        seen = len(watch.states(path))

        code, result = await found(path)
        assert (code, result["ok"], result["outcome"]) == (0, True, "registered")
        assert steps(result)["NotifyRegistrationStatus"][0] == "ok"

        # The intended notification arrives, and no other.
        assert (await found(path, "--notify"))[0] == 0
        await plugin.notified_registered()
        assert (await patient.plugins())[str(path)]["state"] == "registered"
        assert len(watch.states(path)) == seen
        await plugin.end(signal.SIGKILL)
        assert "NotifyRegistrationStatus" not in await plugin.rest()
        # Its socket would keep its name, and the daemon is shared.
        path.unlink()
        await watch.state(path, "gone")


@pytest.mark.usefixtures("real_processes")
@pytest.mark.parametrize(("kind", "options"), [("none", []), ("base", ["--notify"])])
async def test_a_plugin_that_cannot_be_notified_is_judged_as_the_daemon_does(
    kind: str, options: list[str], patient: Daemon
) -> None:
    """Fault 71: a daemon registers it, deregisters it and parks it. A method that is there is called by --notify."""
    path = await place(patient, f"no-notify-{kind}") / "a.sock"
    command = [sys.executable, str(PLUGINS / "no_notify_plugin.py"), str(path), f"{kind}.example.com", kind]
    async with patient.watch() as watch, plugin_process(command):
        parked = await watch.state(path, "parked")
        assert "UNIMPLEMENTED" in str(parked["reason"])
        code, result = await found(path, *options)
    assert (code, result["outcome"]) == (1, "deregistered")
    verdict, detail = steps(result)["NotifyRegistrationStatus"]
    assert verdict == "wrong"
    assert detail.startswith("UNIMPLEMENTED (Method not ")


# --- the daemon's verdict ---------------------------------------------------------------------------------------------

CSI = FakePlugin("CSIPlugin", "csi.example.com")
#: The plugins of fakes, with their outcomes.
FAKES = {
    "csi": (CSI, "registered"),
    "csi-0.3": (attrs.evolve(CSI, name="old.example.com", versions=("0.3.0",)), "failed"),
    "device": (FakePlugin("DevicePlugin", "example.com/gpu", ("v1beta1",)), "registered"),
    "dra-1.0.0": (FakePlugin("DRAPlugin", "dra.example.com", ("1.0.0",)), "failed"),
    "endpoint": (attrs.evolve(CSI, name="elsewhere.example.com", endpoint="/etc/passwd"), "failed"),
    "name": (attrs.evolve(CSI, name=""), "failed"),
    "type": (attrs.evolve(CSI, type="csi"), "no-handler"),
}
#: The state in which the daemon shows a plugin of each outcome.
STATES = {"registered": "registered", "failed": "waiting", "no-handler": "parked", "parked": "parked", "stale": "stale"}


async def test_the_probe_and_the_daemon_agree(patient: Daemon) -> None:
    """Behaviours 7, 15, 28, 29, 30 and 44; faults 7, 28, 44, 73 and 74: they have the same words, where both have some.

    A stale socket and a link to it are no plugins for either.
    """
    directory = await place(patient, "agree")
    outcomes = {directory / f"{label}.sock": outcome for label, (_, outcome) in FAKES.items()}
    outcomes |= {directory / "stale.sock": "stale", directory / "link.sock": "parked"}
    stale(directory / "stale.sock")
    (directory / "link.sock").symlink_to("stale.sock")
    async with patient.watch() as watch, AsyncExitStack() as stack:
        for label, (plugin, _) in FAKES.items():
            await stack.enter_async_context(serving(directory / f"{label}.sock", plugin))
        for path, outcome in outcomes.items():
            shown = await watch.state(path, STATES[outcome])
            code, result = await found(path)
            assert (code, result["outcome"]) == (0 if outcome == "registered" else 1, outcome), path
            for step in ("info", "validation"):
                verdict, detail = steps(result).get(step, ("ok", ""))
                assert verdict == "ok" or str(shown["reason"]).endswith(detail), path


async def test_a_probe_judges_by_the_rules_of_a_daemon_and_in_its_words(tmp_path: Path) -> None:
    """Faults 3, 40 and 43: it knew neither the roots, nor the users, nor the directories for endpoints."""
    root, drivers = tmp_path / "root", tmp_path / "drivers"
    path = root / "open" / "a.sock"
    path.parent.mkdir(parents=True)
    drivers.mkdir()
    path.parent.chmod(0o777)
    plugin = attrs.evolve(CSI, endpoint=str(drivers / "csi.sock"))
    with daemon(tmp_path, "--trust-uid", "4242", "--trust-uid", "5000-5009", "--endpoint-dir", str(drivers)) as node:
        await node.ready()
        (shown,) = json.loads((await node.get("/healthz"))[1])["roots"][0]["directories"]
        async with serving(path, plugin):
            code, result = await found(path, "--status", node.status, "--trust-uid", "7")
    assert (code, result["outcome"]) == (1, "ignored")
    said = steps(result)
    users = ", ".join(dict.fromkeys(("0", str(os.geteuid()), "4242", "5000-5009", "7")))
    assert said["rules"] == (
        "ok",
        f"from the daemon at {node.status}: plugins of the users {users}, in {root}, with endpoints in {root},"
        f" {drivers}",
    )
    assert said["directory"] == ("wrong", f"directory {path.parent} is insecure: {shown['reason']}")
    assert said["info"][0] == "ok"

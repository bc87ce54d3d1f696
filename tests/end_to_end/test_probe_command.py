"""``plugind probe`` as a process: its verdict is that of a daemon, and the plugin is not affected."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from plugind.actors.console.fake import FakeSpec, run_fake
from plugind.testing import FakePlugin
from plugind.tests.end_to_end.foreign import ALL, GRPCIO, GRPCLIB, PLUGINS, PYDRA, Foreign
from plugind.tests.end_to_end.processes import DEADLINE, PLUGIND, Daemon, Done, daemon, plugin_process


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
    directory = patient.root / f"probe-{foreign.label}"
    await patient.ready()
    directory.mkdir()
    path = directory / "a.sock"
    async with (
        patient.watch() as watch,
        plugin_process(foreign.command(path, foreign.name, directory / ".service.sock")) as plugin,
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


@pytest.mark.parametrize("foreign", [GRPCIO, GRPCLIB, PYDRA], ids=lambda program: program.label)
async def test_real_plugins_satisfy_the_kubelet(foreign: Foreign, tmp_path: Path) -> None:
    """Behaviour 44: the kubelet calls a CSI driver and a device plugin when it registers them; these serve the call."""
    path = tmp_path / "a.sock"
    async with plugin_process(foreign.command(path, foreign.name, tmp_path / "service.sock")):
        with trio.fail_after(DEADLINE):
            while (done := await probed(path, "--strict")).code:
                assert "✗ path" in done.out or "✗ connect" in done.out or "✗ endpoint" in done.out, done.out
    assert done.out.splitlines()[-1] == (
        "the kubelet would register this plugin; it was not notified (--notify does that)"
    )


@pytest.mark.parametrize(("kind", "options"), [("none", []), ("base", ["--notify"])])
async def test_a_plugin_that_cannot_be_notified_is_judged_as_the_daemon_does(
    kind: str, options: list[str], patient: Daemon
) -> None:
    """Fault 71: a daemon registers it, deregisters it and parks it. A method that is there is called by --notify."""
    directory = patient.root / f"no-notify-{kind}"
    await patient.ready()
    directory.mkdir()
    path = directory / "a.sock"
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
DEVICE = FakePlugin("DevicePlugin", "example.com/gpu", ("v1beta1",))
DRA = FakePlugin("DRAPlugin", "dra.example.com", ("v1.DRAPlugin",))
FAKES = {
    "csi": (CSI, "registered"),
    "csi-0.3": (attrs.evolve(CSI, versions=("0.3.0",)), "failed"),
    "device": (DEVICE, "registered"),
    "dra-1.0.0": (attrs.evolve(DRA, versions=("1.0.0",)), "failed"),
    "endpoint": (attrs.evolve(CSI, endpoint="/etc/passwd"), "failed"),
    "name": (attrs.evolve(CSI, name=""), "failed"),
    "type": (attrs.evolve(CSI, type="csi"), "no-handler"),
    "slow": (attrs.evolve(CSI, delay=1.5), "failed"),
}
#: The state in which the daemon shows a plugin of each outcome.
STATES = {
    "registered": "registered",
    "unusable": "registered",
    "failed": "waiting",
    "no-handler": "parked",
    "parked": "parked",
    "stale": "stale",
}


@pytest.mark.parametrize("label", FAKES)
async def test_the_probe_and_the_daemon_agree(label: str, request: pytest.FixtureRequest) -> None:
    """Behaviours 28, 29, 30 and 44; faults 44, 73 and 74: where both have words for it, they have the same."""
    plugin, outcome = FAKES[label]
    # The first answer of a plugin decides, also on a busy machine.
    node: Daemon = request.getfixturevalue("shared" if plugin.delay else "patient")
    directory = node.root / f"agree-{label}"
    await node.ready()
    directory.mkdir()
    path = directory / "a.sock"
    async with node.watch() as watch, trio.open_nursery() as nursery:
        await nursery.start(partial(run_fake, FakeSpec(str(path), plugin), on_call=lambda _: None))
        shown = await watch.state(path, STATES[outcome])
        code, result = await found(path)
        nursery.cancel_scope.cancel()
    assert (code, result["outcome"]) == (0 if outcome == "registered" else 1, outcome)
    for step in ("info", "validation"):
        verdict, detail = steps(result).get(step, ("ok", ""))
        assert verdict == "ok" or str(shown["reason"]).endswith(detail)


async def test_beside_a_daemon_a_second_driver_of_a_name_is_judged_as_the_daemon_does(patient: Daemon) -> None:
    """TestValidatePluginExistingDriver: without ``--status`` the other one is unknown."""
    directory = patient.root / "beside"
    await patient.ready()
    directory.mkdir()
    first, second = directory / "first.sock", directory / "second.sock"
    driver = FakePlugin("CSIPlugin", "beside.example.com")
    async with patient.watch() as watch, trio.open_nursery() as nursery:
        await nursery.start(partial(run_fake, FakeSpec(str(first), driver), on_call=lambda _: None))
        await watch.state(first, "registered")
        await nursery.start(partial(run_fake, FakeSpec(str(second), driver), on_call=lambda _: None))
        shown = await watch.state(second, "waiting")
        alone, beside = await found(second), await found(second, "--status", patient.status)
        itself = await found(first, "--status", patient.status)
        nursery.cancel_scope.cancel()
    assert [(code, result["outcome"]) for code, result in (alone, beside, itself)] == [
        (0, "registered"),
        (1, "failed"),
        (0, "registered"),
    ]
    verdict, detail = steps(beside[1])["validation"]
    assert verdict == "wrong"
    assert str(shown["reason"]).endswith(detail)


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
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(run_fake, FakeSpec(str(path), plugin), on_call=lambda _: None))
            code, result = await found(path, "--status", node.status, "--trust-uid", "7")
            nursery.cancel_scope.cancel()
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


async def test_a_probe_beside_a_daemon_that_does_not_answer_says_so(tmp_path: Path) -> None:
    done = await probed(tmp_path / "a.sock", "--status", str(tmp_path / "no.sock"))
    assert (done.code, done.out) == (69, "")
    assert done.err.startswith(f"plugind: no daemon answers at {tmp_path}/no.sock")


async def test_the_probe_and_the_daemon_agree_on_what_is_no_plugin(shared: Daemon) -> None:
    """Behaviours 7 and 15, faults 7 and 28."""
    directory = shared.root / "no-plugins"
    await shared.ready()
    directory.mkdir()
    stale, link = directory / "stale.sock", directory / "link.sock"
    async with shared.watch() as watch:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(stale))
        link.symlink_to(stale)
        await watch.state(stale, "stale")
        await watch.state(link, "parked")
        assert [(await found(path))[1]["outcome"] for path in (stale, link)] == ["stale", "parked"]


# --- what an author reads ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("real_processes")
async def test_the_lines_of_a_refusal(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    plugin = attrs.evolve(CSI, type="csi-plugin", endpoint="/nowhere/csi.sock")
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(run_fake, FakeSpec(str(path), plugin), on_call=lambda _: None))
        done = await probed(path, "--endpoint-dir", "/nowhere")
        nursery.cancel_scope.cancel()
    assert (done.code, done.err) == (1, "")
    lines = [line.partition(" (")[0] for line in done.out.splitlines()]
    assert lines[4:] == [
        f"✗ type: no handler registered for plugin type: csi-plugin at socket {path}: did you mean CSIPlugin?",
        "✗ endpoint: cannot connect to '/nowhere/csi.sock': No such file or directory",
        "✓ NotifyRegistrationStatus: the server has this method; it was not called",
        "a daemon would not register this plugin, and park it until a handler for its type is added: see ✗ above",
    ]

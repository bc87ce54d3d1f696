"""``plugind probe`` against fake plugins on real sockets."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from plugind.actors.console.fake import FakeSpec, run_fake
from plugind.actors.console.probe import ProbeStep, Verdict, probe
from plugind.testing import Call, FakePlugin

DEADLINE = 20.0
GOOD = FakePlugin("CSIPlugin", "csi.example.com")


@asynccontextmanager
async def fake(path: Path, plugin: FakePlugin, *, accepts: bool = True) -> AsyncIterator[list[Call]]:
    """Run a fake plugin at ``path``; the value is the list of its calls."""
    calls: list[Call] = []
    with trio.fail_after(DEADLINE):
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(run_fake, FakeSpec(str(path), plugin, accepts=accepts), on_call=calls.append))
            yield calls
            nursery.cancel_scope.cancel()


def verdicts(steps: list[ProbeStep]) -> list[tuple[str, Verdict]]:
    return [(step.step, step.verdict) for step in steps]


OK, WARNING, WRONG = Verdict.OK, Verdict.WARNING, Verdict.WRONG
SAID = [("path", OK), ("connect", OK), ("GetInfo", OK), ("info", OK)]


async def test_a_good_plugin_passes_every_step_and_is_not_notified(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    async with fake(path, GOOD) as calls:
        steps = await probe(str(path), timeout=5)
    assert verdicts(steps) == [*SAID, ("type rules", OK), ("endpoint", OK)]
    assert [call.method for call in calls] == ["GetInfo"]
    assert steps[1].detail == f"accepted, process {os.getpid()} of user {os.geteuid()} listens"
    assert all(step.seconds is not None for step in steps[1:3])


async def test_with_notify_the_plugin_is_notified(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    async with fake(path, GOOD) as calls:
        steps = await probe(str(path), timeout=5, notify=True)
    assert verdicts(steps)[-1] == ("NotifyRegistrationStatus", OK)
    assert [call.registered for call in calls] == [None, True]


@pytest.mark.parametrize(
    ("plugin", "expected", "words"),
    [
        (attrs.evolve(GOOD, versions=("2.0.0",)), ("type rules", WRONG), "2.0.0"),
        (attrs.evolve(GOOD, versions=()), ("type rules", WRONG), "empty list"),
        (attrs.evolve(GOOD, type="DevicePlugin"), ("type rules", WRONG), "vendor.domain/name"),
        (attrs.evolve(GOOD, type="DRAPlugin", versions=("v9.X",)), ("type rules", WRONG), "v1.DRAPlugin"),
        (attrs.evolve(GOOD, type="DRAPlugin", versions=("v1.DRAPlugin",)), ("type rules", OK), "v1.DRAPlugin"),
        (attrs.evolve(GOOD, type="Odd"), ("type rules", WARNING), "CSIPlugin, DevicePlugin, DRAPlugin"),
        (attrs.evolve(GOOD, name=""), ("info", WRONG), "name is empty"),
        (attrs.evolve(GOOD, endpoint="tcp://1.2.3.4:5"), ("info", WRONG), "not an absolute path"),
        (attrs.evolve(GOOD, endpoint="/nowhere/x.sock"), ("endpoint", WRONG), "No such file"),
        (attrs.evolve(GOOD, get_info_fails=9), ("GetInfo", WRONG), "UNAVAILABLE"),
    ],
)
async def test_each_rule_that_is_broken_is_named(
    plugin: FakePlugin, expected: tuple[str, Verdict], words: str, tmp_path: Path
) -> None:
    """TestValidatePlugin: version rules; faults 42 to 44, 73 to 75."""
    path = tmp_path / "a.sock"
    async with fake(path, plugin):
        steps = await probe(str(path), timeout=5)
    found = [step for step in steps if (step.step, step.verdict) == expected]
    assert [words in step.detail for step in found] == [True], steps


@pytest.mark.parametrize(("hang", "step"), [("accept", "GetInfo"), ("get-info", "GetInfo")])
async def test_a_plugin_that_hangs_is_abandoned_at_its_deadline(hang: str, step: str, tmp_path: Path) -> None:
    """Fault 32."""
    path = tmp_path / "a.sock"
    plugin = attrs.evolve(GOOD, hang="get-info" if hang == "get-info" else None)
    async with fake(path, plugin, accepts=hang != "accept"):
        steps = await probe(str(path), timeout=0.2)
    assert verdicts(steps)[-1] == (step, WRONG)


async def test_anything_but_a_socket_is_reported_at_the_path_step(tmp_path: Path) -> None:
    """Faults 5, 6, 7 and 28."""
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "stale"))
    cases = {"none": "No such file", "file": "no socket", "link": "symbolic link", ".": "a directory"}
    for name, words in cases.items():
        (step,) = await probe(f"{tmp_path}/{name}", timeout=5)
        assert (step.step, step.verdict) == ("path", WRONG)
        assert words in step.detail
    steps = await probe(str(tmp_path / "stale"), timeout=0.1)
    assert verdicts(steps)[-1] == ("connect", WRONG)
    assert "stale" in steps[-1].detail


async def test_a_dot_file_and_a_world_writable_socket_are_reported(tmp_path: Path) -> None:
    """Fault 5."""
    path = tmp_path / ".a.sock"
    async with fake(path, GOOD):
        path.chmod(0o777)
        steps = await probe(str(path), timeout=5)
    assert verdicts(steps)[:2] == [("path", WRONG), ("permissions", WARNING)]


async def test_a_path_too_long_for_others_is_a_warning(tmp_path: Path) -> None:
    """Fault 23; Kubernetes issues 139166 and 141815."""
    short = tmp_path / "a.sock"
    async with fake(short, GOOD):
        deep = tmp_path / ("d" * 120)
        deep.mkdir()
        short.rename(deep / "a.sock")
        steps = await probe(str(deep / "a.sock"), timeout=5)
    assert ("path length", WARNING) in verdicts(steps)
    assert ("GetInfo", OK) in verdicts(steps)

"""The example with actors of Ray: always with a stand-in for Ray, and with Ray itself where PLUGIND_RAY names it."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import attrs
import pytest
import trio

from plugind.client import DaemonError, LeaseFailedError, NoDaemonError
from plugind.protocol.leases.messages import Failure, Problem
from plugind.tests.end_to_end.processes import DEADLINE, PLUGIND, Daemon, daemon, finish, run

CHECKOUT = Path(__file__).parents[2]
EXAMPLE = CHECKOUT / "examples/ray_actor.py"
RESOURCE = "vendor.com/gpu"
#: Seconds until Ray runs: it starts five processes.
START = 60.0

#: Enough of Ray for the example: each actor is a process that is forked.
STAND_IN = """
import multiprocessing

fork = multiprocessing.get_context("fork")


def init(resources):
    print(f"ray has {resources}", flush=True)


def serve(kind, args, pipe):
    actor = kind(*args)
    while True:
        pipe.send(getattr(actor, pipe.recv())())


class Method:
    def __init__(self, pipe, name):
        self.pipe, self.name = pipe, name

    def remote(self):
        self.pipe.send(self.name)
        return self.pipe


class Handle:
    def __init__(self, pipe):
        self.pipe = pipe

    def __getattr__(self, name):
        return Method(self.pipe, name)


class Remote:
    def __init__(self, kind):
        self.kind = kind

    def options(self, resources, num_cpus):
        return self

    def remote(self, *args):
        ours, theirs = fork.Pipe()
        fork.Process(target=serve, args=(self.kind, args, theirs), daemon=True).start()
        return Handle(ours)


remote = Remote


def get(pipes):
    return [pipe.recv() for pipe in pipes]
"""


@attrs.define
class Example:
    """The example as a process, with the daemon that it asks."""

    node: Daemon
    process: subprocess.Popen[str]

    def said(self) -> tuple[int, set[str]]:
        """Return the pid of an actor and its devices."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            words = line.replace(",", "").split()
            if words[:1] == ["process"]:
                return int(words[1]), set(words[3:])
        raise AssertionError("it has ended")

    def held(self) -> set[str]:
        """Return the devices that are leased."""
        done = run("leases", "-o", "json", status=self.node.status)
        leases = json.loads(done.out)["leases"]
        assert {lease["owner"]["kind"] for lease in leases} <= {"connection"}
        return {device for lease in leases for ids in lease["devices"].values() for device in ids}

    async def holds(self, devices: set[str]) -> None:
        """Wait until exactly these are leased."""
        with trio.fail_after(START):
            # What another process shows has no event here to wait for.
            while await trio.to_thread.run_sync(self.held) != devices:  # noqa: ASYNC110
                await trio.sleep(0.1)


@contextmanager
def a_fake(node: Daemon, directory: Path) -> Iterator[None]:
    command = [*PLUGIND, "fake", "--type", "DevicePlugin", "--name", RESOURCE, "--devices", "4"]
    command += ["--device-plugins", str(directory), "--socket", str(directory / "gpu.sock")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as plugin:
        try:
            done = run("wait", "--resource", f"{RESOURCE}=4", status=node.status)
            assert done.code == 0, done.err
            yield
        finally:
            plugin.kill()


@asynccontextmanager
async def example(python: str, modules: Path, tmp_path: Path) -> AsyncIterator[Example]:
    directory = tmp_path / "device-plugins"
    with daemon(tmp_path, f"--device-plugins={directory}") as node:
        await node.ready()
        with a_fake(node, directory), the_program(python, modules, node, tmp_path) as process:
            yield Example(node, process)


@contextmanager
def the_program(python: str, modules: Path, node: Daemon, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {
        **os.environ,
        "PLUGIND_STATUS": str(node.status),
        "PYTHONPATH": str(modules),
        "HOME": str(tmp_path),  # Ray writes a token there.
    }
    command = [python, str(EXAMPLE), RESOURCE]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        try:
            yield process
        finally:
            process.kill()


async def play(shown: Example, *, ends: signal.Signals) -> None:
    """Two actors have half of the devices each; one is killed, and then the program ends."""
    with trio.fail_after(START):
        (first, some), (_, others) = [await trio.to_thread.run_sync(shown.said) for _ in range(2)]
    assert (len(some), len(others), len(some | others)) == (2, 2, 4)
    await shown.holds(some | others)
    os.kill(first, signal.SIGKILL)
    await shown.holds(others)
    shown.process.send_signal(ends)
    await shown.holds(set())
    with trio.fail_after(DEADLINE):
        assert await trio.to_thread.run_sync(shown.process.wait) == 0


async def test_the_actors_of_the_example_have_devices_for_as_long_as_they_live(tmp_path: Path) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "ray.py").write_text(STAND_IN)
    (modules / "plugind").symlink_to(CHECKOUT)
    async with example(PLUGIND[0], modules, tmp_path) as shown:
        await play(shown, ends=signal.SIGINT)


@pytest.mark.extended
@pytest.mark.skipif(
    "PLUGIND_RAY" not in os.environ,
    reason="PLUGIND_RAY names no Python that has Ray: make a virtual environment and 'pip install ray attrs' there",
)
async def test_actors_of_ray_have_devices_for_as_long_as_they_live(tmp_path: Path) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "plugind").symlink_to(CHECKOUT)
    async with example(os.environ["PLUGIND_RAY"], modules, tmp_path) as shown:
        await play(shown, ends=signal.SIGINT)


def test_the_example_says_what_to_do_without_a_daemon(tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text(STAND_IN)
    (tmp_path / "plugind").symlink_to(CHECKOUT)
    environment = {**os.environ, "PLUGIND_STATUS": str(tmp_path / "none.sock"), "PYTHONPATH": str(tmp_path)}
    done = finish([PLUGIND[0], str(EXAMPLE), RESOURCE], env=environment)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("ray_actor: ")
    assert "start one with 'plugind run'" in done.stderr


def test_errors_reach_another_process_as_they_are() -> None:
    """Ray and multiprocessing pickle what an actor or a worker raises."""
    failed = LeaseFailedError(Failure(Problem.UNAVAILABLE, "too few devices"))
    for error in (NoDaemonError("/run/a.sock", "nobody listens", 111), DaemonError("may not ask", 403), failed):
        found = pickle.loads(pickle.dumps(error))
        assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))

"""The services in ``deploy/systemd/examples``: systemd's judgement, and their commands against a daemon with a plugin.

systemd itself does not run here: the tests run the commands in the order in which it runs them, and stop them as it
does. ``man systemd.service`` has that order.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import trio

from plugind.testing import FakeDevices
from plugind.tests.end_to_end.containers import OPTIONS, Engine, engine
from plugind.tests.end_to_end.leasing import ended, leases
from plugind.tests.end_to_end.processes import DEADLINE, PLUGIND, daemon
from plugind.tests.end_to_end.test_lease_commands import Node, code_of, running_node
from plugind.tests.end_to_end.test_podman import PLACES, remove_files
from plugind.tests.end_to_end.test_service_unit import analyze
from plugind.tests.tools import schemas

pytestmark = pytest.mark.extended

EXAMPLES = Path(__file__).parents[2] / "deploy" / "systemd" / "examples"
NAMES = ("leased-container", "leased-process", "leased-unit", "plugind-inventory")
#: Says what it has, and ends with its input.
SERVER = 'echo "$PLUGIND_LEASE $PLUGIND_DEVICES"; exec cat'


@attrs.frozen
class Service:
    """An example, whose commands run in the order in which systemd runs them."""

    name: str
    #: Stands for ``/run``.
    run: Path
    status: str
    #: The files of programs by the paths that the unit has for them.
    programs: dict[str, str]

    def commands(self, key: str) -> list[list[str]]:
        """Return the commands of a setting, with specifiers and variables as systemd replaces them."""
        return [
            shlex.split(self._resolved(line.partition("=")[2]))
            for line in self._text().splitlines()
            if line.startswith(f"{key}=")
        ]

    def setting(self, key: str) -> str:
        (found,) = [line for line in self._text().splitlines() if line.startswith(f"{key}=")]
        return self._resolved(found.partition("=")[2])

    def _text(self) -> str:
        return (EXAMPLES / f"{self.name}.service").read_text()

    def _resolved(self, value: str) -> str:
        for name, path in {"%N": self.name, "%t": str(self.run), "$$": "$", **self.programs}.items():
            value = value.replace(name, path)
        return value

    def environment(self) -> dict[str, str]:
        """Return what each command of the unit gets: a file that is not there is left out, for its minus."""
        own = {**os.environ, "PLUGIND_STATUS": self.status}
        if "EnvironmentFile=" not in self._text():
            return own
        setting = self.setting("EnvironmentFile")
        assert setting.startswith("-")
        file = Path(setting.removeprefix("-"))
        lines = file.read_text().splitlines() if file.exists() else []
        pairs = [line.partition("=") for line in lines if not line.startswith("#")]
        return own | {name: shlex.split(text)[0] for name, _, text in pairs}

    def do(self, key: str) -> list[int]:
        """Run the commands of a setting to their ends; return their exit codes."""
        return [
            subprocess.run(command, env=self.environment(), check=False, timeout=DEADLINE).returncode
            for command in self.commands(key)
        ]

    def main(self) -> subprocess.Popen[str]:
        """Start the main process in a group of its own, which stands for the control group."""
        (command,) = self.commands("ExecStart")
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, env=self.environment(), stdin=pipe, stdout=pipe, text=True, start_new_session=True
        )


def service(name: str, node: Node, directory: Path, **programs: str) -> Service:
    """Return an example for a daemon, with plugind, a server and a runtime directory that exist."""
    directory.mkdir(exist_ok=True)
    server = directory / "server"
    server.write_text(f"#!/bin/sh\n{SERVER}\n")
    server.chmod(0o755)
    (directory / "run" / name).mkdir(parents=True)
    own = {"/usr/bin/plugind": shlex.join(PLUGIND), "/usr/local/bin/server": str(server)}
    return Service(name, directory / "run", node.daemon.status, own | programs)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def stop(process: subprocess.Popen[str]) -> int:
    """End the service as ``systemctl stop`` does: each process gets SIGTERM."""
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=DEADLINE)
    return process.returncode


@pytest.mark.parametrize("name", NAMES)
def test_systemd_finds_no_fault_with_the_example(name: str, tmp_path: Path) -> None:
    text = (EXAMPLES / f"{name}.service").read_text()
    for path in ("/usr/bin/plugind", "/usr/local/bin/server", "/usr/bin/podman"):
        text = text.replace(path, "/bin/sh")
    unit = tmp_path / f"{name}.service"
    unit.write_text(text)
    done = analyze("verify", "--recursive-errors=no", "--man=no", str(unit))
    assert (done.returncode, [line for line in done.stderr.splitlines() if name in line]) == (0, [])


def test_each_example_is_tested() -> None:
    assert sorted({path.stem for path in EXAMPLES.iterdir()}) == list(NAMES)


async def test_the_inventory_of_a_node_is_replaced_by_whole_ones_alone(tmp_path: Path) -> None:
    async with running_node(tmp_path, "GPU-0") as node:
        unit = service("plugind-inventory", node, tmp_path, **{"%H": "n1", "$INVENTORY": str(tmp_path)})
        assert unit.do("ExecStart") == [0]
        written = (tmp_path / "n1.json").read_text()
        schemas.check("inventory", json.loads(written), schemas.INVENTORY)
        away = attrs.evolve(unit, status=str(tmp_path / "nowhere"))
        assert away.do("ExecStart") == [69]
        assert (tmp_path / "n1.json").read_text() == written


async def test_a_service_of_one_process_has_its_device_until_that_ends(tmp_path: Path) -> None:
    async with running_node(tmp_path, "GPU-0") as node:
        unit = service("leased-process", node, tmp_path)
        with unit.main() as first:
            lease, devices = (await trio.to_thread.run_sync(said, first)).split()
            assert devices == "example.com/gpu=GPU-0"
            assert (await leases(node.daemon))[lease]["owner"]["pid"] == first.pid
            assert await trio.to_thread.run_sync(stop, first) == -signal.SIGTERM
        with unit.main() as again:
            # It waits where the end of the first one is not noticed yet.
            other, devices = (await trio.to_thread.run_sync(said, again)).split()
            assert (other != lease, devices) == (True, "example.com/gpu=GPU-0")
            again.kill()
        await node.until()


async def test_a_unit_keeps_its_devices_until_all_of_it_has_ended(tmp_path: Path) -> None:
    async with running_node(tmp_path, "GPU-0") as node:
        unit = service("leased-unit", node, tmp_path)
        assert await trio.to_thread.run_sync(unit.do, "ExecStartPre") == [0]
        assert os.stat(unit.setting("EnvironmentFile").removeprefix("-")).st_mode & 0o777 == 0o600
        with unit.main() as main:
            assert await trio.to_thread.run_sync(said, main) == "unit:leased-unit example.com/gpu=GPU-0"
            main.kill()
        await node.until(**{"unit:leased-unit": "held"})
        assert await trio.to_thread.run_sync(unit.do, "ExecStopPost") == [0]
        await node.until()


async def test_a_unit_whose_devices_were_left_over_starts_with_the_same(tmp_path: Path) -> None:
    """The machine was without plugind when the unit ended, so nothing was released."""
    async with running_node(tmp_path, "GPU-0") as node:
        unit = service("leased-unit", node, tmp_path)
        for _ in range(2):
            assert await trio.to_thread.run_sync(unit.do, "ExecStartPre") == [0]
        assert unit.environment()["PLUGIND_DEVICES"] == "example.com/gpu=GPU-0"
        assert [await trio.to_thread.run_sync(unit.do, "ExecStopPost") for _ in range(2)] == [[0], [0]]
        await node.until()


async def test_a_service_does_not_start_without_plugind(tmp_path: Path) -> None:
    with daemon(tmp_path) as absent:
        pass
    node = Node(absent, FakeDevices())
    patience = {"--wait 60": "--wait 0.5"}
    unit = service("leased-unit", node, tmp_path / "a", **patience)
    process = service("leased-process", node, tmp_path / "b", **patience)
    assert await trio.to_thread.run_sync(unit.do, "ExecStartPre") == [69]
    assert await trio.to_thread.run_sync(process.do, "ExecStart") == [125]
    # systemd runs it after a start that has failed, too, and then says that it has failed.
    assert await trio.to_thread.run_sync(unit.do, "ExecStopPost") == [69]


#: Seconds after which podman is sent a signal once more.
HANDED_ON = 10.0
#: The first process of a container ends by a signal only where it says so.
CONTAINER = "trap 'exit 7' TERM; echo $PLUGIND_DEVICES; busybox sleep 600 & wait"


@pytest.fixture
def podman() -> Iterator[Engine]:
    """An engine in a short directory: podman refuses paths of more than 50 characters."""
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as directory:
        made = engine(Path(directory) / "e")
        (made.directory / "root" / "main").write_text(CONTAINER)
        yield made


async def test_a_container_of_a_service_has_its_device_until_it_ends(
    tmp_path: Path, podman: Engine, request: pytest.FixtureRequest
) -> None:
    image = shlex.join([*OPTIONS, "--rootfs", f"{podman.directory}/root", "sh", "/main"])
    programs = {"/usr/bin/podman": shlex.join(podman.podman), "registry.example.com/server": image}
    grace = {"protocol.leases.book.GRACE": 0.2}
    request.addfinalizer(lambda: remove_files(tmp_path / "state" / "state.db"))
    async with running_node(tmp_path, "GPU-0", timeouts=grace, environment=PLACES) as node:
        unit = service("leased-container", node, tmp_path, **programs)
        # Podman hands a signal on once it has attached itself to the container that it has started. A signal that
        # comes amid that may be lost.
        for end, codes in ((signal.SIGTERM, {7, -signal.SIGTERM}), (signal.SIGKILL, {-signal.SIGKILL})):
            with unit.main() as main:
                assert await trio.to_thread.run_sync(said, main) == "example.com/gpu=GPU-0"
                (lease,) = (await leases(node.daemon)).values()
                assert lease["owner"]["init"] is not None
                try:
                    main.send_signal(end)
                    with trio.move_on_after(HANDED_ON):
                        await code_of(main)
                    main.send_signal(end)  # Nothing if it has ended.
                    assert await code_of(main) in codes
                finally:
                    main.kill()
            if end == signal.SIGKILL:
                # Podman has gone, and its container has not.
                assert lease["id"] in await leases(node.daemon)
            assert await trio.to_thread.run_sync(unit.do, "ExecStopPost") == [0]
            await ended(node.daemon, lease["id"])

"""The image of plugind, built by podman of ``deploy/container/Containerfile`` and run in containers.

``PLUGIND_DEB`` names the package that is in it, and ``PLUGIND_TREE`` the Debian tree that is its base here: tests take
no image from a registry.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs
import pytest

from plugind.protocol.version import __version__
from plugind.tests.end_to_end.booted import tree
from plugind.tests.end_to_end.containers import OPTIONS, Engine
from plugind.tests.end_to_end.debian import package
from plugind.tests.end_to_end.packages import program
from plugind.tests.end_to_end.processes import finish

pytestmark = pytest.mark.extended

CONTAINERFILE = Path(__file__).parents[2] / "deploy" / "container" / "Containerfile"
BASE, IMAGE = "localhost/tree", "localhost/plugind"
NAME = "red.example.com"
#: What a container of plugind can do without.
WITHOUT = ("--read-only", "--cap-drop=all", "--security-opt=no-new-privileges")
#: Seconds for what copies the files of an image.
PATIENCE = 300


@attrs.frozen
class Podman:
    """Podman with the image."""

    engine: Engine

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = finish([*self.engine.podman, *arguments], env=self.engine.environment, timeout=PATIENCE)
        assert not check or done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
        return done

    def plugind(self, *arguments: str) -> str:
        """Run plugind in a container of the image to its end, and return its output."""
        return self.run("run", *OPTIONS, *WITHOUT, IMAGE, *arguments).stdout

    @contextmanager
    def started(self, name: str, options: list[str], *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """Start plugind in a container, which is stopped at exit."""
        command = [*self.engine.podman, "run", f"--name={name}", *OPTIONS, *WITHOUT, *options, IMAGE, *arguments]
        with (self.engine.directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command, env=self.engine.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
            try:
                self._until_running(name, process)
                yield process
            finally:
                self.run("stop", "--ignore", "--time=25", name)
                process.wait(PATIENCE)

    def _until_running(self, name: str, process: subprocess.Popen[bytes]) -> None:
        """Wait until podman knows the container, which it can stop only then."""
        deadline = time.monotonic() + PATIENCE
        while self.run("inspect", "--format={{.State.Running}}", name, check=False).stdout != "true\n":
            assert process.poll() is None, self.said(name)
            assert time.monotonic() < deadline, self.said(name)
            time.sleep(0.2)

    def said(self, name: str) -> str:
        return (self.engine.directory / f"{name}.log").read_text()


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    """Podman, which has built the image."""
    program("podman")
    program("runc")
    base, deb = tree(), package()
    # Podman refuses paths of more than 50 characters.
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        directory.chmod(0o755)
        engine = Engine(directory, 0, storage="overlay")
        found = Podman(engine)
        with subprocess.Popen(
            ["tar", "--one-file-system", "-C", base, "-cf", "-", "."], stdout=subprocess.PIPE
        ) as archive:
            command = [*engine.podman, "import", "-", BASE]
            subprocess.run(command, stdin=archive.stdout, env=engine.environment, capture_output=True, check=True)
        context = directory / "context"
        context.mkdir()
        shutil.copy(deb, context)
        options = ("--network=none", "--layers=false", f"--build-arg=BASE={BASE}", f"--file={CONTAINERFILE}")
        found.run("build", *options, f"--tag={IMAGE}", str(context))
        shutil.rmtree(context)
        yield found


def test_the_image_runs_plugind_and_has_its_package(podman: Podman) -> None:
    assert podman.plugind("--version") == f"plugind {__version__}\n"
    assert podman.plugind("config", "check") == ""


@pytest.mark.parametrize("uid", [0, 1000])
def test_a_daemon_in_a_read_only_container_without_capabilities_registers_the_plugin_of_another_one(
    uid: int, podman: Podman
) -> None:
    places = {name: podman.engine.directory / f"{name}-{uid}" for name in ("plugins", "run")}
    for place in places.values():
        place.mkdir()
        os.chown(place, uid, uid)
    user = [f"--user={uid}:{uid}", f"--volume={places['plugins']}:/srv/plugins"]
    daemon, plugin = f"daemon-{uid}", f"plugin-{uid}"
    fake = ("fake", "--socket=/srv/plugins/red.sock", "--type=CSIPlugin", f"--name={NAME}", "--version=1.0.0")
    with ExitStack() as stack:
        options = [*user, f"--volume={places['run']}:/run/plugind"]
        started = stack.enter_context(podman.started(daemon, options, "run", "--root=/srv/plugins"))
        stack.enter_context(podman.started(plugin, user, *fake))
        podman.run("exec", daemon, "/usr/bin/plugind", "wait", NAME, "--timeout=60")
        assert podman.run("exec", daemon, "/usr/bin/plugind", "ls", "-o", "name").stdout == f"{NAME}\n"
        podman.run("stop", "--time=25", daemon)
        assert started.wait(PATIENCE) == 0, podman.said(daemon)
    assert "msg=stopped" in podman.said(daemon)

"""A Debian tree that is booted: systemd is its process 1, in a container of systemd-nspawn.

Tests of the service and of packages use it, because only a real service manager shows what a unit does. The command
``python -m tests.tools.booted_tree DIR`` makes the tree, and ``PLUGIND_TREE`` names it; without that the tests are
skipped. A boot changes nothing in the tree: what is written lies in memory and is gone afterwards.
"""

from __future__ import annotations

import compileall
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path

import attrs
import pytest

from plugind.tests.end_to_end.packages import program
from plugind.tests.end_to_end.processes import DEADLINE, finish

REPOSITORY = Path(__file__).parents[2]
#: Names the tree.
VARIABLE = "PLUGIND_TREE"
BUILD = "python -m tests.tools.booted_tree DIR"
#: The packages of the tree besides the essential ones.
PACKAGES = ("systemd", "systemd-sysv", "dbus", "python3", "udev", "acl", "bubblewrap")
#: Large packages that only some commands import.
_RARELY_USED = frozenset({"rich", "pygments", "markdown_it", "h2", "hyperframe", "idna"})
_PAUSE = 0.1
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def tree() -> Path:
    """Return the tree that is booted; skip the test if there is none, or if nothing can be booted here."""
    program("systemd-nspawn")
    program("nsenter")
    if os.geteuid() != 0:
        pytest.skip("only root can boot a tree")
    if VARIABLE not in os.environ:
        pytest.skip(f"{VARIABLE} names no tree to boot: make one with '{BUILD}' (Debian package debootstrap)")
    return Path(os.environ[VARIABLE])


@attrs.frozen
class Machine:
    """A tree that is booted."""

    #: The process 1 of the tree, by its pid here.
    leader: int

    def run(self, *command: str, check: bool = True, timeout: float = DEADLINE) -> subprocess.CompletedProcess[str]:
        """Run a command in the tree until it ends."""
        entered = ["nsenter", "--target", str(self.leader), "--all", "--root", "--wd"]
        cleared = ["/usr/bin/env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "HOME=/root"]
        done = finish([*entered, *cleared, *command], timeout=timeout)
        assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def write(self, path: str, text: str) -> None:
        """Write a file in the tree, and make its directory."""
        self.run("mkdir", "-p", os.path.dirname(path))
        script = 'printf %s "$1" > "$2"'
        self.run("sh", "-c", script, "sh", text, path)

    def show(self, unit: str, name: str) -> str:
        """Return a property of a unit."""
        return self.run("systemctl", "show", "--value", "--property", name, unit).stdout.rstrip("\n")

    def journal(self, *matches: str) -> list[dict[str, object]]:
        """Return the entries of the journal that match, the oldest first."""
        self.run("journalctl", "--sync")
        lines = self.run("journalctl", "--output=json", "--quiet", "--no-pager", *matches, check=False).stdout
        return [json.loads(line) for line in lines.splitlines()]

    def until(self, holds: Callable[[], bool], what: Callable[[], object] = str) -> None:
        """Wait until ``holds``; ``what`` says what there is instead."""
        deadline = time.monotonic() + DEADLINE
        while not holds():
            assert time.monotonic() < deadline, what()
            time.sleep(_PAUSE)


@contextmanager
def booted(
    log: Path, binds: Mapping[str, Path] | None = None, kept: Mapping[str, Path] | None = None
) -> Iterator[Machine]:
    """Boot the tree, with the directories ``binds`` at these paths in it, read-only; shut it down at exit.

    What is written to the directories ``kept`` is there at the next boot.
    """
    # If the tests are killed, the tree is shut down too.
    command = [
        program("setpriv"),
        "--pdeathsig=TERM",
        program("systemd-nspawn"),
        "--quiet",
        "--boot",
        "--register=no",
        "--keep-unit",
        "--volatile=overlay",
        # Without it, the DevicePolicy= of units is not in force.
        "--system-call-filter=bpf",
    ]
    command += [f"--directory={tree()}", f"--machine=plugind-{os.getpid()}", "--private-network", "--console=pipe"]
    command += [f"--bind-ro={source}:{path}" for path, source in (binds or {}).items()]
    command += [f"--bind={source}:{path}" for path, source in (kept or {}).items()]
    # The tree has cgroups of version 2, as Debian has, whatever the host has.
    variables = {**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=variables)
        try:
            machine = Machine(_leader(process, log))
            machine.until(
                lambda: machine.run("systemctl", "is-system-running", check=False).stdout in _UP, log.read_text
            )
            yield machine
        finally:
            # It asks the tree to shut down, and kills it at the second signal.
            process.terminate()
            try:
                process.wait(DEADLINE / 4)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()


#: What systemd says once it has started everything. Some units of a container fail by nature.
_UP = ("running\n", "degraded\n")


def _leader(process: subprocess.Popen[bytes], log: Path) -> int:
    """Return the pid of the process that is 1 in the tree."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline and process.poll() is None:
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            status = Path(f"/proc/{child}/status").read_text()
            if re.search(r"^NSpid:.*\t1$", status, re.MULTILINE) and "Name:\tsystemd\n" in status:
                return int(child)
        time.sleep(_PAUSE)
    raise AssertionError(f"nothing was booted: {log.read_text()}")


def staged(directory: Path) -> Path:
    """Copy plugind and what it depends on to ``directory``; return it. It has a program ``bin/plugind``."""
    # Compiled packages of another Python cannot be imported there.
    python = os.readlink(tree() / "usr/bin/python3")
    if python != f"python{sys.version_info[0]}.{sys.version_info[1]}":
        pytest.skip(f"the tree has {python}, and this is another one")
    library = directory / "lib"
    library.mkdir()
    for name in _required("plugind"):
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or () if file.parts[0] != ".."}:
            _copy(Path(str(found.locate_file(top))), library / top)
    own = library / "plugind"
    own.mkdir()
    for source in (REPOSITORY / "actors", REPOSITORY / "protocol", *REPOSITORY.glob("*.py")):
        _copy(source, own / source.name)
    # The tests start dozens of commands, and each would compile what it imports: the directory is read-only there.
    for part in library.iterdir():
        if part.is_dir() and part.name not in _RARELY_USED:
            compileall.compile_dir(part, quiet=1)
    script = directory / "bin" / "plugind"
    script.parent.mkdir()
    path = 'import sys; sys.path.insert(0, "/opt/plugind/lib")'
    imported = "from plugind.__main__ import main"
    script.write_text(f"#!/usr/bin/python3 -I\n{path}\n{imported}\nsys.exit(main())\n")
    script.chmod(0o755)
    return directory


def _copy(source: Path, place: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy2(source, place)


def _required(name: str) -> list[str]:
    """Return the distributions that one needs, without itself and without extras."""
    found: list[str] = []
    waiting = [name]
    while waiting:
        for line in distribution(waiting.pop()).requires or ():
            match = _NAME.match(line)
            if match is None or "extra ==" in line or _is_elsewhere(line):
                continue
            if match[0] not in found:
                found.append(match[0])
                waiting.append(match[0])
    return found


def _is_elsewhere(requirement: str) -> bool:
    """Whether a requirement is of other systems or older interpreters; its distribution is not installed then."""
    match = _NAME.match(requirement)
    assert match is not None
    try:
        distribution(match[0])
    except ModuleNotFoundError:
        return ";" in requirement
    return False

"""The Debian package, as lintian judges it. ``tests/end_to_end/test_booted_package.py`` installs it.

``PLUGIND_DEB`` names the package, which ``python -m deploy.debian DIR`` builds.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from plugind.actors.console.commands import COMMANDS
from plugind.actors.console.unit_files import drop_ins
from plugind.deploy.debian.documents import documents
from plugind.protocol.version import __version__
from plugind.tests.end_to_end.debian import package
from plugind.tests.end_to_end.packages import program
from plugind.tests.end_to_end.processes import finish

pytestmark = pytest.mark.extended

REPOSITORY = Path(__file__).parents[2]


def output(*command: str | Path) -> str:
    done = finish(command, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_lintian_finds_nothing_wrong_with_the_package() -> None:
    # A bug of Debian's tracker is for packages of Debian's archive.
    lintian = (program("lintian"), "--allow-root", "--suppress-tags", "initial-upload-closes-no-bugs")
    assert output(*lintian, "--fail-on", "error,warning", package()) == ""


def test_the_package_has_all_that_an_operator_looks_for() -> None:
    lines = output(program("dpkg-deb"), "--contents", package()).splitlines()
    modes = {path.removeprefix("."): mode for mode, owner, _, _, _, path, *_ in map(str.split, lines)}
    pages = [f"/usr/share/man/man1/plugind-{name}.1.gz" for name in COMMANDS]
    others = [f"/usr/share/plugind/plugind.service.d/{name}.conf" for name in drop_ins()]
    expected = [
        "/etc/plugind/plugind.toml",
        "/usr/lib/systemd/system/plugind.service",
        "/usr/share/man/man1/plugind.1.gz",
        "/usr/share/man/man5/plugind.toml.5.gz",
        "/usr/share/bash-completion/completions/plugind",
        "/usr/share/zsh/vendor-completions/_plugind",
        "/usr/share/fish/vendor_completions.d/plugind.fish",
        "/usr/share/doc/plugind/copyright",
        "/usr/share/doc/plugind/changelog.gz",
        "/usr/share/doc/plugind/changelog.Debian.gz",
        *(f"/usr/share/doc/plugind/{name}" for name in documents()),
        f"/usr/lib/plugind/plugind-{__version__}.dist-info/METADATA",
        *pages,
        *others,
    ]
    assert {path: modes.get(path) for path in expected} == dict.fromkeys(expected, "-rw-r--r--")
    slurm = {path: mode for path, mode in modes.items() if path.startswith("/usr/share/plugind/slurm/")}
    of_tree = {f"/usr/share/plugind/slurm/{path.name}": path for path in (REPOSITORY / "deploy/slurm").iterdir()}
    assert slurm == {"/usr/share/plugind/slurm/": "drwxr-xr-x"} | {
        path: "-rwxr-xr-x" if os.access(source, os.X_OK) else "-rw-r--r--" for path, source in of_tree.items()
    }
    assert modes["/usr/bin/plugind"] == "-rwxr-xr-x"
    assert modes["/etc/plugind/plugind.toml.d/"] == "drwxr-xr-x"
    assert {line.split()[1] for line in lines} == {"root/root"}
    assert not [path for path in modes if path.endswith((".pyc", "/RECORD", "/direct_url.json"))]
    of_tests = re.compile(r"/(_?tests?|testdata)/|/_testcapi|/test_\w+\.py$")
    assert [path for path in modes if of_tests.search(path)] == []


def test_the_package_needs_the_python_and_the_machine_for_which_its_modules_are_compiled() -> None:
    needs = output(program("dpkg-deb"), "--field", package(), "Depends").strip().split(", ")
    major, minor = sys.version_info[:2]
    assert needs[:2] == [f"python3 (>= {major}.{minor})", f"python3 (<< {major}.{minor + 1})"]
    assert any(need.startswith("libc6 (>= ") for need in needs)
    architecture = output(program("dpkg-deb"), "--field", package(), "Architecture")
    assert architecture == output("dpkg", "--print-architecture") != "all\n"


def test_a_second_build_gives_the_same_bytes(tmp_path: Path) -> None:
    """It is made with another umask, in another time zone, for another terminal, and below another directory."""
    built = package()  # It skips the test where none was built.
    environment = {**os.environ, "TZ": "Pacific/Auckland", "COLUMNS": "40", "LC_ALL": "C", "TMPDIR": str(tmp_path)}
    for name in ("PLUGIND_STATUS", "DEBEMAIL", "DEBFULLNAME"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "deploy.debian", str(tmp_path / "again")]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, umask=0o077, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == built.read_bytes()

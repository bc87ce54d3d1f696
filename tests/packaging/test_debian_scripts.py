"""The scripts of the Debian package, below another root and with other programs than systemd's and dpkg's.

``tests/end_to_end/test_booted_package.py`` runs them under a real dpkg and systemd.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import attrs
import pytest

from plugind.tests.end_to_end.processes import finish

REPOSITORY = Path(__file__).parents[2]
SCRIPTS = REPOSITORY / "deploy/debian"
#: Each writes down its call. ``CODE`` is the exit code of the check, and ``STATE`` that of ``systemctl is-active``.
PROGRAM = """#!/bin/sh
echo "$(basename "$0") $*" >>"$CALLS"
case "$(basename "$0") $*" in
  "systemctl --quiet is-active"*) exit "$STATE" ;;
  "systemctl show"*InvocationID*) echo "$DAEMON" ;;
  systemd-run*) echo "site.toml:1: rootz is no setting" >&2; exit "$CODE" ;;
  dpkg-query*) printf 2-1 ;;
esac
"""
PROGRAMS = ("systemctl", "systemd-run", "dpkg-query", "py3compile", "deb-systemd-helper", "deb-systemd-invoke")


@attrs.frozen
class Node:
    """A directory in place of ``/``, where the package is installed."""

    root: Path

    @property
    def versions(self) -> Path:
        return self.root / "usr/lib/plugind.versions"

    @property
    def current(self) -> str:
        return os.readlink(self.versions / "current")

    def kept(self) -> set[str]:
        """Return the versions that are there."""
        return {path.name for path in self.versions.iterdir() if not path.is_symlink()}

    def configure(self, old: str, *, code: int = 0, state: int = 0, daemon: str = "a") -> tuple[str, bool]:
        """Run postinst after an upgrade; return what it says, and whether it restarts the service."""
        text = (SCRIPTS / "scripts/postinst").read_text()
        text = re.sub("(?<![/\\w])/(?=usr/lib|run/systemd)", f"{self.root}/", text)
        calls = self.root / "calls"
        calls.write_text("")
        settings = {"CODE": str(code), "STATE": str(state), "CALLS": str(calls), "DAEMON": daemon}
        settings["PATH"] = f"{self.root}/bin:{os.environ['PATH']}"
        done = finish(["sh", "-c", text, "postinst", "configure", old], env={**os.environ, **settings})
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        return done.stderr, "deb-systemd-invoke restart plugind.service\n" in calls.read_text()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    for directory in ("bin", "usr/lib/plugind", "run/systemd/system"):
        (tmp_path / directory).mkdir(parents=True)
    for name in PROGRAMS:
        (tmp_path / "bin" / name).write_text(PROGRAM)
        (tmp_path / "bin" / name).chmod(0o755)
    return Node(tmp_path)


@pytest.mark.parametrize(("old", "state", "restarts"), [("", 3, False), ("1-1", 3, True), ("1-1", 0, True)])
def test_an_upgrade_restarts_the_service_and_a_first_installation_does_not(
    node: Node, old: str, state: int, restarts: bool
) -> None:
    assert node.configure(old, state=state) == ("", restarts)
    assert ("systemd-run" in (node.root / "calls").read_text()) is (old != "" and state == 0)


@pytest.mark.parametrize(("code", "restarts"), [(2, False), (78, False), (1, True), (75, True)])
def test_a_daemon_that_runs_goes_on_if_the_new_version_refuses_its_configuration(
    node: Node, code: int, restarts: bool
) -> None:
    """Only a refusal counts: a check that could not be made stops no upgrade."""
    said, restarted = node.configure("1-1", code=code)
    assert restarted is restarts
    assert ("rootz is no setting" in said, "systemctl restart plugind" in said) == (not restarts, not restarts)


def test_a_configuration_that_is_refused_stops_no_service_that_does_not_run(node: Node) -> None:
    assert node.configure("1-1", code=78, state=3) == ("", True)


def test_the_version_of_a_daemon_that_was_not_restarted_stays_until_it_is(node: Node) -> None:
    node.configure("")
    first = node.current
    for _ in range(3):
        node.configure("1-1", code=78)
        assert first in node.kept()
    second = node.current
    # Its operator has restarted it.
    node.configure("1-1", code=78, daemon="b")
    node.configure("1-1", code=78, daemon="b")
    assert node.kept() >= {second}
    node.configure("1-1", daemon="b")
    node.configure("1-1", daemon="c")
    assert len(node.kept()) == 2
    assert [path.name for path in node.versions.glob("running.*")] == []


def test_the_launcher_runs_the_version_beside_it(tmp_path: Path) -> None:
    """So the program of a package that is only unpacked is that of the package."""
    launcher = tmp_path / "usr/bin/plugind"
    launcher.parent.mkdir(parents=True)
    launcher.write_bytes((SCRIPTS / "launcher").read_bytes())
    launcher.chmod(0o755)

    def version(library: str, text: str) -> None:
        module = tmp_path / "usr/lib" / library / "plugind/__main__.py"
        module.parent.mkdir(parents=True)
        module.write_text(f"def main(): print({text!r})\n")

    def output(program: Path) -> str:
        return finish([program], check=True).stdout

    version("plugind", "unpacked")
    (link := tmp_path / "plugind").symlink_to(launcher)
    assert output(launcher) == output(link) == "unpacked\n"
    version("plugind.versions/1-1", "installed")
    (tmp_path / "usr/lib/plugind.versions/current").symlink_to("1-1")
    assert output(launcher) == output(link) == "installed\n"

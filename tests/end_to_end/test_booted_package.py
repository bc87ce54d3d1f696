"""The Debian package under a real dpkg and systemd, in a tree that is booted: see ``booted.py``.

``PLUGIND_DEB`` names the package, which ``python -m deploy.debian DIR`` builds. The host installs nothing.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from plugind.protocol.registration.following import NOT_TOLD_AGAIN
from plugind.protocol.version import __version__
from plugind.tests.end_to_end.booted import REPOSITORY, Machine, booted, tree
from plugind.tests.end_to_end.debian import package
from plugind.tests.end_to_end.packages import program

pytestmark = pytest.mark.extended

CONFIGURATION = "/etc/plugind/plugind.toml"
ROOT = "/var/lib/kubelet/plugins_registry"
NAME = "red.example.com"
FIRST, NEXT = "/packages/first.deb", "/packages/next.deb"
#: Seconds for dpkg, which compiles all modules, on a busy machine.
INSTALLING = 600.0
#: A line that only the configuration file of the next package has.
NEW_LINE = "# The next package says more.\n"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the package and a next one, whose version and configuration file are others."""
    program("dpkg-deb")
    tree()
    directory = tmp_path_factory.mktemp("packages")
    (directory / "first.deb").write_bytes(package().read_bytes())
    files = directory / "files"
    run("dpkg-deb", "--raw-extract", directory / "first.deb", files)
    control, configuration = files / "DEBIAN/control", files / CONFIGURATION.lstrip("/")
    control.write_text(control.read_text().replace(f"Version: {__version__}-", f"Version: {__version__}-next"))
    configuration.write_text(configuration.read_text() + NEW_LINE)
    _rename_a_module(files / "usr/lib/plugind")
    run("dpkg-deb", "--root-owner-group", "-Znone", "--build", files, directory / "next.deb")
    return directory


def _rename_a_module(library: Path) -> None:
    """Rename a module that all others import, as a later version may: a mixture of both versions cannot run."""
    (library / "plugind/protocol/text.py").rename(library / "plugind/protocol/words_of_next.py")
    for module in (library / "plugind").rglob("*.py"):
        text = module.read_text()
        renamed = re.sub(r"^( *from \.[.\w]*)\btext import", r"\1words_of_next import", text, flags=re.MULTILINE)
        if renamed != text:
            module.write_text(renamed)


def run(*command: str | Path) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120)


@attrs.frozen
class Node:
    """A machine on which the package is installed."""

    machine: Machine

    def run(self, *command: str, check: bool = True) -> str:
        return self.machine.run(*command, check=check).stdout

    def start(self) -> None:
        """Start the service and a plugin that it registers."""
        self.run("mkdir", "-p", ROOT)
        self.run("systemctl", "enable", "--now", "plugind")
        fake = ("fake", f"--socket={ROOT}/red.sock", "--type=CSIPlugin", f"--name={NAME}", "--version=1.0.0")
        self.run("systemd-run", "--unit=red", "/usr/bin/plugind", *fake)
        self.run("plugind", "wait", NAME, "--timeout", "60")

    def version(self) -> str:
        return self.run("dpkg-query", "--show", "--showformat=${db:Status-Abbrev}${Version}", "plugind")

    def files(self, *places: str) -> list[str]:
        """Return the paths of what is in these places."""
        there = [place for place in places if self.machine.run("test", "-e", place, check=False).returncode == 0]
        return sorted(self.run("find", *there, "-mindepth", "1").splitlines()) if there else []


@pytest.fixture
def node(packages: Path, tmp_path: Path) -> Iterator[Node]:
    with booted(tmp_path / "console", {"/packages": packages}) as machine:
        machine.run("dpkg", "--install", FIRST, timeout=INSTALLING)
        yield Node(machine)


def test_the_package_installs_all_that_it_lists_and_leaves_the_service_to_the_operator(node: Node) -> None:
    assert node.run("dpkg", "--verify", "plugind") == ""
    assert node.run("dpkg", "--audit") == ""
    states = [node.machine.show("plugind", name) for name in ("LoadState", "ActiveState", "UnitFileState")]
    assert states == ["loaded", "inactive", "disabled"]
    # Debian 12 looks in /lib too, which is a link.
    assert node.machine.show("plugind", "FragmentPath").removeprefix("/usr") == "/lib/systemd/system/plugind.service"
    assert node.run("plugind", "--version") == f"plugind {__version__}\n"
    assert node.run("plugind", "config", "check", CONFIGURATION) == ""
    compiled = [name for name in node.files("/usr/lib/plugind") if name.endswith(".pyc")]
    sources = [name for name in node.files("/usr/lib/plugind") if name.endswith(".py")]
    assert len(compiled) == len(sources) > 500


def test_the_packages_plugind_has_no_other_python_packages_than_its_own(node: Node) -> None:
    node.machine.write("/usr/lib/python3/dist-packages/trio.py", "raise SystemExit('not this one')\n")
    node.machine.write("/tmp/here/trio.py", "raise SystemExit('nor this one')\n")
    script = "cd /tmp/here && PYTHONPATH=/tmp/here plugind probe none.sock 2>&1 || true"
    said = node.run("sh", "-c", script)
    assert ("none.sock" in said, "this one" in said) == (True, False)


def test_the_service_runs_with_a_drop_in_of_the_package_and_the_hook_of_leases_is_its_program(node: Node) -> None:
    node.run("mkdir", "-p", "/etc/systemd/system/plugind.service.d")
    for name in ("device-plugins", "leases"):
        drop_in = f"plugind.service.d/{name}.conf"
        node.run("ln", "-s", f"/usr/share/plugind/{drop_in}", f"/etc/systemd/system/{drop_in}")
    node.machine.write("/etc/plugind/plugind.toml.d/devices.toml", '[device_plugins]\ndirectory = "default"\n')
    node.run("systemctl", "daemon-reload")
    node.start()
    device = ("--type=DevicePlugin", "--name=example.com/gpu", "--version=v1beta1", "--device=gpu-0=/dev/null")
    node.run("systemd-run", "--unit=gpu", "/usr/bin/plugind", "fake", f"--socket={ROOT}/gpu.sock", *device)
    node.run("plugind", "wait", "example.com/gpu", "--timeout", "60")
    node.run("plugind", "allocate", "example.com/gpu=1", "-o", "cdi", "--wait", "30")
    documents = node.run("sh", "-c", "cat /run/cdi/*.json")
    assert '"path": "/usr/bin/plugind"' in documents or '"path":"/usr/bin/plugind"' in documents, documents


#: The script that brings a package to hosts, and what stands for ssh and scp to a machine that is booted here.
ROLL_OUT = REPOSITORY / "deploy/systemd/roll-out.sh"
ENTER = "nsenter --target $LEADER --all --root --wd env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root"
SSH = f'#!/bin/sh\nexec {ENTER} sh -c "$2"\n'
SCP = f"""#!/bin/sh\nexec {ENTER} sh -c 'cat >"$0"' "${{3#*:}}" <"$2"\n"""


def roll_out(machine: Machine, deb: Path, directory: Path) -> None:
    """Bring a package to the machine with the script of the tree."""
    (programs := directory / "bin").mkdir()
    for name, text in (("ssh", SSH), ("scp", SCP)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    settings = {"PATH": f"{programs}:{os.environ['PATH']}", "LEADER": str(machine.leader), "SOAK": "0"}
    done = subprocess.run(
        ["sh", ROLL_OUT, deb, "host"],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, **settings},
        cwd=directory,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("how", ["dpkg", "roll-out.sh"])
def test_an_upgrade_keeps_the_changed_configuration_the_registered_plugin_and_starts_the_new_daemon(
    node: Node, packages: Path, tmp_path: Path, how: str
) -> None:
    """The script has apt-get do it, where nobody can answer the question about that file."""
    changed = 'log_format = "json"\n'
    node.machine.write(CONFIGURATION, changed)
    node.start()
    before, plugin = node.machine.show("plugind", "MainPID"), node.machine.show("red", "MainPID")
    if how == "dpkg":
        node.run("dpkg", "--force-confold", "--install", NEXT)
    else:
        roll_out(node.machine, packages / "next.deb", tmp_path)
    assert node.version().startswith(f"ii {__version__}-next")
    assert node.run("cat", CONFIGURATION) == changed
    assert node.run("tail", "-n1", f"{CONFIGURATION}.dpkg-dist") == NEW_LINE
    assert node.machine.show("plugind", "ActiveState") == "active"
    assert node.machine.show("plugind", "MainPID") != before
    node.run("plugind", "wait", NAME, "--timeout", "60")
    assert node.machine.show("red", "MainPID") == plugin


@pytest.mark.parametrize(
    ("place", "text", "said"),
    [
        ("/etc/plugind/plugind.toml.d/site.toml", 'rootz = ["/srv"]\n', "site.toml:1: unknown key rootz"),
        ("/etc/default/plugind", 'PLUGIND_OPTIONS="--rootz --device-plugins"\n', "--rootz"),
    ],
)
def test_a_daemon_whose_configuration_the_new_version_refuses_runs_on_until_it_is_mended(
    node: Node, place: str, text: str, said: str
) -> None:
    node.start()
    before = node.machine.show("plugind", "MainPID")
    node.machine.write(place, text)
    done = node.machine.run("dpkg", "--install", NEXT, timeout=INSTALLING)
    assert (said in done.stderr, "run 'systemctl restart plugind'" in done.stderr) == (True, True), done.stderr
    assert node.version().startswith(f"ii {__version__}-next")
    assert node.machine.show("plugind", "MainPID") == before
    # Modules that it imports late are still there.
    node.run("plugind", "describe", NAME)
    node.machine.write(place, "")
    node.run("systemctl", "restart", "plugind")
    node.run("plugind", "wait", NAME, "--timeout", "60")
    # An option at the end, whose value may be left out, is no reason for a refusal.
    node.machine.write("/etc/default/plugind", 'PLUGIND_OPTIONS="--device-plugins"\n')
    node.run("plugind", "install-unit", "--device-plugins")
    node.run("systemctl", "daemon-reload")
    before = node.machine.show("plugind", "MainPID")
    done = node.machine.run("dpkg", "--install", FIRST, timeout=INSTALLING)
    assert "not restarted" not in done.stderr, done.stderr
    assert node.machine.show("plugind", "ActiveState") == "active"
    assert node.machine.show("plugind", "MainPID") != before
    assert node.files("/etc/systemd/system/plugind.service.d") == [
        "/etc/systemd/system/plugind.service.d/device-plugins.conf"
    ]
    assert node.machine.run("test", "-e", "/etc/systemd/system/plugind.service", check=False).returncode == 1


GPU = "example.com/gpu"
#: Runs commands again and again until there is a file ``stop``. It keeps their exit codes, and what failed ones say.
LOAD = f"""
again() {{
  name=$1
  shift
  while [ ! -e stop ]; do
    code=0
    "$@" >/dev/null 2>"$name.err" || code=$?
    echo $code >>"$name.codes"
    [ $code = 0 ] || cat "$name.err" >>"$name.failed"
    sleep 1
  done
}}
again allocate plugind allocate {GPU}=1 -- true &
again wait plugind allocate {GPU}=1 --wait 60 -- true &
again watch plugind watch &
wait
"""
#: Plugins that appear at once in one process.
STORM_SIZE = 100
STORM = f"""
import os, sys
sys.path.insert(0, os.path.realpath("/usr/lib/plugind.versions/current"))
from functools import partial
import trio
from plugind.actors.console.fake import FakeSpec, run_fake
from plugind.actors.simulation.plugins import FakePlugin

async def main():
    async with trio.open_nursery() as nursery:
        for number in range({STORM_SIZE}):
            plugin = FakePlugin("CSIPlugin", f"storm-{{number}}.example.com")
            spec = FakeSpec(f"{ROOT}/storm-{{number}}.sock", plugin)
            await nursery.start(partial(run_fake, spec, on_call=lambda call: None))

trio.run(main)
"""


def codes(node: Node, command: str) -> Counter[int]:
    """Return how often a command of the load has ended with each code."""
    return Counter(map(int, node.run("cat", f"/load/{command}.codes").split()))


def install(node: Node, package: str) -> float:
    """Install a package; return the seconds for which the service did not run."""
    node.machine.run("dpkg", "--force-confold", "--install", package, timeout=INSTALLING)
    times = [int(node.machine.show("plugind", f"{name}TimestampMonotonic")) for name in ("ActiveExit", "ActiveEnter")]
    return (times[1] - times[0]) / 1e6


def test_an_upgrade_and_the_way_back_lose_no_lease_and_no_command_that_waits(node: Node) -> None:
    """Commands, a watch and a storm of plugins run meanwhile. A plugin is notified once, as it is configured."""
    node.run("mkdir", "-p", "/etc/systemd/system/plugind.service.d")
    node.run("ln", "-s", "/usr/share/plugind/plugind.service.d/leases.conf", "/etc/systemd/system/plugind.service.d/")
    node.machine.write("/etc/plugind/plugind.toml.d/test.toml", 'state = "/var/lib/plugind"\nrenotify = false\n')
    node.run("systemctl", "daemon-reload")
    node.start()
    gpu = ("fake", f"--socket={ROOT}/gpu.sock", "--type=DevicePlugin", f"--name={GPU}", "--version=v1beta1")
    node.run("systemd-run", "--unit=gpu", "/usr/bin/plugind", *gpu, "--devices=8", "--same-paths")
    node.run("plugind", "wait", "--resource", f"{GPU}=8", "--timeout", "60")
    node.run("plugind", "allocate", f"{GPU}=2", "--id", "kept", "--until-release")
    node.machine.write("/load/load.sh", LOAD)
    node.machine.write("/load/storm.py", STORM)
    for unit, command in (("load", ("sh", "load.sh")), ("storm", ("python3", "-I", "storm.py"))):
        node.run("systemd-run", f"--unit={unit}", "--nice=10", "--working-directory=/load", *command)
    gaps = [install(node, package) for package in (NEXT, FIRST)]
    node.run("plugind", "wait", "--resource", f"{GPU}=8", "--timeout", "60")
    listed = ("plugind", "ls", "--state", "registered", "-o", "name")
    node.machine.until(lambda: node.run(*listed).count("\n") > STORM_SIZE, lambda: node.run(*listed))
    node.run("touch", "/load/stop")
    node.run("systemctl", "restart", "plugind")  # It ends the watch.
    node.machine.until(lambda: node.machine.show("load", "ActiveState") == "inactive")
    found = {command: codes(node, command) for command in ("allocate", "wait", "watch")}
    figures = [f"down for {gaps[0]:.1f} and {gaps[1]:.1f} s", *(f"{name} {dict(of)}" for name, of in found.items())]
    sys.stdout.write("; ".join(figures) + "\n")
    said = node.run("sh", "-c", "cat /load/*.failed")
    assert "Traceback" not in said, said
    # What does not wait may be asked while no daemon runs.
    assert {*found["allocate"]} <= {0, 125}, said
    assert [{*found["wait"]}, {*found["watch"]}] == [{0}, {69}], said
    leases = json.loads(node.run("plugind", "leases", "-o", "json"))["leases"]
    assert [(lease["id"], lease["state"]) for lease in leases] == [("kept", "held")]
    node.run("plugind", "wait", NAME, "--timeout", "60")
    assert NOT_TOLD_AGAIN.reason is not None
    assert NOT_TOLD_AGAIN.reason in node.run("plugind", "describe", NAME)


def test_an_upgrade_replaces_a_configuration_that_nobody_changed_and_starts_no_daemon(node: Node) -> None:
    node.run("dpkg", "--install", NEXT)
    assert node.run("tail", "-n1", CONFIGURATION) == NEW_LINE
    assert node.machine.show("plugind", "ActiveState") == "inactive"


def test_what_is_removed_keeps_configuration_and_state_and_a_purge_leaves_nothing(node: Node) -> None:
    node.start()
    node.run("dpkg", "--remove", "plugind")
    assert node.machine.show("plugind", "ActiveState") == "inactive"
    places = ["/usr/bin/plugind", "/usr/lib/plugind", "/usr/lib/plugind.versions", "/run/plugind"]
    places += ["/usr/share/plugind", "/usr/share/doc/plugind"]
    assert [place for place in places if node.machine.run("test", "-e", place, check=False).returncode == 0] == []
    assert node.files("/etc/plugind") == [CONFIGURATION]
    assert node.machine.run("test", "-d", "/var/lib/plugind", check=False).returncode == 0
    node.run("dpkg", "--purge", "plugind")
    assert node.run("dpkg", "--audit") == ""
    # The lock is the root's, which is the operator's. The journal has names of files.
    left = node.run("find", "/etc", "/usr", "/var", "/run", "-xdev", "-name", "*plugind*").splitlines()
    kept = (f"{ROOT}/", "/run/systemd/", "/run/log/journal/", "/var/log/journal/")
    assert [path for path in left if not path.startswith(kept)] == []

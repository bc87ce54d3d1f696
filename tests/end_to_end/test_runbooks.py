"""The runbooks of docs/runbooks.md, played in a tree that is booted: the fault, the alert, the commands and the end.

The commands are those of the page. Debian's Prometheus evaluates the alerts of ``deploy/prometheus`` in the network of
the tree, with seconds in the place of minutes. The part for Slurm, and the silence, were played by hand.
"""

from __future__ import annotations

import re
import subprocess
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs
import pytest

from plugind.tests.end_to_end.booted import REPOSITORY, Machine, booted, tree
from plugind.tests.end_to_end.debian import package
from plugind.tests.end_to_end.packages import program
from plugind.tests.end_to_end.processes import finish
from plugind.tests.end_to_end.prometheus_servers import quick
from plugind.tests.end_to_end.promtool import ALERTS

pytestmark = pytest.mark.extended

PAGE = (REPOSITORY / "docs" / "runbooks.md").read_text()
#: The commands between ``<!-- name -->`` and ``<!-- -->``.
BLOCKS = {
    name: textwrap.dedent(block)
    for name, block in re.findall(r"^ *<!-- ([a-z-]+) -->\n((?: {4,}.*\n)+) *<!-- -->$", PAGE, re.MULTILINE)
}
ROOT = "/var/lib/kubelet/plugins_registry"
STATE = "/var/lib/plugind"
GPU = "example.com/gpu"
PACKAGE, BROKEN = "/packages/first.deb", "/packages/broken.deb"
#: Seconds for dpkg on a busy machine.
INSTALLING = 600.0
CONFIGURATION = f"""\
state = "{STATE}"
expected = ["red.example.com"]
expected_devices = {{"{GPU}" = 4}}
device_plugins.directory = "default"
metrics.address = "127.0.0.1:9464"
health_checks = {{period = 2, confirm_after = 1, deadline = 2}}
"""
PROMETHEUS = """\
global: {scrape_interval: 3s, scrape_timeout: 3s, evaluation_interval: 1s}
rule_files: [alerts.yml]
scrape_configs:
  - job_name: plugind
    static_configs: [{targets: ["127.0.0.1:9464"], labels: {node: node-7}}]
"""
URL = "http://127.0.0.1:9090"


@attrs.define
class Node:
    """A machine with the package, a CSI driver, a device plugin with four devices, and a Prometheus that watches it."""

    directory: Path
    _stack: ExitStack = attrs.field(factory=ExitStack)
    _boots: int = 0
    machine: Machine = attrs.field(init=False)

    def boot(self) -> None:
        """Boot it. The tree forgets all but the state, so the package is installed at each boot."""
        self._boots += 1
        binds, kept = {"/packages": self.directory / "packages"}, {STATE: self.directory / "state"}
        log = self.directory / f"console-{self._boots}"
        self.machine = self._stack.enter_context(booted(log, binds, kept))
        self.machine.run("dpkg", "--install", PACKAGE, timeout=INSTALLING)
        self.machine.run("ln", "-s", PACKAGE, "/root/plugind-before.deb")
        self.machine.write("/etc/plugind/plugind.toml.d/node.toml", CONFIGURATION)
        drop_ins = "/etc/systemd/system/plugind.service.d"
        self.machine.run("mkdir", "-p", ROOT, drop_ins)
        for name in ("device-plugins", "leases", "metrics"):
            self.machine.run("ln", "-s", f"/usr/share/plugind/plugind.service.d/{name}.conf", drop_ins)
        self.machine.run("mkfifo", "/run/gpu.control")
        red = f"--socket {ROOT}/red.sock --type CSIPlugin --name red.example.com --version 1.0.0"
        gpu = f"--device-plugins --type DevicePlugin --name {GPU} --devices 4 --same-paths --control /run/gpu.control"
        for name, options in (("red", red), ("gpu", gpu)):
            unit = f"[Service]\nExecStart=/usr/bin/plugind fake {options}\n"
            self.machine.write(f"/etc/systemd/system/{name}.service", unit)
        self.machine.run("systemctl", "daemon-reload")
        self.machine.run("systemctl", "enable", "--now", "plugind")
        self.machine.run("systemctl", "start", "red", "gpu")
        self.play("wedged-over")
        self.play("dead-gpu-over")
        self._stack.enter_context(self._prometheus())

    def shut_down(self) -> None:
        self._stack.close()

    def play(self, block: str, *, code: int = 0) -> str:
        """Run the commands of a block as they are on the page; return what they print."""
        done = self.machine.run("sh", "-c", BLOCKS[block], check=False, timeout=INSTALLING)
        said = done.stdout + done.stderr
        assert done.returncode == code, f"{block}: {done.returncode}\n{said}"
        return said

    def sh(self, script: str) -> str:
        return self.machine.run("sh", "-c", script).stdout

    def hold(self) -> None:
        """Have a service hold gpu-1."""
        command = f"plugind allocate {GPU}=1 --ids gpu-1 --wait 60 -- sleep infinity"
        self.sh(f"systemd-run --quiet --unit=train {command}")
        self.machine.until(lambda: "gpu-1   held" in self.sh("plugind who"), lambda: self.sh("plugind who"))

    # --- alerts -------------------------------------------------------------------------------------------------------

    @contextmanager
    def _prometheus(self) -> Iterator[None]:
        """Run Prometheus in the network of the tree, with files of this machine."""
        directory = self.directory / f"prometheus-{self._boots}"
        directory.mkdir()
        (directory / "prometheus.yml").write_text(PROMETHEUS)
        rules = quick(ALERTS.read_text())
        (directory / "alerts.yml").write_text(re.sub(r"\b15m\b", "1m", rules))
        command = [*self._in_network("prometheus"), "--config.file=prometheus.yml", "--storage.tsdb.path=series"]
        with (directory / "log").open("wb") as log:
            server = subprocess.Popen(
                [*command, f"--web.listen-address={URL.removeprefix('http://')}"],
                stdout=log,
                stderr=log,
                cwd=directory,
            )
            try:
                yield
            finally:
                server.kill()
                server.wait()

    def _in_network(self, name: str) -> list[str]:
        return [program("nsenter"), "--target", str(self.machine.leader), "--net", program(name)]

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        query = [*self._in_network("promtool"), "query", "instant", URL, 'ALERTS{alertstate="firing"}']
        return set(re.findall(r'alertname="(\w+)"', finish(query).stdout))

    def until_firing(self, *alerts: str) -> None:
        """Wait until these alerts fire, which the page says to start its runbook."""
        self.machine.until(lambda: self.firing() >= {*alerts}, lambda: f"{alerts}: {self.firing()}")

    def until_over(self, *alerts: str) -> None:
        self.machine.until(lambda: not self.firing() & {*alerts}, lambda: f"{alerts}: {self.firing()}")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    for name in ("prometheus", "promtool", "dpkg-deb"):
        program(name)
    tree()
    directory = tmp_path_factory.mktemp("runbooks")
    for name in ("packages", "state"):
        (directory / name).mkdir()
    _make_packages(directory / "packages")
    node = Node(directory)
    try:
        node.boot()
        yield node
    finally:
        node.shut_down()


def _make_packages(directory: Path) -> None:
    """Make the package, and a later one whose daemon does not start."""
    (directory / "first.deb").write_bytes(package().read_bytes())
    files = directory / "files"
    finish(["dpkg-deb", "--raw-extract", str(directory / "first.deb"), str(files)])
    control = files / "DEBIAN/control"
    control.write_text(re.sub(r"(?m)^Version: (.*)-", r"Version: \1-next", control.read_text()))
    (files / "usr/lib/plugind/plugind/actors/console/run.py").write_text("raise RuntimeError('this one is broken')\n")
    finish(["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(files), str(directory / "broken.deb")])


def test_each_alert_that_starts_a_runbook_names_it() -> None:
    rows = re.findall(r"^\| (`Plugind.*) \| \[.*\]\((#[a-z-]+)\) \|$", PAGE, re.MULTILINE)
    listed = {alert: anchor for alerts, anchor in rows for alert in re.findall(r"`(Plugind\w+)`", alerts)}
    rules = re.split(r"- alert: (?=\w+\n)", ALERTS.read_text())[1:]
    named = {rule.split("\n")[0]: re.findall(r"runbook: docs/runbooks.md(#\S+)", rule) for rule in rules}
    assert {alert: anchors[0] for alert, anchors in named.items() if anchors} == listed
    headings = {f"#{heading.lower().replace(' ', '-')}" for heading in re.findall(r"^## (.*)$", PAGE, re.MULTILINE)}
    assert {*listed.values()} == headings - {"#maintenance-of-a-node"}
    assert len(BLOCKS) == len(re.findall(r"<!-- [a-z]", PAGE)) > 20


def test_a_dead_gpu(node: Node) -> None:
    node.hold()
    node.sh("echo unhealthy gpu-1 >/run/gpu.control")
    node.until_firing("PlugindDevicesUnhealthy", "PlugindExpectedDevicesMissing")
    assert re.search(r"gpu-1 +Unhealthy .* root", node.play("dead-gpu-look"))
    node.play("dead-gpu-drain")
    node.until_over("PlugindDevicesUnhealthy", "PlugindExpectedDevicesMissing")
    node.sh("systemctl stop train")
    assert f"no lease has anything of {GPU}:gpu-1\n" in node.play("dead-gpu-wait")
    node.sh("echo healthy gpu-1 >/run/gpu.control")
    node.machine.until(lambda: "Healthy, drained" in node.sh("plugind devices"))
    assert f"{GPU}=gpu-1: /dev/null\n" in node.play("dead-gpu-back")
    node.play("dead-gpu-over")
    node.until_over("PlugindDrained", "PlugindDevicesUnhealthy", "PlugindExpectedDevicesMissing")


def test_a_full_state_disk(node: Node) -> None:
    node.sh(f"systemctl stop plugind && mount -t tmpfs -o size=16M,mode=0700 tmpfs {STATE} && systemctl start plugind")
    node.play("dead-gpu-over")
    node.hold()
    refused: list[str] = []

    def fails() -> bool:
        """A write that fails frees the space of the journal, so fill the disk until that is gone as well."""
        node.sh(f"head -c 20M /dev/zero >>{STATE}/core.4711 2>/dev/null || true")
        refused.append(node.sh(f"plugind allocate {GPU}=1 -- true 2>&1 || true"))
        return "PlugindStateFails" in node.firing()

    node.machine.until(fails, lambda: node.firing())
    assert "database or disk is full; free space" in refused[-1]
    node.until_firing("PlugindStateFailures", "PlugindLeasesFail")
    said = node.play("full-disk-look")
    assert "disk is full; free space" in said
    assert f"16M\t{STATE}/core.4711\n" in said
    assert "gpu-1   held" in node.sh("plugind who")
    node.sh(f"rm {STATE}/core.4711")
    assert node.play("full-disk-over") == "the leases are kept again\n"
    node.until_over("PlugindStateFails", "PlugindStateFailures", "PlugindLeasesFail")
    node.sh(f"systemctl stop train && sleep 1 && systemctl stop plugind && umount {STATE} && systemctl start plugind")
    node.play("dead-gpu-over")


def test_a_lost_state(node: Node) -> None:
    node.hold()
    node.sh(f"systemctl stop plugind && rm {STATE}/state.db* && systemctl start plugind")
    node.until_firing("PlugindLeasesWithheld")
    assert "all devices are withheld" in node.play("lost-state-look")
    pid = node.machine.show("train", "MainPID")
    who = node.play("lost-state-who", code=1)
    assert "gpu-1" in who
    assert f"process {pid} may use devices" in who
    node.sh("systemctl stop train")
    assert node.play("lost-state-recover") == ""
    node.play("lost-state-over")
    node.until_over("PlugindLeasesWithheld", "PlugindLeasesFail")


def test_a_wedged_plugin(node: Node) -> None:
    node.sh("systemctl kill --signal=STOP red")
    node.until_firing("PlugindPluginsUnhealthy")
    assert re.search(r"red.example.com .* (unhealthy|disconnected)", node.play("wedged-look"))
    node.play("wedged-restart")
    node.play("wedged-over")
    node.until_over("PlugindPluginsUnhealthy", "PlugindPluginsDoNotServe", "PlugindExpectedPluginMissing")


def test_an_upgrade_that_must_be_taken_back(node: Node) -> None:
    node.hold()
    node.machine.run("dpkg", "--force-confold", "--install", BROKEN, check=False, timeout=INSTALLING)
    node.until_firing("PlugindDown")
    assert "this one is broken" in node.play("back-look")
    node.play("back-install")
    assert "example.com/gpu=gpu-1" in node.play("back-over")
    node.until_over("PlugindDown", "PlugindRestarts")
    node.sh("systemctl stop train")


def test_maintenance_of_a_node(node: Node) -> None:
    node.hold()
    node.sh("systemd-run --quiet --on-active=5 systemctl stop train")
    assert "no lease has anything of the node\n" in node.play("maintenance-drain")
    node.until_firing("PlugindDrained")
    node.shut_down()
    node.boot()
    assert "drained: the node: kernel, ticket 4712" in node.play("maintenance-look")
    node.until_firing("PlugindDrained")
    node.play("maintenance-undrain")
    node.play("maintenance-over")
    node.until_over("PlugindDrained")

"""The service under a real systemd, in a tree that is booted: see ``booted.py``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from plugind.tests.end_to_end.booted import REPOSITORY, Machine, booted, staged, tree

pytestmark = pytest.mark.extended

PLUGIND = "/opt/plugind/bin/plugind"
ROOT = "/var/lib/kubelet/plugins_registry"
SOCKET = f"{ROOT}/red.sock"
NAME = "red.example.com"
#: Where drop-ins of the tests are.
DROP_INS = "/run/systemd/system/plugind.service.d"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine with the service, which runs, and with a plugin that is registered."""
    tree()
    directory = tmp_path_factory.mktemp("booted")
    (directory / "plugind").mkdir()
    with booted(directory / "console", {"/opt/plugind": staged(directory / "plugind")}) as machine:
        machine.run(PLUGIND, "install-unit")
        machine.run("mkdir", "-p", ROOT)
        machine.run("systemctl", "daemon-reload")
        started = machine.run("systemctl", "start", "plugind", check=False)
        assert started.returncode == 0, [entry["MESSAGE"] for entry in machine.journal("-u", "plugind")]
        fake = (PLUGIND, "fake", "--socket", SOCKET, "--type", "CSIPlugin", "--name", NAME, "--version", "1.0.0")
        machine.run("systemd-run", "--unit=red", *fake)
        until_registered(machine)
        yield machine


def until_registered(machine: Machine) -> None:
    machine.run(PLUGIND, "wait", NAME, "--timeout", "60")


def pid(machine: Machine) -> int:
    return int(machine.show("plugind", "MainPID"))


def lines(machine: Machine) -> list[str]:
    """Return the lines that the present daemon has logged."""
    return [str(entry["MESSAGE"]) for entry in machine.journal("-u", "plugind", f"_PID={pid(machine)}")]


def test_the_service_is_started_once_it_is_ready_and_says_what_it_has(machine: Machine) -> None:
    states = [machine.show("plugind", name) for name in ("ActiveState", "SubState", "Type", "WatchdogUSec")]
    assert states == ["active", "running", "notify", "30s"]
    machine.until(
        lambda: machine.show("plugind", "StatusText") == "1 plugin: 1 registered",
        lambda: machine.show("plugind", "StatusText"),
    )
    modes = machine.run("stat", "--format=%a %n", "/run/plugind", "/run/plugind/status.sock", "/var/lib/plugind").stdout
    assert modes.splitlines() == ["711 /run/plugind", "600 /run/plugind/status.sock", "700 /var/lib/plugind"]


def test_the_service_has_no_capability_and_sees_no_home(machine: Machine) -> None:
    status = Path(f"/proc/{_outside(machine)}/status").read_text()
    sets = [line.split(":\t") for line in status.splitlines() if line.startswith("Cap")]
    assert sets == [[f"Cap{name}", "0" * 16] for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")]
    assert "NoNewPrivs:\t1\n" in status
    machine.run("touch", "/root/here", "/tmp/here", "/home/here")
    seen = machine.run("nsenter", "--target", str(pid(machine)), "--mount", "ls", "/root", "/tmp", "/home", check=False)
    assert "here" not in seen.stdout


def _outside(machine: Machine) -> int:
    """Return the pid of the daemon in this pid namespace."""
    inside = str(pid(machine))
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            ids = [line for line in status.read_text().splitlines() if line.startswith("NSpid:")]
        except (FileNotFoundError, ProcessLookupError):
            continue
        found = ids[0].split()[1:]
        if len(found) > 1 and found[-1] == inside:
            return int(found[0])
    raise AssertionError(f"no process here is {inside} there")


def test_a_reload_fails_if_the_configuration_cannot_be_used_and_the_daemon_goes_on(machine: Machine) -> None:
    before = pid(machine)
    machine.run("systemctl", "reload", "plugind")
    machine.write("/etc/plugind/plugind.toml", 'rescan = "never"\n')
    refused = machine.run("systemctl", "reload", "plugind", check=False)
    machine.run("rm", "/etc/plugind/plugind.toml")
    assert refused.returncode == 1
    assert (machine.show("plugind", "ActiveState"), pid(machine)) == ("active", before)
    machine.run("systemctl", "reload", "plugind")


def test_a_reload_finds_the_daemon_though_the_file_names_another_socket_for_the_next_one(machine: Machine) -> None:
    before = pid(machine)
    machine.write("/etc/plugind/plugind.toml", 'status = "/run/plugind/other.sock"\n')
    machine.run("systemctl", "reload", "plugind")
    said = [str(entry["MESSAGE"]) for entry in machine.journal("-u", "plugind")]
    machine.run("rm", "/etc/plugind/plugind.toml")
    assert "needs a restart: status" in said
    assert pid(machine) == before
    machine.run("systemctl", "reload", "plugind")


def test_the_journal_finds_a_plugin_by_its_name_and_no_time_or_level_is_said_twice(machine: Machine) -> None:
    machine.until(lambda: bool(machine.journal(f"PLUGIND_NAME={NAME}", "PLUGIND_EVENT=plugin registered")))
    entry = machine.journal(f"PLUGIND_NAME={NAME}", "PLUGIND_EVENT=plugin registered")[0]
    named = ("PLUGIND_SOCKET", "PLUGIND_TYPE", "PRIORITY", "SYSLOG_IDENTIFIER", "_TRANSPORT", "_SYSTEMD_UNIT")
    assert [entry[name] for name in named] == [SOCKET, "CSIPlugin", "6", "plugind", "journal", "plugind.service"]
    assert str(entry["MESSAGE"]).startswith(f"plugin registered socket={SOCKET} type=CSIPlugin name={NAME} ")


def test_a_restart_finds_the_plugin_again_which_goes_on(machine: Machine) -> None:
    before, plugin = pid(machine), machine.show("red", "MainPID")
    machine.run("systemctl", "restart", "plugind")
    until_registered(machine)
    assert pid(machine) != before
    assert (machine.show("red", "MainPID"), machine.show("plugind", "NRestarts")) == (plugin, "0")


def test_a_daemon_that_hangs_is_ended_by_the_watchdog_with_its_stacks_in_the_journal_and_started_again(
    machine: Machine,
) -> None:
    machine.write(f"{DROP_INS}/watchdog.conf", "[Service]\nWatchdogSec=10\n")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", "plugind")
    before, plugin = pid(machine), machine.show("red", "MainPID")
    machine.run("systemctl", "kill", "--signal=STOP", "--kill-whom=main", "plugind")
    machine.until(lambda: machine.show("plugind", "NRestarts") == "1", lambda: machine.show("plugind", "Result"))
    machine.until(lambda: machine.show("plugind", "ActiveState") == "active")
    until_registered(machine)
    assert pid(machine) not in (0, before)
    assert machine.show("red", "MainPID") == plugin
    said = [str(entry["MESSAGE"]) for entry in machine.journal("-u", "plugind")]
    assert "plugind.service: Watchdog timeout (limit 10s)!" in said
    stacks = [str(entry["MESSAGE"]) for entry in machine.journal("-u", "plugind", f"_PID={before}")]
    assert "Fatal Python error: Aborted" in stacks
    assert any("/trio/_core/_run.py" in line for line in stacks)
    machine.run("rm", f"{DROP_INS}/watchdog.conf")
    machine.run("systemctl", "daemon-reload")


def test_a_root_that_the_service_may_not_write_to_is_served_and_one_that_is_missing_is_not_made(
    machine: Machine,
) -> None:
    """Plugins are dialed without write access. The lock is on the root itself then, and holds."""
    machine.run("mkdir", "-p", "/srv/plugins")
    options = "--root /srv/plugins --root /srv/missing"
    machine.write("/etc/default/plugind", f'PLUGIND_OPTIONS="{options}"\n')
    machine.run("systemctl", "restart", "plugind")
    name, socket = "blue.example.com", "/srv/plugins/blue.sock"
    fake = (PLUGIND, "fake", "--socket", socket, "--type", "CSIPlugin", "--name", name, "--version", "1.0.0")
    machine.run("systemd-run", "--unit=blue", *fake)
    machine.run(PLUGIND, "wait", name, "--timeout", "60")
    machine.until(lambda: any("Read-only file system" in line for line in lines(machine)), lambda: lines(machine))
    assert machine.run("ls", "-A", "/srv", "/srv/plugins").stdout == "/srv:\nplugins\n\n/srv/plugins:\nblue.sock\n"
    machine.write(f"{DROP_INS}/roots.conf", "[Service]\nReadWritePaths=/srv\n")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", "plugind")
    machine.run(PLUGIND, "wait", name, "--timeout", "60")
    machine.until(lambda: "/srv/missing\n" in machine.run("find", "/srv").stdout)
    assert machine.run("find", "/srv", "-name", ".plugind.lock").stdout.count("\n") == 2
    machine.run("systemctl", "stop", "blue")
    machine.run("rm", "/etc/default/plugind", f"{DROP_INS}/roots.conf")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", "plugind")
    until_registered(machine)


def test_metrics_over_tcp_are_reached_with_their_drop_in_alone(machine: Machine) -> None:
    machine.write("/etc/default/plugind", 'PLUGIND_OPTIONS="--metrics 127.0.0.1:9107"\n')
    fetch = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9107/metrics').read().decode())"
    assert machine.run("systemctl", "restart", "plugind", check=False).returncode == 1
    said = [str(entry["MESSAGE"]) for entry in machine.journal("-u", "plugind")]
    drop_in = "'plugind install-unit --metrics'"
    assert any("cannot serve metrics at 127.0.0.1:9107" in line and drop_in in line for line in said), said
    machine.run(PLUGIND, "install-unit", "--metrics")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", "plugind")
    assert "plugin_manager_total_plugins" in machine.run("python3", "-c", fetch).stdout
    machine.run("rm", "/etc/default/plugind", "/etc/systemd/system/plugind.service.d/metrics.conf")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", "plugind")
    until_registered(machine)


def test_a_service_that_sees_no_devices_says_which_drop_in_lets_it_see_them(machine: Machine) -> None:
    machine.run("mknod", "-m", "660", "/dev/ttyUSB0", "c", "4", "63")
    machine.write("/etc/default/plugind", 'PLUGIND_OPTIONS="--devices lab/serial=/dev/ttyUSB*"\n')
    machine.run("systemctl", "restart", "plugind")
    (warning,) = (line for line in lines(machine) if line.startswith("no device matches name=lab/serial"))
    assert "plugind sees only standard nodes in /dev (PrivateDevices=)" in warning
    assert "'plugind install-unit --devices'" in warning
    machine.run(PLUGIND, "install-unit", "--devices")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", "plugind")
    machine.run(PLUGIND, "wait", "--resource", "lab/serial=1", "--timeout", "60")
    machine.run("rm", "/dev/ttyUSB0", "/etc/default/plugind", "/etc/systemd/system/plugind.service.d/devices.conf")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", "plugind")
    until_registered(machine)


#: A device of kernels with virtual terminals. To open it does nothing.
TTY = "/dev/tty63"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
BENCH = f"""\
[leases.users]
uids = ["alice", "bob"]
[devices."lab/tty"]
paths = ["{TTY}"]
access = "acl"
"""
#: The rule that the tree ships, for this device.
RULE = re.sub(
    "^# SUBSYSTEM.*?, ATTRS.*?,",
    f'SUBSYSTEM=="tty", KERNEL=="{Path(TTY).name}",',
    (REPOSITORY / "deploy/udev/72-plugind.rules").read_text(),
    flags=re.MULTILINE,
)


@attrs.frozen
class Bench:
    """A machine with udev and a device, which the service may lease to two users."""

    machine: Machine

    def prepare(self) -> None:
        """Let udev run, which needs a writable sysfs, and install the service without starting it."""
        for user in ("alice", "bob"):
            self.machine.run("useradd", user)
        self.machine.run("mount", "-o", "remount,bind,rw", "/sys")
        self.machine.run("mount", "-o", "remount,rw", "/sys/devices")
        self.machine.run("systemctl", "start", "systemd-udevd")
        self.machine.run("mknod", "-m", "600", TTY, "c", "4", "63")
        self.machine.write("/etc/plugind/plugind.toml", BENCH)
        self.machine.run(PLUGIND, "install-unit", "--devices")
        self.machine.run("systemctl", "daemon-reload")

    def leave_to_leases(self) -> None:
        """Install the rule, and have udev follow it."""
        self.machine.write("/etc/udev/rules.d/72-plugind.rules", RULE)
        self.machine.run("udevadm", "control", "--reload")
        self.machine.run("udevadm", "trigger", "--settle", TTY)

    def until_listed(self, said: str) -> None:
        def devices() -> str:
            return self.machine.run(PLUGIND, "devices").stdout

        self.machine.until(lambda: said in devices(), devices)

    def lease(self, user: str) -> None:
        self.machine.run(PLUGIND, "allocate", "lab/tty=1", "--for-user", user, "--id=bench", "--until-release")

    def who_opens(self) -> list[str]:
        """Return which of the users can open the device."""
        command = ("--", "sh", "-c", f"exec < {TTY}")
        users = ("alice", "bob")
        return [
            user for user in users if self.machine.run("runuser", "-u", user, *command, check=False).returncode == 0
        ]

    def until_opens(self, user: str) -> None:
        self.machine.until(lambda: self.who_opens() == [user], lambda: self.machine.run("getfacl", TTY).stdout)


def test_beside_udev_the_service_lets_only_the_user_of_a_lease_open_a_device(tmp_path: Path) -> None:
    """Also after events of udev, a kill and restarts of the daemon; a reboot ends the lease and what it gave."""
    if not Path("/sys/class/tty", Path(TTY).name).exists():
        pytest.skip("the kernel has no virtual terminals")
    if not (tree() / "usr/bin/udevadm").exists():
        pytest.skip("the tree has no udev: make another one with tests.tools.booted_tree")
    for name in ("plugind", "state"):
        (tmp_path / name).mkdir()
    binds, kept = {"/opt/plugind": staged(tmp_path / "plugind")}, {"/var/lib/plugind": tmp_path / "state"}
    with booted(tmp_path / "first", binds, kept) as machine:
        bench = Bench(machine)
        bench.prepare()
        machine.run("systemctl", "start", "plugind")
        bench.until_listed("udev has not finished with it")
        # Only the rules of the event that adds a device give it a group.
        machine.run("udevadm", "trigger", "--action=add", "--settle", TTY)
        bench.until_listed('the group 5 may open it: set OWNER="root", GROUP="root", MODE="0660"')
        bench.leave_to_leases()
        machine.run(PLUGIND, "wait", "--resource", "lab/tty=1", "--timeout", "60")
        assert bench.who_opens() == []
        confined = (PLUGIND, "allocate", "lab/tty=1", "--confine", "--", "sh", "-c", f"exec < {TTY} && ls /dev/tty*")
        for words in ((), ("runuser", "-u", "alice", "--")):
            assert machine.run(*words, *confined).stdout == f"/dev/tty\n{TTY}\n"

        bench.lease("alice")
        assert bench.who_opens() == ["alice"]
        closed = ("systemd-run", "--wait", "--property=DevicePolicy=closed", "sh", "-c", f"exec < {TTY}")
        assert machine.run(*closed, check=False).returncode != 0, "the policy of the service is not in force"
        assert machine.show("plugind", "DevicePolicy") == "closed"
        machine.run("udevadm", "trigger", "--settle", TTY)
        assert bench.who_opens() == ["alice"], "its mode keeps the mask"
        machine.run("chmod", "600", TTY)
        bench.until_opens("alice")
        machine.run("systemctl", "kill", "--signal=KILL", "--kill-whom=main", "plugind")
        machine.run("chmod", "600", TTY)
        assert bench.who_opens() == []
        bench.until_opens("alice")
        machine.run("systemctl", "restart", "plugind")
        assert bench.who_opens() == ["alice"]
    with booted(tmp_path / "second", binds, kept) as machine:
        bench = Bench(machine)
        bench.prepare()
        bench.leave_to_leases()
        machine.run("setfacl", "-m", "u:alice:rw", TTY)
        machine.run("systemctl", "start", "plugind")
        assert machine.run(PLUGIND, "leases").stdout == "no leases\n"
        assert bench.who_opens() == []
        bench.lease("bob")
        assert bench.who_opens() == ["bob"]


def test_leases_end_with_the_boot_of_the_machine_and_not_with_the_boot_id_that_the_service_sees(tmp_path: Path) -> None:
    """The unit shows the service the boot id of the machine, which systemd 252 hides; a drop-in shows another one."""
    for name in ("plugind", "state"):
        (tmp_path / name).mkdir()
    binds, kept = {"/opt/plugind": staged(tmp_path / "plugind")}, {"/var/lib/plugind": tmp_path / "state"}
    with booted(tmp_path / "first", binds, kept) as machine:
        start_with_a_device(machine)
        seen = machine.run("nsenter", "--target", str(pid(machine)), "--mount", "cat", BOOT_ID).stdout
        assert seen == machine.run("cat", BOOT_ID).stdout != Path(BOOT_ID).read_text()
        allocate = (PLUGIND, "allocate", "lab/null=1")
        machine.run("systemd-run", "--unit=holder", *allocate, "--id=holder", "--", "sleep", "600")
        machine.run(*allocate, "--id=bench", "--until-release")
        machine.until(lambda: "holder  held" in machine.run(PLUGIND, "leases").stdout)
        machine.write("/run/boot-id", "4c9d5bcf-4b6f-4f0e-8a41-8d1d5c2a3a0b\n")
        bind = f"BindReadOnlyPaths=\nBindReadOnlyPaths=/run/boot-id:{BOOT_ID}\n"
        machine.write(f"{DROP_INS}/boot-id.conf", f"[Service]\n{bind}")
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "restart", "plugind")
        assert lines_about_leases(machine) == [("lease has ended", "bench"), ("leases of another boot are kept", None)]
        machine.run("rm", f"{DROP_INS}/boot-id.conf")
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "restart", "plugind")
        assert lines_about_leases(machine) == [("leases of another boot are kept", None)]
        machine.run("systemctl", "restart", "plugind")
        assert lines_about_leases(machine) == []
        machine.run(*allocate, "--id=bench", "--until-release")
    with booted(tmp_path / "second", binds, kept) as machine:
        start_with_a_device(machine)
        assert machine.run(PLUGIND, "leases").stdout == "no leases\n"
        # The other owner ended in the shutdown, before plugind or after.
        assert lines_about_leases(machine).count(("lease has ended", "bench")) == 1


def start_with_a_device(machine: Machine) -> None:
    machine.write("/etc/plugind/plugind.toml", '[devices."lab/null"]\npaths = ["/dev/null"]\nshared = 2\n')
    machine.run(PLUGIND, "install-unit", "--devices")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", "plugind")


def lines_about_leases(machine: Machine) -> list[tuple[object, object]]:
    """Return what the present daemon has logged of leases of before its start, and the lease of each line."""
    said = machine.journal("-u", "plugind", f"_PID={pid(machine)}")
    found = [(entry.get("PLUGIND_EVENT"), entry.get("PLUGIND_LEASE")) for entry in said]
    return sorted(pair for pair in found if pair[0] in ("lease has ended", "leases of another boot are kept"))


@pytest.mark.parametrize(("options", "code"), [("--root /dev/null", "78"), ("--rescan never", "2")])
def test_a_daemon_whose_configuration_is_wrong_is_not_started_again(options: str, code: str, machine: Machine) -> None:
    machine.write("/etc/default/plugind", f'PLUGIND_OPTIONS="{options}"\n')
    started = machine.run("systemctl", "restart", "plugind", check=False)
    assert started.returncode == 1
    state = [machine.show("plugind", name) for name in ("ActiveState", "ExecMainStatus", "NRestarts")]
    assert state == ["failed", code, "0"]
    machine.run("rm", "/etc/default/plugind")
    machine.run("systemctl", "reset-failed", "plugind")
    machine.run("systemctl", "start", "plugind")
    until_registered(machine)


def test_the_bench_of_the_page_about_leases_gives_adapters_to_colleagues_also_after_a_restart(machine: Machine) -> None:
    """Its commands as they are there, with nodes that stand for adapters."""
    section = (REPOSITORY / "docs" / "leases.md").read_text().split("\n## ")[1]
    (configuration,) = re.findall(r"```toml\n(.*?)```", section, re.DOTALL)
    install, start, use = (
        [line.strip() for line in block.splitlines()] for block in re.findall(r"(?:^    .*\n)+", section, re.MULTILINE)
    )
    machine.run("mkdir", "-p", "/dev/serial/by-id")
    for number in range(3):
        machine.run("mknod", "--mode=0660", f"/dev/ttyUSB{number}", "c", "1", str(3 + 2 * number))
        machine.run("chgrp", "dialout", f"/dev/ttyUSB{number}")
        machine.run("ln", "-s", f"../../ttyUSB{number}", f"/dev/serial/by-id/usb-FTDI_A{number}")
    for user in ("alice", "bob"):
        machine.run("useradd", "--groups=dialout", user)
    machine.write("/usr/local/bin/picocom", "#!/bin/sh\ntest -w $1 && echo $1 && exec sleep ${SECONDS:-0}\n")
    machine.run("chmod", "0755", "/usr/local/bin/picocom")
    machine.run("rm", "/etc/systemd/system/plugind.service")  # It has plugind by another path.
    path = "PATH=/usr/local/bin:/usr/sbin:/usr/bin"
    for command in install[1:]:  # The first makes the virtual environment.
        machine.run("env", path, "sh", "-c", command)
    machine.write("/etc/plugind/plugind.toml", configuration)
    for command in (*start, "systemctl restart plugind"):
        machine.run("env", path, "sh", "-c", command)

    def as_user(user: str, command: str) -> str:
        done = machine.run("runuser", "-u", user, "--", "env", path, "sh", "-c", command, check=False)
        return done.stdout + done.stderr

    wait_for_one, who = use
    assert as_user("alice", wait_for_one) == "/dev/ttyUSB0\n"
    assert "--lease-group" in as_user("bob", wait_for_one), "the refusal says who may lease"
    machine.run("systemd-run", "--uid=alice", f"--setenv={path}", "--setenv=SECONDS=600", "sh", "-c", wait_for_one)
    machine.until(lambda: "held   alice" in as_user("alice", who), lambda: as_user("alice", who))
    machine.run("systemctl", "restart", "plugind")
    held, *free, counted = (line.split() for line in as_user("alice", who).splitlines()[1:])
    assert held[:5] == ["lab/serial", "usb-FTDI_A0", "held", "alice", "sleep"]
    assert [line[1:3] for line in free] == [["usb-FTDI_A1", "free"], ["usb-FTDI_A2", "free"]]
    assert counted == ["2", "free,", "1", "held"]
    # With access by leases, which the service gives without a capability.
    machine.write("/etc/plugind/plugind.toml", configuration.replace("\n\n", '\naccess = "acl"\n\n'))
    for command in ("usermod -aG bench bob", "gpasswd --delete bob dialout", "chgrp root /dev/ttyUSB*"):
        machine.run("sh", "-c", command)
    machine.run("systemctl", "restart", "plugind")
    assert as_user("bob", "test -w /dev/ttyUSB1 || echo closed") == "closed\n"
    assert as_user("bob", wait_for_one) == "/dev/ttyUSB1\n"
    assert as_user("bob", "test -w /dev/ttyUSB1 || echo closed") == "closed\n"

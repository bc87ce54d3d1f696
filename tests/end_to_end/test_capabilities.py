"""What a daemon of root can do without any capability, and what it needs which one for: docs/operations.md has a table.

The units in ``deploy/systemd`` take all capabilities from the daemon, and their drop-ins give back what is shown here.
"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from plugind.tests.end_to_end.foreign import GRPCLIB
from plugind.tests.end_to_end.packages import program
from plugind.tests.end_to_end.processes import DEADLINE, PLUGIND, Daemon, daemon, finish, plugin_process
from plugind.tests.end_to_end.test_trust import ANN, plugin_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to lose")

GROUP = 4711


def limited(*capabilities: str) -> list[str]:
    """Return the words before a command that leave it only these capabilities, though its user is root."""
    kept = "".join(f",+{name}" for name in capabilities)
    return [program("setpriv"), f"--bounding-set=-all{kept}", "--inh-caps=-all"]


@contextmanager
def limited_daemon(directory: Path, *options: str, capabilities: tuple[str, ...] = ()) -> Iterator[Daemon]:
    directory.chmod(0o711)
    with daemon(directory, *options, by=[*limited(*capabilities), *PLUGIND, "run"]) as started:
        yield started


def status_of(node: Daemon) -> str:
    return Path(f"/proc/{node.process.pid}/status").read_text()


async def test_plugins_of_root_need_no_capability(tmp_path: Path) -> None:
    """Nor does making a root in a directory of root, its lock or the status socket."""
    with limited_daemon(tmp_path) as node:
        await node.ready()
        path = node.root / "a.sock"
        async with node.watch() as watch, plugin_process(GRPCLIB.command(path, GRPCLIB.name, path)) as plugin:
            await plugin.notified_registered()
            await watch.state(path, "registered")
        assert "CapEff:\t0000000000000000\n" in status_of(node)
        assert (node.root / ".plugind.lock").is_file()
        node.process.terminate()
        assert await node.ended() == 0


@pytest.mark.parametrize(
    ("capabilities", "state"), [((), "waiting"), (("dac_override",), "registered")], ids=["without", "with"]
)
async def test_plugins_of_other_users_need_dac_override(
    capabilities: tuple[str, ...], state: str, tmp_path: Path
) -> None:
    """To connect takes write access to the socket, which its user keeps to itself (mode 0755)."""
    with limited_daemon(tmp_path, "--trust-uid", str(ANN), capabilities=capabilities) as node:
        await node.ready()
        staged, path = tmp_path / "a.sock", node.root / "a.sock"
        with trio.fail_after(DEADLINE):
            async with node.watch() as watch, plugin_of(ANN, staged, "a.example.com"):
                os.chown(staged, ANN, ANN)
                staged.chmod(0o755)
                os.rename(staged, path)
                plugin = await watch.state(path, state)
                if state == "waiting":
                    assert "Permission denied" in str(plugin["cause"])
                os.rename(path, staged)


async def test_a_group_for_the_status_socket_needs_chown(tmp_path: Path) -> None:
    with limited_daemon(tmp_path, "--status-group", str(GROUP)) as node:
        assert await node.ended() == 78
    place = f"{tmp_path}/status.sock to the group {GROUP}: Operation not permitted"
    said = node.log.read_text()
    assert f"user 0 cannot give the status socket {place}; root needs CAP_CHOWN for that" in said
    assert "'plugind install-unit --other-users'" in said
    with limited_daemon(tmp_path, "--status-group", str(GROUP), capabilities=("chown",)) as node:
        await node.ready()
        found = os.stat(node.status)
        assert (found.st_gid, stat.S_IMODE(found.st_mode)) == (GROUP, 0o660)


#: Lets a user open the node of the argument, as the daemon does for a lease.
ADMIT = """
import sys
from plugind.actors.io.device_nodes import DeviceNodes
nodes = DeviceNodes()
print(nodes.admit(nodes.look(sys.argv[1]), {4711: 6}, only=True))
"""


def test_the_acl_of_a_node_of_root_needs_no_capability(tmp_path: Path) -> None:
    node = tmp_path / "node"
    os.mknod(node, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    done = finish([*limited(), sys.executable, "-c", ADMIT, str(node)])
    assert (done.stderr, done.stdout) == ("", "None\n")
    assert os.listxattr(node) == ["system.posix_acl_access"]


#: Asks the process of the argument to end, as the daemon does when a device of its lease turns unhealthy.
STOP = """
import sys
from plugind.actors.io.owner_processes import OwnerProcesses
processes = OwnerProcesses(4)
owner = processes.identity(int(sys.argv[1]))
number = processes.watch(owner)
try:
    processes.stop(number, owner, 0)
except PermissionError as error:
    sys.exit(error.strerror)
"""


@pytest.mark.parametrize(
    ("capabilities", "said", "ended"),
    [((), "Operation not permitted\n", None), (("kill",), "", -signal.SIGTERM)],
    ids=["without", "with"],
)
def test_the_owner_of_a_lease_who_is_another_user_is_asked_to_end_with_kill(
    capabilities: tuple[str, ...], said: str, ended: int | None
) -> None:
    with subprocess.Popen([program("setpriv"), f"--reuid={ANN}", "--clear-groups", "sleep", "1000"]) as owner:
        try:
            # Once it is that program, it is that user's.
            while Path(f"/proc/{owner.pid}/comm").read_text() != "sleep\n":
                os.sched_yield()
            command = [*limited(*capabilities), sys.executable, "-c", STOP, str(owner.pid)]
            done = finish(command)
            assert (done.stderr, done.returncode) == (said, 1 if said else 0)
            if ended is None:
                assert owner.poll() is None
            else:
                assert owner.wait(DEADLINE) == ended
        finally:
            owner.kill()

"""``plugind allocate --confine -- CMD``: the command has a ``/dev`` of its own, as root and as another user."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import attrs
import pytest

from plugind.actors.console import confine
from plugind.protocol.leases.leases_json import lease_to_json
from plugind.protocol.leases.values import Answer, Lease, LeaseState, Node, NoOwner, Request, Wanted
from plugind.tests.actors.console.lease_server import answer, lease_server
from plugind.tests.end_to_end.containers import python_of_all
from plugind.tests.end_to_end.packages import program

pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, which may make device nodes"),
]
SERIAL = "lab/serial"


@attrs.frozen
class Place:
    """Two nodes in ``/dev`` and two elsewhere: of each pair one is leased, and the other belongs to nobody."""

    dev: Path
    elsewhere: Path
    python: str

    def run(self, uid: int, script: str, *, cgroups: str = "", **variables: str) -> subprocess.Popen[str]:
        """Start a confined shell as a user; a script may replace the file systems of cgroups before that."""
        command = [self.python, "-m", "plugind", "allocate", f"{SERIAL}=2", "--confine", "--", "/bin/sh", "-c", script]
        before = [] if not cgroups else ["unshare", "--mount", "sh", "-ec", f'{cgroups}; exec "$@"', "sh"]
        become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
        return subprocess.Popen(
            [*before, *become, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.elsewhere,
            env={**os.environ, "PLUGIND_STATUS": f"{self.elsewhere}/status.sock", **variables},
        )

    def tried(self, uid: int, script: str, **variables: str) -> tuple[int, str, str]:
        """Run a confined shell until it ends; return its exit code and its output."""
        process = self.run(uid, script, **variables)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err


def make(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.chmod(path, 0o666)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    program("bwrap")
    with ExitStack() as stack:
        dev = Path(tempfile.mkdtemp(dir="/dev", prefix="plugind-"))
        stack.callback(shutil.rmtree, dev)
        elsewhere = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp", prefix="plugind-")))
        for path in (dev, elsewhere):
            path.chmod(0o755)
            for name in ("leased", "other"):
                make(path / name)
        nodes = [f"{path}/leased" for path in (dev, elsewhere)]
        given = Answer(nodes=tuple(Node(path, path) for path in nodes))
        request = Request((Wanted(SERIAL, 2),))
        lease = Lease("a1b2", 0, request, NoOwner(), LeaseState.HELD, 0.0, {SERIAL: ("a", "b")}, given)
        stack.enter_context(lease_server(elsewhere, answer(201, lease_to_json(lease))))
        yield Place(dev, elsewhere, python_of_all(elsewhere / "python"))


#: With cgroup v2 alone, in a group of the command's own; and without any cgroup that can be seen.
_V2 = "umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup; test -f /sys/fs/cgroup/cgroup.procs"
_NONE = "umount -R /sys/fs/cgroup; test ! -e /sys/fs/cgroup/cgroup.procs"


@pytest.mark.parametrize("cgroups", ["", _V2, _NONE], ids=["as here", "v2", "none"])
@pytest.mark.parametrize("uid", [0, 4001])
def test_a_confined_command_opens_the_leased_nodes_and_no_other(place: Place, uid: int, cgroups: str) -> None:
    """It is the process that owns the lease, in the same directory, and its exit code is that of ``allocate``."""
    script = f"""
    echo $$ $PWD $(id -u) $(ls {place.dev})
    for node in /dev/null {place.dev}/leased {place.elsewhere}/leased {place.elsewhere}/other
    do cat $node 2> /dev/null && echo $node; done
    test -c /dev/tty -a -d /dev/pts -a -w /dev/shm || echo incomplete
    exit 7
    """
    process = place.run(uid, script, cgroups=cgroups)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (7, "")
    first, *opened = out.splitlines()
    assert first == f"{process.pid} {place.elsewhere} {uid} leased"
    assert opened == ["/dev/null", f"{place.dev}/leased", f"{place.elsewhere}/leased"]


def test_signals_reach_the_confined_command_itself(place: Place) -> None:
    process = place.run(0, "trap 'echo stopped; exit 3' TERM; echo ready; while :; do sleep 0.05; done")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert (process.communicate(timeout=120)[0], process.returncode) == ("stopped\n", 3)


def in_front_of_bwrap(place: Place, script: str) -> Mapping[str, str]:
    """Return the variables with which a script runs in the place of bubblewrap."""
    directory = Path(tempfile.mkdtemp(dir=place.elsewhere))
    directory.chmod(0o755)
    (directory / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
    (directory / "bwrap").chmod(0o755)
    return {"PATH": f"{directory}:{os.environ['PATH']}"}


def test_a_node_that_is_there_without_a_lease_keeps_the_command_from_starting(place: Place) -> None:
    """A copy of the real ``/dev`` in the place of the one that was asked for."""
    script = f"""
    for word; do shift; [ "$word" != -- ] || set -- "$@" --dev-bind {place.dev} {place.dev}; set -- "$@" "$word"; done
    exec {program("bwrap")} "$@"
    """
    code, out, err = place.tried(0, "echo started", **in_front_of_bwrap(place, script))
    assert (code, out) == (125, "")
    assert f"the device node {place.dev}/other was not leased, and is there all the same" in err


@pytest.mark.parametrize(
    ("uid", "advice"), [(0, "bwrap has made no /dev\n"), (4001, "; a user other than root needs user namespaces")]
)
def test_a_kernel_that_forbids_it_keeps_the_command_from_starting(place: Place, uid: int, advice: str) -> None:
    variables = in_front_of_bwrap(place, "echo 'bwrap: No permissions to create a new namespace' >&2; exit 1")
    code, out, err = place.tried(uid, "echo started", **variables)
    assert (code, out) == (125, "")
    assert "bwrap: No permissions" in err
    assert advice in err


def test_a_bubblewrap_that_hangs_is_not_waited_for(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confine, "SECONDS", 0.2)
    monkeypatch.setenv("PATH", in_front_of_bwrap(place, "exec sleep 600")["PATH"])
    with pytest.raises(confine.ConfineError, match=r"bwrap has made no /dev within 0\.2 s"):
        confine.confine("bwrap", [])

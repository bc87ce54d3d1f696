"""Has Debian's Slurm give jobs the devices of three nodes on this machine, while parts of it are killed.

    python -m tests.tools.slurm_nodes [DIR]

It needs root and the packages slurmctld, slurmd, slurm-client and munge; it starts daemons of its own, and none as a
service. Each node has a plugind and a fake device plugin with four devices. Each task locks the devices that it was
told of, so a device that two have at once is noticed. At the end nothing may be leased, and no node may be drained.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import attrs

REPOSITORY: Final = Path(__file__).resolve().parents[2]
PARTS: Final = REPOSITORY / "deploy" / "slurm"
GPU: Final = "example.com/gpu"
NODES: Final = ("n1", "n2", "n3")
PLUGIND: Final = (sys.executable, "-P", "-m", "plugind")
#: Seconds in which anything that is waited for must happen.
PATIENCE: Final = 180.0
#: What a task runs: it locks its devices, says what it saw, and sleeps.
_TASK: Final = """\
import fcntl, os, sys, time
place, seconds = sys.argv[1], float(sys.argv[2])
node, job = os.environ["SLURMD_NODENAME"], os.environ["SLURM_JOB_ID"]
given = os.environ.get("PLUGIND_DEVICES", "=").partition("=")[2]
ids = given.split(",") if given else []
locks = []
for name in ids:
    locks.append(open(f"{place}/locks/{node}.{name}", "w"))
    try:
        fcntl.flock(locks[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        with open(f"{place}/doubled", "a") as doubled:
            doubled.write(f"job {job} on {node}: {name}\\n")
with open(f"{place}/locks/{job}.{node}", "w") as seen:
    seen.write(",".join(ids))
os.rename(seen.name, f"{place}/seen/{job}.{node}")
time.sleep(seconds)
"""
#: What Slurm calls in the place of a part, so that each node has its own plugind.
_CALL: Final = """\
#!/bin/sh
PATH={directory}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH SLURM_CONF={directory}/slurm.conf
export PLUGIND_STATUS={directory}/$SLURMD_NODENAME/status.sock PLUGIND_SLURM_MAP={directory}/slurm-gres
export PLUGIND_SLURM_STATE={directory}/variables PLUGIND_SLURM_APART=5 PLUGIND_SLURM_PATIENCE=3
{before}
{parts}/{part} || exit
{after}
"""
_SLURM_CONF: Final = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=16817
SlurmUser=root
StateSaveLocation={directory}/ctld
SlurmctldPidFile={directory}/ctld.pid
SlurmctldLogFile={directory}/ctld.log
SlurmdSpoolDir={directory}/%n/spool
SlurmdPidFile={directory}/%n/slurmd.pid
SlurmdLogFile={directory}/%n/slurmd.log
SlurmdParameters=config_overrides
SlurmdTimeout=10
CommunicationParameters=NoInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=nohold_on_prolog_fail,batch_sched_delay=1,sched_interval=2
PrologFlags=Alloc
ReturnToService=1
MailProg=/bin/true
MpiDefault=none
KillWait=2
GresTypes=gpu
Prolog={directory}/prolog
Epilog={directory}/epilog
TaskProlog={directory}/task-prolog
NodeName=n[1-3] NodeHostname={host} NodeAddr=127.0.0.1 Port=[17001-17003] CPUs=8 Gres=gpu:4
PartitionName=all Nodes=n[1-3] Default=YES State=UP
"""


class CampaignError(Exception):
    """Something was not as it must be."""


def until(what: str, condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until the condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise CampaignError(f"after {seconds:g} s still not: {what}")
        time.sleep(0.3)


@attrs.define
class Cluster:
    """Three nodes of Slurm on this machine."""

    directory: Path
    stack: ExitStack
    plugins: dict[str, subprocess.Popen[bytes]] = attrs.field(factory=dict)
    daemons: dict[str, subprocess.Popen[bytes]] = attrs.field(factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of Slurm's commands."""
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("SLURM", "PLUGIND"))}
        return {**kept, "SLURM_CONF": str(self.directory / "slurm.conf")}

    def slurm(self, *words: str) -> str:
        """Run a command of Slurm."""
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise CampaignError(f"{' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    def start(self) -> None:
        """Start everything."""
        for name in ("locks", "seen", "ctld", "bin", "variables"):
            (self.directory / name).mkdir()
        (self.directory / "task.py").write_text(_TASK)
        (self.directory / "bin" / "plugind").write_text(f'#!/bin/sh\nexec {" ".join(PLUGIND)} "$@"\n')
        (self.directory / "bin" / "plugind").chmod(0o755)
        ids = ",".join(f"GPU-{number}" for number in range(4))
        (self.directory / "slurm-gres").write_text(f"gpu {GPU} count=4 ids={ids}\n")
        slow, fail = (f"[ ! -e {self.directory}/{name}.$SLURMD_NODENAME ] ||" for name in ("slow", "fail"))
        self._call("prolog", after=f"{slow} sleep 4\n{fail} exit 1")
        for part in ("epilog", "task-prolog", "health", "plugind-slurm-reconcile"):
            self._call(part)
        text = _SLURM_CONF.format(directory=self.directory, host=socket.gethostname().partition(".")[0])
        (self.directory / "slurm.conf").write_text(text)
        files = []
        for node in NODES:
            (self.directory / node / "spool").mkdir(parents=True)
            for number in range(4):
                os.mknod(self.device(node, number), 0o666 | 0o020000, os.makedev(1, 3))
            files.append(f"NodeName={node} Name=gpu File={self.directory}/{node}/gpu[0-3]")
        (self.directory / "gres.conf").write_text("".join(f"{line}\n" for line in files))
        self._munge()
        for node in NODES:
            self.plugin(node)
            self.daemon(node)
        self.slurm("slurmctld", "-c")
        for node in NODES:
            self.slurmd(node)
        self.stack.callback(self.stop)
        for node in NODES:
            self.plugind(node, "wait", "--resource", f"{GPU}=4", "--timeout", "60")
        until("all nodes are idle", lambda: set(self.states().values()) == {"idle"})

    def device(self, node: str, number: int) -> Path:
        """Return the device node of a device."""
        return self.directory / node / f"gpu{number}"

    def _call(self, part: str, *, before: str = "", after: str = "") -> None:
        path = self.directory / part
        path.write_text(_CALL.format(directory=self.directory, parts=PARTS, part=part, before=before, after=after))
        path.chmod(0o755)

    def _munge(self) -> None:
        if subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode == 0:
            return
        for path in ("/run/munge", "/var/lib/munge", "/var/log/munge"):
            os.makedirs(path, exist_ok=True)
            shutil.chown(path, "munge", "munge")
        command = ["/usr/sbin/munged", "--foreground"]
        with (self.directory / "munged.log").open("wb") as log:
            munged = subprocess.Popen(command, stderr=log, user="munge", group="munge", extra_groups=())
        self.stack.callback(_ended, munged)
        until("munge answers", lambda: not subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode)

    def slurmd(self, node: str) -> None:
        """Start the daemon of Slurm on a node."""
        self.slurm("slurmd", "-N", node)

    def daemon(self, node: str) -> None:
        """Start plugind on a node."""
        place = self.directory / node
        options = [
            "--root",
            str(place / "root"),
            "--status",
            str(place / "status.sock"),
            "--state",
            str(place / "state"),
        ]
        environment = {**os.environ, "PLUGIND_MARKERS": str(place / "markers")}
        with (place / "plugind.log").open("ab") as log:
            self.daemons[node] = subprocess.Popen([*PLUGIND, "run", *options], stderr=log, env=environment)
        self.stack.callback(_ended, self.daemons[node])

    def plugin(self, node: str) -> None:
        """Start the device plugin of a node."""
        place = self.directory / node
        (place / "root").mkdir()
        devices = [word for number in range(4) for word in ("--device", f"GPU-{number}={self.device(node, number)}")]
        command = [*PLUGIND, "fake", "--type", "DevicePlugin", "--name", GPU, "--same-paths", *devices]
        command += ["--socket", str(place / "root" / "gpu.sock"), "--control", str(place / "control")]
        with (place / "fake.log").open("ab") as log:
            self.plugins[node] = subprocess.Popen(command, stdout=log, stderr=log)
        self.stack.callback(_ended, self.plugins[node])

    def command(self, node: str, line: str) -> None:
        """Give the device plugin of a node a command; it is an error if nobody reads it."""
        pipe = os.open(self.directory / node / "control", os.O_WRONLY | os.O_NONBLOCK)
        with open(pipe, "w", encoding="ascii") as control:
            control.write(f"{line}\n")

    def plugind(self, node: str, *words: str) -> str:
        """Run a command of plugind against the daemon of a node."""
        command = [*PLUGIND, *words, "--status", str(self.directory / node / "status.sock")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise CampaignError(f"plugind {' '.join(words)} on {node}: {done.stdout}{done.stderr}")
        return done.stdout

    def leases(self, node: str) -> list[str]:
        """Return the ids of the leases of a node."""
        return [lease["id"] for lease in json.loads(self.plugind(node, "leases", "-o", "json"))["leases"]]

    def part(self, node: str, name: str) -> None:
        """Run a part that a timer or a script of the site would run."""
        environment = {**self.environment, "SLURMD_NODENAME": node}
        subprocess.run([str(self.directory / name)], env=environment, timeout=60, check=False)

    def states(self) -> dict[str, str]:
        """Return the state of each node."""
        lines = self.slurm("sinfo", "-hN", "-o", "%N %T").splitlines()
        return dict(line.split() for line in lines)

    def reason(self, node: str) -> str:
        """Return why a node is drained."""
        return self.slurm("sinfo", "-hn", node, "-o", "%E").strip()

    def submit(self, gpus: int, seconds: float, *options: str) -> str:
        """Submit a job; return its id."""
        task = f"exec {sys.executable} -S {self.directory}/task.py {self.directory} {seconds}"
        words = (
            "sbatch",
            "--parsable",
            "-o",
            "/dev/null",
            f"--gres=gpu:{gpus}",
            *options,
            "--wrap",
            f"srun sh -c '{task}'",
        )
        return self.slurm(*words).strip()

    def queued(self) -> dict[str, str]:
        """Return the state of each job that has not ended."""
        return dict(line.split() for line in self.slurm("squeue", "-hr", "-o", "%A %T").splitlines())

    def seen(self, job: str) -> dict[str, list[str]]:
        """Return the devices that a job saw on each node."""
        return {path.suffix[1:]: path.read_text().split(",") for path in (self.directory / "seen").glob(f"{job}.*")}

    def stop(self) -> None:
        """End every process that has the configuration of this cluster."""
        wanted = f"SLURM_CONF={self.directory}/slurm.conf".encode()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if wanted in (process / "environ").read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)
            except OSError:
                continue  # It has ended meanwhile.


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


# --- what is tried ----------------------------------------------------------------------------------------------------


def jobs(it: Cluster) -> None:
    """Jobs of one to four devices on one to three nodes, and an array."""
    before = len(list((it.directory / "seen").iterdir()))
    sizes = [(1 + at % 4, 1 + at % 3) for at in range(24)]
    asked = {it.submit(gpus, 0.5, f"-N{nodes}"): (gpus, nodes) for gpus, nodes in sizes}
    it.submit(1, 0.5, "-N1", "--array=1-8")
    until("all jobs have ended", lambda: not it.queued())
    for job, (gpus, nodes) in asked.items():
        if [len(ids) for ids in it.seen(job).values()] != [gpus] * nodes:
            raise CampaignError(f"job {job} was to have {gpus} devices on {nodes} nodes, and saw {it.seen(job)}")
    expected = before + 8 + sum(nodes for _, nodes in asked.values())
    if (found := len(list((it.directory / "seen").iterdir()))) != expected:
        raise CampaignError(f"{expected} tasks were to have begun by now, and {found} have")


def requeued(it: Cluster) -> None:
    """A job that is requeued has its devices again.

    Slurm lets two minutes pass before: until then slurmd would not run the prolog again.
    """
    job = it.submit(4, 6, "-N1", "--requeue")
    until("the job has begun", lambda: bool(it.seen(job)))
    for path in (it.directory / "seen").glob(f"{job}.*"):
        path.unlink()
    it.slurm("scontrol", "requeue", job)
    until("the job has begun again", lambda: [len(ids) for ids in it.seen(job).values()] == [4])
    until("the job has ended", lambda: not it.queued())


def cancelled_amid_the_prolog(it: Cluster) -> None:
    """A job that is cancelled before its prolog has ended leaves no lease."""
    (it.directory / "slow.n1").touch()
    job = it.submit(2, 1, "-wn1")
    until("its prolog has leased devices", lambda: bool(it.leases("n1")))
    it.slurm("scancel", job)
    (it.directory / "slow.n1").unlink()
    until("the job has ended", lambda: not it.queued())


def failed_prolog(it: Cluster) -> None:
    """A prolog that fails after devices were leased leaves no lease, and the job runs later."""
    (it.directory / "fail.n2").touch()
    it.submit(2, 1, "-wn2")
    until("n2 is drained", lambda: it.states()["n2"].startswith("drain"))
    (it.directory / "fail.n2").unlink()
    until("n2 has no lease", lambda: not it.leases("n2"))
    it.slurm("scontrol", "update", "nodename=n2", "state=resume")
    until("the job has ended", lambda: not it.queued())


def plugind_killed(it: Cluster) -> None:
    """A job ends while plugind is away; its leases end once plugind is back."""
    job = it.submit(3, 2, "-wn1")
    until("the job has begun", lambda: bool(it.seen(job)))
    _ended(it.daemons["n1"])
    until("n1 is drained by plugind", lambda: it.reason("n1").startswith("plugind: leases:"))
    it.daemon("n1")
    it.plugind("n1", "wait", "--resource", f"{GPU}=4", "--timeout", "60")
    if not it.leases("n1"):
        raise CampaignError("the lease has not outlived plugind")
    _reconcile_until_idle(it, "n1")


def node_lost(it: Cluster) -> None:
    """slurmd and its steps are killed for longer than SlurmdTimeout: no epilog runs, and reconciling ends the lease."""
    job = it.submit(4, 30, "-wn3", "--no-requeue")
    until("the job has begun", lambda: bool(it.seen(job)))
    _kill_of_slurm(it, "n3")
    until("n3 is down", lambda: it.states()["n3"].startswith("down"))
    until("the job has left", lambda: not it.queued())
    it.slurmd("n3")
    it.part("n3", "plugind-slurm-reconcile")
    if not it.leases("n3"):
        raise CampaignError("the lease has ended with the first look, while the task of the job lives")
    _reconcile_until_idle(it, "n3")


def _kill_of_slurm(it: Cluster, node: str) -> None:
    """Kill slurmd of a node and its stepds, and leave the processes of the user."""
    pid = int((it.directory / node / "slurmd.pid").read_text())
    os.kill(pid, signal.SIGKILL)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
            environment = (process / "environ").read_bytes()
        except OSError:
            continue
        if words.startswith(b"slurmstepd") and f"{it.directory}/slurm.conf".encode() in environment:
            os.kill(int(process.name), signal.SIGKILL)


def _reconcile_until_idle(it: Cluster, node: str) -> None:
    def is_free() -> bool:
        it.part(node, "plugind-slurm-reconcile")
        return not it.leases(node) and it.states()[node] == "idle"

    until(f"{node} has no lease and is idle", is_free)


def unhealthy(it: Cluster) -> None:
    """A node is drained while a device is unhealthy, and resumed afterwards."""
    it.command("n2", "unhealthy GPU-3")
    until("n2 has three healthy devices", lambda: "3 healthy" in it.plugind("n2", "devices"))
    it.part("n2", "health")
    if not it.reason("n2").startswith(f"plugind: devices: {GPU} has 3 of 4"):
        raise CampaignError(f"n2 is drained for another reason: {it.reason('n2')}")
    it.command("n2", "healthy GPU-3")
    it.plugind("n2", "wait", "--resource", f"{GPU}=4", "--timeout", "60")
    it.part("n2", "health")
    until("n2 is idle", lambda: it.states()["n2"] == "idle")


TRIED: Final = (jobs, requeued, cancelled_amid_the_prolog, failed_prolog, plugind_killed, node_lost, unhealthy, jobs)

_BY_NAME: Final = {tried.__name__: tried for tried in TRIED}


@contextmanager
def cluster(directory: Path) -> Iterator[Cluster]:
    """Start the nodes; end all of it at exit."""
    with ExitStack() as stack:
        it = Cluster(directory, stack)
        it.start()
        yield it


def _is_free(it: Cluster, node: str) -> bool:
    return not it.leases(node) and it.states()[node] == "idle"


def judge(it: Cluster) -> None:
    """Check what must hold when no job runs."""
    doubled = it.directory / "doubled"
    if doubled.exists():
        raise CampaignError(f"devices were leased to two jobs: {doubled.read_text()}")
    for node in NODES:
        until(f"{node} has no leases and is idle", partial(_is_free, it, node), 30)
    left = [path.name for path in (it.directory / "variables").glob("n?.*")]
    if left:
        raise CampaignError(f"files of variables are left: {left}")


def main(words: Sequence[str] | None = None) -> int:
    """Try everything once; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", nargs="?", type=Path, help="a new directory, which is kept")
    parser.add_argument("--only", choices=sorted(_BY_NAME), help="try only this")
    args = parser.parse_args(words)
    # So that all that was started is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    missing = [name for name in ("slurmctld", "slurmd", "sbatch", "munge") if shutil.which(name) is None]
    if missing or os.getuid():
        print("this needs root, and the packages slurmctld, slurmd, slurm-client and munge", file=sys.stderr)
        return 2
    directory = args.directory or Path(tempfile.mkdtemp(prefix="plugind-slurm-"))
    directory.mkdir(exist_ok=True)
    with cluster(directory.resolve()) as it:
        for tried in TRIED if args.only is None else [_BY_NAME[args.only]]:
            begun = time.monotonic()
            tried(it)
            judge(it)
            print(f"ok   {tried.__name__:<28} {time.monotonic() - begun:6.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CampaignError as error:
        sys.exit(f"{error}")

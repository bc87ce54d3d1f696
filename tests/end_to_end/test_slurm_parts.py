"""The parts of ``deploy/slurm`` against a daemon with a device plugin; stand-ins answer for Slurm."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest
import trio

from plugind.tests.end_to_end.leasing import allocate, capacity, leases, listed, release
from plugind.tests.end_to_end.processes import DEADLINE, PLUGIND, Daemon, Done, daemon, daemon_process, finish

GPU, STATIC = "example.com/gpu", "lab/static"
PARTS = Path(__file__).parents[2] / "deploy" / "slurm"
SCRIPTS = ("prolog", "task-prolog", "epilog", "health", "plugind-slurm-reconcile", "common.sh")
#: The name of the node. Tests that run at the same time must not find each other's processes.
HERE = f"n{os.getpid()}"
JOB = {
    "SLURM_JOB_ID": "77",
    "SLURM_JOB_UID": str(os.getuid()),
    "SLURM_JOB_USER": "alice",
    "SLURMD_NODENAME": HERE,
    "SLURM_CLUSTER_NAME": "test",
    "SLURM_SCRIPT_CONTEXT": "prolog_slurmd",
}
LEASE = f"slurm:test:{HERE}:77:0:{os.getuid()}:gpu"
#: Stands for scontrol: answers from files, and notes what it is to change.
SCONTROL = """#!/bin/sh
case "$*" in
  "-d show job 77") cat "$SLURM/job" ;;
  "-d show job "*) cat "$SLURM/job.${4}" ;;
  "show hostnames n[1-2]") cat "$SLURM/hostnames" ;;
  "show hostnames"*) echo "$3" ;;
  "show config") cat "$SLURM/config" ;;
  "-o show node"*) cat "$SLURM/node" ;;
  update*) echo "$*" >>"$SLURM/updates" ;;
  *) exit 9 ;;
esac
"""
SQUEUE = """#!/bin/sh
case "$*" in
  "--noheader --nodelist=$SLURMD_NODENAME --format=%A") cat "$SLURM/jobs" ;;
  *) exit 9 ;;
esac
"""
#: What ``scontrol -d show job`` shows, as far as it matters.
SHOWN = """JobId=77 {of}JobName={name}
   UserId=alice(1000) GroupId=alice(1000) MCS_label=N/A
   NodeList=n[1-2]
   JOB_GRES=(null)
     Nodes={nodes} CPU_IDs=0 Mem=0 GRES={gres}
     Nodes=n9 CPU_IDs=0 Mem=0 GRES=gpu(CNT:1)
   MinCPUsNode=1 MinMemoryNode=0 MinTmpDiskNode=0
   Comment={comment}
"""
#: What a user may write into a comment, and into a name.
FORGED = f"x\n     Nodes={HERE} CPU_IDs=0 Mem=0 GRES=gpu(CNT:4)"
FORGED_NAME = FORGED.replace("x", "x\n   JOB_GRES=gpu:4") + "\n   MinCPUsNode=1"
NODE = "NodeName=n Arch=x86_64 State={} ThreadsPerCore=1 Comment=(null){}"


#: What the plugin answers, with all that a shell would replace.
WORDS = 'a "b" $(c) `d` \\e'


@attrs.frozen
class Node:
    """A daemon, and the pipe on which its plugin reads commands."""

    daemon: Daemon
    control: Path


@attrs.frozen
class Slurm:
    """A node of Slurm: a daemon, and what the stand-ins answer."""

    daemon: Daemon
    control: Path
    directory: Path

    def __attrs_post_init__(self) -> None:
        (programs := self.directory / "bin").mkdir()
        plugind = f'#!/bin/sh\nexec {sys.executable} -P -m plugind "$@"\n'
        for name, text in (("scontrol", SCONTROL), ("squeue", SQUEUE), ("logger", "#!/bin/sh\n"), ("plugind", plugind)):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        self.says(map=f"gpu {GPU} count=4 ids=GPU-0,GPU-1,GPU-2,GPU-3 types=1\n", jobs="77\n", updates="")
        self.says(config="x\nClusterName             = test\ny\n", node=NODE.format("IDLE", ""))

    def says(self, **files: str) -> None:
        """Have the stand-ins answer with these texts."""
        for name, text in files.items():
            (self.directory / name).write_text(text)

    def shows(self, gres: str, *, name: str = "x", comment: str = "") -> None:
        """Have Slurm show these GRES of the job."""
        self.says(job=SHOWN.format(of="", name=name, nodes="n[1-2]", gres=gres, comment=comment))

    @property
    def variables(self) -> Path:
        """The file with the variables of the job."""
        return self.directory / "state" / f"{HERE}.77"

    @property
    def updates(self) -> list[str]:
        """What Slurm was told to change."""
        return (self.directory / "updates").read_text().splitlines()

    async def part(self, name: str, **more: str) -> Done:
        """Run a part as Slurm does for the job."""
        environment = {
            **{name: text for name, text in os.environ.items() if not name.startswith("SLURM")},
            **JOB,
            "PATH": f"{self.directory / 'bin'}:{os.environ['PATH']}",
            "SLURM": str(self.directory),
            "PLUGIND_STATUS": self.daemon.status,
            "PLUGIND_SLURM_MAP": str(self.directory / "map"),
            "PLUGIND_SLURM_STATE": str(self.directory / "state"),
            "PLUGIND_SLURM_PATIENCE": "1",
            "PLUGIND_SLURM_SECONDS": "30",
            **more,
        }
        with trio.fail_after(DEADLINE):
            done = await trio.run_process(
                ["sh", str(PARTS / name)], env=environment, check=False, capture_stdout=True, capture_stderr=True
            )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    async def healthy(self, number: int) -> None:
        """Wait until so many devices are healthy."""
        with trio.fail_after(DEADLINE):
            while (await capacity(self.daemon))[GPU] != number:  # noqa: ASYNC110 - it is in another process
                await trio.sleep(0.02)

    async def held(self) -> dict[str, list[str]]:
        """Return the devices of each lease."""
        return {name: list(lease["devices"][GPU]) for name, lease in (await leases(self.daemon)).items()}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A daemon with a plugin, for all tests: to start both takes longer than most of them."""
    directory = tmp_path_factory.mktemp("slurm")
    with daemon(directory, "--state", str(directory / "kept"), f"--devices={STATIC}=/dev/null,/dev/zero") as started:
        trio.run(started.ready)
        devices = [f"--device=GPU-{number}=/dev/null" for number in range(4)]
        command = [*PLUGIND, "fake", "--type=DevicePlugin", f"--name={GPU}", f"--socket={started.root}/gpu.sock"]
        command += [*devices, "--same-paths", f"--env=WORDS={WORDS}", f"--control={directory}/control"]
        with daemon_process(command, subprocess.DEVNULL, stdout=subprocess.DEVNULL):
            trio.run(listed, started, GPU)
            yield Node(started, directory / "control")


@pytest.fixture
async def slurm(node: Node, tmp_path: Path) -> AsyncIterator[Slurm]:
    """A node of Slurm without leases."""
    yield Slurm(node.daemon, node.control, tmp_path)
    for lease in await leases(node.daemon):
        await release(node.daemon, lease)


@contextmanager
def process_of_the_job() -> Iterator[int]:
    # Where there is a task prolog, Slurm leaves this in the environment of tasks.
    environment = {**os.environ, **JOB, "SLURM_SCRIPT_CONTEXT": "prolog_task"}
    with subprocess.Popen(["sleep", "600"], env=environment) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def test_the_parts_are_scripts_that_a_shell_and_shellcheck_accept() -> None:
    checks = [["sh", "-n", name] for name in SCRIPTS]
    if shutil.which("shellcheck") is not None:
        checks = [["shellcheck", "-x", "-P", "SCRIPTDIR", *SCRIPTS]]
    for command in checks:
        done = finish(command, cwd=PARTS)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


async def test_a_job_has_the_devices_that_slurm_chose_from_the_prolog_to_the_epilog(slurm: Slurm) -> None:
    assert await slurm.part("prolog", SLURM_JOB_GPUS="1,3") == Done(0, "", "")
    assert await slurm.held() == {LEASE: ["GPU-1", "GPU-3"]}
    labels = (await leases(slurm.daemon))[LEASE]["request"]["labels"]
    assert labels == {"job": "77", "user": "alice"}
    assert slurm.variables.stat().st_mode & 0o777 == 0o600
    *exported, nodes = (await slurm.part("task-prolog")).out.splitlines()
    assert exported == [
        f"export WORDS={WORDS}",
        f"export PLUGIND_LEASE={LEASE}",
        f"export PLUGIND_DEVICES={GPU}=GPU-1,GPU-3",
    ]
    assert nodes.startswith("export PLUGIND_NODES=/dev/")
    assert await slurm.part("epilog") == Done(0, "", "")
    assert (await slurm.held(), list(slurm.variables.parent.iterdir()), slurm.updates) == ({}, [], [])
    assert await slurm.part("epilog") == Done(0, "", "")


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
async def test_curl_asks_unless_words_or_the_socket_are_for_plugind(slurm: Slurm) -> None:
    """A name of a user that JSON would escape becomes a label as it is, and a socket may not be another user's."""
    told = slurm.directory / "told"
    plugind = slurm.directory / "bin" / "plugind"
    plugind.write_text(plugind.read_text().replace("exec", f"echo $1 >>{told}\nexec"))
    assert await slurm.part("prolog", SLURM_JOB_GPUS="0") == Done(0, "", "")
    assert await slurm.part("epilog") == Done(0, "", "")
    assert not told.exists()
    odd = 'CORP\\al"ice", "pool": "x'
    assert await slurm.part("prolog", SLURM_JOB_GPUS="0", SLURM_JOB_USER=odd) == Done(0, "", "")
    assert (await leases(slurm.daemon))[LEASE]["request"]["labels"] == {"job": "77", "user": odd}
    assert told.read_text() == "allocate\n"
    assert (await slurm.part("epilog")).code == 0
    # A daemon of an earlier version answers in JSON, which is nothing for the file of the job.
    (curl := slurm.directory / "bin" / "curl").write_text("#!/bin/sh\nprintf '{}\\n\\n201 application/json'\n")
    curl.chmod(0o755)
    assert await slurm.part("prolog", SLURM_JOB_GPUS="0") == Done(0, "", "")
    assert slurm.variables.read_text().startswith('WORDS="')
    assert told.read_text() == "allocate\nallocate\n"
    curl.unlink()
    (other := slurm.directory / "other").mkdir()
    (other / "status.sock").symlink_to(slurm.daemon.status)
    if os.getuid() == 0:
        os.chown(other, 12345, -1)
        assert await slurm.part("epilog", PLUGIND_STATUS=str(other / "status.sock")) == Done(0, "", "")
        assert told.read_text() == "allocate\nallocate\nleases\nrelease\n"


async def test_the_reason_of_a_refusal_is_said(slurm: Slurm) -> None:
    slurm.says(map=f"gpu {GPU} ids=GPU-0,nowhere types=1\n")
    failed = await slurm.part("prolog", SLURM_JOB_GPUS="0-1")
    why = f"plugind: requested number of devices unavailable for {GPU}."
    # Without curl, the command says first that it waits.
    *_, said, last = failed.err.splitlines()
    assert (failed.code, said[: len(why)], last) == (1, why, f"plugind: job 77: {GPU} gives no 2 devices")


@pytest.mark.parametrize("slurm_chooses", [True, False])
async def test_a_job_has_devices_that_no_plugin_offers(slurm: Slurm, *, slurm_chooses: bool) -> None:
    ids = " ids=null,zero types=1" if slurm_chooses else ""
    slurm.says(map=f"gpu {STATIC} count=2{ids}\n", hostnames=f"{HERE}\n")
    slurm.shows("gpu(CNT:1)")
    # Slurm has the variable only where it knows the nodes.
    chosen = {"SLURM_JOB_GPUS": "1"} if slurm_chooses else {}
    assert await slurm.part("prolog", **chosen) == Done(0, "", "")
    device = "zero" if slurm_chooses else "null"
    assert (await slurm.part("task-prolog")).out.splitlines()[1:] == [
        f"export PLUGIND_DEVICES={STATIC}={device}",
        f"export PLUGIND_NODES=/dev/{device}",
    ]
    assert (await slurm.part("health")).code == 0
    assert slurm.updates == []
    assert await slurm.part("epilog") == Done(0, "", "")
    assert await leases(slurm.daemon) == {}


async def test_the_number_of_devices_comes_from_slurm_for_this_node_alone(slurm: Slurm) -> None:
    slurm.says(map=f"# none\n\ngpu\t{GPU}\n", hostnames=f"{HERE}\nn2\n")
    slurm.shows("nic:1(IDX:0),gpu:a100(CNT:3)")
    assert await slurm.part("prolog") == Done(0, "", "")
    assert {name: len(ids) for name, ids in (await slurm.held()).items()} == {LEASE: 3}
    assert (await slurm.part("epilog")).code == 0
    slurm.says(hostnames="n2\nn3\n")
    assert await slurm.part("prolog") == Done(0, "", "")
    assert (await slurm.held(), slurm.variables.exists()) == ({}, False)


async def test_of_gpus_of_several_types_a_job_has_those_that_slurm_shows(slurm: Slurm) -> None:
    slurm.says(map=f"gpu {GPU} ids=GPU-0,GPU-1,GPU-2,GPU-3\n", hostnames=f"{HERE}\n")
    slurm.shows("gpu:a:0(IDX:),gpu:b:1(IDX:1),gpu:c:1(IDX:3)")
    # In the environment Slurm has those of one type.
    assert await slurm.part("prolog", SLURM_JOB_GPUS="3") == Done(0, "", "")
    assert await slurm.held() == {LEASE: ["GPU-1", "GPU-3"]}
    assert (await slurm.part("epilog")).code == 0
    # A job without GPUs is no question.
    (slurm.directory / "job").unlink()
    assert await slurm.part("prolog") == Done(0, "", "")
    assert await slurm.held() == {}


async def test_a_task_with_gpus_that_begins_without_a_prolog_is_refused(slurm: Slurm) -> None:
    none = "plugind: no lease has the GPUs of job 77 here, since its prolog has not ended\n"
    assert await slurm.part("task-prolog", SLURM_JOB_GPUS="1") == Done(1, "", none)
    assert await slurm.part("task-prolog", SLURM_STEP_GPUS="1") == Done(1, "", none)
    # The prolog has begun.
    slurm.variables.parent.mkdir()
    slurm.variables.touch()
    assert await slurm.part("task-prolog", SLURM_JOB_GPUS="1") == Done(1, "", none)
    # A job without GPUs, and GPUs that are no resource of plugind.
    assert await slurm.part("task-prolog") == Done(0, "", "")
    slurm.says(map=f"nic {GPU}\n")
    assert await slurm.part("task-prolog", SLURM_JOB_GPUS="1") == Done(0, "", "")


async def test_the_first_job_of_an_array_or_of_several_components_gets_its_own_devices(slurm: Slurm) -> None:
    slurm.says(map=f"gpu {GPU}\n", hostnames=f"{HERE}\n")
    for of, one in (("ArrayJobId=77 ArrayTaskId=9 ", "77_9"), ("HetJobId=77 HetJobOffset=0 ", "77+0")):
        mine, other = (SHOWN.format(of=of, name="x", nodes="n[1-2]", gres=f"gpu(CNT:{n})", comment="") for n in (2, 1))
        # By the id alone Slurm shows all of them.
        slurm.says(**{"job": f"{mine}\n\n{other}", f"job.{one}": mine})
        assert await slurm.part("prolog") == Done(0, "", "")
        assert {name: len(ids) for name, ids in (await slurm.held()).items()} == {LEASE: 2}
        assert (await slurm.part("epilog")).code == 0


async def test_the_name_and_the_comment_of_a_job_give_it_no_devices(slurm: Slurm) -> None:
    slurm.says(map=f"gpu {GPU}\n", hostnames=f"{HERE}\n")
    slurm.shows("", name=FORGED, comment=FORGED)
    assert await slurm.part("prolog") == Done(0, "", "")
    slurm.shows("gpu:2(IDX:0-1)", name=FORGED_NAME)
    ambiguous = "plugind: job 77: what Slurm shows of it is ambiguous, so it gets no devices\n"
    assert await slurm.part("prolog") == Done(0, "", ambiguous)
    assert await slurm.held() == {}
    slurm.says(map=f"gpu {GPU} ids=GPU-3,GPU-2\nnic {GPU}\n")
    slurm.shows("gpu:a:1(IDX:0),gpu:b:1(IDX:1)", name=FORGED, comment=FORGED)
    assert await slurm.part("prolog") == Done(0, "", "")
    assert await slurm.held() == {LEASE: ["GPU-3", "GPU-2"]}


async def test_a_prolog_that_fails_leaves_no_lease(slurm: Slurm) -> None:
    slurm.says(map=f"gpu {GPU} ids=GPU-0\nmore {GPU}\n", hostnames=f"{HERE}\n")
    slurm.shows("gpu:1(IDX:0),more(CNT:4)")
    failed = await slurm.part("prolog", SLURM_JOB_GPUS="0")
    assert (failed.code, failed.err.splitlines()[-1]) == (1, f"plugind: job 77: {GPU} gives no 4 devices")
    assert (await slurm.held(), slurm.variables.exists()) == ({}, False)
    slurm.shows("gpu:1(IDX:1),more(CNT:4)")
    failed = await slurm.part("prolog", SLURM_JOB_GPUS="1")
    why = f"{GPU}: Slurm chose the devices 1, and {slurm.directory / 'map'} has only the ids GPU-0"
    assert (failed.code, failed.err) == (1, f"plugind: job 77: {why}\n")
    # Without an answer of Slurm, nobody knows what the job has.
    (slurm.directory / "job").unlink()
    assert (await slurm.part("prolog", SLURM_JOB_GPUS="0")).code == 1


async def test_a_job_that_is_requeued_gets_devices_again_unless_its_processes_live(slurm: Slurm) -> None:
    assert (await slurm.part("prolog", SLURM_JOB_GPUS="0")).code == 0
    again = {"SLURM_JOB_GPUS": "0-1", "SLURM_JOB_RESTART_COUNT": "1"}
    with process_of_the_job() as pid:
        refused = await slurm.part("prolog", **again)
        words = f"plugind: job 77: processes of an earlier run live and have devices: {pid} \n"
        # As often as Slurm tries.
        assert await slurm.part("prolog", **again) == refused
        assert (refused.code, refused.err, await slurm.held()) == (1, words, {LEASE: ["GPU-0"]})
    assert (await slurm.part("prolog", **again)).code == 0
    assert await slurm.held() == {LEASE.replace(":0:", ":1:"): ["GPU-0", "GPU-1"]}


async def test_the_epilog_keeps_the_devices_of_processes_that_live_and_reconciling_frees_them(slurm: Slurm) -> None:
    assert (await slurm.part("prolog", SLURM_JOB_GPUS="0")).code == 0
    slurm.says(jobs="")
    with process_of_the_job() as pid:
        assert (await slurm.part("epilog")).code == 0
        reason = f"plugind: leases: job 77 has ended, and its processes live: {pid} "
        drained = f"update nodename={HERE} state=drain reason={reason}"
        assert (await slurm.held(), slurm.updates) == ({LEASE: ["GPU-0"]}, [drained])
        slurm.says(node=NODE.format("IDLE+DRAIN", f" Reason={reason} [root@2026-01-01T00:00:00]"), updates="")
        assert (await slurm.part("plugind-slurm-reconcile", PLUGIND_SLURM_APART="0")).code == 0
        assert (await slurm.held(), slurm.updates) == ({LEASE: ["GPU-0"]}, [])
    assert (await slurm.part("plugind-slurm-reconcile", PLUGIND_SLURM_APART="0")).code == 0
    assert (await slurm.held(), slurm.updates) == ({}, [f"update nodename={HERE} state=resume"])


async def test_an_epilog_without_plugind_drains_the_node_and_keeps_what_it_needs_to_try_again(slurm: Slurm) -> None:
    assert (await slurm.part("prolog", SLURM_JOB_GPUS="0")).code == 0
    away = {"PLUGIND_STATUS": str(slurm.directory / "nowhere"), "PLUGIND_SLURM_SECONDS": "2"}
    assert (await slurm.part("epilog", **away)).code == 0
    reason = "plugind: leases: job 77 has ended, and plugind does not release what it has"
    drained = f"update nodename={HERE} state=drain reason={reason}"
    assert (await slurm.held(), slurm.updates, slurm.variables.exists()) == ({LEASE: ["GPU-0"]}, [drained], True)
    assert (await slurm.part("epilog")).code == 0
    assert (await slurm.held(), slurm.variables.exists()) == ({}, False)


async def test_a_lease_without_a_job_ends_with_the_second_look_and_not_while_slurm_is_silent(slurm: Slurm) -> None:
    assert (await slurm.part("prolog", SLURM_JOB_GPUS="2")).code == 0
    reconcile = "plugind-slurm-reconcile"
    note = slurm.directory / "state" / f"absent.{HERE}" / LEASE
    assert ((await slurm.part(reconcile)).code, note.exists()) == (0, False)
    slurm.says(jobs="78\n")
    assert ((await slurm.part(reconcile)).code, note.exists()) == (0, True)
    # A second look that is too early, and two that see nothing.
    assert ((await slurm.part(reconcile)).code, await slurm.held()) == (0, {LEASE: ["GPU-2"]})
    note.write_text("0\n")
    (slurm.directory / "jobs").unlink()
    assert ((await slurm.part(reconcile)).code, await slurm.held()) == (1, {LEASE: ["GPU-2"]})
    slurm.says(jobs="", config="")
    assert ((await slurm.part(reconcile)).code, await slurm.held()) == (1, {LEASE: ["GPU-2"]})
    slurm.says(config="ClusterName = test\n")
    assert ((await slurm.part(reconcile)).code, await slurm.held()) == (0, {})
    assert (note.exists(), slurm.variables.exists(), slurm.updates) == (False, False, [])


async def test_reconciling_names_what_is_no_lease_of_a_job_and_goes_on(slurm: Slurm) -> None:
    """Also what has the form of a lease of a job, and another owner."""
    rests = ("1/x:0:0:gpu", "1:0:0:*", "1:0:0", "x:0:0:gpu", "1:0:0:gpu held nobody root")
    odd = [f"slurm:test:{HERE}:{rest}" for rest in rests]
    for lease in odd[:3]:
        assert (await allocate(slurm.daemon, GPU, id=lease))[0] == 201
    assert (await slurm.part("prolog", SLURM_JOB_GPUS="3")).code == 0
    slurm.says(jobs="")
    done = await slurm.part("plugind-slurm-reconcile", PLUGIND_SLURM_APART="0")
    assert (done.code, sorted(await slurm.held())) == (0, sorted(odd[:3]))
    for lease in odd[:3]:
        assert f"left alone, since it is no lease of a job: {lease} " in done.err
        await release(slurm.daemon, lease)
    for lease in odd[3:]:
        assert (await allocate(slurm.daemon, GPU, id=lease))[0] == 201
    assert (await allocate(slurm.daemon, GPU, id=LEASE, owner={"kind": "time", "seconds": 600}))[0] == 201
    done = await slurm.part("plugind-slurm-reconcile", PLUGIND_SLURM_APART="0")
    assert (done.code, sorted(await slurm.held()), LEASE in done.err) == (0, sorted([*odd[3:], LEASE]), True)


async def test_the_node_is_drained_while_something_is_drained_that_its_jobs_use(slurm: Slurm) -> None:
    command = [*PLUGIND, "drain", "--status", slurm.daemon.status]
    finish([*command, "v.com/other"], check=True)
    assert ((await slurm.part("health")).code, slurm.updates) == (0, [])
    finish([*command, f"{GPU}:GPU-2", "--reason", "broken fan; since Monday"], check=True)
    assert (await slurm.part("health")).code == 0
    (drained,) = slurm.updates
    reason = f"plugind: devices: drained: {GPU}:GPU-2: broken fan; since Monday (by "
    assert drained.startswith(f"update nodename={HERE} state=drain reason={reason}")
    slurm.says(node=NODE.format("IDLE+DRAIN", f" Reason={reason}x) [root@2026-01-01T00:00:00]"), updates="")
    finish([*PLUGIND, "undrain", "--status", slurm.daemon.status, f"{GPU}:GPU-2"], check=True)
    assert ((await slurm.part("health")).code, slurm.updates) == (0, [f"update nodename={HERE} state=resume"])


async def test_the_node_is_drained_while_a_device_is_unhealthy_and_only_for_that(slurm: Slurm) -> None:
    assert ((await slurm.part("health")).code, slurm.updates) == (0, [])
    await trio.Path(slurm.control).write_text("".join(f"unhealthy GPU-{number}\n" for number in (1, 2, 3)))
    await slurm.healthy(1)
    assert (await slurm.part("health")).code == 0
    (drained,) = slurm.updates
    assert drained.startswith(f"update nodename={HERE} state=drain reason=plugind: devices: {GPU} has 1 of 4 healthy")
    reason = drained.partition("reason=")[2]
    other = NODE.format("IDLE+DRAIN", " Reason=a fan is broken [root@2026-01-01T00:00:00]")
    ours = NODE.format("IDLE+DRAIN", f" Reason={reason} [root@2026-01-01T00:00:00]")
    for shown in (other, ours):
        slurm.says(node=shown, updates="")
        assert ((await slurm.part("health")).code, slurm.updates) == (0, [])
    await trio.Path(slurm.control).write_text("healthy all\n")
    await slurm.healthy(4)
    slurm.says(node=other)
    assert ((await slurm.part("health")).code, slurm.updates) == (0, [])
    slurm.says(node=ours)
    assert ((await slurm.part("health")).code, slurm.updates) == (0, [f"update nodename={HERE} state=resume"])

"""What is tried with Debian's Slurm: three nodes on one machine, jobs with devices, and parts that are killed.

Each task of a job locks the devices that it was told of, as long as a process of it lives, and writes what it saw. So a
device that two jobs have at once is noticed. After each case no node may be drained, and nothing leased.

``tests/tools/slurm_nodes.py`` tries everything, and the suite a part of it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import attrs

from plugind.benchmarks.peers.slurm.cluster import Cluster, ClusterError, running_cluster, until
from plugind.benchmarks.peers.slurm.files import IDS, NODES, RESOURCE, TYPES, Way
from plugind.client import ClientError

#: Takes a line about what was done.
Say = Callable[[str], None]
#: Seconds between two looks of reconciling, and after which a job that was requeued may begin again.
APART: Final = 2
EXPIRE: Final = 8
_RECONCILE: Final = "plugind-slurm-reconcile"


class CampaignError(Exception):
    """Something was not as it must be."""


@attrs.frozen
class Tried:
    """A case that went as it must."""

    way: str
    case: str
    seconds: float


@attrs.frozen
class Judged:
    """What the tasks of all jobs saw in the end."""

    way: str
    #: Whether Slurm confined the jobs to their devices.
    confined: bool
    jobs: int
    tasks: int
    #: How many devices the tasks had in all, one after the other.
    devices: int


def check(holds: bool, what: str) -> None:
    """Raise a CampaignError unless it holds."""
    if not holds:
        raise CampaignError(what)


# --- jobs that go well ------------------------------------------------------------------------------------------------


def jobs(cluster: Cluster) -> None:
    """Jobs of none to four devices on one to three nodes, and an array, all at once."""
    _submit_and_judge(
        cluster, [(devices, nodes) for nodes in (1, 2, 3) for devices in (4, 1, 2, 3, 1, 2)] + [(0, 2)], 8
    )


def few_jobs(cluster: Cluster) -> None:
    """Some of these jobs."""
    _submit_and_judge(cluster, [(1, 3), (4, 1)], 2)


def _submit_and_judge(cluster: Cluster, sizes: Sequence[tuple[int, int]], tasks: int) -> None:
    """Run jobs with so many devices on so many nodes, and an array of tasks with one device each."""
    before = {record.job for record in cluster.records()}
    asked = {cluster.submit(devices, 0.5, f"-N{nodes}"): (devices, nodes) for devices, nodes in sizes}
    cluster.submit(1, 0.5, "-N1", f"--array=1-{tasks}")
    until("all jobs have ended", lambda: not cluster.queued())
    for job, (devices, nodes) in asked.items():
        seen = cluster.records(job)
        found = [len(record.ids) for record in seen if record.end]
        check(found == [devices] * nodes, f"job {job} was to have {devices} devices on {nodes} nodes, and saw {seen}")
    of_array = [record for record in cluster.records() if record.job not in before | set(asked)]
    found = [len(record.ids) for record in of_array if record.end]
    check(found == [1] * tasks, f"{tasks} tasks of an array were to have a device each, and saw {of_array}")


def two_types(cluster: Cluster) -> None:
    """A job has a device of each type, where the GRES has types."""
    if cluster.way is Way.COUNT:
        return
    job = cluster.submit(0, 0, "-N1", "--gres=" + ",".join(f"{cluster.way.gres}:{name}:1" for name in TYPES))
    until("the job has ended", lambda: not cluster.queued())
    (record,) = cluster.records(job)
    found = [sum(name in ids for name in record.ids) for ids in TYPES.values()]
    check(found == [1, 1], f"the job saw {record}")


def components(cluster: Cluster) -> None:
    """A job of two components, which Slurm shows together, has the devices of each."""
    gres = [f"--gres={cluster.way.gres}:{number}" for number in (1, 2)]
    job = cluster.submit(0, 0, "-wn1", gres[0], ":", "-wn2", gres[1])
    until("the job has ended", lambda: not cluster.queued())
    # The script runs on the node of the first one only.
    check([len(record.ids) for record in cluster.records(job)] == [1], f"the job saw {cluster.records(job)}")


def two_at_once(cluster: Cluster) -> None:
    """Two jobs have the devices of one node between them."""
    first, second = (cluster.submit(2, 300, "-wn1") for _ in range(2))
    until("both jobs have begun", lambda: bool(cluster.records(first)) and bool(cluster.records(second)))
    had = [name for job in (first, second) for record in cluster.records(job) for name in record.ids]
    check(sorted(had) == list(IDS), f"two jobs had {had}")
    cluster.slurm("scancel", first, second)
    until("both jobs have ended", lambda: not cluster.queued())


def suspended(cluster: Cluster) -> None:
    """A job that is suspended keeps its devices."""
    job = cluster.submit(2, 300, "-wn1")
    until("the job has begun", lambda: bool(cluster.records(job)))
    cluster.slurm("scontrol", "suspend", job)
    held = cluster.leases("n1")
    for _ in range(2):
        check(cluster.part("n1", _RECONCILE) == 0, "reconciling has failed")
        time.sleep(APART)
    notes = list((cluster.directory / "variables" / "absent.n1").iterdir())
    check(
        (cluster.leases("n1"), notes) == (held, []), f"n1 has the leases {cluster.leases('n1')}, and the notes {notes}"
    )
    cluster.slurm("scontrol", "resume", job)
    cluster.slurm("scancel", job)
    until("the job has ended", lambda: not cluster.queued())


def requeued(cluster: Cluster) -> None:
    """A job that is requeued has devices again, in a lease of its new run."""
    job = cluster.submit(4, 300, "-wn1", "--requeue")
    until("the job has begun", lambda: bool(cluster.records(job)))
    cluster.slurm("scontrol", "requeue", job)
    until("the job has begun again", lambda: len(cluster.records(job)) == 2)
    first, second = cluster.records(job)
    check((first.run, second.run) == (0, 1), f"these are not the first and the second run: {first} {second}")
    check(first.lease != second.lease, f"both runs had the lease {first.lease}")
    check(list(cluster.leases("n1")) == [second.lease], f"n1 has the leases {cluster.leases('n1')}")
    cluster.slurm("scancel", job)
    until("the job has ended", lambda: not cluster.queued())


# --- prologs ----------------------------------------------------------------------------------------------------------


def cancelled_amid_the_prolog(cluster: Cluster) -> None:
    """A job that is cancelled before its prolog has ended leaves no lease."""
    (slow := cluster.directory / "slow.n1").touch()
    job = cluster.submit(2, 300, "-wn1")
    until("its prolog has leased devices", lambda: bool(cluster.leases("n1")))
    cluster.slurm("scancel", job)
    slow.unlink()
    until("the job has ended", lambda: not cluster.queued())
    check(not cluster.records(job), "the job has begun")


def failed_prolog(cluster: Cluster) -> None:
    """A prolog that fails after devices were leased leaves no lease, and the job begins once the node is resumed."""
    (fail := cluster.directory / "fail.n2").touch()
    job = cluster.submit(2, 0, "-wn2")
    until("n2 is drained", lambda: cluster.states()["n2"].startswith("drain"))
    until("n2 has no lease", lambda: not cluster.leases("n2"))
    fail.unlink()
    _is_not_resumed(cluster, "n2")
    cluster.slurm("scontrol", "update", "nodename=n2", "state=resume")
    until("the job has ended", lambda: not cluster.queued())
    check([len(record.ids) for record in cluster.records(job)] == [2], f"the job saw {cluster.records(job)}")


def _is_not_resumed(cluster: Cluster, node: str) -> None:
    """Have the parts look at a node that was drained for another reason."""
    before = cluster.reason(node)
    for part in ("health", _RECONCILE):
        check(cluster.part(node, part) == 0, f"{part} has failed")
    after = cluster.reason(node), cluster.states()[node].startswith("drain")
    check(after == (before, True), f"{node} was drained with the reason {before}, and now {after}")


# --- plugind is away --------------------------------------------------------------------------------------------------


def plugind_restarted(cluster: Cluster) -> None:
    """plugind is killed and started again while a job runs: the lease stays, and ends with the job."""
    job = cluster.submit(3, 300, "-wn1")
    until("the job has begun", lambda: bool(cluster.records(job)))
    before = cluster.leases("n1")
    cluster.kill_plugind("n1")
    cluster.start_plugind("n1")
    cluster.has_devices("n1")
    check(cluster.leases("n1") == before != {}, f"before n1 had the leases {before}, and now {cluster.leases('n1')}")
    cluster.slurm("scancel", job)
    until("the job has ended", lambda: not cluster.queued())


def plugind_away(cluster: Cluster) -> None:
    """A job ends, and one is to begin, while plugind is away: both drain the node, and one of the two is resumed."""
    job = cluster.submit(3, 300, "-wn1")
    until("the job has begun", lambda: bool(cluster.records(job)))
    cluster.kill_plugind("n1")
    cluster.slurm("scancel", job)
    until("n1 is drained by plugind", lambda: cluster.reason("n1").startswith(f"plugind: leases: job {job} has ended"))
    cluster.start_plugind("n1")
    cluster.has_devices("n1")
    check(len(cluster.leases("n1")) == 1, f"the lease of job {job} has not outlived plugind: {cluster.leases('n1')}")
    _reconcile_until_idle(cluster, "n1")
    cluster.kill_plugind("n1")
    job = cluster.submit(1, 0, "-wn1")
    until("n1 is drained by Slurm", lambda: cluster.reason("n1") == "Prolog error")
    cluster.start_plugind("n1")
    cluster.has_devices("n1")
    _is_not_resumed(cluster, "n1")
    cluster.slurm("scontrol", "update", "nodename=n1", "state=resume")
    until("the job has ended", lambda: not cluster.queued())
    check([len(record.ids) for record in cluster.records(job)] == [1], f"the job saw {cluster.records(job)}")


def _reconcile_until_idle(cluster: Cluster, node: str) -> None:
    def is_free() -> bool:
        cluster.part(node, _RECONCILE)
        return _is_free(cluster, node)

    until(f"{node} has no lease and is idle", is_free)


# --- nodes and processes ----------------------------------------------------------------------------------------------


def nodes_lost(cluster: Cluster) -> None:
    """slurmd and its steps are killed on two nodes for longer than SlurmdTimeout, so that no epilog runs.

    On n2 the task is killed as well: the second look ends the lease. On n3 it lives: the lease stays, and the node is
    drained with its pid.
    """
    of = {node: cluster.submit(4, 300, f"-w{node}", "--no-requeue") for node in ("n2", "n3")}
    for node, job in of.items():
        until(f"the job on {node} has begun", partial(_has_begun, cluster, job))
        cluster.kill_slurmd(node)
    cluster.kill_processes("n2", of["n2"])
    until("both nodes are down", lambda: all(cluster.states()[node].startswith("down") for node in of))
    until("both jobs have left", lambda: not cluster.queued())
    held = {node: cluster.leases(node) for node in of}
    for node in of:
        check(cluster.part(node, _RECONCILE) == 0, "reconciling has failed")
        check(cluster.leases(node) == held[node] != {}, f"the first look has ended leases of {node}: {held[node]}")
    living = cluster.processes("n3", of["n3"])
    reason = cluster.reason("n3")
    named = {int(word) for word in reason.rpartition(":")[2].split()}
    check(reason.startswith(f"plugind: leases: job {of['n3']} has ended, and its processes live:"), reason)
    check(named == set(living) != set(), f"n3 is drained with the pids {named}, and {living} live")
    time.sleep(APART)
    for node in of:
        check(cluster.part(node, _RECONCILE) == 0, "reconciling has failed")
    check(not cluster.leases("n2"), f"the second look has not ended the leases of n2: {cluster.leases('n2')}")
    check(cluster.leases("n3") == held["n3"], "the second look has ended leases of processes that live")
    for node in of:
        cluster.start_slurmd(node)
    cluster.kill_processes("n3", of["n3"])
    _reconcile_until_idle(cluster, "n3")


def _has_begun(cluster: Cluster, job: str) -> bool:
    return bool(cluster.records(job))


def left_behind(cluster: Cluster) -> None:
    """A process leaves the session of its job. Where Slurm finds it all the same, it ends with the job.

    Elsewhere it lives on, and the devices stay leased, until it has ended.
    """
    job = cluster.submit(2, 0, "-wn2", first="setsid sleep 300 </dev/null >/dev/null 2>&1 &")
    until("the job has ended", lambda: not cluster.queued())
    check(len(cluster.records(job)) == 1, f"the job saw {cluster.records(job)}")
    if cluster.confined:
        check(not cluster.processes("n2", job), "a process has outlived its job")
        return
    until("n2 is drained", lambda: cluster.states()["n2"].startswith("drain"))
    (living,) = cluster.processes("n2", job)
    expected = f"plugind: leases: job {job} has ended, and its processes live: {living}"
    check(cluster.reason("n2") == expected, f"the reason is not '{expected}': {cluster.reason('n2')}")
    time.sleep(APART)
    for _ in range(2):
        check(cluster.part("n2", _RECONCILE) == 0, "reconciling has failed")
    check(len(cluster.leases("n2")) == 1, f"n2 has the leases {cluster.leases('n2')}")
    cluster.kill_processes("n2", job)
    _reconcile_until_idle(cluster, "n2")


def unhealthy(cluster: Cluster) -> None:
    """A node is drained while a device is unhealthy, and resumed afterwards; one drained by somebody stays so."""
    cluster.command("n2", f"unhealthy {IDS[3]}")
    until("n2 has three healthy devices", lambda: cluster.healthy("n2") == 3)
    cluster.part("n2", "health")
    check(cluster.reason("n2").startswith(f"plugind: devices: {RESOURCE} has 3 of 4"), cluster.reason("n2"))
    cluster.slurm("scontrol", "update", "nodename=n3", "state=drain", "reason=a fan is broken")
    cluster.command("n2", f"healthy {IDS[3]}")
    cluster.has_devices("n2")
    cluster.part("n2", "health")
    until("n2 is idle", lambda: cluster.states()["n2"] == "idle")
    _is_not_resumed(cluster, "n3")
    cluster.slurm("scontrol", "update", "nodename=n3", "state=resume")


# --- all of it --------------------------------------------------------------------------------------------------------

Case = Callable[[Cluster], None]
ALL: Final[Sequence[Case]] = (
    jobs,
    two_at_once,
    suspended,
    two_types,
    components,
    requeued,
    cancelled_amid_the_prolog,
    failed_prolog,
    plugind_restarted,
    plugind_away,
    nodes_lost,
    left_behind,
    unhealthy,
    jobs,
)
BY_NAME: Final = {case.__name__: case for case in (few_jobs, *ALL)}


def campaign(
    directory: Path, way: Way, cases: Sequence[Case], say: Say, *, confined: bool
) -> tuple[list[Tried], Judged]:
    """Try these cases with a cluster of their own in a new directory.

    Raises:
      CampaignError: if something was not as it must be; it has the last lines of the logs.
    """
    with running_cluster(directory, way, confined=confined, apart=APART, expire=EXPIRE) as cluster:
        return [_try(cluster, case, say) for case in cases], _judged(cluster)


def _try(cluster: Cluster, case: Case, say: Say) -> Tried:
    began = time.monotonic()
    try:
        case(cluster)
        judge(cluster)
    except (CampaignError, ClusterError, ClientError) as error:
        raise CampaignError(f"{cluster.last_lines()}\n{cluster.way.value} {case.__name__}: {error}") from error
    tried = Tried(cluster.way.value, case.__name__, round(time.monotonic() - began, 1))
    say(f"{tried.way:<6} {tried.case:<26} {tried.seconds:5.1f} s")
    return tried


def _is_free(cluster: Cluster, node: str) -> bool:
    return not cluster.leases(node) and cluster.states()[node] == "idle"


def judge(cluster: Cluster) -> None:
    """Check what must hold when no job runs.

    Raises:
      CampaignError: if it does not.
    """
    for node in NODES:
        until(f"{node} has no leases and is idle", partial(_is_free, cluster, node))
    left = sorted(path.name for path in (cluster.directory / "variables").glob("n?.*"))
    check(not left, f"files of variables are left: {left}")
    doubled = cluster.directory / "locks" / "doubled"
    check(not doubled.exists(), f"two jobs had a device at once: {doubled.exists() and doubled.read_text()}")
    for place, records in itertools.groupby(sorted(_uses(cluster)), lambda use: use[0]):
        for (_, _, end, job), (_, begin, _, other) in itertools.pairwise(records):
            check(end <= begin, f"jobs {job} and {other} had {place} at once")
    for record in cluster.records():
        given = record.ids if cluster.confined else IDS
        check(record.opened == given, f"job {record.job} could open {record.opened} on {record.node}, and not {given}")


def _uses(cluster: Cluster) -> list[tuple[str, float, float, str]]:
    """Return each device, and when a task that was not killed had it."""
    ended = [(record, record.end) for record in cluster.records() if record.end is not None]
    return [(f"{name} of {record.node}", record.begin, end, record.job) for record, end in ended for name in record.ids]


def _judged(cluster: Cluster) -> Judged:
    records = cluster.records()
    number = sum(len(record.ids) for record in records)
    return Judged(cluster.way.value, cluster.confined, len({record.job for record in records}), len(records), number)

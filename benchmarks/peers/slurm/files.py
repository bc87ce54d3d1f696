"""The files by which Slurm and its jobs on the three nodes are configured."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[3]
PARTS: Final = REPOSITORY / "deploy" / "slurm"
RESOURCE: Final = "example.com/gpu"
NODES: Final = ("n1", "n2", "n3")
#: The devices of each node, in the order in which Slurm counts them.
IDS: Final = ("GPU-0", "GPU-1", "GPU-2", "GPU-3")
#: The types that they have where Slurm chooses.
TYPES: Final = {"old": IDS[:2], "new": IDS[2:]}


class Way(enum.Enum):
    """Who chooses the devices of a job."""

    #: Slurm does: the GRES has a file for each device.
    IDS = "ids"
    #: plugind does: Slurm only counts.
    COUNT = "count"

    @property
    def gres(self) -> str:
        """The name of the GRES."""
        return "gpu" if self is Way.IDS else "vendorgpu"


#: What a task runs: it locks its devices, tries to open those of the whole node, and says what it saw. It sleeps in
#: steps, so that the shell sees a signal soon. The locks are those of the open files, which all its children have.
TASK: Final = """\
#!/bin/sh
place=$1 seconds=$2 node=$SLURMD_NODENAME job=$SLURM_JOB_ID
ids=$(printf '%s' "${PLUGIND_DEVICES:-}" | sed 's/^[^=]*=//' | tr ',' ' ')
fd=3
for id in $ids; do
  eval "exec $fd>>$place/locks/$node.$id"
  flock -n "$fd" || echo "job $job on $node: $id" >>"$place/locks/doubled"
  fd=$((fd + 1))
done
opened=''
for path in "$place/$node"/gpu[0-9]; do
  # No driver serves these nodes, so a task that may open one is told that there is no device.
  case $( (: <"$path") 2>&1) in *permitted*) ;; *) opened="$opened ${path##*gpu}" ;; esac
done
name=$job.${SLURM_RESTART_COUNT:-0}.$node.${SLURM_PROCID:-0}
printf '%s\\n' "$(date +%s.%N)" "$ids" "$opened" "${PLUGIND_LEASE:-}" >"$place/records/$name.new"
mv "$place/records/$name.new" "$place/records/$name"
[ "$seconds" = 0 ] || sleep "$seconds"
date +%s.%N >>"$place/records/$name"
"""
#: What Slurm calls in the place of a part, so that each node has its own plugind.
_CALL: Final = """\
#!/bin/sh
PATH={directory}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH SLURM_CONF={directory}/etc/slurm.conf
export PLUGIND_STATUS={directory}/$SLURMD_NODENAME/status.sock PLUGIND_SLURM_MAP={directory}/etc/slurm-gres
export PLUGIND_SLURM_SECONDS=40
export PLUGIND_SLURM_STATE={directory}/variables PLUGIND_SLURM_APART={apart} PLUGIND_SLURM_PATIENCE=3
exec {parts}/{part}
"""
#: What a site may have beside it: a prolog that takes long, or fails, while a file says so. Of the names in a directory
#: Slurm 22.05 runs the last one first.
_SITE: Final = """\
#!/bin/sh
slow={directory}/slow.$SLURMD_NODENAME fail={directory}/fail.$SLURMD_NODENAME
# It ends with the file, and in any case after a minute.
for _ in $(seq 300); do
  [ -e "$slow" ] || break
  sleep 0.2
done
[ ! -e "$fail" ]
"""
_SLURM_CONF: Final = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
AuthInfo=socket={directory}/munge/socket,cred_expire={expire}
StateSaveLocation={directory}/ctld
SlurmctldPidFile={directory}/ctld.pid
SlurmctldLogFile={directory}/ctld.log
SlurmdSpoolDir={directory}/%n/spool
SlurmdPidFile={directory}/%n/slurmd.pid
SlurmdLogFile={directory}/%n/slurmd.log
SlurmdParameters=config_overrides
SlurmdTimeout=10
CommunicationParameters=NoInAddrAny
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=nohold_on_prolog_fail,batch_sched_delay=0,bf_interval=2,sched_interval=2,sched_min_interval=0
PrologFlags=Alloc
ReturnToService=1
MessageTimeout=60
MailProg=/bin/true
MpiDefault=none
KillWait=2
MaxJobCount=2000
GresTypes={gres}
NodeName=n[1-3] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[17001-17003] CPUs=64 Gres={counts}
PartitionName=all Nodes=n[1-3] Default=YES State=UP
"""
_CONFINED: Final = """\
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
"""
_UNCONFINED: Final = """\
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
"""
_PARTS: Final = """\
Prolog={directory}/etc/prolog.d/*
Epilog={directory}/etc/epilog.d/*
TaskProlog={directory}/etc/task-prolog
"""
_CGROUP_CONF: Final = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint={directory}/cgroup
ConstrainDevices=yes
"""


def write_files(directory: Path, way: Way, *, confined: bool, apart: int, expire: int, parts: bool = True) -> None:
    """Write the configuration of Slurm, the map of the GRES, and what calls the parts.

    ``apart`` is the time between the two looks of reconciling, and ``expire`` that after which a job that was requeued
    may begin again, in seconds. With ``parts`` false Slurm calls none of the parts; see :func:`call_parts`.
    """
    for name in ("etc/prolog.d", "etc/epilog.d", "bin", "ctld"):
        (directory / name).mkdir(parents=True)
    _program(directory / "task", TASK)
    # The user of the jobs may not reach the checkout.
    (copies := directory / "parts").mkdir()
    copies.chmod(0o755)
    for file in PARTS.iterdir():
        _program(copies / file.name, file.read_text())
    for part, path in (
        ("prolog", "prolog.d/50-plugind"),
        ("epilog", "epilog.d/50-plugind"),
        ("task-prolog", "task-prolog"),
        ("health", "health"),
        ("plugind-slurm-reconcile", "plugind-slurm-reconcile"),
    ):
        _program(directory / "etc" / path, _CALL.format(directory=directory, apart=apart, parts=copies, part=part))
    _program(directory / "etc" / "prolog.d" / "40-site", _SITE.format(directory=directory))
    ids = f" ids={','.join(IDS)}" if way is Way.IDS else ""
    (directory / "etc" / "slurm-gres").write_text(f"{way.gres} {RESOURCE} count={len(IDS)}{ids}\n")
    (directory / "etc" / "gres.conf").write_text("".join(_gres_lines(directory, way)))
    text = _SLURM_CONF.format(directory=directory, gres=way.gres, counts=_counts(way), expire=expire)
    (directory / "etc" / "slurm.conf").write_text(text + (_CONFINED if confined else _UNCONFINED))
    call_parts(directory, called=parts)
    if confined:
        (directory / "etc" / "cgroup.conf").write_text(_CGROUP_CONF.format(directory=directory))


def call_parts(directory: Path, *, called: bool) -> None:
    """Have Slurm call the parts, or none of them, once it reads its configuration again."""
    (path := directory / "etc" / "slurm.conf").write_text(_without_parts(path.read_text()))
    if called:
        with path.open("a") as file:
            file.write(_PARTS.format(directory=directory))


def _without_parts(text: str) -> str:
    names = tuple(line.partition("=")[0] + "=" for line in _PARTS.splitlines())
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(names))


def _counts(way: Way) -> str:
    types = [f"{way.gres}:{name}:{len(ids)}" for name, ids in TYPES.items()]
    return ",".join(types) if way is Way.IDS else f"{way.gres}:{len(IDS)}"


def _gres_lines(directory: Path, way: Way) -> Iterator[str]:
    if way is Way.COUNT:
        yield f"NodeName=n[1-3] Name={way.gres} Count={len(IDS)}\n"
        return
    for node in NODES:
        for name, ids in TYPES.items():
            numbers = f"[{IDS.index(ids[0])}-{IDS.index(ids[-1])}]"
            yield f"NodeName={node} Name={way.gres} Type={name} File={directory}/{node}/gpu{numbers}\n"


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)

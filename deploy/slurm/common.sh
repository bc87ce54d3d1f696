# What plugind's parts for Slurm have in common. Each reads it with `.`; all but the task prolog run as root.
# shellcheck shell=sh disable=SC2034
PATH=${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}
export PATH
map=${PLUGIND_SLURM_MAP:-/etc/plugind/slurm-gres}
state=${PLUGIND_SLURM_STATE:-/run/plugind-slurm}

uptime_seconds() { cut -d . -f 1 /proc/uptime; }
# Slurm's manual wants a prolog to take less than MessageTimeout, which is 10 s; a prolog that fails needs 2 s to undo.
end=$(($(uptime_seconds) + ${PLUGIND_SLURM_SECONDS:-7}))

# within COMMAND...: run it for no longer than what is left of these seconds.
within() {
  left=$((end - $(uptime_seconds)))
  [ "$left" -gt 0 ] || return 124
  timeout -k 1 "$left" "$@"
}

# ask WORDS...: plugind, and again while no daemon answers, as in the seconds of its restart.
ask() {
  while :; do
    within plugind "$@"
    answered=$?
    # Before version 0.2 it was 3.
    case $answered in 3 | 69) ;; *) return "$answered" ;; esac
    sleep 1
  done
}

say() {
  echo "plugind: $*" >&2
  logger -t plugind-slurm -- "$*" 2>/dev/null || :
}

# The lines of the map, without comments: GRES RESOURCE [count=N] [ids=ID,ID... [types=1]] [pool=POOL].
map_lines() { sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$map"; }

# field NAME LINE: what the line of the map has as NAME=.
field() { printf '%s\n' "$2" | tr -s '[:space:]' '\n' | sed -n "s/^$1=//p"; }

# The id of a lease is slurm:CLUSTER:NODE:JOB:RESTART:UID:GRES: the run of a job after a requeue has leases of its own.
form='^slurm:[A-Za-z0-9_.-]+:[A-Za-z0-9_.-]+:[0-9]+:[0-9]+:[0-9]+:[A-Za-z0-9_.-]+$'

# leases PREFIX: print the ids of the leases that begin so; fail if plugind does not say.
# Only those count that the user of this part has taken, which is root, and whose ids have the form above. The ids of all
# others are any text: they are named, and left alone.
leases() {
  listed=$(ask leases --prefix "$1") || return
  of_jobs "$1" print | while IFS= read -r odd; do say "left alone, since it is no lease of a job: $odd"; done
  of_jobs "$1"
}

# of_jobs PREFIX [print]: print the ids in $listed that are of jobs, or with a second word the lines of all others.
of_jobs() {
  printf '%s\n' "$listed" | awk -v prefix="$1" -v others="${2:-}" -v user="$(id -un)" -v form="$form" '
    index($0, prefix) == 1 {
      if ($1 !~ form || $3 != "nobody" || $4 != user) { if (others) print }
      else if (!others) print $1
    }'
}

# processes_of JOB UID NODE: print the pids of what the job of that user has left on this node. Only processes of the
# same user count: the environment of a process is that user's to choose.
processes_of() {
  grep -lszFx -e "SLURM_JOB_ID=$1" /proc/[0-9]*/environ | while IFS=/ read -r _ _ pid _; do
    [ "$(awk '/^Uid:/ { print $2 }' "/proc/$pid/status" 2>/dev/null)" = "$2" ] || continue
    grep -qszFx -e "SLURMD_NODENAME=$3" "/proc/$pid/environ" || continue
    # What Slurm itself runs for a job of root, such as this part. Its tasks have the context of the task prolog.
    grep -qsz -e '^SLURM_SCRIPT_CONTEXT=\(prolog\|epilog\)_slurmd$' "/proc/$pid/environ" || echo "$pid"
  done
}

# reason_of NODE: print why a node is drained; nothing if it is not.
reason_of() {
  shown=$(within scontrol -o show node "$1") || return
  printf '%s\n' "$shown" | sed -n '/ State=[^ ]*DRAIN/ s/.* Reason=\(.*\) \[[^]]*\].*/\1/p'
}

# drain NODE KIND WORDS...: drain it for a reason of ours, unless it is drained for another one.
drain() {
  drained=$1 kind=$2
  shift 2
  say "$kind: $*"
  reason=$(reason_of "$drained") || return
  case $reason in
    "plugind: $kind: $*") ;;
    '' | "plugind: $kind: "*) within scontrol update nodename="$drained" state=drain reason="plugind: $kind: $*" ;;
  esac
}

# resume NODE KIND: resume a node that was drained for a reason of ours of this kind, and no other.
resume() {
  reason=$(reason_of "$1") || return
  case $reason in
    "plugind: $2: "*) within scontrol update nodename="$1" state=resume ;;
  esac
}

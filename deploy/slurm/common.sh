# What plugind's parts for Slurm have in common. Each reads it with `.`; all but the task prolog run as root.
# shellcheck shell=sh disable=SC2034
PATH=${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}
export PATH
map=${PLUGIND_SLURM_MAP:-/etc/plugind/slurm-gres}
state=${PLUGIND_SLURM_STATE:-/run/plugind-slurm}
status=${PLUGIND_STATUS:-/run/plugind/status.sock}

# What runs for each job starts few programs: each takes more than a millisecond.
uptime_seconds() { read -r up _ </proc/uptime && echo "${up%.*}"; }
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

# The code that plugind is to be asked, and not curl.
slow=9
newline='
'

# quick ID [WORDS]: whether curl can ask, which takes a tenth of the time that plugind takes; else fail with $slow. An id
# that a URL would escape and words that JSON would escape are for plugind. So is a socket that another user could
# replace: of a daemon of another user plugind takes no variables.
quick() {
  case $1 in *[!A-Za-z0-9_.:-]*) return "$slow" ;; esac
  case ${2:-} in *[!A-Za-z0-9_.:/@+=,-]*) return "$slow" ;; esac
  case $status in /*) ;; *) return "$slow" ;; esac
  [ -O "$status" ] && [ -O "${status%/*}" ] && command -v curl >/dev/null || return "$slow"
}

# http METHOD TARGET [BODY]: print what the daemon answers, and ask again while none answers. Fail with its reason, or
# with $slow if the daemon is of a version that answers in JSON alone.
http() {
  said='' text='plugind has no time left to answer'
  while left=$((end - $(uptime_seconds))) && [ "$left" -gt 0 ]; do
    answer=$(curl -q -sS --noproxy '*' --max-time "$left" --unix-socket "$status" -H 'Accept: text/plain' \
      -w '\n%{http_code} %{content_type}' -X "$1" ${3:+-d "$3"} "http://localhost$2" 2>&1)
    said=$?:${answer##*"$newline"} text=${answer%"$newline"*}
    case $said in
      '0:20'[01]' text/plain'*)
        printf '%s' "$text"
        return
        ;;
      '0:20'*) return "$slow" ;;
      # There is no daemon, it has ended during the request, or it stops.
      7:* | 52:* | 56:* | '0:503 '*) sleep 1 ;;
      *) break ;;
    esac
  done
  # A lease that is not there has ended.
  case $1:$said in 'DELETE:0:404 '*) return ;; esac
  say "$(printf '%s' "$text")"
  return 1
}

# release ID...: end these leases; one that is not there is no error.
release() {
  for ending; do
    quick "$ending" && http DELETE "/v1/leases/$ending" >&2
    asked=$?
    [ "$asked" -ne "$slow" ] || { ask release --if-exists "$ending"; asked=$?; }
    [ "$asked" -eq 0 ] || return
  done
}

say() {
  echo "plugind: $*" >&2
  logger -t plugind-slurm -- "$*" 2>/dev/null || :
}

# The lines of the map, without comments: GRES RESOURCE [count=N] [ids=ID,ID... [types=1]] [pool=POOL].
map_lines() {
  while read -r line || [ -n "$line" ]; do
    line=${line%%#*}
    [ -z "$line" ] || printf '%s\n' "$line"
  done <"$map"
}

# field NAME LINE: print what the line of the map has as NAME=. It is for $( ), since it leaves names of files alone.
field() {
  set -f
  # shellcheck disable=SC2086  # Each is a word.
  for word in $2; do case $word in "$1="*) printf '%s\n' "${word#*=}" ;; esac; done
}

# The id of a lease is slurm:CLUSTER:NODE:JOB:RESTART:UID:GRES: the run of a job after a requeue has leases of its own.
form='^slurm:[A-Za-z0-9_.-]+:[A-Za-z0-9_.-]+:[0-9]+:[0-9]+:[0-9]+:[A-Za-z0-9_.-]+$'

# leases PREFIX: print the ids of the leases that begin so; fail if plugind does not say.
# Only those count that the user of this part has taken, which is root, and whose ids have the form above. The ids of all
# others are any text: they are named, and left alone.
leases() {
  # The columns of both are the same, but curl gets the kind of the owner and the uid as JSON has them.
  listed=$(quick "$1" && http GET "/v1/leases?prefix=$1")
  case $? in
    0) mine="none $(id -u)" ;;
    "$slow") listed=$(ask leases --prefix "$1") && mine="nobody $(id -un)" || return ;;
    *) return 1 ;;
  esac
  printf '%s\n' "$listed" | awk -v prefix="$1" -v mine="$mine" -v form="$form" '
    index($0, prefix) == 1 {
      ours = $1 ~ form && $3 " " $4 == mine
      print (ours ? "job " $1 : "odd " $0)
    }' | while read -r kind of_list; do
    if [ "$kind" = job ]; then echo "$of_list"; else say "left alone, since it is no lease of a job: $of_list"; fi
  done
}

# processes_of JOB UID NODE: print the pids, with a space after each, of what the job of that user has left on this node.
# Only processes of the same user count: the environment of a process is that user's to choose.
processes_of() {
  grep -lszFx -e "SLURM_JOB_ID=$1" /proc/[0-9]*/environ | while IFS=/ read -r _ _ pid _; do
    [ "$(awk '/^Uid:/ { print $2 }' "/proc/$pid/status" 2>/dev/null)" = "$2" ] || continue
    grep -qszFx -e "SLURMD_NODENAME=$3" "/proc/$pid/environ" || continue
    # What Slurm itself runs for a job of root, such as this part. Its tasks have the context of the task prolog.
    grep -qsz -e '^SLURM_SCRIPT_CONTEXT=\(prolog\|epilog\)_slurmd$' "/proc/$pid/environ" || printf '%s ' "$pid"
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

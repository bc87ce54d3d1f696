#!/bin/sh
# Brings a package of plugind to hosts that run it as a service of systemd:
#
#     roll-out.sh plugind_1.2.3-1+deb12_amd64.deb HOST...
#     roll-out.sh plugind_1.2.3-1+deb12_amd64.deb $(cat hosts)
#
# It needs ssh to root on each host. The first host is the canary: it is alone, and is looked at once more after SOAK
# seconds (60). The others follow in batches of BATCH hosts (5). A host is done once plugind runs there with the new
# package, and each plugin that was registered before is registered again, within PATIENCE seconds (60). After a batch in
# which that fails it stops: the hosts after it have the old package. While the service restarts, plugins go on, and
# devices stay leased. A configuration that was edited on a host stays as it is; what the package has for it lies beside
# it, as plugind.toml.dpkg-dist.
#
# What is done is kept in the directory STATE (PACKAGE.roll-out, here): HOST.done, and HOST.before with the plugins that
# were registered. So mend what failed, and call this again with the same hosts: it goes on where it has stopped. Remove the file of a host whose
# plugins need not come back.
set -eu

[ $# -ge 2 ] || { echo "usage: roll-out.sh PACKAGE HOST..." >&2; exit 2; }
package=$1
shift
name=$(basename "$package")
patience=${PATIENCE:-60}
batch=${BATCH:-5}
soak=${SOAK:-60}
state=${STATE:-$name.roll-out}
mkdir -p "$state"

# shellcheck disable=SC2029 # the commands are whole
on_host() { ssh "root@$host" "$1" </dev/null; }
# The names of plugins are data: they are compared here, and are part of no command.
registered() { on_host "plugind ls --state registered -o name" >"$state/$host.listed"; }
fail() {
  echo "$host: $1" >&2
  exit 1
}

# Fails unless all plugins of before are registered, or are so soon.
await_plugins() {
  seconds=0
  while
    registered || :
    missing=$(sort -u "$state/$host.listed" | comm -23 "$state/$host.before" -)
    [ -n "$missing" ]
  do
    [ "$seconds" -lt "$patience" ] || fail "after $patience s these plugins are not registered again: $(echo "$missing" | tr '\n' ' ')"
    sleep 1
    seconds=$((seconds + 1))
  done
  rm "$state/$host.listed"
}

bring() {
  host=$1
  echo "$host: installing $name"
  # Where an earlier call has failed, what was registered before that counts.
  if [ ! -e "$state/$host.before" ]; then
    registered || fail "plugind does not answer there, so nothing is changed"
    sort -u "$state/$host.listed" >"$state/$host.new"
    mv "$state/$host.new" "$state/$host.before"
  fi
  scp -q "$package" "root@$host:/var/tmp/$name" </dev/null || fail "the package cannot be copied there"
  # Nobody is there to answer a question about a file that was edited: it stays.
  keep="-o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold"
  install="DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $keep /var/tmp/$name"
  on_host "$install && rm /var/tmp/$name" || fail "the package cannot be installed"
  # The installation has not restarted a daemon that could not start, and neither must this.
  on_host "plugind config check" || fail "the new version refuses the configuration, so the daemon was not restarted"
  # It returns once the daemon has scanned its roots, and fails if it does not start.
  on_host "systemctl restart plugind" || fail "the service does not start"
  await_plugins
  if [ "$2" -gt 0 ]; then
    sleep "$2"
    await_plugins
  fi
  touch "$state/$host.done"
  echo "$host: done"
}

# Brings it to these hosts at once, and ends if one of them fails.
bring_all() {
  pause=$1
  shift
  pids=
  for each in "$@"; do
    bring "$each" "$pause" &
    pids="$pids $!"
  done
  failed=0
  for pid in $pids; do
    wait "$pid" || failed=$((failed + 1))
  done
  [ "$failed" -eq 0 ] || { echo "$failed of these hosts have failed, so others are left as they are: $*" >&2; exit 1; }
}

canary=$soak
waiting=
number=0
for each in "$@"; do
  if [ -e "$state/$each.done" ]; then
    canary=
    continue
  fi
  if [ -n "$canary" ]; then
    bring_all "$canary" "$each"
    canary=
    continue
  fi
  waiting="$waiting $each"
  number=$((number + 1))
  if [ "$number" -eq "$batch" ]; then
    # shellcheck disable=SC2086 # each word is a host
    bring_all 0 $waiting
    waiting=
    number=0
  fi
done
# shellcheck disable=SC2086
[ -z "$waiting" ] || bring_all 0 $waiting

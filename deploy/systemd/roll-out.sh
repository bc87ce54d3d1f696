#!/bin/sh
# Brings a package of plugind to hosts that run it as a service of systemd, one after the other:
#
#     roll-out.sh plugind_1.2.3_all.deb HOST...
#     roll-out.sh plugind_1.2.3_all.deb $(cat hosts)
#
# It needs ssh to root on each host. A host is done once plugind runs there with the new package, and each plugin that was
# registered before is registered again. With the first host where that fails it stops: those before it have the new
# package, those after it the old one. Mend it, and call this again with the hosts that are left. While the service
# restarts, plugins go on, and devices stay leased.
set -eu

[ $# -ge 2 ] || { echo "usage: roll-out.sh PACKAGE HOST..." >&2; exit 2; }
package=$1
shift
name=$(basename "$package")
patience=${PATIENCE:-60}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

on_host() { ssh "root@$host" "$1" </dev/null; }
registered() { on_host "plugind ls --state registered -o name"; }

for host in "$@"; do
  echo "$host: installing $name"
  # The names of plugins are data: they are compared here, and are part of no command.
  registered >"$scratch/listed" || { echo "$host: plugind does not answer there, so nothing is changed" >&2; exit 1; }
  sort -u "$scratch/listed" >"$scratch/before"
  scp -q "$package" "root@$host:/var/tmp/$name" </dev/null
  on_host "DEBIAN_FRONTEND=noninteractive apt-get install -y -qq /var/tmp/$name && rm /var/tmp/$name"
  # It returns once the daemon has scanned its roots, and fails if it does not start.
  on_host "systemctl restart plugind"
  seconds=0
  while
    registered >"$scratch/listed" || :
    missing=$(sort -u "$scratch/listed" | comm -23 "$scratch/before" -)
    [ -n "$missing" ]
  do
    if [ "$seconds" -ge "$patience" ]; then
      echo "$host: after $patience s these plugins are not registered again, so other hosts are left as they are:" >&2
      echo "$missing" >&2
      exit 1
    fi
    sleep 1
    seconds=$((seconds + 1))
  done
  echo "$host: done"
done

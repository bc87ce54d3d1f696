"""The files of the systemd service: the unit, and drop-ins that only some nodes need.

The unit permits what a daemon for the plugins of root needs. Each drop-in permits what one more feature needs, with the
reason. ``docs/operations.md`` has a table of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from .status_socket import UNIT

#: The directory of the drop-ins beside the unit.
DROP_INS: Final = f"{UNIT}.d"
#: Directories that the unit hides from the daemon: no program in them can be run, and no root can be there.
HIDDEN: Final = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")

_BASE: Final = """\
[Unit]
Description=Registrar of the plugins of this node
Documentation=man:plugind(1) man:plugind.toml(5)
# A root busy for a moment, or a crash, is no reason to give up for ever.
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
# Options are better kept in a file than here, so that this unit can be replaced by a newer one. The empty
# value is for systemd 257, which warns of a variable that is not set.
Environment=PLUGIND_OPTIONS=
EnvironmentFile=-/etc/default/plugind
ExecStart={command} run $PLUGIND_OPTIONS
# It returns once the new configuration is in force, and fails if that cannot be used.
ExecReload={command} reload
# Exit codes 2 and 78 say that options or configuration are wrong: another start would end in the same way.
Restart=always
RestartSec=2
RestartPreventExitStatus=2 78
# The daemon ends within 21 s of a signal, by force if need be, and says then what has not ended.
TimeoutStopSec=30
# When jobs use up the memory, the kernel is to kill one of them, rather than what knows which devices they have.
OOMScoreAdjust=-900
# It is fed only while the loop of the daemon turns and no core actor hangs.
WatchdogSec=30
StateDirectory=plugind
StateDirectoryMode=0700
RuntimeDirectory=plugind
# The status socket has a mode of its own. Others must be able to reach it where the daemon lets them.
RuntimeDirectoryMode=0711
# Who watches the directory for the status socket must not lose it at a restart.
RuntimeDirectoryPreserve=yes
# The daemon limits its lines itself, and leaves out none that says who got devices: neither must the journal.
LogRateLimitIntervalSec=0

# The daemon stays root: registrars make their sockets for root alone. But it is root without any capability.
CapabilityBoundingSet=
NoNewPrivileges=yes
# It may write to its own directories, and to the root that it has by default, for the lock.
ProtectSystem=strict
ReadWritePaths=-/var/lib/kubelet/plugins_registry
# These two hide what is in /home, /root, /run/user, /tmp and /var/tmp: no root may be there.
ProtectHome=yes
PrivateTmp=yes
PrivateMounts=yes
PrivateDevices=yes
DevicePolicy=closed
# Plugins are reached by the paths of their sockets, which are the same in every network namespace.
PrivateNetwork=yes
RestrictAddressFamilies=AF_UNIX
IPAddressDeny=any
# PrivateUsers= must never be set: all peers but root would have the uid 65534, and none could be told from another.
# ProtectProc= and ProcSubset= stay as they are: they would hide the processes of plugins, and with them their ends.
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
# In a machine of systemd-nspawn, systemd 252 shows a service with ProtectControlGroups= or ProtectKernelTunables= the
# boot id of the host, and leases need that of the machine. A bind of the file alone fails there.
BindReadOnlyPaths=-/proc/sys/kernel/random
KeyringMode=private
LockPersonality=yes
MemoryDenyWriteExecute=yes
RemoveIPC=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""

_DEVICE_PLUGINS: Final = """\
# For device plugins that register by a call (--device-plugins).
[Service]
# The daemon makes kubelet.sock there, and deletes the sockets of plugins at its start, so that they call again.
ExecStartPre=+/usr/bin/mkdir -p -m 0755 /var/lib/kubelet/device-plugins
ReadWritePaths=-/var/lib/kubelet/device-plugins
"""

_DEVICES: Final = """\
# For devices without a plugin (--devices, and devices in the configuration).
[Service]
# The daemon sees the nodes in /dev and sets their ACLs, and opens none: for that it needs no capability.
PrivateDevices=no
"""

_LEASES: Final = """\
# For leases of devices over the status socket (--lease-uids, --lease-group, --cdi-dir).
[Service]
# The daemon writes the files there by which container engines know the devices of a lease.
ExecStartPre=+/usr/bin/mkdir -p -m 0755 /run/cdi
ReadWritePaths=-/run/cdi
# CAP_KILL: a process whose lease ends before it does is asked to end (SIGTERM), whoever's it is.
# CAP_CHOWN, and the system calls for it: --lease-group gives the status socket to a group.
CapabilityBoundingSet=CAP_KILL CAP_CHOWN
SystemCallFilter=@chown
"""

_OTHER_USERS: Final = """\
# For plugins of other users than root (--trust-uid), and for a --status-group.
[Service]
# CAP_DAC_OVERRIDE: to connect to a socket takes write access, which the socket of another user mostly gives to nobody.
# CAP_CHOWN, and the system calls for it: --status-group gives the status socket to a group.
CapabilityBoundingSet=CAP_DAC_OVERRIDE CAP_CHOWN
SystemCallFilter=@chown
"""

_METRICS: Final = """\
# For metrics over TCP (--metrics): without this the daemon may open no port, and does not start with that option.
[Service]
PrivateNetwork=no
RestrictAddressFamilies=AF_INET AF_INET6
# Only this machine may connect. Allow the addresses of a scraper elsewhere in a drop-in of your own.
IPAddressAllow=localhost
"""

#: The drop-ins by the names of their options.
_TEXTS: Final = {
    "device-plugins": _DEVICE_PLUGINS,
    "devices": _DEVICES,
    "leases": _LEASES,
    "metrics": _METRICS,
    "other-users": _OTHER_USERS,
}


def unit(command: str) -> str:
    """Return the text of the unit that runs ``command``, which is quoted for systemd."""
    return _BASE.format(command=command)


def drop_ins() -> tuple[str, ...]:
    """Return the names of the drop-ins."""
    return tuple(_TEXTS)


def files(command: str, named: Iterable[str]) -> dict[str, str]:
    """Return the texts of the unit and the ``named`` drop-ins by their paths below a directory for units."""
    return {UNIT: unit(command), **{f"{DROP_INS}/{name}.conf": _TEXTS[name] for name in named}}


def quoted(word: str) -> str:
    """Quote ``word`` for a line of ``ExecStart=`` in systemd."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return escaped if escaped and not any(char.isspace() or char in "\"'\\;" for char in escaped) else f'"{escaped}"'

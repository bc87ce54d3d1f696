"""Which process a client means by a pid.

A pid is a number in one pid namespace. A client in another one that says ``--owner 1`` means its own init, and the
daemon would watch that of the host.
"""

from __future__ import annotations


def why_not_owner(own_pid: int, peer_pid: int) -> str | None:
    """Return why a client may not name an owner by its pid; None if it may.

    ``own_pid`` is the pid of the client as the client knows it, and ``peer_pid`` is the one that ``SO_PEERCRED`` has
    for the daemon, which is 0 for a process that the daemon's namespace does not contain.
    """
    if own_pid == peer_pid:
        return None
    seen = f"as {peer_pid}" if peer_pid else "not at all"
    return (
        f"--owner PID cannot be used in another pid namespace than plugind's, and neither can -- CMD: this client has"
        f" the pid {own_pid}, and plugind sees it {seen}; use --ttl or --until-release"
    )

"""Device nodes that a lease gives and its user cannot open: no device plugin changes their permissions.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os

from ...protocol.leases.values import Lease, Node
from ...protocol.text import escaped
from .ending import complain


def warn_of_nodes(lease: Lease) -> None:
    """Print a line for each device node of the lease that this user cannot open.

    None is opened, which could change the device.
    """
    for node in lease.answer.nodes if lease.answer is not None else ():
        why = _why_closed(node)
        if why is not None:
            complain(f"warning: you cannot open {escaped(node.host_path)} ({node.permissions}): {why}")


def _why_closed(node: Node) -> str | None:
    wanted = (os.R_OK if "r" in node.permissions else 0) | (os.W_OK if "w" in node.permissions else 0)
    try:
        found = os.stat(node.host_path)
    except OSError as error:
        return error.strerror
    if os.access(node.host_path, wanted, effective_ids=True):
        return None
    mode = f"{found.st_mode & 0o7777:04o}"
    return f"it belongs to the user {found.st_uid} and the group {found.st_gid}, and its mode is {mode}"

"""Why a daemon does not answer, as far as the kernel can tell."""

from __future__ import annotations

import socket
from typing import Final

from .peers import ids_of_peer

#: Seconds of silence after which a waiting client checks whether the daemon answers anything.
PATIENCE: Final = 5.0
#: Seconds that the daemon has to answer the check, more than a busy one needs.
CHECK: Final = 10.0
QUESTION: Final = ("HEAD", "/healthz")


def user_of(connection: socket.socket) -> int:
    """Return the user of the process at the other end."""
    return ids_of_peer(connection)[1]


def why_silent(connection: socket.socket) -> str:
    """Return what is known about the process at the other end, which has sent nothing."""
    try:
        pid, *_ = ids_of_peer(connection)
        # The state follows the name, which is in parentheses and may contain any character.
        with open(f"/proc/{pid}/stat", errors="replace") as lines:
            state = lines.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        # Not connected, or its process is in another pid namespace.
        return "nothing came"
    return f"process {pid} is stopped and sent nothing" if state in "Tt" else f"process {pid} sent nothing"


class UnreachableError(Exception):
    """No daemon answers at the status socket.

    ``code`` is the errno, ETIMEDOUT if nothing came in time; None if the answer was not HTTP.
    """

    def __init__(self, path: str, reason: str, code: int | None = None) -> None:
        super().__init__(reason)
        self.path = path
        self.reason = reason
        self.code = code

"""Why a daemon does not answer, as far as the kernel tells."""

from __future__ import annotations

import socket
from typing import Final

from .peers import ids_of_peer

#: Seconds of silence after which one who waits long for an answer asks whether the daemon answers anything.
PATIENCE: Final = 5.0
#: Seconds that the daemon has to answer that: more than a busy one takes.
CHECK: Final = 10.0
#: What is asked then. Any answer will do.
QUESTION: Final = ("HEAD", "/healthz")


def user_of(connection: socket.socket) -> int:
    """Return the user of the process at the other end."""
    return ids_of_peer(connection)[1]


def why_silent(connection: socket.socket) -> str:
    """Return what is known of the process at the other end, which has sent nothing."""
    try:
        pid, *_ = ids_of_peer(connection)
        # The state follows the name, which stands in parentheses and may hold any character.
        with open(f"/proc/{pid}/stat", errors="replace") as lines:
            state = lines.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        # Not connected, or its process is in another pid namespace.
        return "nothing came"
    return f"process {pid} is stopped and sent nothing" if state in "Tt" else f"process {pid} sent nothing"


class UnreachableError(Exception):
    """No daemon answers at the status socket; ``code`` is the errno, None if the answer was not HTTP.

    It is ETIMEDOUT if nothing came in time.
    """

    def __init__(self, path: str, reason: str, code: int | None = None) -> None:
        super().__init__(reason)
        self.path = path
        self.reason = reason
        self.code = code

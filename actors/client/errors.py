"""What may go wrong when a program asks a daemon. Each text says what to do."""

from __future__ import annotations

from collections.abc import Mapping

from ...protocol.errors import ClientError
from ...protocol.leases.replies import LeaseFailedError
from .reaching import why_unreachable

__all__ = ["ClientError", "DaemonError", "LeaseFailedError", "LeaseLostError", "NoDaemonError", "NotReadyError"]


class NoDaemonError(ClientError):
    """No daemon answers at the status socket; ``code`` is the errno, and ETIMEDOUT if nothing came in time.

    It is None if the answer was not HTTP, or that of a daemon whose version is further away than one.
    """

    def __init__(self, path: str, reason: str, code: int | None = None) -> None:
        """Note which daemon does not answer, and why."""
        super().__init__(why_unreachable(path, reason, code, _ADVICE))
        self.path = path
        self.reason = reason
        self.code = code


class DaemonError(ClientError):
    """The daemon has answered that it does not do that, or in a way that cannot be understood.

    ``status`` is that of HTTP: 403 for a user who may not ask, 404 for what is not there, 503 for a daemon that is
    busy, 200 for an answer of another version of plugind.
    """

    def __init__(self, text: str, status: int) -> None:
        """Note what the daemon says."""
        super().__init__(text)
        self.status = status


class LeaseLostError(ClientError):
    """A lease has ended before the block that holds it, or a daemon that was started again does not know it."""


class NotReadyError(ClientError):
    """What was waited for has not come in time; the text says what is missing, and in which state it is."""


_ADVICE: Mapping[str, str] = {
    "other": "give the path of the daemon's status socket, or name it with PLUGIND_STATUS",
    "none": "start one with 'plugind run', give the path of its status socket, or name it with PLUGIND_STATUS",
    "late": "a greater timeout gives it more time",
}

"""The requests of commands that need one answer, on plain sockets: importing Trio takes longer than they run."""

from __future__ import annotations

from ..client.reaching import MAX_ANSWER
from ..http.plain import NotHttpError, asked, no_answer
from .answers import Daemon, refusal
from .ending import EXIT_UNREACHABLE, CommandError
from .status_socket import unreachable


def answer(daemon: Daemon, target: str) -> tuple[int, bytes, str | None]:
    """Ask the daemon; return the status and the body of its answer, and the version of its status socket.

    The daemon can be silent for its ``timeout``. A long list can take longer, as long as data comes.

    Raises:
      CommandError: if it does not answer in time.
    """
    try:
        with asked(daemon.path, "GET", target, seconds=daemon.timeout, silence=daemon.timeout) as reply:
            return reply.status, reply.body(MAX_ANSWER), reply.version
    except (OSError, NotHttpError) as error:
        why = no_answer(daemon.path, error, daemon.timeout)
        raise CommandError(unreachable(why), EXIT_UNREACHABLE) from error


def fetched(daemon: Daemon, target: str) -> bytes:
    """Ask the daemon, and return its answer.

    Raises:
      CommandError: if it does not answer in time, or refuses.
    """
    status, body, version = answer(daemon, target)
    if status != 200:
        raise refusal(body, status, version)
    return body

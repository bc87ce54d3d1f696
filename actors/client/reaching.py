"""How long a daemon may be silent, and what to do about one that does not answer, or that refuses."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from ...protocol.text import escaped

#: Seconds without an answer, or without more of it, after which no daemon is taken to be there.
ANSWER_TIMEOUT: Final = 5.0
#: Seconds for an answer that is written to the disk first; the daemon gives up a little earlier.
WRITING: Final = 2 * ANSWER_TIMEOUT
#: The statuses with which a daemon may answer what it does not know.
UNKNOWN_HERE: Final = frozenset((400, 404, 405))
#: Heartbeats of a watch in that time.
HEARTBEATS: Final = 4


def watched(path: str, timeout: float) -> str:
    """Return what to ask for a stream of changes, in which a daemon that has stopped is noticed."""
    return f"{path}?heartbeat={min(max(timeout / HEARTBEATS, 0.02), 3600):g}"


def error_in(text: bytes) -> str | None:
    """Return why there is no answer, if an answer or a line of a stream says that."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    said = content.get("error") if isinstance(content, dict) else None
    return said if isinstance(said, str) else None


def why_unreachable(path: str, reason: str, code: int | None, advice: Mapping[str, str]) -> str:
    """Return what to do about a daemon that does not answer.

    ``advice`` says it for the user of a program: about ``other`` than a socket at the path, for ``none`` that listens,
    and for one that is ``late``.
    """
    shown = escaped(path)
    if _is_other_than_socket(path):
        return f"{shown} is no socket; {advice['other']}"
    match code:
        case errno.ENOENT | errno.ECONNREFUSED | errno.ENOTDIR:
            what_to_do = advice["none"]
        case errno.EACCES | errno.EPERM:
            return (
                f"may not talk to the daemon at {shown} ({reason}); run this as the daemon's user or as root, or have"
                " its operator let you lease devices with --lease-uids or --lease-group, or serve plugin types with"
                " handler_uids"
            )
        case errno.ETIMEDOUT:
            what_to_do = advice["late"]
        case _:
            return f"the daemon at {shown} does not answer as it should: {reason}"
    return f"no daemon answers at {shown} ({reason}); {what_to_do}"


def _is_other_than_socket(path: str) -> bool:
    with suppress(OSError):
        return not stat.S_ISSOCK(os.stat(path).st_mode)
    return False

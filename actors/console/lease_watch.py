"""``plugind leases --watch``: each change of a lease as it happens.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import json
import time

from ...protocol.leases.leases_json import lease_from_json
from ...protocol.leases.values import Lease
from ...protocol.text import escaped
from ..client.calls import ANSWER_TIMEOUT, Call, understood, watched
from ..client.sync_transport import lines
from .ending import EXIT_OK, complain, say
from .lease_words import device_words, owner, user, wanted_words
from .phrases import text, time_of_day, unix_time


def watch_leases(path: str, prefix: str, *, as_json: bool) -> int:
    """Print the leases whose ids begin with ``prefix``, then each change of one, until the daemon at ``path`` stops.

    Raises:
      ClientError: if it does not answer, or goes away.
    """
    call = Call("GET", watched("/v1/leases/watch", ANSWER_TIMEOUT), lambda content: content)
    with lines(path, call, silence=ANSWER_TIMEOUT) as found:
        for line in filter(None, found):
            lease = understood(lease_from_json, line)
            if lease.id.startswith(prefix):
                say(
                    line.decode() + "\n" if as_json else change(lease, unix_time(json.loads(line).get("time"))),
                    now=True,
                )
    complain(f"the daemon at {escaped(path)} stopped")
    return EXIT_OK


def change(lease: Lease, when: float | None) -> str:
    """Return one line for a change, with the time of day at which it happened."""
    clock = "--:--:--" if when is None else time_of_day(when, time.time())
    what = ",".join(device_words(lease)) or wanted_words(lease)
    parts = [clock, f"{lease.state:<9}", escaped(lease.id), owner(lease), user(lease.uid), what]
    return "  ".join([*parts, *([text(lease.reason)] if lease.reason else [])]) + "\n"

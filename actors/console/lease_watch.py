"""``plugind leases --watch``: each change of a lease as it happens."""

from __future__ import annotations

import json
import time

from ...protocol.leases.leases_json import lease_from_json
from ...protocol.leases.values import Lease
from ...protocol.text import escaped
from ..client.calls import ClientRequest, understood
from ..client.errors import NoDaemonError
from ..client.reaching import ANSWER_TIMEOUT, watched
from ..client.transport import lines
from ..http.backends import BLOCKING, Entered, each
from .ending import EXIT_UNREACHABLE, CutOffError, complain, say
from .lease_words import devices_by_resource, owner, user
from .phrases import text, time_of_day, unix_time


def watch_leases(path: str, prefix: str, *, as_json: bool) -> int:
    """Print the leases whose ids begin with ``prefix``, then each change of one, until the daemon at ``path`` stops.

    Raises:
      ClientError: if it does not answer.
      CutOffError: if it goes away.
    """
    call = ClientRequest("GET", watched("/v1/leases/watch", ANSWER_TIMEOUT), lambda content: content)
    with Entered(lines(BLOCKING, path, call, timeout=ANSWER_TIMEOUT)) as found:
        try:
            for line in filter(None, each(found)):
                _show(line, found.version, prefix, as_json=as_json)
        except NoDaemonError as error:
            raise CutOffError(f"the daemon at {escaped(path)} went away: {error.reason}", EXIT_UNREACHABLE) from error
    complain(f"the daemon at {escaped(path)} stopped")
    return EXIT_UNREACHABLE


def _show(line: bytes, version: str | None, prefix: str, *, as_json: bool) -> None:
    lease = understood(lease_from_json, line, version)
    if lease.id.startswith(prefix):
        said = line.decode() + "\n" if as_json else change(lease, unix_time(json.loads(line).get("time")))
        say(said, now=True)


def change(lease: Lease, when: float | None) -> str:
    """Return one line for a change, with the time of day at which it happened."""
    clock = "--:--:--" if when is None else time_of_day(when, time.time())
    parts = [clock, f"{lease.state:<9}", escaped(lease.id), owner(lease), user(lease.uid)]
    parts.append(devices_by_resource(lease))
    return "  ".join([*parts, *([text(lease.reason)] if lease.reason else [])]) + "\n"

"""``plugind usage``: for how long devices were held, by user, resource or label."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Final

from ...protocol.leases.history import (
    LABEL,
    RESOURCE,
    USAGE_PATH,
    USER,
    HistoryQuery,
    Usage,
    UsageAnswer,
    usage_from_json,
    usage_to_json,
)
from ...protocol.status.json import Json
from ..client.errors import ClientError
from ..client.transport import asked
from .lease_failures import fail
from .lease_history import TIMEOUT, history_call, notes, print_found
from .lease_words import add_period_arguments, user
from .phrases import text, time_of_day
from .status_socket import add_status_argument, status_path
from .table import add_table_argument, fitting, table_width
from .times import past

#: Since when usage is summed, unless another time is given.
_SINCE: Final = "30d"
_EPILOG = """examples:
  plugind usage
  plugind usage --by resource --since '2027-01-01'
  plugind usage --by label:project --since 7d -o csv

A device-hour is one device that was held for one hour. What is held now is counted until now, and an end that plugind
did not see at the last time at which the lease was certainly held. --by label sums each label of a lease, so a lease
with two labels is in two sums; --by label:project sums the values of one label, and leases without it. A TIME is as in
'plugind leases --history'. Whoever may only lease devices sees the usage of its own user.

exit codes: 0 ok, 1 failed, 2 usage, 69 no daemon answers"""


def _by(word: str) -> str:
    if word in (USER, RESOURCE, LABEL) or (word.startswith(f"{LABEL}:") and word != f"{LABEL}:"):
        return word
    raise argparse.ArgumentTypeError(f"{word!r} is not {USER}, {RESOURCE}, {LABEL} or {LABEL}:KEY")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind usage``."""
    parser.description = "Sum for how long devices were held, in device-hours, from the history of leases."
    parser.epilog = _EPILOG
    help_of_by = f"sum by {USER}, {RESOURCE}, {LABEL} or {LABEL}:KEY (default: {USER})"
    parser.add_argument("--by", metavar="WHAT", type=_by, default=USER, help=help_of_by)
    parser.add_argument("--resource", metavar="RESOURCE", help="devices of this resource")
    add_period_arguments(parser, "", since=_SINCE)
    add_table_argument(parser, "one object, with a list of sums", "a line for each sum")
    add_status_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print for how long devices were held; return the exit code."""
    query = HistoryQuery(None, args.resource, args.user, past(_SINCE) if args.since is None else args.since, args.until)
    try:
        call = history_call(USAGE_PATH, query, usage_from_json, by=args.by)
        found = asked(status_path(args), call, timeout=TIMEOUT)
    except ClientError as error:
        return fail(error, args.output)
    sums = (_to_json(usage, args.by) for usage in found.usage)
    head: dict[str, Json] = {"by": args.by, "since_unix": query.since, "until_unix": query.until}
    columns = [*usage_to_json(Usage(None, 0.0, 0), args.by), *(["user"] if args.by == USER else [])]
    table = lines(found, args.by, query, time.time(), table_width(args))
    return print_found(found, args.output, head, "usage", sums, columns, table)


def _to_json(usage: Usage, by: str) -> dict[str, Json]:
    return {**usage_to_json(usage, by), **({"user": user(usage.key)} if isinstance(usage.key, int) else {})}


def lines(found: UsageAnswer, by: str, query: HistoryQuery, now: float, width: int | None = None) -> Iterator[str]:
    """Yield the table, for a terminal of ``width`` columns, the period, and what is missing."""
    rows = [(by.upper(), "DEVICE-HOURS", "LEASES")]
    for usage in found.usage:
        key = user(usage.key) if isinstance(usage.key, int) else text(usage.key)
        rows.append((key, f"{usage.seconds / 3600:.2f}", str(usage.leases)))
    if found.usage:
        yield from fitting(lambda _: rows, width, ("LEASES",), ())
    until = "now" if query.until is None else time_of_day(query.until, now)
    since = "the first lease" if query.since is None else time_of_day(query.since, now)
    yield f"{'no leases, ' if not found.usage else ''}from {since} until {until}"
    yield from notes(found.uid, found.gaps, more=found.more, now=now)

"""The history of leases for people and for programs: the table, the JSON and the CSV."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from ...protocol.leases.history import (
    PATH,
    Gap,
    History,
    HistoryQuery,
    HistoryRow,
    UsageAnswer,
    gap_to_json,
    history_from_json,
    parameters_of,
    row_to_json,
)
from ...protocol.status.json import Json
from ..client.calls import ClientRequest
from ..client.lease_calls import quoted
from ..client.reaching import ANSWER_TIMEOUT
from ..client.transport import asked
from .ending import EXIT_OK, complain, say
from .lease_words import user
from .phrases import duration, text, time_of_day
from .table import fitting, shortened, table_width

T = TypeVar("T")

_COLUMNS: Final = (
    *("RESOURCE", "DEVICE", "USER", "LEASE", "GRANTED", "ENDED", "HELD", "OWNER", "POOL", "LABELS", "REASON"),
)
#: Seconds without more of an answer: the daemon may first write what waits, and then read a large file.
TIMEOUT: Final = 3 * ANSWER_TIMEOUT


def show_history(path: str, args: argparse.Namespace) -> int:
    """Print who had which devices; return the exit code."""
    since, until = (args.at, args.at) if args.at is not None else (args.since, args.until)
    query = HistoryQuery(args.device, args.resource, args.user, since, until)
    found, now = asked(path, history_call(PATH, query, history_from_json), timeout=TIMEOUT), time.time()
    rows = ({**row_to_json(row, now), "user": user(row.uid)} for row in found.rows)
    return print_found(found, args.output, {}, "rows", rows, CSV_COLUMNS, lines(found, now, table_width(args)))


def history_call(path: str, query: HistoryQuery, read: Callable[[Any], T], **more: str) -> ClientRequest[T]:
    """Return what asks the history for what a query chooses, with ``more`` parameters."""
    pairs = {**parameters_of(query), **more}
    words = "&".join(f"{key}={quoted(word)}" for key, word in pairs.items())
    return ClientRequest("GET", f"{path}?{words}" if words else path, read)


def print_found(
    found: History | UsageAnswer,
    output: str,
    head: Mapping[str, Json],
    key: str,
    rows: Iterable[dict[str, Json]],
    columns: Sequence[str],
    table: Iterable[str],
) -> int:
    """Print an answer as ``output`` wants: its ``rows`` under a ``key`` of JSON, as CSV, or the lines of a table."""
    if output == "json":
        gaps = [gap_to_json(gap) for gap in found.gaps]
        say(json.dumps({"uid": found.uid, **head, "gaps": gaps, key: [*rows], "more": found.more}) + "\n")
    elif output == "csv":
        say(csv_of(columns, rows))
        for line in notes(found.uid, found.gaps, more=found.more, now=time.time()):
            complain(line)
    else:
        say("".join(f"{line}\n" for line in table))
    return EXIT_OK


def lines(found: History, now: float, width: int | None = None) -> Iterator[str]:
    """Yield the table, for a terminal of ``width`` columns, the number of rows, and what is missing."""

    def table(size: int) -> list[Sequence[str]]:
        return [_COLUMNS, *(_row(row, now, size) for row in found.rows)]

    if found.rows:
        yield from fitting(
            table, width, ("POOL", "LABELS", "OWNER", "REASON"), ("HELD", "LEASE", "RESOURCE", "ENDED", "USER")
        )
    held = sum(row.ended is None for row in found.rows)
    count = len(found.rows)
    yield f"{count} row{'' if count == 1 else 's'}: {held} held now, {count - held} ended" if count else "no leases"
    yield from notes(found.uid, found.gaps, more=found.more, now=now)


def notes(uid: int | None, gaps: Sequence[Gap], *, more: bool, now: float) -> Iterator[str]:
    """Yield whose leases are shown, if not everybody's, and what is missing."""
    if uid is not None:
        yield f"only the leases of {user(uid)}"
    if more:
        yield "there are more: choose a part with --since, --until or --user"
    for gap in gaps:
        number = "leases" if gap.leases is None else f"{gap.leases} lease{'' if gap.leases == 1 else 's'}"
        since = "" if gap.since is None else f" from {time_of_day(gap.since, now)}"
        yield f"missing: {number} that ended{since} until {time_of_day(gap.until, now)}: {text(gap.reason)}"


def _row(row: HistoryRow, now: float, size: int) -> tuple[str, ...]:
    owner = row.owner if row.pid is None else f"pid {row.pid}" if row.owner == "process" else f"{row.owner} {row.pid}"
    labels = ",".join(f"{key}={word}" for key, word in row.labels.items())
    return (
        text(row.resource),
        shortened(text(row.device), size),
        user(row.uid),
        shortened(text(row.lease), size),
        time_of_day(row.granted, now),
        _ended(row, now),
        f"{duration(row.seconds(now))}{'' if row.seen is None else '+'}",
        owner,
        text(row.pool),
        text(labels),
        text(row.reason),
    )


def _ended(row: HistoryRow, now: float) -> str:
    if row.ended is None:
        return "-"
    return f"{'' if row.seen is None else 'by '}{time_of_day(row.ended, now)}"


# --- CSV --------------------------------------------------------------------------------------------------------------

#: The columns of the CSV, which are keys of the JSON; labels are JSON.
CSV_COLUMNS: Final = (
    *("resource", "device", "uid", "user", "lease", "granted", "granted_unix", "ended", "ended_unix", "seen_unix"),
    *("seconds", "owner", "pid", "pool", "labels", "reason"),
)


def csv_of(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as CSV with a header, as RFC 4180 has it; what is None is empty, and an object is JSON."""
    import csv  # Few ask for it.
    import io

    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(columns)
    writer.writerows([_cell(row[column]) for column in columns] for row in rows)
    return file.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, dict) else text(value) if value != "" else ""

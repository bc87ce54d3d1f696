"""The routes of the status socket about the history of leases.

Whoever may only lease sees the rows of its own user. The rows are read in pages, so that one answer holds little memory
and lets the history be written in between.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

import attrs

from ...protocol.errors import StateError
from ...protocol.leases.asked_json import RequestError
from ...protocol.leases.history import (
    PATH,
    USAGE_PATH,
    Gap,
    HistoryQuery,
    HistoryRow,
    Usage,
    by_of,
    gap_to_json,
    query_of,
    row_to_json,
    usage_to_json,
)
from ...protocol.logs.lines import timestamp
from ...protocol.status.json import Json
from ...protocol.text import encodable
from ..http.server import HttpRequest, HttpResponse, json_response, problem, wrong_method
from .streams import AnswerStream, Unsent, send_pieces

#: How many rows are read at once, and answered in all; and how many sums.
PAGE: Final = 500
MOST_ROWS: Final = 100_000
MOST_SUMS: Final = 10_000
_NONE: Final = (
    "this plugind keeps no history of leases: it needs --state, and leases.history.days must not be off in its"
    " configuration"
)
_OTHERS: Final = "only root, the user of the daemon and the members of its group for readers see the leases of others"


class HistoryReader(Protocol):
    """Reads the history; each method raises StateError if that is not possible now."""

    async def rows(self, query: HistoryQuery, before: int | None, most: int) -> tuple[Sequence[HistoryRow], int | None]:
        """Return the last rows ``before`` a number, at most so many, and the number of the first of these."""

    async def gaps(self, query: HistoryQuery) -> Sequence[Gap]:
        """Return what is missing."""

    async def usage(self, by: str, query: HistoryQuery, most: int) -> Sequence[Usage]:
        """Return how long devices were held, at most so many sums."""


def is_about_history(path: str) -> bool:
    """Whether a path is about the history of leases."""
    return path in (PATH, USAGE_PATH)


@attrs.frozen
class HistoryApi:
    """Answers requests about the history."""

    wall: Callable[[], float]
    #: None if none is kept.
    history: HistoryReader | None = None
    unsent: Unsent = attrs.field(factory=Unsent)

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """Answer a request that is about the history."""
        if self.history is None:
            return problem(404, _NONE)
        if request.method not in ("GET", "HEAD"):
            return wrong_method("GET")
        answer = self._rows if request.path == PATH else self._usage
        try:
            return await answer(self.history, request)
        except RequestError as error:
            return problem(400, str(error))
        except PermissionError as error:
            return problem(403, str(error))
        except StateError as error:
            return problem(503, encodable(str(error)))

    async def _rows(self, history: HistoryReader, request: HttpRequest) -> HttpResponse:
        query = _permitted(query_of(request.query), request)
        first, gaps = await history.rows(query, None, PAGE), await history.gaps(query)
        write = partial(self._write_rows, history, query, first, self._head(query, gaps))
        return HttpResponse(200, "application/json", write=self.unsent.counted(write))

    def _head(self, query: HistoryQuery, gaps: Sequence[Gap]) -> dict[str, Json]:
        now = self.wall()
        return {"time": timestamp(now), "time_unix": now, "uid": query.uid, "gaps": [gap_to_json(gap) for gap in gaps]}

    async def _write_rows(
        self,
        history: HistoryReader,
        query: HistoryQuery,
        page: tuple[Sequence[HistoryRow], int | None],
        head: dict[str, Json],
        send: AnswerStream,
    ) -> None:
        before, count, error = json.dumps({**head, "rows": []}).removesuffix("]}"), 0, None
        now = self.wall()
        while True:
            rows, last = page
            lines = [json.dumps(row_to_json(row, now)) for row in rows]
            count += len(lines)
            await send_pieces((f"{',' if each else before}\n{line}".encode() for each, line in enumerate(lines)), send)
            before = "," if lines else before
            if len(rows) < PAGE or count >= MOST_ROWS:
                break
            try:
                page = await history.rows(query, last, PAGE)
            except StateError as failure:
                error = encodable(str(failure))
                break
        start = "" if count else before
        tail = {"more": count >= MOST_ROWS} if error is None else {"error": error}
        await send(f"{start}], {json.dumps(tail).removeprefix('{')}\n".encode())

    async def _usage(self, history: HistoryReader, request: HttpRequest) -> HttpResponse:
        by, query = by_of(request.query), _permitted(query_of(request.query, "by"), request)
        found, gaps = await history.usage(by, query, MOST_SUMS), await history.gaps(query)
        content = {
            **self._head(query, gaps),
            "by": encodable(by),
            "since_unix": query.since,
            "until_unix": query.until,
            "usage": [usage_to_json(usage, by) for usage in found],
            "more": len(found) >= MOST_SUMS,
        }
        return json_response(200, content)


def _permitted(query: HistoryQuery, request: HttpRequest) -> HistoryQuery:
    """Return what a client may ask: some see the rows of their own user alone.

    Raises:
      PermissionError: if it asks for those of another user.
    """
    if not request.own_only:
        return query
    own = None if request.peer is None else request.peer.uid
    if own is None or query.uid not in (None, own):
        raise PermissionError(_OTHERS)
    return attrs.evolve(query, uid=own)

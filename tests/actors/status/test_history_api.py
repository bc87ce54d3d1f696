"""The routes about the history of leases: whose rows a client gets, in which form, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import pytest

from plugind.actors.http.server import HttpRequest
from plugind.actors.io.unix_socket import Credentials
from plugind.actors.status import history_api
from plugind.actors.status.history_api import HistoryApi
from plugind.protocol.errors import StateError
from plugind.protocol.leases.history import (
    PATH,
    USAGE_PATH,
    Gap,
    HistoryQuery,
    HistoryRow,
    Usage,
    history_from_json,
    usage_from_json,
)

NOW = 1000.0
GAP = Gap(None, 5.0, None, "the history begins then")
OTHERS = "only root, the user of the daemon and the members of its group for readers see the leases of others"


def row(number: int, uid: int = 1) -> HistoryRow:
    return HistoryRow(f"job {number}", 1.0, "v.com/gpu", "gpu-0", uid, None, {"p": "x"}, "process", 7, 2.0, 4.5)


@attrs.define(eq=False)
class Reader:
    """Has so many rows, and notes what it is asked."""

    count: int = 1
    #: From the page that begins before this row, nothing can be read.
    broken: int | None = None
    asked: list[object] = attrs.field(factory=list)

    async def rows(self, query: HistoryQuery, before: int | None, most: int) -> tuple[Sequence[HistoryRow], int | None]:
        self.asked.append(query)
        end = self.count if before is None else before
        if end == self.broken:
            raise StateError("the disk is gone")
        numbers = range(end - 1, max(-1, end - 1 - most), -1)
        return [row(number) for number in numbers], numbers[-1] if numbers else None

    async def gaps(self, query: HistoryQuery) -> Sequence[Gap]:
        return [GAP]

    async def usage(self, by: str, query: HistoryQuery, most: int) -> Sequence[Usage]:
        self.asked.append((by, query))
        return [Usage(1 if by == "user" else by, 3600.0, 2)]


async def ask(
    reader: Reader | None, path: str = PATH, query: Mapping[str, str] | None = None, **how: Any
) -> tuple[int, Any]:
    peer = Credentials(1, how.pop("uid", 0), 0)
    request = HttpRequest(how.pop("method", "GET"), path, query or {}, b"", peer, **how)
    answer = await HistoryApi(lambda: NOW, reader).answer(request)
    pieces = [answer.body]

    async def send(piece: bytes) -> None:
        pieces.append(piece)

    if answer.write is not None:
        await answer.write(send)
    return answer.status, json.loads(b"".join(pieces))


@pytest.mark.parametrize("count", [0, 1, 3, 4, 7])
async def test_all_rows_are_in_one_answer_however_many_pages_they_are(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_api, "PAGE", 3)
    status, content = await ask(Reader(count))
    assert status == 200
    found = history_from_json(content)
    assert found.rows == tuple(row(number) for number in reversed(range(count)))
    assert (found.uid, found.gaps, found.more) == (None, (GAP,), False)
    assert [each["seconds"] for each in content["rows"]] == [2.5] * count


async def test_an_answer_has_a_most_of_rows_and_says_that_there_are_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_api, "PAGE", 3)
    monkeypatch.setattr(history_api, "MOST_ROWS", 6)
    _, content = await ask(Reader(20))
    found = history_from_json(content)
    assert (len(found.rows), found.more) == (6, True)


async def test_an_answer_whose_later_pages_cannot_be_read_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_api, "PAGE", 3)
    status, content = await ask(Reader(7, broken=4))
    assert (status, content["error"], len(content["rows"])) == (200, "the disk is gone", 3)
    assert await ask(Reader(7, broken=7)) == (503, {"error": "the disk is gone"})


async def test_parameters_choose_rows() -> None:
    reader = Reader()
    await ask(reader, query={"device": "gpu-0", "resource": "a/b", "uid": "7", "since": "1.5", "until": "2e3"})
    await ask(reader, USAGE_PATH, {"by": "label:p", "since": "3"})
    await ask(reader, USAGE_PATH)
    asked = HistoryQuery("gpu-0", "a/b", 7, 1.5, 2000.0)
    assert reader.asked == [asked, ("label:p", HistoryQuery(since=3.0)), ("user", HistoryQuery())]


@pytest.mark.parametrize("path", [PATH, USAGE_PATH])
async def test_whoever_sees_its_own_leases_only_gets_no_others(path: str) -> None:
    reader = Reader()
    assert await ask(reader, path, {"uid": "2"}, uid=1, own_only=True) == (403, {"error": OTHERS})
    assert reader.asked == []
    for query in ({}, {"uid": "1"}):
        status, content = await ask(reader, path, query, uid=1, own_only=True)
        assert (status, content["uid"]) == (200, 1)
    own = HistoryQuery(uid=1)
    assert reader.asked == ([own, own] if path == PATH else [("user", own), ("user", own)])


async def test_usage_is_answered_in_device_hours() -> None:
    _, content = await ask(Reader(), USAGE_PATH, {"by": "resource"})
    assert content["usage"] == [{"resource": "resource", "device_hours": 1.0, "leases": 2}]
    assert usage_from_json(content).usage == (Usage("resource", 3600.0, 2),)
    _, content = await ask(Reader(), USAGE_PATH)
    assert usage_from_json(content).usage == (Usage(1, 3600.0, 2),)


@pytest.mark.parametrize(
    ("path", "query", "error"),
    [
        (PATH, {"user": "1"}, "there is no parameter user; there are device, resource, uid, since, until"),
        (PATH, {"since": "02:14"}, "since is '02:14': give Unix seconds"),
        (PATH, {"until": "nan"}, "until is 'nan': give Unix seconds"),
        (PATH, {"since": "1e99"}, "since is '1e99': give Unix seconds"),
        (PATH, {"uid": "root"}, "uid is 'root': give a number from 0 to 4294967294"),
        (PATH, {"uid": "-1"}, "uid is '-1': give a number from 0 to 4294967294"),
        (PATH, {"uid": "1.5"}, "uid is '1.5': give a number from 0 to 4294967294"),
        (PATH, {"uid": "4294967295"}, "uid is '4294967295': give a number from 0 to 4294967294"),
        (USAGE_PATH, {"by": "day"}, "by is 'day': give user, resource, label or label:KEY"),
    ],
)
async def test_wrong_parameters_are_refused_with_the_right_ones(path: str, query: dict[str, str], error: str) -> None:
    reader = Reader()
    assert await ask(reader, path, query) == (400, {"error": error})
    assert reader.asked == []


async def test_only_get_is_answered_and_only_where_there_is_a_history() -> None:
    status, content = await ask(Reader(), method="POST")
    assert (status, content) == (405, {"error": "only GET is answered here"})
    status, content = await ask(None)
    assert status == 404
    assert content["error"].startswith("this plugind keeps no history of leases: it needs --state")

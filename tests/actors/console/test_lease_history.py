"""``plugind leases --history`` and ``plugind usage``: the times that they take, what they ask, and what they print."""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from plugind.actors.console import lease_history, usage
from plugind.actors.console.commands import main
from plugind.actors.console.times import past_moment
from plugind.protocol.leases.history import (
    Gap,
    History,
    HistoryQuery,
    HistoryRow,
    Usage,
    UsageAnswer,
    gap_to_json,
    row_to_json,
)
from plugind.tests.actors.console import snapshots
from plugind.tests.actors.console.lease_server import answer
from plugind.tests.actors.console.snapshots import UNIX
from plugind.tests.actors.console.test_allocate import Run

GPU = "vendor.com/gpu"
HOUR = 3600.0


def row(lease: str, device: str, start: float, end: float | None = None, **more: Any) -> HistoryRow:
    """Return a row of root; times are hours before now."""
    ended = None if end is None else UNIX - end * HOUR
    values = {"uid": 0, "pool": None, "labels": {}, "owner": "none", "pid": None, **more}
    granted = UNIX - start * HOUR
    return HistoryRow(lease, granted, GPU, device, granted=granted, ended=ended, **values)


ROWS = (
    row("job 7", "gpu-0", 0.5, owner="process", pid=991, labels={"project": "x", "job": "7"}),
    row("a\x1b\nlease", "gpu-1", 3.0, 1.0, pool="night", reason="it was released", owner="container", pid=992),
    row("lost", "gpu-2", 72.0, 48.0, seen=UNIX - 60 * HOUR, reason="the machine was started again"),
)
GAPS = (
    Gap(None, UNIX - 100 * HOUR, None, "the history begins then"),
    Gap(UNIX - 6 * HOUR, UNIX - 5 * HOUR, 2, "they could not be written"),
)


@pytest.mark.usefixtures("in_berlin")
@pytest.mark.parametrize(
    ("text", "hours"),
    [
        # It is 09:30 of November 15 in Berlin.
        ("now", 0.0),
        ("2h", 2.0),
        ("-2h", 2.0),
        ("2h ago", 2.0),
        ("90m", 1.5),
        ("1d", 24.0),
        ("today", 9.5),
        ("yesterday", 33.5),
        ("02:14", 7 + 16 / 60),
        ("02:14:30", 7 + 15.5 / 60),
        ("09:30", 0.0),
        ("09:31", 24 - 1 / 60),
        ("2023-11-14 02:14", 31 + 16 / 60),
        ("2023-11-14T02:14", 31 + 16 / 60),
        ("2023-11-14", 33.5),
        ("2023-11-15T02:14:00Z", 6 + 16 / 60),
        ("2023-11-15T02:14:00+02:00", 8 + 16 / 60),
        # Summer time ended between.
        ("2023-10-28 09:30", 18 * 24 + 1),
        ("-24000d", UNIX / HOUR),
    ],
)
def test_a_time_that_is_over(text: str, hours: float) -> None:
    assert past_moment(text, UNIX) == pytest.approx(UNIX - hours * HOUR)


@pytest.mark.parametrize(
    "text", ["", "tomorrow", "25:00", "2:14", "2023-13-01", "2h later", "--2h", "nan", "12:34:56:7"]
)
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a time, such as 02:14, 2027-01-31 02:14"):
        past_moment(text, UNIX)


@pytest.mark.usefixtures("in_berlin")
def test_what_is_printed() -> None:
    query = HistoryQuery(since=UNIX - 720 * HOUR)
    found = History(None, GAPS, ROWS, more=True)
    sums = (Usage(0, 12.5 * HOUR, 3), Usage(4294967294, 1.0, 1))
    labels = (Usage("project=x\x1b", 2.0 * HOUR, 1), Usage(None, 1.0 * HOUR, 7))
    cases = {
        "history": lease_history.lines(found, UNIX),
        "history, 100 columns": lease_history.lines(found, UNIX, 100),
        "history, 60 columns": lease_history.lines(found, UNIX, 60),
        "history of nobody": lease_history.lines(History(4294967294, (), (), more=False), UNIX),
        "usage by user": usage.lines(UsageAnswer(None, (), sums, more=False), "user", query, UNIX),
        "usage by label": usage.lines(UsageAnswer(0, GAPS, labels, more=False), "label:project", query, UNIX, 60),
        "no usage": usage.lines(UsageAnswer(None, (), (), more=False), "user", HistoryQuery(until=UNIX), UNIX),
    }
    snapshots.check("lease-history", cases)


def history(*rows: HistoryRow) -> bytes:
    content = {"uid": None, "gaps": [gap_to_json(gap) for gap in GAPS], "more": False}
    return answer(200, {**content, "rows": [row_to_json(row, UNIX) for row in rows]})


def sums(*found: dict[str, object], by: str = "user") -> bytes:
    return answer(200, {"uid": None, "gaps": [], "by": by, "usage": [*found], "more": False})


@pytest.mark.usefixtures("in_berlin")
def test_who_had_a_device_at_a_time_is_one_command(plugind: Run) -> None:
    done = plugind([history(*ROWS)], "leases", "--history", "--device", "gpu&3", "--at", "02:14", "-o", "json")
    (asked,) = done.asked
    target = urlsplit(asked.line.split()[1])
    at = str(UNIX - (7 + 16 / 60) * HOUR)
    assert (target.path, dict(parse_qsl(target.query))) == (
        "/v1/history",
        {"device": "gpu&3", "since": at, "until": at},
    )
    said = json.loads(done.out)
    assert [each["lease"] for each in said["rows"]] == [each.lease for each in ROWS]
    assert said["rows"][0]["user"] == "root"
    assert len(said["gaps"]) == 2


@pytest.mark.usefixtures("in_berlin")
def test_all_parts_of_the_history_can_be_chosen(plugind: Run) -> None:
    words = ["--resource", GPU, "--user", "root", "--since", "-2h", "--until", "-1h"]
    (asked,) = plugind([history()], "leases", "--history", *words).asked
    since, until = str(UNIX - 2 * HOUR), str(UNIX - HOUR)
    query = {"resource": GPU, "uid": "0", "since": since, "until": until}
    assert dict(parse_qsl(urlsplit(asked.line.split()[1]).query)) == query
    (asked,) = plugind([history()], "leases", "--history", "--user", str(os.getuid())).asked
    assert asked.line.split()[1] == f"/v1/history?uid={os.getuid()}"


def test_csv_has_all_rows_whatever_is_in_them(plugind: Run) -> None:
    done = plugind([history(*ROWS)], "leases", "--history", "-o", "csv")
    found = list(csv.DictReader(io.StringIO(done.out)))
    assert [each["device"] for each in found] == ["gpu-0", "gpu-1", "gpu-2"]
    assert json.loads(found[0]["labels"]) == {"project": "x", "job": "7"}
    assert (found[0]["ended"], found[0]["pool"], found[1]["pool"]) == ("", "", "night")
    assert "\x1b" not in done.out
    assert found[1]["lease"] == "a\\x1b\\nlease"
    assert "missing: 2 leases that ended from" in done.err


@pytest.mark.usefixtures("in_berlin")
def test_usage_asks_for_thirty_days_and_prints_sums(plugind: Run) -> None:
    done = plugind([sums({"uid": 0, "device_hours": 1.25, "leases": 2})], "usage", "-o", "csv")
    (asked,) = done.asked
    target = urlsplit(asked.line.split()[1])
    query = {"since": str(UNIX - 720 * HOUR), "by": "user"}
    assert (target.path, dict(parse_qsl(target.query))) == ("/v1/history/usage", query)
    assert done.out == "uid,device_hours,leases,user\r\n0,1.25,2,root\r\n"
    words = ["usage", "--by", "label:a b", "--since", "today", "--user", "0", "--resource", GPU, "-o", "json"]
    done = plugind([sums({"label": None, "device_hours": 1, "leases": 2}, by="label:a b")], *words)
    (asked,) = done.asked
    query = {"uid": "0", "resource": GPU, "since": str(UNIX - 9.5 * HOUR), "by": "label:a b"}
    assert dict(parse_qsl(urlsplit(asked.line.split()[1]).query)) == query
    assert json.loads(done.out)["usage"] == [{"label": None, "device_hours": 1.0, "leases": 2}]


def test_a_daemon_that_refuses_is_quoted(plugind: Run) -> None:
    refused = answer(403, {"error": "only root sees that"})
    for words in (["leases", "--history"], ["usage"]):
        done = plugind([refused], *words)
        assert (done.code, done.out) == (1, "")
        assert "only root sees that" in done.err


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["leases", "--device", "a"], "--device is an option of --history"),
        (["leases", "--since", "2h"], "--since is an option of --history"),
        (["leases", "-o", "csv"], "-o csv is an option of --history"),
        (["leases", "--history", "--watch"], "--history lists what was: leave out recover, --watch and --prefix"),
        (["leases", "--history", "--at", "now", "--since", "2h"], "--at is one moment: leave out --since and --until"),
        (["leases", "--history", "--user", "no such user"], "there is no user 'no such user': give a name or a uid"),
        (["leases", "--history", "--at", "soon"], "'soon' is not a time"),
        (["usage", "--by", "day"], "'day' is not user, resource, label or label:KEY"),
        (["usage", "--by", "label:"], "'label:' is not user, resource, label or label:KEY"),
    ],
)
def test_wrong_words_are_a_usage_error(words: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert error in capsys.readouterr().err

"""How many lines the log has of one thing, and what it says of those that are left out."""

from __future__ import annotations

import itertools
import math

import pytest

from plugind.protocol.logs.limits import MAX_COUNTED, MAX_TRACEBACKS, TRACEBACK_PERIOD, LineCounts, LogLimits, LogLine
from plugind.protocol.logs.lines import Field, Level

#: Causes that differ in more than their numbers.
_WORDS = ["".join(letters) for letters in itertools.product("abcdefgh", repeat=2)]
SMALL = LogLimits(same=2, each=5, total=8, window=60.0)


def waiting(socket: str = "/r/a.sock", cause: str = "nobody listens", **fields: Field) -> LogLine:
    return LogLine(Level.WARNING, "plugin waiting", {"socket": socket, "cause": cause, **fields})


def logged(counts: LineCounts, lines: list[LogLine], now: float = 0.0) -> int:
    return sum(not counts.leaves_out(line, now) for line in lines)


def test_the_same_line_of_one_socket_is_logged_a_few_times_and_then_counted() -> None:
    """Fault 91: five sockets that were touched in a loop gave 1.5 MB of log a second."""
    counts = LineCounts(SMALL)
    assert logged(counts, [waiting(attempt=attempt) for attempt in range(414)]) == 2
    assert counts.due == 60.0
    assert counts.take_summaries(59.9) == []
    assert counts.take_summaries(60.0) == [
        LogLine(
            Level.WARNING,
            "plugin waiting … repeated 412 times",
            {"socket": "/r/a.sock", "cause": "nobody listens", "attempt": 413},
        )
    ]
    assert counts.due == math.inf
    assert logged(counts, [waiting()], 60.0) == 1


def test_causes_that_differ_in_their_numbers_alone_are_one() -> None:
    """Faults 49 and 91: each life of a crash loop has another count."""
    counts = LineCounts(SMALL)
    assert logged(counts, [waiting(cause=f"crash loop: {lives} short lives") for lives in range(2, 40)]) == 2


@pytest.mark.parametrize(
    "other",
    [
        waiting(socket="/r/b.sock"),
        waiting(cause="its backlog is full"),
        LogLine(Level.WARNING, "plugin stale", {"socket": "/r/a.sock", "cause": "nobody listens"}),
    ],
    ids=["socket", "cause", "message"],
)
def test_a_line_about_another_thing_is_counted_apart(other: LogLine) -> None:
    counts = LineCounts(SMALL)
    logged(counts, [waiting()] * 10)
    assert logged(counts, [other]) == 1


@pytest.mark.parametrize(("subject", "cause"), [("root", "reason"), ("path", "reason"), ("actor", "error")])
def test_roots_paths_and_actors_are_counted_like_sockets(subject: str, cause: str) -> None:
    """A root that is removed and made again in a loop, for example."""
    counts = LineCounts(SMALL)
    line = LogLine(Level.WARNING, "root is unavailable", {subject: "x", cause: "no such file"})
    assert logged(counts, [line] * 10) == 2
    assert logged(counts, [LogLine(Level.WARNING, "root is unavailable", {subject: "y", cause: "no such file"})]) == 1


def test_one_socket_whose_cause_is_another_each_time_is_limited_too() -> None:
    """Fault 91: a cause may have words of the plugin in it."""
    counts = LineCounts(SMALL)
    assert logged(counts, [waiting(cause=f"GetInfo failed: {word}") for word in _WORDS[:50]]) == 5
    assert counts.take_summaries(60.0) == [
        LogLine(Level.WARNING, "more lines than are logged of one thing", {"socket": "/r/a.sock", "left_out": 45})
    ]


def test_all_lines_together_are_limited() -> None:
    """Fault 48: sockets that come and go, each with a name of its own."""
    counts = LineCounts(SMALL)
    assert logged(counts, [waiting(socket=f"/r/{number}.sock") for number in range(50)]) == 8
    assert counts.take_summaries(60.0) == [LogLine(Level.WARNING, "more lines than are logged", {"left_out": 42})]


def test_what_is_left_out_uses_up_no_other_limit() -> None:
    counts = LineCounts(SMALL)
    logged(counts, [waiting()] * 1000)
    assert logged(counts, [waiting(cause=word) for word in _WORDS[:10]]) == 3
    assert logged(counts, [waiting(socket="/r/b.sock")] * 10) == 2


def test_each_window_ends_by_its_own_time() -> None:
    counts = LineCounts(SMALL)
    logged(counts, [waiting()] * 3, 0.0)
    logged(counts, [waiting(socket="/r/b.sock")] * 3, 30.0)
    assert [line.fields["socket"] for line in counts.take_summaries(60.0)] == ["/r/a.sock"]
    assert counts.due == 90.0
    assert [line.fields["socket"] for line in counts.take_summaries(90.0)] == ["/r/b.sock"]


def test_the_memory_for_counting_is_bounded() -> None:
    """Fault 48: the windows that began first are forgotten, and what they left out is said then."""
    counts = LineCounts(LogLimits(same=1, total=10 * MAX_COUNTED))
    logged(counts, [waiting()] * 2)
    assert logged(counts, [waiting(socket=f"/r/{number}.sock") for number in range(2 * MAX_COUNTED)]) == 2 * MAX_COUNTED
    assert [line.message for line in counts.take_summaries(0.0)] == ["plugin waiting … repeated once"]
    assert logged(counts, [waiting()]) == 1


def broke(traceback: str, cause: str = "KeyError") -> LogLine:
    return waiting(cause=cause, traceback=traceback)


def with_traceback(counts: LineCounts, traceback: str, now: float) -> bool:
    line = counts.without_known_traceback(broke(traceback), now)
    counts.leaves_out(line, now)
    assert line.fields["cause"] == "KeyError"
    return line.fields["traceback"] == traceback


def test_a_traceback_is_logged_once_an_hour() -> None:
    counts = LineCounts(LogLimits())
    times = [0.0, 1.0, TRACEBACK_PERIOD - 0.1, TRACEBACK_PERIOD, TRACEBACK_PERIOD + 1.0]
    assert [with_traceback(counts, "a", now) for now in times] == [True, False, False, True, False]
    assert with_traceback(counts, "b", times[-1])


def test_a_traceback_whose_line_was_left_out_is_logged_with_the_next_one() -> None:
    counts = LineCounts(SMALL)
    logged(counts, [broke("a")] * 2)
    assert with_traceback(counts, "b", 1.0)
    assert with_traceback(counts, "b", 61.0)
    assert not with_traceback(counts, "b", 62.0)


def test_of_more_tracebacks_than_are_known_the_oldest_are_logged_again() -> None:
    counts = LineCounts(LogLimits(same=1000, each=1000))
    assert all(with_traceback(counts, str(number), 0.0) for number in range(MAX_TRACEBACKS + 1))
    assert not with_traceback(counts, "1", 1.0)
    assert with_traceback(counts, "0", 1.0)


def test_the_defaults_leave_nothing_out_of_a_storm_of_ten_thousand() -> None:
    counts = LineCounts(LogLimits())
    lines = [waiting(socket=f"/r/{number}.sock") for number in range(10_000)]
    assert logged(counts, lines) == 10_000
    assert counts.due == math.inf


def test_no_summary_is_due_for_ever_if_a_window_ends_while_its_line_is_counted() -> None:
    """Faults 48 and 91: the log would wait for that summary without a pause, and take a whole core."""
    counts = LineCounts(LogLimits(same=1, each=2, total=10_000, window=60.0))
    logged(counts, [waiting(cause="another"), waiting()])
    # Windows of other lines take the place of all but the last of this socket's.
    logged(counts, [LogLine(Level.INFO, f"line {number}", {}) for number in range(MAX_COUNTED - 1)], 1.0)
    logged(counts, [waiting()], 2.0)
    counts.take_summaries(1000.0)
    assert counts.due == math.inf

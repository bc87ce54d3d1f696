"""The soak's oracle finds each violation, and the soak runs a mixture and ends clean."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from plugind.benchmarks.plugins.cheap_plugin import PluginReport
from plugind.benchmarks.report.soak_oracle import (
    Rest,
    check_flat,
    check_generations,
    check_health,
    check_refused,
    check_words,
)
from plugind.tests.benchmarks.reports import report_of

pytestmark = pytest.mark.extended

ROOT = Path(__file__).parents[2]


def generations(*report: PluginReport) -> list[str]:
    return list(check_generations(report, now_ns=30 * 10**9, patience=5.0))


def test_a_plugin_that_is_told_once_is_right_whether_it_stands_or_was_removed() -> None:
    assert generations(report_of(1, 1.0, 2.0), report_of(2, 1.0, 2.0, removed=9.0)) == []


def test_a_plugin_need_not_be_told_at_once() -> None:
    assert generations(report_of(1, 26.0, None), report_of(2, 1.0, None, removed=5.9)) == []


@pytest.mark.parametrize(
    ("plugin", "violation"),
    [
        (report_of(1, 1.0, 2.0, times=2), "was told 2 times that it is registered"),
        (report_of(1, 1.0, 2.0, refused=1), "was refused: no"),
        (report_of(1, 24.9, None), "was never told that it is registered"),
        (report_of(1, 1.0, None, removed=6.1), "was never told that it is registered"),
    ],
)
def test_a_wrong_generation_is_found(plugin: PluginReport, violation: str) -> None:
    found = generations(report_of(0, 1.0, 2.0), plugin)
    assert len(found) == 1
    assert found[0].endswith(violation)


def test_words_that_agree_with_what_is_shown_are_right() -> None:
    shown = {"/a": "registered", "/b": "waiting", "/c": "waiting", "/d": "notifying"}
    assert check_words({"/a": True, "/b": False}, shown) == {}


@pytest.mark.parametrize(
    ("words", "shown", "violation"),
    [
        ({"/a": True}, {"/a": "waiting"}, "/a was told that it is registered, and is shown as waiting"),
        ({"/a": True}, {}, "/a was told that it is registered, and is shown as unknown"),
        ({"/a": False}, {"/a": "registered"}, "/a was told that it is refused, and is shown as registered"),
        ({}, {"/a": "registered"}, "/a is shown as registered, and was not told so"),
    ],
)
def test_a_word_that_is_not_so_is_found(words: dict[str, bool], shown: dict[str, str], violation: str) -> None:
    assert check_words(words, shown) == {"/a": violation}


def test_a_plugin_that_is_told_yes_although_it_is_invalid_is_found() -> None:
    assert list(check_refused("own-names", 3)) == []
    assert list(check_refused("invalid", 0)) == []
    assert list(check_refused("invalid", 1)) == ["1 plugins of the kind invalid were told that they are registered"]


def rests(*pairs: tuple[int, int]) -> list[Rest]:
    return [Rest(60.0 * at, mib * 1024, descriptors) for at, (mib, descriptors) in enumerate(pairs)]


def test_memory_and_descriptors_may_vary_but_not_grow() -> None:
    warm = rests((44, 30), (60, 35))
    high = (90, 90)
    assert list(check_flat(warm, rests((68, 43), (68, 43), (68, 43)))) == []
    assert list(check_flat(warm, rests(high, high, high, (44, 30)))) == [], "it was freed"
    assert list(check_flat(warm, rests(high, high))) == [], "a few figures prove nothing"
    assert list(check_flat([], rests(high, high, high))) == []


def test_growth_is_found() -> None:
    warm = rests((44, 30), (60, 35))
    assert list(check_flat(warm, rests((44, 30), (69, 30), (70, 30), (69, 30)))) == [
        "the daemon has 70,656 KiB at rest, after at most 61,440 in the warm-up"
    ]
    assert list(check_flat(warm, rests((60, 44), (60, 45), (60, 44)))) == [
        "the daemon has 44 descriptors at rest, after at most 35 in the warm-up"
    ]


@pytest.mark.parametrize(
    ("ended", "ready", "healthy", "violation"),
    [
        (True, 200, 200, "the daemon has ended"),
        (False, 503, 200, "/readyz answers 503"),
        (False, 200, 503, "/healthz answers 503"),
    ],
)
def test_a_daemon_that_is_not_well_is_found(ended: bool, ready: int, healthy: int, violation: str) -> None:
    assert list(check_health(ended=False, ready=200, healthy=200)) == []
    assert list(check_health(ended=ended, ready=ready, healthy=healthy)) == [violation]


def test_a_short_soak_ends_clean_and_says_what_it_did() -> None:
    kinds = ["--kind", "own-names", "crash-loop", "--peers", "3", "--good", "10"]
    line = [sys.executable, "-m", "benchmarks.hostile", "--soak", "0.01", "--seed", "3", "--seconds", "0.3", *kinds]
    line.append("--no-pin")  # Pinned, the hostile plugins get only what other programs leave of a core.
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "--seed 3" in done.stdout
    assert "seed 3: clean, 1 rounds, stopped in" in done.stdout

"""The soak's oracle finds each violation, and the soak runs a mixture and ends clean."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from plugind.benchmarks.plugins.cheap_plugin import PluginReport
from plugind.benchmarks.report.soak_oracle import (
    Rest,
    check_flat,
    check_generations,
    check_health,
    check_words,
)
from plugind.tests.end_to_end.processes import finish

pytestmark = pytest.mark.extended

ROOT = Path(__file__).parents[2]


def report_of(
    index: int, listening: float, notified: float | None, *, removed: float = 0.0, times: int = 1, refused: int = 0
) -> PluginReport:
    """``listening``, ``notified`` and ``removed`` are seconds."""
    return {
        "index": index,
        "name": f"plugin-{index}",
        "path": f"/root/plugin-{index}.sock",
        "hang": "",
        "error": "no" if refused else "",
        "bound_ns": 0,
        "asked_ns": 0,
        "asked": 1,
        "refused": refused,
        "notified": times if notified else 0,
        "listening_ns": int(listening * 1e9),
        "notified_ns": 0 if notified is None else int(notified * 1e9),
        "removed_ns": int(removed * 1e9),
    }


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
    found = list(check_generations([report_of(0, 1.0, 2.0), plugin], now_ns=30 * 10**9, patience=5.0))
    assert len(found) == 1
    assert found[0].endswith(violation)


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


def rests(*pairs: tuple[int, int]) -> list[Rest]:
    return [Rest(60.0 * at, mib * 1024, descriptors) for at, (mib, descriptors) in enumerate(pairs)]


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
    done = finish(line, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "--seed 3" in done.stdout
    assert "seed 3: clean, 1 rounds, stopped in" in done.stdout

"""Commands print the limit beside the figure: storms, rescans, memory, and the cost of a plugin among many."""

from __future__ import annotations

import pytest

from plugind.benchmarks import idle, scaling
from plugind.benchmarks.report.storm_limits import verdicts
from plugind.benchmarks.report.storm_tables import StormResult
from plugind.benchmarks.scaling import Cost
from plugind.benchmarks.storm_run import Scenario, StormRun

pytestmark = pytest.mark.extended


def storm(seconds: float, answer: float) -> StormRun:
    run = StormRun(sockets=10_000, healthy=10_000, notified=10_000, last_notified_s=seconds, cpu_ms=0.25)
    run.removal_s, run.removal_cpu_ms, run.healthz_max_ms = seconds / 2, 0.05, answer
    return run


def test_times_of_storms_are_judged_by_the_least_run_and_answers_by_the_slowest() -> None:
    found = verdicts(StormResult({Scenario(sockets=10_000, remove=True): [storm(2.0, 20.0), storm(4.0, 51.0)]}, {}))
    assert [str(one) for one in found] == [
        "kept    10,000 sockets: the last one is notified: 2 s, at most 2.3 (median 3; CPU 2.5 s)",
        "MISSED  10,000 sockets: the last one is deregistered: 1 s, at most 0.8 (median 1.5; CPU 0.5 s)",
        "MISSED  10,000 sockets: the slowest answer of the status socket: 51 ms, at most 50 (median of runs 35.5)",
    ]


def test_rescans_are_judged_by_the_difference_to_a_daemon_without() -> None:
    def measured(daemon: str, percent: float, registered: int = 10_000) -> idle.Idle:
        return idle.Idle(
            daemon=daemon,
            registered=registered,
            stale=0,
            cpu_percent=percent,
            wakeups_per_s=1.0,
            rss_mib=100.0,
            kib_per_plugin=None,
            descriptors=10,
            threads=2,
        )

    (found,) = idle.verdicts([measured("plugind", 0.5), measured("without-rescans", 0.25)])
    assert str(found) == (
        "MISSED  10,000 registered: more than without rescans: 0.25 % of a core, at most 0.2 (0.5 with, 0.25 without)"
    )
    assert list(idle.verdicts([measured("plugind", 0.5)])) == []
    assert list(idle.verdicts([measured("plugind", 0.5, 5), measured("without-rescans", 0.1, 5)])) == []


def test_the_cost_of_a_plugin_is_flat_if_the_least_of_all_runs_is() -> None:
    def cost(registered: int, cpu_ms: float, kib: float) -> Cost:
        return Cost(registered=registered, cpu_ms=cpu_ms, kib=kib, wall_s=1.0)

    costs = scaling.least([cost(30, 2.5, 12.0), cost(10, 2.0, 10.0), cost(30, 2.0, 13.0)])
    assert costs == [cost(10, 2.0, 10.0), cost(30, 2.0, 12.0)]
    assert [str(one) for one in scaling.verdicts([*costs, cost(90, 3.0, 10.0)])] == [
        "kept    30 registered: CPU of each: 1 times that among 10, at most 1.25",
        "kept    30 registered: memory of each: 1.2 times that among 10, at most 1.25",
        "MISSED  90 registered: CPU of each: 1.5 times that among 10, at most 1.25",
        "kept    90 registered: memory of each: 1 times that among 10, at most 1.25",
    ]

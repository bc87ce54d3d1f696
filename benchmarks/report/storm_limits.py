"""The limits on storms, and whether they are kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from plugind.benchmarks.report.limits import Verdict
from plugind.benchmarks.report.storm_tables import StormResult
from plugind.benchmarks.storm_run import Scenario

#: Seconds until the last of so many sockets is notified: of those that appear, and from the daemon's start on of those
#: that were there before.
STORM_S: Final = {1000: 0.22, 5000: 1.1, 10000: 2.3}
EXISTING_S: Final = {1000: 0.42, 5000: 1.4, 10000: 2.6}
#: Seconds from the removal of so many sockets until the last plugin is deregistered.
REMOVAL_S: Final = {10000: 0.8}
#: Milliseconds until the status socket answers, whatever happens.
ANSWER_MS: Final = 50.0


def verdicts(outcome: StormResult) -> Iterator[Verdict]:
    """Yield the verdict on each limit for which there are figures of plugind, with cheap plugins that all answer.

    Times are the least of all runs, since other work on the machine only adds to them; the answer is the slowest one.
    """
    for scenario, runs in outcome.runs.items():
        usual = scenario.server == "fake" and not any((scenario.hang_fraction, scenario.fail_first))
        if scenario.daemon != "plugind" or not usual or scenario.stop_midway or not runs:
            continue
        yield from _times(outcome, scenario)
        if (answer := outcome.spread(scenario, "healthz_max_ms")) is not None:
            what = "the slowest answer of the status socket"
            yield Verdict(what, _kind(scenario), answer.high, ANSWER_MS, "ms", f"median of runs {answer.median:.3g}")


def _times(outcome: StormResult, scenario: Scenario) -> Iterator[Verdict]:
    limits = EXISTING_S if scenario.existing else STORM_S
    parts = [("the last one is notified", "last_notified_s", "cpu_ms", {} if scenario.overflow else limits)]
    parts.append(("the last one is deregistered", "removal_s", "removal_cpu_ms", REMOVAL_S))
    for what, field, cost, allowed in parts:
        time, cpu = outcome.spread(scenario, field), outcome.spread(scenario, cost)
        if time is not None and cpu is not None and scenario.sockets in allowed:
            beside = f"median {time.median:.3g}; CPU {cpu.low * scenario.sockets / 1000:.3g} s"
            yield Verdict(what, _kind(scenario), time.low, allowed[scenario.sockets], "s", beside)


def _kind(scenario: Scenario) -> str:
    when = ", there before" * scenario.existing + ", after an overflow" * scenario.overflow
    return f"{scenario.sockets:,} sockets{when}"

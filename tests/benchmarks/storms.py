"""Results of storms for the tests of tables and plots."""

from __future__ import annotations

import attrs

from plugind.benchmarks.report.storm_tables import StormResult
from plugind.benchmarks.storm_run import Scenario, StormRun

TINY = Scenario(sockets=12, idle_seconds=0, patience=30, settle=0)


def three_storms() -> StormResult:
    small = attrs.evolve(TINY, sockets=1)
    peer = attrs.evolve(TINY, daemon="kubelet")
    return StormResult(
        {
            small: [
                StormRun(sockets=1, healthy=1, notified=1, last_notified_s=0.5, cpu_ms=2.0, peak_mib=40.0, p50_ms=1.0)
            ],
            TINY: [
                StormRun(sockets=12, healthy=12, notified=11, last_notified_s=1.0, cpu_ms=0.5, peak_mib=41.0, lost=1)
            ],
            peer: [StormRun(sockets=12, healthy=12, notified=12, last_notified_s=3.0, cpu_ms=2.0, peak_mib=82.0)],
        },
        {},
    )

"""The benchmark of CSI drivers measures what it reports: each driver is asked, and notes each check."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugind.benchmarks.csi_cases import (
    CLIENT,
    COUNTED,
    Asked,
    Checked,
    asking_summary,
    hanging_summary,
    measure_asking,
    measure_hanging,
)
from plugind.benchmarks.plugins.cheap_plugin import ServerOptions, Tally
from plugind.benchmarks.plugins.cheap_protocol import DeviceCall, Notification, not_implemented
from plugind.benchmarks.plugins.csi_server import CSIDriver, answers
from plugind.protocol.proto import csi_v1_pb2 as api

pytestmark = pytest.mark.extended


def test_a_driver_says_its_name_and_where_it_runs() -> None:
    said = answers("a.example.com")
    assert api.GetPluginInfoResponse.FromString(said["GetPluginInfo"]).name == "a.example.com"
    assert api.NodeGetInfoResponse.FromString(said["NodeGetInfo"]).node_id == "node-1"
    assert len(api.NodeGetCapabilitiesResponse.FromString(said["NodeGetCapabilities"]).capabilities) == 3


def test_a_driver_that_hangs_answers_all_but_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10, 17, 20, 22])
    monkeypatch.setattr("plugind.benchmarks.plugins.csi_server.time.monotonic_ns", lambda: next(times) * 10**9)
    driver = CSIDriver(ServerOptions(directory=Path("/root"), hang="probe", hang_fraction=1.0), 0, Tally())
    driver._heard_ns = 10**9  # It was notified.
    assert driver.endpoint_call(DeviceCall(1, "GetPluginInfo")) != not_implemented(1)
    assert driver.endpoint_call(DeviceCall(3, "NodeStageVolume")) == not_implemented(3)
    assert [driver.endpoint_call(DeviceCall(stream, "Probe")) for stream in (5, 7, 9)] == [b"", b"", b""]
    report = driver.report()
    assert (report["answered"], report["probes"], report["longest_gap_ns"]) == (1, 3, 9 * 10**9)


def test_the_time_since_the_last_probe_counts_as_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1]
    monkeypatch.setattr("plugind.benchmarks.plugins.csi_server.time.monotonic_ns", lambda: now[0])
    driver = CSIDriver(ServerOptions(directory=Path("/root")), 0, Tally())
    driver.endpoint_call(DeviceCall(1, "Probe"))
    driver.note(Notification(1, registered=True, error=""))
    now[0] = 51
    assert driver.report()["longest_gap_ns"] == 50


@pytest.mark.parametrize("consumer", ["plugind", CLIENT])
def test_each_consumer_makes_the_four_calls_to_each_driver(consumer: str) -> None:
    measured = measure_asking(consumer, 3, tail=0.0)
    assert measured.cpu_ms_per_driver > 0


def test_drivers_that_hang_are_checked_beside_healthy_ones() -> None:
    measured = measure_hanging(2, 2, period=1.0, seconds=0.1)
    assert (measured.healthy, measured.hanging) == (2, 2)
    assert measured.probes >= 2
    assert measured.unanswered >= 2
    assert 0 < measured.median_gap <= measured.longest_gap


def test_the_table_of_costs_says_what_each_row_counts() -> None:
    costs = {"judges only": 0.5, "judges, connects": 0.6, "plugind": 0.7, CLIENT: 0.6}
    results = [
        Asked(consumer=consumer, drivers=1000, cpu_ms_per_driver=cost * scale, seconds=1.0)
        for scale in (1.0, 2.0, 4.0)
        for consumer, cost in costs.items()
    ]
    lines = asking_summary(results).splitlines()
    assert lines[0] == "Registering 1,000 CSI drivers with their four calls; health checks are off"
    assert [line.split()[-3:] for line in lines if line.startswith(CLIENT)] == [["0.600", "1.20", "2.40"]]
    assert all(any(line.startswith(name) and what in line for line in lines) for name, what in COUNTED.items())
    assert lines[-2].startswith("all that plugind does: 0.700 ms (of the least), 1.400 ms (of the medians)")
    assert lines[-1].endswith(
        "0.200 ms (of the least), 0.400 ms (of the medians); grpcio-aio takes 3.0 and 3.0 times that"
    )


def test_the_table_of_checks_shows_the_longest_gap_of_all_turns() -> None:
    results = [
        Checked(
            healthy=500,
            hanging=hanging,
            period=30.0,
            seconds=60.0,
            probes=1000,
            median_gap=30.0,
            longest_gap=longest,
            unanswered=0,
            cpu_percent=2.0,
        )
        for longest in (35.0, 35.9)
        for hanging in (0, 500)
    ]
    lines = hanging_summary(results).splitlines()
    assert lines[0] == "Checking CSI drivers each 30 s ± 20 %, for 60 s"
    assert [line.split()[:6] for line in lines[-4:-2]] == [
        ["500", hanging, "1,000", "30.0", "35.9", "36.0"] for hanging in ("0", "500")
    ]

"""The benchmark of consumers measures what it reports: the lists are those that were sent, and each is read whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugind.benchmarks.consumers import Load, Measured, client, device_server, measure, summary
from plugind.benchmarks.peers.device_client import applied
from plugind.benchmarks.plugins.device_server import list_of, socket_of
from plugind.protocol.proto.deviceplugin_v1beta1_pb2 import ListAndWatchResponse

pytestmark = pytest.mark.extended


def test_the_devices_that_turn_are_spread_over_the_list() -> None:
    said = ListAndWatchResponse.FromString(list_of(10, range(2, 10, 5)))
    assert [device.health for device in said.devices].count("Unhealthy") == 2
    assert [number for number, device in enumerate(said.devices) if device.health == "Unhealthy"] == [2, 7]
    assert [node.ID for device in said.devices for node in device.topology.nodes] == [0, 1] * 5


def test_the_client_knows_the_health_of_each_device_and_since_when() -> None:
    first, second = (ListAndWatchResponse.FromString(list_of(3, unhealthy)) for unhealthy in (range(0), range(1, 2)))
    names = [device.ID for device in first.devices]
    devices = applied(applied({}, first, 1.0), second, 2.0)
    assert devices == {names[0]: (True, (0,), 1.0), names[1]: (False, (1,), 2.0), names[2]: (True, (0,), 1.0)}


def test_the_daemon_and_the_client_follow_the_plugins_that_are_measured(tmp_path: Path) -> None:
    load = Load(plugins=2, devices=20, changed=1, period=0.05)
    root = tmp_path / "root"
    root.mkdir(0o755)
    with device_server(root, load) as server:
        with client([socket_of(root, number) for number in range(2)]):
            server.wait(lambda counts: counts["streams"] == 2 and counts["sent"] > 2)
        server.wait(lambda counts: counts["streams"] == 0)
        # In which 80 lists are sent, and some even on a busy machine.
        measured = measure("plugind", server, tmp_path, load, 2.0)
        assert server.counts()["registered"] == 2
    assert measured.lists > 2
    assert measured.cpu_ms_per_list > 0


def test_the_table_has_medians_for_each_case_and_consumer() -> None:
    results = [
        Measured(
            consumer=consumer,
            plugins=100,
            devices=1000,
            changed=1,
            lists=10,
            cpu_ms_per_list=cost,
            cpu_percent=1.0,
            rss_mib=50.0,
            restart_s=2.0 if consumer == "plugind" else None,
        )
        for cost in (1.0, 2.0, 3.0)
        for consumer in ("plugind", "grpcio-aio")
    ]
    lines = summary(results).splitlines()
    assert lines[0] == "Following 100 device plugins with 1,000 devices each"
    assert [line.split()[:6] for line in lines[-2:]] == [
        ["1", "plugind", "2.00", "1.00", "to", "3.00"],
        ["1", "grpcio-aio", "2.00", "1.00", "to", "3.00"],
    ]

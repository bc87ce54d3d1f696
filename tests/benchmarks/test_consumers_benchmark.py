"""The benchmark of consumers measures what it reports: the lists are those that were sent, and each is read whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugind.benchmarks.consumers import Load, client, device_server, measure
from plugind.benchmarks.plugins.device_server import socket_of

pytestmark = pytest.mark.extended


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

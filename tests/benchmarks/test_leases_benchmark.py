"""The benchmark of leases measures what it reports: real leases of a real daemon, and none is left."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pytest

from plugind.benchmarks.lease_cases import (
    DAEMON,
    bare_client,
    daemon_turn,
    die,
    hold,
    places,
    queue,
)
from plugind.benchmarks.peers.allocate_client import CLIENTS
from plugind.benchmarks.peers.lease_daemon import NoLeaseError, Place, lease_daemon, plugin

pytestmark = pytest.mark.extended


@pytest.fixture
def place() -> Iterator[Place]:
    """Directories for a daemon with two devices."""
    with places(2) as found:
        yield found


def test_the_daemon_leases_and_the_clients_call_the_same_plugin(place: Place) -> None:
    with plugin(place) as server, lease_daemon(place) as daemon:
        turn = daemon_turn(daemon, "memory", 2)
        assert server.counts()["allocated"] == 2
        assert daemon.count() == 0
        for client in CLIENTS:
            with bare_client(client, place.socket) as bare:
                assert bare.call(3) > 0
        assert server.counts()["allocated"] == 8
        with pytest.raises(NoLeaseError, match=r"409: .*Requested: 3, Available: 2"):
            daemon.allocate(3)
    assert turn.who == DAEMON
    assert turn.ms > 0
    assert turn.loop_ms is not None
    assert turn.loop_ms > 0


def test_callers_take_devices_in_turns_and_none_is_overtaken(place: Place) -> None:
    found = queue(place, callers=3, rounds=2)
    assert (found.callers, found.devices, found.leases, found.overtaken) == (3, 2, 6, 0)


def test_leases_are_held_over_a_restart() -> None:
    with places(2, plugins=2) as place:
        found = hold(place, held=2, rounds=1, number=1)
    assert found.held == 2
    assert found.list_mib > 0


def test_devices_of_owners_that_were_killed_are_free_once_that_is_written(place: Place) -> None:
    """Also on a disk that takes long."""
    assert die(attrs.evolve(place, slow_disk=0.01), owners=2).owners == 2

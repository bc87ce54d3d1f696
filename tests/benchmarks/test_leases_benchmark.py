"""The benchmark of leases measures what it reports: real leases of a real daemon, and none is left."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pytest

from plugind.benchmarks.lease_cases import (
    DAEMON,
    Command,
    Part,
    Queued,
    Turn,
    bare_client,
    daemon_turn,
    die,
    hold,
    part_of,
    places,
    queue,
    timed,
)
from plugind.benchmarks.leases import commands_table, figures_table, parts_table, turns_table
from plugind.benchmarks.peers.allocate_client import CLIENTS
from plugind.benchmarks.peers.lease_daemon import NoLeaseError, Place, lease_daemon, plugin
from plugind.benchmarks.peers.watched_steps import slow

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


def test_a_slow_disk_is_slow_and_writes(capsys: pytest.CaptureFixture[str]) -> None:
    slow(print, 0.001)("written")
    assert capsys.readouterr().out == "written\n"


def test_each_function_belongs_to_the_part_with_the_longest_prefix() -> None:
    assert part_of("protocol.leases.book:Book.handle") == "the book, and the actor around it"
    assert part_of("protocol.leases.rows:row_of") == "the write, on the loop"
    assert part_of("actors.leases.owners:Owners.watch") == "the owner's process"
    assert part_of("supervisor:Supervisor.run") == "the rest"


def test_a_program_is_timed_and_one_that_fails_is_an_error() -> None:
    assert timed("true", ["/usr/bin/env", "true"]).ms > 0
    with pytest.raises(RuntimeError, match="false has failed: 1"):
        timed("false", ["/usr/bin/env", "false"])


def test_the_tables_have_the_least_of_each_and_the_ratios() -> None:
    turns = [
        Turn(store="memory", who=who, ms=ms * factor)
        for ms in (2.0, 1.0)
        for who, factor in (("client: Allocate", 1.0), (DAEMON, 8.0))
    ]
    client, daemon = turns_table(turns).splitlines()[2:]
    assert client.split() == ["memory", "client:", "Allocate", "1.00", "1.50", "-", "-", "8.00"]
    assert daemon.split()[-5:] == ["8.00", "12.0", "-", "-", "-"]
    parts = parts_table([Part(store="disk", part="a", us=30.0), Part(store="disk", part="b", us=10.0)])
    assert [line.split()[-2:] for line in parts.splitlines()[2:]] == [
        ["30.0", "75%"],
        ["10.0", "25%"],
        ["40.0", "100%"],
    ]
    programs = [Command(what=what, ms=ms, cpu_ms=ms / 2) for what, ms in (("pass", 10.0), ("allocate", 60.0))]
    assert commands_table(programs).splitlines()[-1].split()[-2:] == ["6.00", "6.00"]


def test_figures_have_a_line_each_and_a_column_for_each_run() -> None:
    one = Queued(
        callers=50,
        devices=4,
        leases=100,
        per_second=20.0,
        cpu_ms=3.0,
        median_wait_ms=1.0,
        longest_wait_ms=2.0,
        overtaken=0,
    )
    lines = figures_table([one, attrs.evolve(one, overtaken=1)]).splitlines()
    assert lines[-1].split() == ["overtaken", "0", "1"]
    assert lines[-2].split() == ["longest", "wait,", "ms", "2.00", "2.00"]

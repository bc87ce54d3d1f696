"""``python -m tests.fuzz``: seeds without violations, seeds that found bugs, reproducible traces, and shrinking."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from plugind.actors.simulation import scheduling as simulation_order
from plugind.actors.simulation.directory import MemoryDirectory
from plugind.actors.simulation.scheduling import shortcuts
from plugind.tests.fuzz import run as fuzz_run
from plugind.tests.fuzz.run import ALL, Fault, simulate
from plugind.tests.fuzz.script import Act, numbers, write
from plugind.tests.fuzz.shrink import shrink
from plugind.tests.tools.planted_bugs import OLD, Planted, fewest, let_two_operations_overlap

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("seed", range(8))
def test_a_random_script_violates_no_rule(seed: int) -> None:
    assert simulate(seed, events=60).violations == ()


@pytest.mark.parametrize("fault", list(Fault))
def test_each_fault_alone_violates_no_rule(fault: Fault) -> None:
    assert simulate(1, events=40, faults={fault}).violations == ()


@pytest.mark.parametrize("seed", range(4, 8))
def test_no_actor_crashes_unless_the_script_crashes_it(seed: int) -> None:
    """Each of the four seeds has all faults and another instance policy; a single crash would end the node."""
    assert simulate(seed, events=60, faults=ALL - {Fault.CRASHES}).violations == ()


@pytest.mark.parametrize("planted", OLD, ids=lambda planted: f"{planted.seed}-{planted.name}")
def test_a_bug_that_was_found_stays_fixed(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that found a bug still find it when its fix is taken out, and violate nothing with the fix.

    If they find nothing without the fix, the order of tasks has changed, and
    ``python -m tests.tools.planted_bugs --shrink`` finds other events.
    """
    # Few events take few rounds, so a low limit detects a livelock soon.
    monkeypatch.setattr(simulation_order, "ROUNDS", 2_000)
    assert planted.with_it().violations[0].oracle == planted.rule
    assert planted.without_it().violations == ()


def test_one_seed_gives_one_trace_in_every_process() -> None:
    """The hash of a trace is the same in another process, and does not depend on PYTHONHASHSEED."""
    command = [sys.executable, "-m", "tests.fuzz", "--seed", "3", "--events", "40"]
    processes = [
        subprocess.Popen(
            command, env={**os.environ, "PYTHONHASHSEED": hashes}, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        for hashes in ("1", "2")
    ]
    try:
        # The processes run side by side, since starting one takes longer than the script.
        here = simulate(3, events=40)
        said = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    expected = f"seed 3  events 40  virtual {here.virtual_seconds:.3f} s  trace {here.trace_hash}  violations 0\n"
    assert said == [expected, expected]
    assert [process.returncode for process in processes] == [0, 0]


@pytest.mark.parametrize("seed", [2, 4])
def test_the_shortcuts_in_trio_change_no_trace(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They use private names of Trio. If this fails, repair ``plugind.actors.simulation.shortcuts``."""
    short = simulate(seed, events=20)
    monkeypatch.setattr(fuzz_run, "shortcuts", nullcontext)
    assert simulate(seed, events=20) == short


def test_the_shortcuts_leave_trio_as_it_was_and_a_callback_from_outside_is_run() -> None:
    clock = MockClock(autojump_threshold=0)

    async def play() -> float:
        before, token, called = dict(vars(clock)), trio.lowlevel.current_trio_token(), trio.Event()
        with shortcuts(clock):
            token.run_sync_soon(called.set)
            await called.wait()
            await trio.sleep(3.5)
        assert vars(clock).keys() == before.keys()
        return trio.current_time()

    assert trio.run(play, clock=clock) == 3.5


def test_a_planted_bug_is_found_and_shrunk() -> None:
    """The bug runs calls of one name side by side; two plugins of that name are enough to find it."""
    with let_two_operations_overlap():
        broken = simulate(0, events=60)
    assert {violation.oracle for violation in broken.violations} >= {"one-per-name"}

    kept = fewest(let_two_operations_overlap, 0, broken)

    with let_two_operations_overlap():
        again = simulate(0, events=60, only=kept)
    assert again.violations
    assert len(kept) < 5


def test_shrinking_keeps_only_the_events_that_are_needed() -> None:
    kept, tries = shrink(range(100), lambda numbers: {3, 50, 51} <= set(numbers))
    assert kept == (3, 50, 51)
    assert tries < 100


def test_an_event_keeps_its_details_when_others_are_left_out() -> None:
    script = write(7, 50, ALL)
    assert [event.number for event in script if event.number < 50] == list(range(50))
    assert sorted(event.number for event in script) == list(range(94)), (
        "five races, the start, two users, two modes, five endpoints, a double crash, sixteen calls, ten of devices,"
        " and two gifts"
    )
    offers = [event.number for event in write(6, 50, ALL) if event.act is Act.OFFER]
    assert sorted(offers) == list(range(94, 106))
    leases = {act: [event.number for event in write(5, 50, ALL) if event.act is act] for act in Act}
    assert sorted(leases[Act.LEASE]) == list(range(106, 131))
    assert leases[Act.KILL_AMID_LEASE] == [131]
    healths = [event.number for event in write(6, 50, ALL) if event.act is Act.HEALTH]
    assert sorted(healths) == list(range(132, 137))
    for seed in (3, 23):
        drivers = [event.number for event in write(seed, 50, ALL) if event.act is Act.DRIVER]
        assert sorted(drivers) == list(range(137, 153))
    assert numbers(50) == range(153)
    assert script[0].number == 50
    assert write(7, 50, ALL) == script
    assert write(8, 50, ALL) != script


def test_a_full_backlog_says_that_somebody_listens() -> None:
    """Seed 2488: a stale socket is dialed at once then, as the oracle of backoff must know (fault 30)."""
    assert simulate(2488, events=200, only=(64, 105, 110, 114, 115, 117, 223)).violations == ()


def test_a_handler_that_starts_again_may_take_what_a_reconciler_asked_that_has_crashed() -> None:
    """Seed 20162: the generation belongs to the old reconciler, and the socket gets another one from the next."""
    assert simulate(20162, events=40, only=(1, 2, 4, 40)).violations == ()


def test_a_daemon_gives_a_container_its_time_from_when_a_slow_disk_has_told_of_the_lease() -> None:
    only = (73, 146, 148, 432, 454, 467, 470, 533)
    assert simulate(7330477, events=200, only=only).violations == ()


def test_events_that_were_kept_back_for_long_may_deregister_a_driver() -> None:
    """Where files have no handles, they say that another socket is there than the one that a scan has found."""
    only = (41, 122, 134, 136, 137, 139, 562, 563, 564, 565, 599, 600, 601, 607, 608)
    assert simulate(7330007, events=200, only=only).violations == ()


def test_a_retry_may_reach_a_newer_socket_that_was_dialed_before_the_older_one_is_shown_as_waiting() -> None:
    only = (10, 43, 58, 62, 82, 85, 88, 96, 109, 111, 114, 241)
    assert simulate(7312425, events=200, only=only).violations == ()


def test_a_wait_for_a_look_may_be_shown_after_the_dial_of_the_socket_that_was_found() -> None:
    only = (51, 52, 70, 75, 104, 106, 107, 109, 113, 116, 145, 150, 157, 178, 183, 184, 185, 186, 188, 190, 216, 242)
    assert simulate(7420664, events=200, only=only).violations == ()


def test_an_earlier_generation_may_be_shown_as_leaving_when_its_successor_is_registered() -> None:
    assert simulate(7461352, events=200, only=(9, 10, 17, 200)).violations == ()


def test_a_dial_that_a_user_asks_for_counts_as_a_first_attempt() -> None:
    only = (1, 3, 4, *range(7, 15), *range(17, 25), 26, 27, 200, 236, 237, 239, 245, 260)
    assert simulate(7470095, events=200, only=only).violations == ()


def test_a_recovery_that_was_not_written_in_time_is_in_force_after_a_restart() -> None:
    only = (67, 437, 450, 501, 503, 512, 514, 516, 520, 529, 531)
    assert simulate(7470020, events=200, only=only).violations == ()


def test_an_operator_asks_again_for_a_recovery_that_was_not_written_in_time() -> None:
    only = (189, 191, 198, 199, 439, 443, 444, 533)
    assert simulate(7534356, events=200, only=only).violations == ()


def test_the_file_of_a_held_lease_that_could_not_be_written_at_the_start_is_written_later() -> None:
    only = (13, 16, 35, 430, 445, 478, 499, 503, 507, 534)
    assert simulate(7552188, events=200, only=only).violations == ()


def test_a_plugin_whose_socket_is_renamed_is_told_on_a_connection_to_the_old_name() -> None:
    assert simulate(7560460, events=200, only=(12, 25, 26, 38, 39, 40, 42)).violations == ()


def test_a_container_may_end_while_its_bind_is_answered() -> None:
    assert simulate(7560437, events=200, only=(442, 500, 501, 502, 525, 526, 527)).violations == ()


def test_a_lease_may_be_released_in_the_instant_in_which_its_second_asker_is_answered() -> None:
    assert simulate(7560437, events=200, only=(440, 442, 443, 444, 449, 459, 460)).violations == ()


def test_a_socket_is_replaced_at_rest_at_a_time_at_which_a_scan_can_tell() -> None:
    """A plugin that changed its user in this very moment is parked, and no event says that it is replaced."""
    only = (1, 18, 27, 98, 123, 124, 149, 198, 199, 200, 230)
    assert simulate(7201876, events=200, only=only).violations == ()


def test_no_sentinel_is_late_because_a_crash_amid_leases_took_the_reconciler() -> None:
    assert simulate(7401157, events=200, only=(0, 7, 8, 10, 11, 448, 480)).violations == ()


def test_a_node_that_starts_again_while_device_plugins_are_followed_may_be_slow_for_a_while() -> None:
    """Seed 20914: a plugin that starts while the reconciler lets go of the others is registered afterwards."""
    assert simulate(20914, events=40, only=(11, 14, 76, 80)).violations == ()


def test_the_devices_actor_may_be_late_whichever_act_has_crashed_it() -> None:
    """Seed 45557: it was an act of leases, of which the oracle of devices did not hear."""
    assert simulate(45557, events=40, only=(23, 24, 66, 69, 98, 99)).violations == ()


@pytest.mark.parametrize("lost", [False, True])
def test_an_inode_that_was_freed_while_events_are_lost_is_not_used_again(lost: bool) -> None:
    """Seed 3369: such a socket cannot be distinguished from the old one, so a script must not create it."""
    directory = MemoryDirectory(now=lambda: 0.0)
    directory.mkdir("/r")
    directory.bind("/r/a.sock")
    freed = directory.inode("/r/a.sock").number
    directory.reuse_inodes = not lost
    directory.unlink("/r/a.sock")
    directory.reuse_inodes = True
    directory.bind("/r/a.sock")
    assert (directory.inode("/r/a.sock").number == freed) is not lost

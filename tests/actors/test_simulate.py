"""`plugind simulate`: seeds that hold, the seeds that found bugs of ours, one trace in every process, and shrinking."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Collection

import pytest

from plugind.actors.simulate import ALL, Fault, simulate
from plugind.actors.simulate_script import write
from plugind.actors.simulate_shrink import shrink
from plugind.protocol import states


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_nothing_is_violated(seed: int) -> None:
    assert simulate(seed, events=60).violations == ()


@pytest.mark.parametrize("fault", list(Fault))
def test_each_fault_alone_violates_nothing(fault: Fault) -> None:
    assert simulate(1, events=40, faults={fault}).violations == ()


#: Seeds that found bugs, and what the bug was.
FOUND = {
    5: "a root that could not be looked at, and whose watch was lost, was looked at for ever without a pause",
    10: "a socket that vanished while the reconciler was started anew was shown for ever",
    136: "a handler actor that crashed lost the deregistrations that waited for their turn",
    448: "a registration gave its claim back before its deregistration had run, which waited behind hung calls",
    982: "a socket replaced by one with its inode while looks at it failed was taken for the old one",
}


@pytest.mark.parametrize("seed", FOUND)
def test_a_bug_that_was_found_stays_mended(seed: int) -> None:
    """The seeds in ``FOUND``, each a bug of plugind that ``simulate`` found."""
    assert simulate(seed).violations == ()


def test_one_seed_gives_one_trace_whatever_the_process_and_its_hashes() -> None:
    """The hash of a trace is the same in another process, and does not depend on PYTHONHASHSEED."""

    def lines(hash_seed: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-m", "plugind.supervisor", "simulate", "--seed", "3", "--events", "80"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=60,
        )
        return done.stdout.splitlines()

    here = simulate(3, events=80)
    expected = f"seed 3  events 80  virtual {here.virtual_seconds:.3f} s  trace {here.trace_hash}  violations 0"
    assert lines("1") == lines("2") == [expected]


def test_a_planted_bug_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every delay of a backoff is the first one; a few events suffice to see it."""
    from plugind.actors import registration

    begin = registration._Registration._begin

    async def reusing(self: registration._Registration, command: states.WaitingCommand, state: states.State) -> None:
        await begin(self, states.StartTimer(1) if isinstance(command, states.StartTimer) else command, state)

    monkeypatch.setattr(registration._Registration, "_begin", reusing)

    def breaks(numbers: Collection[int]) -> bool:
        return any(v.oracle == "backoff" for v in simulate(4, events=120, only=numbers).violations)

    assert breaks(range(120))
    kept, _ = shrink(range(120), breaks, tries=40)
    assert breaks(kept)
    assert len(kept) < 60


def test_shrinking_keeps_what_is_needed_and_nothing_else() -> None:
    kept, tries = shrink(range(100), lambda numbers: {3, 50, 51} <= set(numbers))
    assert kept == (3, 50, 51)
    assert tries < 100


def test_an_event_keeps_its_details_when_others_are_left_out() -> None:
    script = write(7, 50, ALL)
    assert [event.number for event in script] == list(range(50))
    assert write(7, 50, ALL) == script
    assert write(8, 50, ALL) != script


def test_the_command_repeats_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    from plugind.supervisor import main

    assert main(["simulate", "--seeds", "0..1", "--events", "20", "--jobs", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(
        re.fullmatch(r"seed \d+  events 20  virtual [\d.]+ s  trace [0-9a-f]{16}  violations 0", line)
        for line in lines[:2]
    )
    assert re.fullmatch(r"2 seeds in [\d.]+ s, 0 with violations", lines[2])

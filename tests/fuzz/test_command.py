"""``python -m tests.fuzz``: a line for each seed, JSON, an interrupt."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from plugind.tests.fuzz.__main__ import main

ROOT = Path(__file__).parents[2]


def test_a_line_or_an_object_is_printed_for_each_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3..4", "--events", "5", "--jobs", "1", "-o", "json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["seed"], line["violations"]) for line in lines] == [(3, []), (4, [])]
    assert all(len(line["trace"]) >= 16 and line["virtual_seconds"] > 0 for line in lines)
    assert main(["--seeds", "3..4", "--events", "5", "--jobs", "1"]) == 0
    first, _, summary = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"seed 3  events 5  virtual [\d.]+ s  trace {lines[0]['trace']}  violations 0", first)
    assert re.fullmatch(r"2 seeds in [\d.]+ s, 0 with violations", summary)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seed", "3", "--trace", "-o", "json"], "--trace prints text: leave out -o json"),
        (["--seeds", "9..3"], "'9..3' is not a range of seeds, such as 0..999"),
        (["--events", "0"], "'0' is not a number of 1 or more"),
        (["--only", "a"], "'a' is not a list of numbers, such as 3,17,42"),
        (["--faults", "rain"], "'rain' names faults that are not known: choose from "),
    ],
)
def test_a_wrong_option_is_explained(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert (end.value.code, said in capsys.readouterr().err) == (2, True)


def test_an_interrupt_ends_it_at_once_and_keeps_its_results() -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--seeds", "0..9999", "--events", "10", "--jobs", "2"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as playing:
        assert playing.stdout is not None
        first = playing.stdout.readline()
        # A terminal sends the signal to the command and all its children.
        os.killpg(playing.pid, signal.SIGINT)
        rest, complaints = playing.communicate(timeout=60)
    assert (playing.returncode, complaints) == (130, "")
    assert first.startswith("seed 0 ")
    assert rest.splitlines()[-1].startswith("interrupted after ")

"""The command that compares two versions of the core by what plugins and handlers are asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugind.protocol.backoff import Backoff
from plugind.tests.tools import timelines
from plugind.tests.tools.timelines import difference

SCRIPT = ["--seeds", "4", "--events", "40"]


def test_a_version_agrees_with_itself_and_differs_from_one_whose_pauses_are_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "old"
    assert timelines.main([*SCRIPT, "--out", str(file)]) == 0
    assert timelines.main([*SCRIPT, "--against", str(file)]) == 0
    capsys.readouterr()

    delay = Backoff.delay
    monkeypatch.setattr(Backoff, "delay", lambda self, *args: 1.001 * delay(self, *args))
    assert timelines.main([*SCRIPT, "--against", str(file)]) == 1
    found, summary = capsys.readouterr().out.splitlines()
    assert found.startswith("seed 4: /plugins/")
    assert summary == "1 seeds, 1 comparable, 1 different"


def test_calls_are_recorded_with_their_arguments_outcomes_and_times() -> None:
    found = timelines.play(4, 40)
    assert {word.split()[0] for calls in found.values() for _, word in calls} >= {
        "dial",
        "dial:",
        "GetInfo",
        "NotifyRegistrationStatus",
        "validate",
        "register",
        "deregister",
    }
    # Each call of a handler concerns a generation of a path, and a type and a name.
    for kind in ("validate", "register", "deregister"):
        by_path = [entry for key, calls in found.items() if " #" in key for entry in calls if entry[1].startswith(kind)]
        by_name = [
            entry for key, calls in found.items() if key[0] != "/" for entry in calls if entry[1].startswith(kind)
        ]
        assert sorted(by_path) == sorted(by_name) != []


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [
        ([(1.0, "a"), (1.0, "b")], [(1.0, "b"), (1.0000005, "a")], True),
        ([(1.0, "a"), (2.0, "b")], [(1.0, "b"), (2.0, "a")], False),
        ([(1.0, "a")], [(1.00001, "a")], False),
        ([(1.0, "a")], [(1.0, "a"), (1.0, "a")], False),
        ([(1.0, "a")], [], False),
    ],
)
def test_what_happens_in_one_instant_has_no_order(
    old: list[timelines.Entry], new: list[timelines.Entry], is_same: bool
) -> None:
    assert (difference({"a": old}, {"a": new}) is None) is is_same
    assert (difference({"a": new}, {"a": old}) is None) is is_same


def test_the_first_difference_is_told() -> None:
    old = {"/plugins/a.sock": [(3.0, "dial")], "/plugins/b.sock": [(2.0, "dial")]}
    assert difference(old, {}) == "/plugins/b.sock: 2.000000 ['dial'], and now inf []"

"""The plugins that come and go at a steady rate beside what is measured."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from plugind.benchmarks.plugins.turnover import BEAT, Turnover

pytestmark = pytest.mark.extended


@attrs.define
class Bench:
    """A process of plugins that records its commands, and a clock that only a sleep moves."""

    now: float = 100.0
    commands: list[tuple[str, int, int]] = attrs.field(factory=list)

    def create(self, first: int, count: int) -> None:
        self.commands.append(("create", first, count))
        self.now += 0.004

    def remove(self, first: int, count: int) -> None:
        self.commands.append(("remove", first, count))

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def run(monkeypatch: pytest.MonkeyPatch, seconds: float, **named: Any) -> tuple[Bench, Turnover]:
    bench = Bench()
    monkeypatch.setattr("plugind.benchmarks.plugins.turnover.time", bench)
    server: Any = bench
    plugins = Turnover(server=server, began=bench.now, **named)
    while (now := plugins.elapsed) < seconds:
        plugins.beat()
        plugins.rest(now)
    return bench, plugins


def test_as_many_are_removed_as_are_made_and_no_index_is_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, plugins = run(monkeypatch, 2.0, rate=100.0, first=10, oldest=0)
    assert plugins.made == pytest.approx(200, abs=2)
    assert 0 <= plugins.made - plugins.removed <= 1
    for command, first in (("create", 10), ("remove", 0)):
        indexes = [at for name, start, count in bench.commands if name == command for at in range(start, start + count)]
        assert indexes == list(range(first, first + len(indexes)))


def test_each_lives_for_its_life_and_no_more_are_made_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, plugins = run(monkeypatch, 1.0, rate=100.0, first=5, oldest=5, life=0.5, most=60)
    assert plugins.made == 60
    assert plugins.removed == pytest.approx(49, abs=1)
    assert max(first + count for name, first, count in bench.commands if name == "create") == 65


def test_a_beat_has_its_length_however_long_its_commands_take(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, _ = run(monkeypatch, 1.0, rate=1000.0, first=0, oldest=0)
    assert sum(name == "create" for name, _, _ in bench.commands) == pytest.approx(1.0 / BEAT, abs=1)

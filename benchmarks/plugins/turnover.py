"""Plugins that appear at a steady rate, and of which the oldest are removed at the same rate."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import quantiles

import attrs

from plugind.benchmarks.plugins.cheap_plugin import PluginReport
from plugind.benchmarks.plugins.server_process import ServerProcess

#: Seconds between two commands to the plugins' process. Each command creates or removes all sockets that are due.
BEAT = 0.02


@attrs.define(kw_only=True)
class Turnover:
    """The plugins of one process, by their index.

    ``rate`` of them are made each second, from ``first`` on, and as many are removed ``life`` seconds later, from
    ``oldest`` on. No more than ``most`` are made.
    """

    server: ServerProcess
    rate: float
    first: int
    oldest: int
    life: float = 0.0
    most: int | None = None
    #: How many were made and removed.
    made: int = 0
    removed: int = 0
    began: float = attrs.field(factory=time.monotonic)

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.began

    def beat(self) -> None:
        """Make and remove what is due."""
        now = self.elapsed
        due = int(now * self.rate) + 1
        due = due if self.most is None else min(self.most, due)
        if due > self.made:
            self.server.create(self.first + self.made, due - self.made)
            self.made = due
        over = min(self.made, max(0, int((now - self.life) * self.rate)))
        if over > self.removed:
            self.server.remove(self.oldest + self.removed, over - self.removed)
            self.removed = over

    def rest(self, since: float) -> None:
        """Sleep until the beat after the one at ``since``, by :attr:`elapsed`."""
        time.sleep(max(0.0, BEAT - (self.elapsed - since)))


@attrs.frozen
class Verdicts:
    """What the plugins of a report were told."""

    #: Those that never were, in the order of the report.
    never: list[PluginReport]
    twice: int
    refused: int


def verdicts_of(report: Sequence[PluginReport]) -> Verdicts:
    """Count what the plugins of ``report`` were told."""
    return Verdicts(
        [plugin for plugin in report if not plugin["notified_ns"]],
        sum(plugin["notified"] > 1 for plugin in report),
        sum(plugin["refused"] > 0 for plugin in report),
    )


def delay_ms(plugin: PluginReport) -> float:
    """Return the milliseconds from listen() until the plugin was notified."""
    return (plugin["notified_ns"] - plugin["listening_ns"]) / 1e6


def p99(delays: Sequence[float]) -> float:
    """Return the 99th percentile."""
    return quantiles(delays, n=100, method="inclusive")[98] if len(delays) > 1 else delays[0]

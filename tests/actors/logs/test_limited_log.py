"""The log of a node leaves lines out and says how many; everything else that shows plugins has them all."""

from __future__ import annotations

import attrs
import trio
from trio.testing import MockClock

from plugind.actors.logs.limited import LimitedLog
from plugind.protocol.logs.limits import LogLimits
from plugind.protocol.logs.lines import Field, Level
from plugind.testing import DEFAULT_CONFIG, Accepting, FakePlugin, PluggedIn, SimulatedNode


@attrs.define
class Log:
    """Keeps the messages of warnings and of information, with their times."""

    lines: list[tuple[float, str]] = attrs.field(factory=list)

    def enabled(self, level: Level) -> bool:
        return level >= Level.INFO

    def event(self, level: Level, message: str, /, **fields: Field) -> None:
        if self.enabled(level):
            subject = fields.get("socket", fields.get("root", ""))
            self.lines.append((round(trio.current_time(), 3), f"{message} {subject}"))

    def about(self, subject: str) -> list[tuple[float, str]]:
        return [(time, line.removesuffix(f" {subject}")) for time, line in self.lines if line.endswith(f" {subject}")]


def forbidden(node: SimulatedNode) -> PluggedIn:
    """Return a socket to which no connection is allowed."""
    plugin = node.plug("a.sock", FakePlugin("Colour", "red"))
    plugin.accepting = Accepting.DENIED
    return plugin


#: No life counts as short, so that each socket is dialed at once: test_crash_loops is about those.
AT_ONCE = attrs.evolve(DEFAULT_CONFIG, stable_after=0.0)


async def restarts(plugin: PluggedIn, times: int) -> None:
    for _ in range(times):
        await trio.sleep(0.1)
        plugin.restart()


async def test_the_lines_of_a_plugin_that_comes_and_goes_are_limited_and_what_is_shown_is_not(
    autojump_clock: MockClock,
) -> None:
    """Faults 48 and 91: the log says when the minute is over how often each line was repeated."""
    log = Log()
    async with SimulatedNode(AT_ONCE, log=log) as node:
        plugin = forbidden(node)
        await restarts(plugin, 100)
        await trio.sleep_until(59.0)
        assert [state for _, state in node.timeline("a.sock")].count("waiting") >= 101
        assert len([line for _, line in log.about(plugin.path) if line == "plugin waiting"]) == 10
        await trio.sleep_until(61.0)
        assert log.about(plugin.path)[-2:] == [
            (60.0, "plugin waiting … repeated 91 times"),
            (60.1, "plugin gone … repeated 90 times"),
        ]
        plugin.restart()
        await trio.sleep(0.01)
        assert log.about(plugin.path)[-1] == (61.0, "plugin waiting")


async def test_the_lines_of_a_root_that_is_removed_and_made_in_a_loop_are_limited(autojump_clock: MockClock) -> None:
    """Fault 14: what the watcher reports is limited like the lines of plugins."""
    log = Log()
    async with SimulatedNode(log=log) as node:
        for _ in range(50):
            node.directory.remove_tree(node.root)
            await trio.sleep(0.5)
            node.directory.mkdir(node.root)
            await trio.sleep(0.5)
        lines = log.about(node.root)
        assert max(map(lines.count, lines)) == 1
        for message in {line for _, line in lines}:
            assert [line for _, line in lines].count(message) <= 10
        assert len(lines) < 50
        await trio.sleep_until(130.0)
        assert any("… repeated" in line for _, line in log.about(node.root))


async def test_the_end_of_a_node_says_what_was_left_out(autojump_clock: MockClock) -> None:
    log = Log()
    async with SimulatedNode(AT_ONCE, log=log) as node:
        plugin = forbidden(node)
        await restarts(plugin, 20)
        await trio.sleep(0.1)
    assert [line for _, line in log.about(plugin.path)][-2:] == [
        "plugin waiting … repeated 11 times",
        "plugin gone … repeated 10 times",
    ]


async def test_no_timer_runs_while_nothing_is_left_out(autojump_clock: MockClock) -> None:
    log = Log()
    limited = LimitedLog(log, LogLimits(same=1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(limited.run)
        limited.event(Level.INFO, "said", socket="a")
        limited.event(Level.DEBUG, "not said", socket="a")
        await trio.testing.wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline == float("inf")
        limited.event(Level.INFO, "said", socket="a")
        await trio.sleep(70.0)
        nursery.cancel_scope.cancel()
    assert log.lines == [(0.0, "said a"), (60.0, "said … repeated once a")]

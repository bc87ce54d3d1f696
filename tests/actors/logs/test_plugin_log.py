"""The lines that the log of a node gets for a plugin: one for each true event, over its whole life in virtual time."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.protocol.logs.lines import Field, Level
from plugind.testing import (
    DEFAULT_CONFIG,
    Fails,
    FakeHandler,
    FakePlugin,
    Hangs,
    PluggedIn,
    SimulatedNode,
    Takes,
)

REMOVED, NEWER = "the socket was removed", "a newer socket is in its place"
NOBODY = "nobody listens"


@attrs.define
class Log:
    """Keeps the events of plugins as short lines: time, message, generation and cause."""

    lines: list[str] = attrs.field(factory=list)

    def enabled(self, level: Level) -> bool:
        return level >= Level.INFO

    def event(self, level: Level, message: str, /, **fields: Field) -> None:
        if self.enabled(level) and message.startswith("plugin "):
            outcome = fields.get("outcome")
            said = [fields.get("cause"), *([f"({outcome})"] if message == "plugin deregistered" and outcome else [])]
            cause = " ".join(str(part) for part in said if part)
            line = f"{trio.current_time():g} {message.removeprefix('plugin ')} g{fields['generation']}"
            self.lines.append(f"{line}: {cause}" if cause else line)


@pytest.fixture
def log() -> Log:
    return Log()


def red(**faults: object) -> FakePlugin:
    return FakePlugin("Colour", "red", **faults)  # type: ignore[arg-type]


async def test_a_plugin_that_is_registered_and_removed_gives_three_lines(autojump_clock: MockClock, log: Log) -> None:
    handler = FakeHandler().always("deregister", Takes(2.0))
    async with SimulatedNode(handlers={"Colour": handler}, log=log) as node:
        plugin = node.plug("a.sock", red())
        await node.settled()
        await trio.sleep_until(5.0)
        plugin.stop()
        await node.settled()
    assert log.lines == ["0 registered g1", f"7 deregistered g1: {REMOVED}", f"7 gone g1: {REMOVED}"]


async def test_the_line_of_a_deregistration_that_fails_has_the_failure(autojump_clock: MockClock, log: Log) -> None:
    """Fault 84."""
    handler = FakeHandler().always("deregister", Fails("no"))
    async with SimulatedNode(handlers={"Colour": handler}, log=log) as node:
        plugin = node.plug("a.sock", red())
        await node.settled()
        plugin.stop()
        await node.settled()
    assert log.lines == [
        "0 registered g1",
        f"0 deregistered g1: {REMOVED} (deregister broken)",
        f"0 gone g1: {REMOVED}",
    ]


async def test_a_socket_that_is_replaced_at_once_is_gone_and_the_next_is_registered(
    autojump_clock: MockClock, log: Log
) -> None:
    async with SimulatedNode(handlers={"Colour": FakeHandler()}, log=log) as node:
        plugin = node.plug("a.sock", red())
        await node.settled()
        plugin.restart()
        await node.settled()
    # The first one's life was short (fault 49).
    assert log.lines == [
        "0 registered g1",
        f"0 deregistered g1: {NEWER}",
        f"0 gone g1: {NEWER}",
        "0 waiting g2: crash loop: 1 short life",
        "0.5 registered g2",
    ]


async def test_a_socket_that_is_replaced_while_its_plugin_is_deregistered_is_gone_once(
    autojump_clock: MockClock, log: Log
) -> None:
    """The removal is seen first, and the same actor goes on with the newer socket."""
    handler = FakeHandler().always("deregister", Takes(3.0))
    async with SimulatedNode(handlers={"Colour": handler}, log=log) as node:
        plugin = node.plug("a.sock", red())
        await node.settled()
        plugin.stop()
        await trio.sleep_until(1.0)
        plugin.bind()
        plugin.listen()
        await trio.sleep_until(2.0)
        plugin.restart()
        await node.settled()
    assert log.lines == ["0 registered g1", f"3 deregistered g1: {REMOVED}", f"3 gone g1: {NEWER}", "3 registered g3"]


async def test_a_socket_that_a_link_replaces_is_gone_though_its_plugin_is_deregistered_later(
    autojump_clock: MockClock, log: Log
) -> None:
    """Behaviour 7: the link is shown at once, so later changes of the earlier socket are not shown."""
    handler = FakeHandler().always("deregister", Takes(3.0))
    async with SimulatedNode(handlers={"Colour": handler}, log=log) as node:
        plugin = node.plug("a.sock", red())
        await node.settled()
        plugin.unlink()
        node.directory.bind("/elsewhere")
        node.directory.symlink("/elsewhere", plugin.path)
        await trio.sleep_until(5.0)
    refusal = "a symbolic link, and links are not followed"
    assert log.lines == [
        "0 registered g1",
        "0 gone g1: another entry is in its place",
        f"0 parked g2: {refusal}",
        f"3 deregistered g1: {REMOVED}",
    ]


@pytest.mark.parametrize("again", [True, False], ids=["a new socket", "nothing"])
async def test_a_link_that_is_removed_again_does_not_end_the_socket_before_it_twice(
    autojump_clock: MockClock, log: Log, *, again: bool
) -> None:
    """Seed 111: the plugin of that socket is shown again, because it is still deregistered."""
    handler = FakeHandler().always("deregister", Takes(3.0))
    async with SimulatedNode(handlers={"Colour": handler}, log=log) as node:
        plugin = node.plug("a.sock", red())
        await node.settled()
        plugin.unlink()
        await trio.sleep_until(1.0)
        node.directory.bind("/elsewhere")
        node.directory.symlink("/elsewhere", plugin.path)
        await trio.sleep_until(2.0)
        node.directory.unlink(plugin.path)
        if again:
            plugin.bind()
        await trio.sleep_until(3.5)
    gone = [line for line in log.lines if " gone g1" in line]
    assert gone == ["1 gone g1: another entry is in its place"]
    # The first try of a new socket, on which nobody listens, is silent for a moment.
    assert f"{3.2 if again else 3} deregistered g1: {REMOVED}" in log.lines


async def test_a_failure_is_logged_once_for_each_cause_and_each_socket(autojump_clock: MockClock, log: Log) -> None:
    """Kubernetes issue 94827: no repeated lines, except that a new socket that fails in the same way has its own."""
    async with SimulatedNode(handlers={"Colour": FakeHandler()}, log=log) as node:
        plugin = node.plug("a.sock", red(), listening=False)
        await trio.sleep_until(10.0)
        plugin.restart()
        plugin.crash()
        await trio.sleep_until(20.0)
        plugin.stop()
        await node.settled()
    assert log.lines == [
        f"1 stale g1: {NOBODY}",
        f"10.2 gone g1: {NEWER}",
        f"11 stale g2: {NOBODY}",
        f"20 gone g2: {REMOVED}",
    ]


async def stop_after(log: Log, plug: Callable[[SimulatedNode], PluggedIn], *, deregister: bool = False) -> list[str]:
    """Return the lines that the stop of a node adds."""
    config = attrs.evolve(DEFAULT_CONFIG, deregister_at_stop=deregister)
    handler = FakeHandler().always("validate", Fails("no"), name="blue").always("register", Hangs(), name="slow")
    async with SimulatedNode(config, handlers={"Colour": handler}, log=log) as node:
        plug(node)
        await trio.sleep_until(2.0)
        before = list(log.lines)
        await node.stop()
    assert log.lines[: len(before)] == before
    return log.lines[len(before) :]


@pytest.mark.parametrize(
    "plug",
    [
        lambda node: node.plug("a.sock", red()),
        lambda node: node.plug("a.sock", FakePlugin("Colour", "blue")),
        lambda node: node.plug("a.sock", FakePlugin("Colour", "slow")),
        lambda node: node.plug("a.sock", FakePlugin("Shape", "round")),
        lambda node: node.plug("a.sock", red(), listening=False),
        lambda node: node.plug("a.sock", red(hang="get-info")),
        lambda node: node.plug("a.sock", red(hang="notify")),
        lambda node: node.plug("a.sock", red(reject_notify=True)),
    ],
    ids=["registered", "refused", "registering", "parked", "stale", "hung", "hung notify", "failed notify"],
)
async def test_a_stop_that_deregisters_nothing_logs_no_end_of_a_plugin(
    autojump_clock: MockClock, log: Log, plug: Callable[[SimulatedNode], PluggedIn]
) -> None:
    """Behaviour 42: what was registered stays registered, and the sockets are there still."""
    assert await stop_after(log, plug) == []


async def test_a_stop_that_deregisters_logs_that_and_no_end_of_a_socket(autojump_clock: MockClock, log: Log) -> None:
    """Behaviour 42."""
    ended = await stop_after(log, lambda node: node.plug("a.sock", red()), deregister=True)
    assert ended == ["2 deregistered g1: plugind stops"]


async def test_crashes_of_actors_end_no_socket_and_repeat_no_line(autojump_clock: MockClock, log: Log) -> None:
    """Fault 85: the status actor is sent everything again, and the watcher finds everything again."""
    async with SimulatedNode(handlers={"Colour": FakeHandler()}, log=log) as node:
        node.plug("a.sock", red())
        node.plug("b.sock", red(), listening=False)
        node.directory.bind("/elsewhere")
        node.directory.symlink("/elsewhere", node.path("c.sock"))
        await trio.sleep_until(5.0)
        before = list(log.lines)
        assert node.crash("status")
        await trio.sleep_until(10.0)
        assert node.crash("watcher")
        await trio.sleep_until(100.0)
        assert log.lines == before
        assert node.crash("watcher")
        await trio.sleep_until(200.0)
        assert log.lines == before
        assert node.crash("registration", "a.sock")
        await trio.sleep_until(300.0)
    deregistered, waiting, registered = log.lines[len(before) :]
    assert (deregistered, registered) == ("200 deregistered g1: its actor crashed", "200.5 registered g1")
    assert waiting.startswith("200 waiting g1: internal error: IllegalStepError: PoisonMessage()")


async def test_after_a_crash_of_the_reconciler_what_was_registered_is_deregistered_and_no_socket_gone(
    autojump_clock: MockClock, log: Log
) -> None:
    """Fault 85."""
    async with SimulatedNode(handlers={"Colour": FakeHandler()}, log=log) as node:
        node.plug("a.sock", red())
        node.plug("b.sock", red(), listening=False)
        await trio.sleep_until(5.0)
        assert node.crash("reconciler")
        await trio.sleep_until(10.0)
    # The sockets are found again in any order.
    said = [line.split(" ", 2)[1] + line.partition(":")[2] for line in log.lines[2:]]
    assert said[0] == "deregistered plugind starts anew"
    assert sorted(said[1:]) == ["registered", f"stale {NOBODY}"]

"""What the service manager is sent, in virtual time, on a socket of the test's own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.actors.console.service_manager import (
    keep_informed,
    reloading,
    tell_service_manager,
    tell_surely,
    watchdog_seconds,
    words_of,
)
from plugind.protocol.logs.lines import Level
from plugind.protocol.plugins.status import PluginCounts, StateName
from plugind.supervisor import NodeEndedError
from plugind.tests.actors.status.bench import RecordingLogger


@attrs.define
class FakeNode:
    """A node that says what a test has it say."""

    hangs: tuple[str, ...] = ()
    registered: int = 0
    ended: bool = False
    silent: bool = False

    def hung(self) -> tuple[str, ...]:
        return self.hangs

    async def counts(self) -> PluginCounts:
        if self.ended:
            raise NodeEndedError("it has ended")
        if self.silent:
            await trio.sleep_forever()
        return PluginCounts({StateName.REGISTERED: self.registered})


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as listening:
        listening.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.delenv("WATCHDOG_USEC", raising=False)
        yield listening


def received(manager: socket.socket) -> list[str]:
    messages = []
    try:
        while True:
            messages.append(manager.recv(4096).decode())
    except BlockingIOError:
        return messages


async def timeline(manager: socket.socket, seconds: int, nursery: trio.Nursery) -> list[tuple[int, str]]:
    """Return what is sent in the next seconds, with the time of each message, half a second late; then cancel."""
    sent = []
    began = trio.current_time()
    for second in range(seconds):
        await trio.sleep_until(began + second + 0.5)
        sent += [(second, message) for message in received(manager)]
    nursery.cancel_scope.cancel()
    return sent


async def test_the_watchdog_is_fed_three_times_in_its_time_and_what_changes_is_told_once(
    autojump_clock: MockClock, manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "15000000")
    node = FakeNode(registered=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_informed, node, RecordingLogger())
        nursery.start_soon(_later, 7.0, node)
        sent = await timeline(manager, 16, nursery)
    assert sent == [
        (0, "WATCHDOG=1"),
        (0, "STATUS=1 plugin: 1 registered"),
        (5, "WATCHDOG=1"),
        (10, "WATCHDOG=1"),
        (10, "STATUS=2 plugins: 2 registered"),
        (15, "WATCHDOG=1"),
    ]


async def _later(seconds: float, node: FakeNode) -> None:
    await trio.sleep(seconds)
    node.registered += 1


async def test_the_watchdog_is_not_fed_while_a_core_actor_hangs_and_the_status_and_the_log_say_why(
    autojump_clock: MockClock, manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "3000000")
    log, node = RecordingLogger(), FakeNode()

    async def hang() -> None:
        await trio.sleep(1.5)
        node.hangs = ("status: it hangs", "leases: 5\nwait")
        await trio.sleep(3.0)
        node.hangs = ()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_informed, node, log)
        nursery.start_soon(hang)
        sent = await timeline(manager, 6, nursery)
    assert sent == [
        (0, "WATCHDOG=1"),
        (0, "STATUS=0 plugins"),
        (1, "WATCHDOG=1"),
        (2, "STATUS=not fed: status: it hangs; leases: 5\\nwait"),
        (5, "WATCHDOG=1"),
        (5, "STATUS=0 plugins"),
    ]
    assert log.events == [
        (Level.ERROR, "the watchdog is not fed any more", {"reason": "status: it hangs; leases: 5\nwait"}),
        (Level.INFO, "the watchdog is fed again", {}),
    ]


@pytest.mark.parametrize("node", [FakeNode(ended=True), FakeNode(silent=True)], ids=["ended", "silent"])
async def test_a_node_that_does_not_count_its_plugins_is_fed_and_says_nothing(
    autojump_clock: MockClock, manager: socket.socket, monkeypatch: pytest.MonkeyPatch, node: FakeNode
) -> None:
    """While it stops, for example."""
    monkeypatch.setenv("WATCHDOG_USEC", "9000000")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_informed, node, RecordingLogger())
        sent = await timeline(manager, 8, nursery)
    assert {message for _, message in sent} == {"WATCHDOG=1"}
    assert len(sent) == 3


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_is_that_of_this_process(environment: dict[str, str], seconds: float | None) -> None:
    assert watchdog_seconds(environment, 7) == seconds


def test_a_reload_begins_and_ends_also_if_it_fails(manager: socket.socket) -> None:
    with ExitStack() as stack:
        stack.enter_context(pytest.raises(ValueError, match="refused"))
        stack.enter_context(reloading())
        (began,) = received(manager)
        raise ValueError("refused")
    name, micros = began.split("\nMONOTONIC_USEC=")
    assert (name, micros.isdigit()) == ("RELOADING=1", True)
    assert received(manager) == ["READY=1"]


async def test_that_the_daemon_is_ready_is_told_once_the_queue_has_room(
    autojump_clock: MockClock, manager: socket.socket
) -> None:
    """READY=1 that is lost would end the daemon, since systemd waits for it no longer than TimeoutStartSec."""
    filler = 0
    while tell_service_manager("X=1"):
        filler += 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tell_surely, "READY=1")
        await trio.sleep(3.0)
        assert received(manager) == ["X=1"] * filler
        await trio.sleep(1.0)
    assert received(manager) == ["READY=1"]


async def test_a_service_manager_that_takes_nothing_does_not_delay_the_daemon_for_ever(
    autojump_clock: MockClock, manager: socket.socket
) -> None:
    while tell_service_manager("X=1"):
        pass
    await tell_surely("READY=1")
    assert trio.current_time() == pytest.approx(10.0)


def test_a_service_manager_that_is_gone_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fault 95."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody.sock"))
    assert tell_service_manager("READY=1")


def test_the_words_count_what_does_not_serve_and_what_is_queued_for_a_dial() -> None:
    counts = PluginCounts({StateName.REGISTERED: 3, StateName.STALE: 1, StateName.WAITING: 0}, not_serving=2)
    assert words_of(counts) == "4 plugins: 3 registered, 2 of them not serving, 1 stale"
    assert words_of(PluginCounts({StateName.STALE: 1}, queued=7)) == "1 plugin: 1 stale; 7 queued"
    devices = [words_of(PluginCounts({}, unusable=("no /a",), devices=each)) for each in ((3, 0), (0, 1))]
    assert words_of(PluginCounts({}, devices=(1, 0), withheld=True)) == "0 plugins; 1 device; all devices are withheld"
    assert devices == ["0 plugins; 3 devices; no /a", "0 plugins; 1 device: 0 healthy, 1 unhealthy; no /a"]

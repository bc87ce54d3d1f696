"""The stream of the page in virtual time: batches, storms, and browsers that are slow."""

from __future__ import annotations

import math

import attrs
import trio
from trio.testing import MockClock

from plugind.actors.status.page.board import PIECE, PLUGINS, Board
from plugind.tests.actors.status.page.events import Browser


@attrs.define
class Received:
    """A browser, and when each batch of it began."""

    browser: Browser = attrs.field(factory=Browser)
    begun: list[float] = attrs.field(factory=list)
    events: int = 0
    #: Seconds that it takes for each event.
    takes: float = 0.0
    _batches: int = -1

    async def send(self, piece: bytes) -> None:
        if self.browser.batches != self._batches and not piece.startswith(b":"):
            self._batches = self.browser.batches
            self.begun.append(trio.current_time())
        self.events += 1
        self.browser.take(piece)
        await trio.sleep(self.takes)


def board() -> Board:
    return Board(trio.current_time)


async def test_a_browser_gets_all_first_and_then_each_change(autojump_clock: MockClock) -> None:
    shown, received = board(), Received()
    shown.put(PLUGINS, "/r/a.sock", {"state": "waiting"})
    shown.tell("daemon", {"host": "node1"})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shown.stream, received.send)
        await trio.sleep(1.0)
        shown.put(PLUGINS, "/r/b.sock", {"state": "registered"})
        await trio.sleep(1.0)
        shown.remove(PLUGINS, "/r/a.sock")
        shown.tell("daemon", {"host": "node1"})
        await trio.sleep(1.0)
        nursery.cancel_scope.cancel()
    assert received.begun == [0.0, 1.0, 2.0]
    assert received.browser.tables == {
        "plugins": {"/r/b.sock": {"state": "registered"}},
        "resources": {},
        "leases": {},
        "node": {"daemon": {"host": "node1"}},
    }


async def test_a_storm_of_ten_thousand_sockets_is_four_batches_a_second_with_the_newest_state_of_each(
    autojump_clock: MockClock,
) -> None:
    shown, received = board(), Received()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shown.stream, received.send)
        await trio.sleep(1.0)
        # Each socket changes seven times within a second, as it does when it is registered.
        for turn in range(7):
            for number in range(10_000):
                shown.put(PLUGINS, f"/r/{number}.sock", {"turn": turn})
            await trio.sleep(1 / 7)
        await trio.sleep(1.0)
        nursery.cancel_scope.cancel()
    assert received.begun == [0.0, 1.0, 1.25, 1.5, 1.75, 2.0]
    assert received.browser.values == 5 * 10_000
    assert received.events == 4 + 1 + 5 * (math.ceil(10_000 / PIECE) + 1)
    assert received.browser.tables[PLUGINS] == {f"/r/{number}.sock": {"turn": 6} for number in range(10_000)}


async def test_a_slow_browser_gets_fewer_batches_and_nothing_waits_for_it(autojump_clock: MockClock) -> None:
    shown, slow, fast = board(), Received(takes=9.9), Received()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shown.stream, slow.send)
        nursery.start_soon(shown.stream, fast.send)
        await trio.sleep(100.0)
        for second in range(100):
            shown.put(PLUGINS, "/r/a.sock", {"second": second})
            await trio.sleep(1.0)
        assert fast.browser.values == 100
        # A batch takes it 19.8 s: one event with the newest state, and the end.
        assert slow.browser.values == 6
        await trio.sleep(100.0)
        nursery.cancel_scope.cancel()
    assert slow.browser.tables == fast.browser.tables
    assert slow.browser.tables[PLUGINS] == {"/r/a.sock": {"second": 99}}


async def test_a_value_that_changes_while_a_batch_is_sent_is_sent_as_it_is_then(autojump_clock: MockClock) -> None:
    shown, slow = board(), Received(takes=1.0)
    for number in range(3 * PIECE):
        shown.put(PLUGINS, str(number), 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shown.stream, slow.send)
        await trio.sleep(1.5)
        shown.put(PLUGINS, str(3 * PIECE - 1), 1)
        shown.remove(PLUGINS, str(3 * PIECE - 2))
        await trio.sleep(3.0)
        seen = dict(slow.browser.tables[PLUGINS])
        await trio.sleep(60.0)
        nursery.cancel_scope.cancel()
    assert seen[str(3 * PIECE - 1)] == 1
    assert slow.browser.tables[PLUGINS] == seen
    assert len(seen) == 3 * PIECE - 1


async def test_a_comment_every_few_seconds_says_that_the_connection_is_alive(autojump_clock: MockClock) -> None:
    shown, received = board(), Received()
    with trio.move_on_after(9.0):
        await shown.stream(received.send)
    assert (received.browser.batches, received.browser.comments) == (1, 3)

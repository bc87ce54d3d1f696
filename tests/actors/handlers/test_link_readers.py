"""The channels of links are read by whoever waits on them, and by a task of their own while nobody does."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.actors.grpc.client.channel import Channel
from plugind.actors.handlers.links import Readers
from plugind.actors.simulation.streams import ServerEnd, memory_connection
from plugind.protocol.wire.frames import ACK, PING, frame
from plugind.tests.wire.hostile import HELLO, answer, get_info


def ping(number: int) -> bytes:
    return frame(PING, 0, 0, struct.pack(">Q", number))


@attrs.define(eq=False)
class Attended:
    """A channel that is attended, its server, and how often its end was told."""

    readers: Readers
    channel: Channel
    theirs: ServerEnd
    lost: int = 0
    heard: bytearray = attrs.field(factory=bytearray)
    others: int = 0

    def attend(self) -> None:
        self.readers.attend(self.channel, self)

    def lose(self, channel: Channel) -> None:
        assert channel is self.channel
        self.lost += 1
        channel.close()

    async def tasks(self) -> int:
        """Return how many tasks there are more than before anything was done."""
        await wait_all_tasks_blocked()
        return trio.lowlevel.current_statistics().tasks_living - self.others

    async def answers_pings(self) -> bool:
        """Whether a PING is answered."""
        self.heard.clear()
        await self.theirs.send_all(ping(7))
        await wait_all_tasks_blocked()
        return frame(PING, ACK, 0, struct.pack(">Q", 7)) in self.heard

    async def hear(self) -> None:
        while data := await self.theirs.receive_some():
            self.heard += data
        await trio.sleep_forever()


@asynccontextmanager
async def attended() -> AsyncIterator[Attended]:
    """Yield a channel that nobody uses yet."""
    made, readers = memory_connection(), Readers()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(readers.serve)
        connection = Attended(readers, Channel(made.client), made.server)
        nursery.start_soon(connection.hear)
        await wait_all_tasks_blocked()
        connection.others = trio.lowlevel.current_statistics().tasks_living
        await connection.theirs.send_all(HELLO)
        yield connection
        nursery.cancel_scope.cancel()


async def test_a_channel_that_nobody_uses_has_a_task_that_reads_it(autojump_clock: MockClock) -> None:
    async with attended() as connection:
        connection.attend()
        assert await connection.tasks() == 1
        assert await connection.answers_pings()
        connection.theirs.half_close()
        assert await connection.tasks() == 0
        assert connection.lost == 1


async def test_a_channel_that_is_used_at_once_needs_no_other_task(autojump_clock: MockClock) -> None:
    async with attended() as connection, trio.open_nursery() as nursery:
        connection.attend()
        nursery.start_soon(connection.channel.wait_closed)
        assert await connection.tasks() == 1
        assert await connection.answers_pings()
        connection.theirs.half_close()
        # Its end is told all the same, by a task that ends then.
        assert await connection.tasks() == 0
        assert connection.lost == 1


async def test_a_channel_is_read_on_when_a_call_has_ended(autojump_clock: MockClock) -> None:
    async with attended() as connection:
        await connection.theirs.send_all(answer(1))
        connection.attend()
        await get_info(connection.channel, 1.0)
        assert await connection.tasks() == 1
        assert await connection.answers_pings()
        # The task of the link reads for a call, too.
        await connection.theirs.send_all(answer(3))
        await get_info(connection.channel, 1.0)
        assert await connection.tasks() == 1
        connection.channel.close()
        assert await connection.tasks() == 0


async def test_a_channel_is_read_on_when_a_call_was_cancelled(autojump_clock: MockClock) -> None:
    async with attended() as connection:
        connection.attend()
        with trio.move_on_after(2):
            await get_info(connection.channel, None)
        assert await connection.answers_pings()
        assert await connection.tasks() == 1

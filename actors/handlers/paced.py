"""Takes the messages of a stream in which each replaces the one before, and no more of them than can be worked off."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import trio

from ...protocol.wire.grpc import Newest
from ..grpc.client.stream import ClientStream, RecvT, SendT

#: Seconds between two messages that are passed on; of those that come meanwhile only the newest counts.
INTERVAL = 0.1
#: How many bytes of messages are taken in a second, and what a message counts at least. A plugin that sends more is
#: slowed down by its window. A list of 10,000 devices has about 600,000 bytes.
BYTES_PER_SECOND = 1_048_576
LEAST_BYTES = 1024
#: No pause for bytes is longer.
LONGEST_PAUSE = 5.0
#: How many steps of the messages of one plugin are done in a second. A step takes about a millisecond, so that no
#: plugin keeps a core busy for more than about a fifth of the time.
STEPS_PER_SECOND = 200


def pause_after(newest: Newest, steps: int = 0) -> float:
    """Return the seconds until the next message is taken, after ``newest`` in ``steps``, and those dropped for it."""
    size = max(newest.size, newest.count * LEAST_BYTES)
    return max(INTERVAL, min(size / BYTES_PER_SECOND, LONGEST_PAUSE), steps / STEPS_PER_SECOND)


async def take_newest(stream: ClientStream[SendT, RecvT], pass_on: Callable[[bytes], Iterator[None]]) -> None:
    """Pass on the newest message again and again, until the plugin ends the stream in order.

    Others run after each step of ``pass_on``.

    Raises:
      GRPCError: if it ends in another way.
    """
    while (newest := await stream.recv_newest()) is not None:
        steps = 0
        for steps, _ in enumerate(pass_on(newest.message), 1):  # noqa: B007 - how many there were counts below
            await stream.wait_turn()
        next_at = trio.current_time() + pause_after(newest, steps)
        await stream.wait_message()
        if trio.current_time() < next_at:
            with trio.move_on_at(next_at):
                await stream.wait_end()

"""Takes the messages of a stream in which each replaces the one before, and no more of them than can be worked off.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from ...protocol.wire.grpc import Newest
from ..io.grpc_client.stream import ClientStream, RecvT, SendT

#: Seconds between two messages that are passed on; of those that come meanwhile only the newest counts.
INTERVAL = 0.1
#: How many bytes of messages are taken in a second, and what a message counts at least. A plugin that sends more is
#: slowed down by its window. A list of 10,000 devices has about 600,000 bytes.
BYTES_PER_SECOND = 1_048_576
LEAST_BYTES = 1024
#: No pause between two messages is longer.
LONGEST_PAUSE = 5.0


def pause_after(newest: Newest) -> float:
    """Return the seconds until the next message is taken, after ``newest`` and those dropped for it."""
    size = max(newest.size, newest.count * LEAST_BYTES)
    return min(max(INTERVAL, size / BYTES_PER_SECOND), LONGEST_PAUSE)


async def take_newest(stream: ClientStream[SendT, RecvT], pass_on: Callable[[bytes], None]) -> None:
    """Pass on the newest message again and again, until the plugin ends the stream in order.

    Raises:
      GRPCError: if it ends in another way.
    """
    while (newest := await stream.recv_newest()) is not None:
        pass_on(newest.message)
        next_at = trio.current_time() + pause_after(newest)
        await stream.wait_message()
        if trio.current_time() < next_at:
            with trio.move_on_at(next_at):
                await stream.wait_end()

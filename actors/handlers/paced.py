"""Takes the messages of a stream in which each replaces the one before, no faster than they can be processed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import trio

from ...protocol.wire.grpc import Newest
from ..grpc.client.stream import ClientStream, RecvT, SendT

#: Seconds between two messages that are passed on. Of the messages that come meanwhile only the newest is used.
INTERVAL = 0.1
#: Bytes of messages that are taken in a second, and the least that a message counts. The flow control window slows down
#: a plugin that sends more. A list of 10,000 devices has about 600,000 bytes.
BYTES_PER_SECOND = 1_048_576
LEAST_BYTES = 1024
#: The longest pause for bytes.
LONGEST_PAUSE = 5.0
#: Steps of processing for one plugin in a second. A step takes about 1 ms, so a plugin uses a fifth of a core at most.
STEPS_PER_SECOND = 200


def pause_after(newest: Newest, steps: int = 0) -> float:
    """Return the seconds to wait after ``newest`` took ``steps``, messages dropped for it included."""
    size = max(newest.size, newest.count * LEAST_BYTES)
    return max(INTERVAL, min(size / BYTES_PER_SECOND, LONGEST_PAUSE), steps / STEPS_PER_SECOND)


async def take_newest(stream: ClientStream[SendT, RecvT], pass_on: Callable[[bytes], Iterator[None]]) -> None:
    """Pass on the newest message repeatedly, until the plugin ends the stream in order.

    Other tasks run after each step of ``pass_on``.

    Raises:
      GRPCError: if the stream ends in another way.
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

"""Reads the channels of links while nobody uses them: keep-alive is answered then, and their end is noticed.

A channel is read by the task that waits for something on it. Many are in use from the first moment on: Register makes
its calls, and follow waits for the end of the connection. So a channel gets a task of its own only once nobody has
waited on it for a moment. A task that starts only to find that others read costs more than a call.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from typing import Protocol

import trio

from ..grpc.client.channel import Channel


class Loser(Protocol):
    """Is told when a channel has ended."""

    def lose(self, channel: Channel) -> None:
        """Close a channel that has ended."""


class Readers:
    """The tasks that read the channels of all links of a node."""

    def __init__(self) -> None:
        #: The channels on which nobody waits, or nobody did a moment ago.
        self._idle: dict[Channel, Loser] = {}
        self._wake = trio.Event()

    def attend(self, channel: Channel, link: Loser) -> None:
        """Have a channel read from now on whenever nobody waits on it; ``link`` is told of its end."""
        channel.on_idle = lambda: self._note(channel, link)
        self._note(channel, link)

    def _note(self, channel: Channel, link: Loser) -> None:
        self._idle[channel] = link
        self._wake.set()

    async def serve(self) -> None:
        """Start the tasks, for ever."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._wake.wait()
                self._wake = trio.Event()
                idle, self._idle = self._idle, {}
                # A moment: whoever has used a channel may go on to use it, or another task does. After Register that is
                # the task of follow, which begins in the next pass, and may have its turn after this one there.
                await trio.lowlevel.checkpoint()
                await trio.lowlevel.checkpoint()
                for channel, link in idle.items():
                    if channel.needs_reader and channel not in self._idle:
                        nursery.start_soon(_read, channel, link)


async def _read(channel: Channel, link: Loser) -> None:
    try:
        await channel.wait_closed()
    except trio.ClosedResourceError:
        return
    finally:
        link.lose(channel)

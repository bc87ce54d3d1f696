"""``plugind`` whose liveness actor does nothing: what the actor costs is the difference."""

from __future__ import annotations

import sys

import trio

from plugind.actors import liveness
from plugind.actors.liveness import LivenessConfig
from plugind.actors.mailbox import Readable
from plugind.benchmarks.peers.judging import main
from plugind.protocol import messages as m


async def do_nothing(
    config: LivenessConfig,
    address: trio.MemorySendChannel[m.LivenessMessage],
    inbox: Readable[m.LivenessMessage],
    status: trio.MemorySendChannel[m.StatusMessage],
    reconciler: trio.MemorySendChannel[m.ReconcilerMessage],
) -> None:
    """Read the messages, so that nobody waits for room in the inbox."""
    while True:
        await inbox.receive()


if __name__ == "__main__":
    liveness.run = do_nothing
    sys.exit(main())

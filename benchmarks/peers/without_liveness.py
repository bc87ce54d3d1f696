"""``plugind`` whose liveness actor does nothing: what the actor costs is the difference."""

from __future__ import annotations

import sys

import trio

from plugind.actors.health import liveness
from plugind.actors.health.liveness import LivenessConfig
from plugind.actors.messaging.mailbox import Readable
from plugind.benchmarks.peers.judging import main
from plugind.protocol.messages.liveness import LivenessMessage
from plugind.protocol.messages.reconciler import ReconcilerMessage
from plugind.protocol.messages.status import StatusMessage


async def do_nothing(
    config: LivenessConfig,
    address: trio.MemorySendChannel[LivenessMessage],
    inbox: Readable[LivenessMessage],
    status: trio.MemorySendChannel[StatusMessage],
    reconciler: trio.MemorySendChannel[ReconcilerMessage],
) -> None:
    """Read the messages, so that nobody waits for room in the inbox."""
    while True:
        await inbox.receive()


if __name__ == "__main__":
    liveness.run = do_nothing
    sys.exit(main())

"""``plugind`` whose handler of CSI drivers holds a connection to each, and checks it as device plugins are checked.

The check is one call without content, here GetInfo, since the drivers of the benchmark serve it. The difference in cost
between this and ``with_links`` is what health checks cost.
"""

from __future__ import annotations

import sys

from plugind import Channel, Link, Plugin
from plugind.benchmarks.peers.judging import JudgingCSI, main
from plugind.protocol.proto.pluginregistration_grpc import RegistrationStub
from plugind.protocol.proto.pluginregistration_pb2 import InfoRequest


class Checking(JudgingCSI):
    """Holds a connection to each driver, and checks it."""

    async def follow(self, plugin: Plugin, link: Link) -> None:
        """Connect, and check until the end of the connection."""
        await link.connect()
        await link.check(_ask)


async def _ask(channel: Channel) -> None:
    await channel.stub(RegistrationStub).GetInfo(InfoRequest())


if __name__ == "__main__":
    sys.exit(main({"CSIPlugin": Checking()}))

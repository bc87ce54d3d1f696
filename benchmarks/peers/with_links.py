"""``plugind`` whose handler of CSI drivers follows each of them: it holds a connection, and makes no call.

The difference in cost between this and ``plugind`` is what idle links cost.
"""

from __future__ import annotations

import sys

from plugind import Link, Plugin
from plugind.benchmarks.peers.judging import JudgingCSI, main


class Following(JudgingCSI):
    """Holds a connection to each driver."""

    async def follow(self, plugin: Plugin, link: Link) -> None:
        """Connect, and wait for the end of the connection."""
        await (await link.connect()).wait_closed()


if __name__ == "__main__":
    sys.exit(main({"CSIPlugin": Following()}))

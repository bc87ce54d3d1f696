"""``plugind`` whose handler of CSI drivers follows each of them: it holds a connection, and makes no call.

The difference in cost between this and ``plugind`` is what idle links cost.
"""

from __future__ import annotations

import sys
from unittest.mock import patch

from plugind import Link, Plugin
from plugind.actors.console.commands import main
from plugind.actors.handlers.csi import CSIHandler


class Following(CSIHandler):
    """Holds a connection to each driver."""

    async def follow(self, plugin: Plugin, link: Link) -> None:
        """Connect, and wait for the end of the connection."""
        await (await link.connect()).wait_closed()


if __name__ == "__main__":
    with patch("plugind.actors.console.run.installed_handlers", lambda: {"CSIPlugin": Following()}):
        sys.exit(main())

"""``plugind`` whose handlers of CSI and DRA drivers only judge: they apply their rules, and call no driver.

    python -m benchmarks.peers.judging [TYPE] run --root DIR ...

With a ``TYPE``, only that of drivers of this type does so, and the other one is that of plugind.
Its costs are those of discovery and registration, as of the peer, whose handlers do nothing. Drivers of benchmarks
serve no endpoint therefore.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping

from plugind.actors.console.start import imports_of_daemon

with imports_of_daemon():
    from plugind import Handler, Link, Plugin
    from plugind.actors.console import commands, run
    from plugind.actors.handlers.csi.handler import CSIHandler
    from plugind.actors.handlers.dra.handler import DRAHandler


class JudgingCSI:
    """The rules for CSI drivers."""

    follow: Callable[[Plugin, Link], Awaitable[None]] | None = None
    instances = CSIHandler.instances

    def __init__(self) -> None:
        self._rules = CSIHandler()
        self.validate = self._rules.validate
        self.deregister = self._rules.deregister

    async def register(self, plugin: Plugin) -> None:
        """Keep the driver, since others of its name are compared with it."""
        self._rules.keep(plugin)


class JudgingDRA:
    """The rules for DRA drivers."""

    follow = None
    instances = DRAHandler.instances

    def __init__(self) -> None:
        self._rules = DRAHandler()
        self.validate = self._rules.validate

    async def register(self, plugin: Plugin) -> None:
        """Keep the instance, since others of its name are compared with it."""
        self._rules.drivers.add(plugin)

    async def deregister(self, plugin: Plugin) -> None:
        """Forget the instance."""
        self._rules.drivers.remove(plugin)


def handlers() -> dict[str, Handler]:
    """Return the handlers that only judge."""
    return {"CSIPlugin": JudgingCSI(), "DRAPlugin": JudgingDRA()}


def main(others: Mapping[str, Handler] | None = None) -> int:
    """Run ``plugind`` with :func:`handlers`, and ``others`` in the place of some."""
    judging = handlers()
    if sys.argv[1:2] and sys.argv[1] in judging:
        only = sys.argv.pop(1)
        judging = {only: judging[only]}
    # Not with unittest.mock, whose modules would count as memory of the daemon.
    run.installed_handlers = lambda: {**judging, **(others or {})}  # type: ignore[attr-defined]
    return commands.main()


if __name__ == "__main__":
    sys.exit(main())

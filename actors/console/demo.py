"""``plugind demo``: a small node at work, nothing to set up.

A directory of its own, plugins that behave and plugins that do not, the daemon embedded as a program would embed it,
and its table as it changes.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING

import attrs
import trio
from trio_util import periodic

from ...protocol.config import Config, Root
from ...protocol.messages import PluginChanged, Snapshot
from ...protocol.plugins import CSI, DEVICE, DRA
from ...protocol.status import PluginStatus, StateName
from ...protocol.status_json import plugin_to_json
from ...supervisor import Supervisor
from ..simulation.plugins import Call, FakePlugin
from . import table as console_table
from .client import Plugin
from .fake import FakeSpec, run_fake

if TYPE_CHECKING:
    from rich.live import Live

#: Seconds between refreshes while nothing changes: ages and next tries go on.
REFRESH = 0.5
#: Seconds in which all has settled, whatever happens.
SETTLE = 60.0


def specs(root: str) -> list[FakeSpec]:
    """Return the plugins of the demo: good ones of each type, and some that are not."""

    def at(name: str) -> str:
        return os.path.join(root, f"{name}.sock")

    return [
        FakeSpec(at("csi-reg"), FakePlugin(CSI, "csi.example.com")),
        FakeSpec(at("gpu"), FakePlugin(DEVICE, "example.com/gpu", ("v1beta1",))),
        FakeSpec(at("dra-reg"), FakePlugin(DRA, "gpu.example.com", ("v1.DRAPlugin", "v1beta1.DRAPlugin"))),
        FakeSpec(at("shaky-reg"), FakePlugin(CSI, "shaky.example.com", get_info_fails=2)),
        FakeSpec(at("hung-reg"), FakePlugin(CSI, "hung.example.com", hang="get-info")),
        FakeSpec(at("odd"), FakePlugin("OddPlugin", "odd.example.com")),
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind demo``."""
    parser.description = (
        "Run a node on a temporary directory with six fake plugins: one of each type that does well, one that fails"
        " twice, one that hangs, and one of a type that nobody handles. Ctrl-C ends it."
    )
    parser.epilog = "examples:\n  plugind demo\n  plugind demo --once | grep registered"
    parser.add_argument("--once", action="store_true", help="end when all has settled, and print the table")


def run(args: argparse.Namespace) -> int:
    """Run the demo; return the exit code."""
    return trio.run(_demo, args)


async def _demo(args: argparse.Namespace) -> int:
    display = _Display(live=sys.stdout.isatty(), once=args.once)
    with tempfile.TemporaryDirectory(prefix="plugind-demo-") as root:
        settled = False
        async with trio.open_nursery() as nursery, Supervisor(Config(roots=(Root(root),))) as node:
            async with trio.open_nursery() as plugins:
                # Whatever ends the demo ends its plugins first; the node stops after them, as it would on a machine.
                await nursery.start(_end_at_signal, plugins.cancel_scope)
                for spec in specs(root):
                    await plugins.start(partial(run_fake, spec, on_call=_ignore))
                settled = await display.follow(node, len(specs(root)))
                plugins.cancel_scope.cancel()
            nursery.cancel_scope.cancel()
    return 0 if settled or not args.once else 1


def _ignore(call: Call) -> None:
    """The node's own account is what the demo shows."""


async def _end_at_signal(
    scope: trio.CancelScope, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            scope.cancel()


def has_settled(plugin: PluginStatus) -> bool:
    """Whether what is worth seeing of a plugin was seen: it is where it stays, or it failed more than once."""
    match plugin.state:
        case StateName.REGISTERED | StateName.PARKED | StateName.STALE:
            return True
        case StateName.WAITING:
            # Two failures and then success is the way of one of them; only who hangs fails on.
            return plugin.attempt >= 3
        case _:
            return False


@attrs.define
class _Display:
    """What people see while the node works."""

    live: bool
    once: bool
    _plugins: dict[str, PluginStatus] = attrs.field(factory=dict)

    async def follow(self, node: Supervisor, expected: int) -> bool:
        """Show changes until all has settled, if ``once``; return whether it has."""
        with trio.move_on_after(SETTLE) if self.once else trio.CancelScope():
            async with node.changes() as changes:
                if self.live:
                    return await self._follow_live(changes, expected)
                return await self._follow_plain(changes, expected)
        return False

    def _take(self, change: Snapshot | PluginChanged) -> None:
        for plugin in change.plugins if isinstance(change, Snapshot) else (change.plugin,):
            if plugin.state is StateName.GONE:
                self._plugins.pop(plugin.socket, None)
            else:
                self._plugins[plugin.socket] = plugin

    def _settled(self, expected: int) -> bool:
        return self.once and len(self._plugins) >= expected and all(map(has_settled, self._plugins.values()))

    def _rows(self) -> list[Plugin]:
        now = trio.current_time()
        return [plugin_to_json(plugin, now) for plugin in self._plugins.values()]

    async def _follow_plain(self, changes: AsyncIterator[Snapshot | PluginChanged], expected: int) -> bool:
        async for change in changes:
            self._take(change)
            if not self.once and isinstance(change, PluginChanged):
                then = time.time() - trio.current_time() + change.time
                plugin = {"time": then, **plugin_to_json(change.plugin, change.time)}
                sys.stdout.write(console_table.change(plugin))
                sys.stdout.flush()
            if self._settled(expected):
                sys.stdout.write(console_table.plain(self._rows()))
                return True
        return False

    async def _follow_live(self, changes: AsyncIterator[Snapshot | PluginChanged], expected: int) -> bool:
        from rich.console import Console
        from rich.live import Live

        # Refreshed from here, not by a thread of rich's.
        with Live(console=Console(highlight=False), auto_refresh=False) as live:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._refresh_now_and_then, lambda: self._draw(live))
                async for change in changes:
                    self._take(change)
                    self._draw(live)
                    if self._settled(expected):
                        nursery.cancel_scope.cancel()
                        return True
                nursery.cancel_scope.cancel()
        return False

    def _draw(self, live: Live) -> None:
        live.update(console_table.rich_table(self._rows(), live.console.width), refresh=True)

    async def _refresh_now_and_then(self, draw: Callable[[], None]) -> None:
        async for _ in periodic(REFRESH):
            draw()

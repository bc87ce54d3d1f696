"""The display of ``plugind demo``: the table of the node with a guide, as far as the terminal has room."""

from __future__ import annotations

import shlex
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import attrs
import trio
from trio_util import periodic

from ...protocol.handlers.csi import TOPOLOGY
from ...protocol.leases.values import Lease
from ...protocol.plugins.devices import ResourceStatus
from ...protocol.plugins.info import CSI
from ...protocol.plugins.status import PluginStatus, StateName
from ...protocol.status.json import plugin_to_json
from ...supervisor import Supervisor
from . import table
from .answers import Plugin
from .demo_devices import DeviceLines
from .description import change as change_line
from .description import said_of
from .ending import say
from .phrases import text, time_of_day

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live


def fact_lines(plugins: Iterable[PluginStatus]) -> list[str]:
    """Return a line for each registered CSI driver with a topology."""
    return [line for plugin in plugins if plugin.state is StateName.REGISTERED for line in _line(plugin)]


def _line(plugin: PluginStatus) -> Iterator[str]:
    facts = dict(plugin.facts)
    places = [f"{key.removeprefix(TOPOLOGY)}={said}" for key, said in facts.items() if key.startswith(TOPOLOGY)]
    if plugin.type == CSI and places:
        node_id, volumes = facts.get("node-id", "-"), facts.get("max-volumes", "-")
        yield text(f"{plugin.name}: node id {node_id}, {volumes} volumes, {' '.join(places)}")


#: Seconds between refreshes while nothing changes, since ages and next tries still advance.
REFRESH = 0.5
#: Seconds for which a plugin is shown after it has gone.
SHOWN_GONE = 4.0
#: The most plugins shown at a time. While one is replaced there is one more, and the layout must not change.
MOST_ROWS = 9
#: The most lines for devices.
MOST_RESOURCES = 1
#: The most lines for the facts of drivers.
MOST_FACTS = 1
#: Columns of the names in the legend.
_LEGEND = 15
_INDENT = "  "


#: What the node shows anew.
Change = PluginStatus | ResourceStatus | Lease


@attrs.frozen
class Guide:
    """The text around the table."""

    heading: str
    #: For each plugin, what it demonstrates.
    legend: tuple[tuple[str, str], ...]
    #: Commands to paste into a second terminal.
    commands: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return the whole guide as plain lines."""
        return [
            self.heading,
            *(f"  {name:<15}{text}" for name, text in self.legend),
            "From a second terminal:",
            *(f"  {command}" for command in self.commands),
        ]


def has_settled(plugin: PluginStatus) -> bool:
    """Return whether the demonstration of a plugin is over: it no longer changes, or has failed three times."""
    match plugin.state:
        case StateName.REGISTERED | StateName.PARKED | StateName.STALE:
            return True
        case StateName.WAITING:
            # One plugin fails twice and then works. Only the one that hangs keeps failing.
            return plugin.attempt >= 3
        case _:
            return False


@attrs.define
class Display:
    """Follows the node and shows it: a live table on a terminal, one line for each change otherwise."""

    guide: Guide
    live: bool
    once: bool
    #: The last report of the node about each socket.
    plugins: dict[str, PluginStatus] = attrs.field(factory=dict)
    devices: DeviceLines = attrs.field(factory=DeviceLines)
    #: The last lines about the facts of drivers.
    facts: list[str] = attrs.field(factory=list)

    async def follow(self, node: Supervisor, complete: Callable[[set[str]], bool]) -> bool:
        """Show changes forever, or, if ``once``, until the sockets are ``complete`` and settled: then return True."""
        sender, changes = trio.open_memory_channel[Change](0)
        async with trio.open_nursery() as nursery:
            with sender:
                nursery.start_soon(_pass_on, node.watch, sender.clone())
                nursery.start_soon(_pass_on, node.watch_devices, sender.clone())
                nursery.start_soon(_pass_on, node.watch_leases, sender.clone())
            follow = self._follow_live if self.live else self._follow_plain
            settled = await follow(changes, complete)
            nursery.cancel_scope.cancel()
        return settled

    def take(self, change: Change) -> list[str]:
        """Record a report of the node; return the new lines about devices and facts."""
        if not isinstance(change, PluginStatus):
            return self.devices.take(change)
        self.plugins[change.socket] = change
        said, self.facts = self.facts, fact_lines(self.plugins.values())
        return [line for line in self.facts if line not in said]

    def _present(self) -> dict[str, PluginStatus]:
        return {socket: plugin for socket, plugin in self.plugins.items() if plugin.state is not StateName.GONE}

    def has_settled(self, complete: Callable[[set[str]], bool]) -> bool:
        """Whether the table must be shown once, and nothing will change any more."""
        present = self._present()
        settled = complete(set(present)) and all(map(has_settled, present.values()))
        return self.once and settled and self.devices.at_rest and bool(self.facts)

    def rows(self, now: float, shown_gone: float) -> list[Plugin]:
        """Return the plugins that exist, and those that went within the last ``shown_gone`` seconds."""
        return [
            plugin_to_json(plugin, now, time.time())
            for plugin in self.plugins.values()
            if plugin.state is not StateName.GONE or now - plugin.since < shown_gone
        ]

    async def _follow_plain(self, changes: AsyncIterator[Change], complete: Callable[[set[str]], bool]) -> bool:
        if not self.once:
            say("".join(f"{line}\n" for line in self.guide.lines()))
        said: dict[str, str] = {}
        async for change in changes:
            new = self.take(change)
            if not self.once:
                say("".join(_said_of(change, new, said)), now=True)
            if self.has_settled(complete):
                now = trio.current_time()
                lines = [*self.devices.lines(now), *self.facts]
                say(table.plain(self.rows(now, 0.0)) + "".join(f"{line}\n" for line in lines))
                return True
        return False

    async def _follow_live(self, changes: AsyncIterator[Change], complete: Callable[[set[str]], bool]) -> bool:
        from rich.console import Console
        from rich.live import Live

        # The table is refreshed here, and not by a thread of rich.
        with Live(console=Console(highlight=False), auto_refresh=False, vertical_overflow="crop") as live:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._refresh, live)
                async for change in changes:
                    self.take(change)
                    self._draw(live)
                    if self.has_settled(complete):
                        break
                nursery.cancel_scope.cancel()
        return self.has_settled(complete)

    async def _refresh(self, live: Live) -> None:
        async for _ in periodic(REFRESH):
            self._draw(live)

    def _draw(self, live: Live) -> None:
        size, now = live.console.size, trio.current_time()
        rows, devices = self.rows(now, SHOWN_GONE), self.devices.lines(now)
        live.update(screen(self.guide, rows, devices, self.facts, size.width, size.height), refresh=True)


async def _pass_on(
    subscribe: Callable[[], AbstractAsyncContextManager[AsyncIterator[Change]]], to: trio.MemorySendChannel[Change]
) -> None:
    """Send each change of one stream of the node, until the stream ends."""
    async with subscribe() as changes:
        with to:
            async for change in changes:
                await to.send(change)


def _said_of(change: Change, new: list[str], said: dict[str, str]) -> Iterator[str]:
    """Yield lines for a change of a plugin, and for the new lines about devices or facts, with the time of day.

    ``said`` has the last line about each plugin, which is not repeated.
    """
    now = time.time()
    if isinstance(change, PluginStatus):
        plugin = plugin_to_json(change, trio.current_time(), now)
        words = said_of(plugin)
        if said.get(change.socket) != words:
            said[change.socket] = words
            yield change_line({"time": now, **plugin})
    what = "facts" if isinstance(change, PluginStatus) else "devices"
    for line in new:
        yield f"{time_of_day(now, now)}  {what:<11}  {line}\n"


def screen(
    guide: Guide, rows: list[Plugin], devices: list[str], facts: list[str], width: int, height: int
) -> RenderableType:
    """Return the whole screen; without room, the legend is dropped first, then facts, commands and devices."""
    from rich.console import Group
    from rich.text import Text

    heading = [Text(line, style="bold") for line in textwrap.wrap(guide.heading, width)]
    top: list[RenderableType] = [*heading, table.rich_lines(table.fitted(rows, width, one_line=True))]
    legend = [
        Text.assemble((line[:_LEGEND], "bold"), line[_LEGEND:])
        for name, text in guide.legend
        for line in _legend_lines(name, text, width)
    ]
    pasted = [line for command in guide.commands for line in _pasted_lines(command, width)]
    below = [
        Text("From a second terminal:", style="bold"),
        *(Text(line, style="cyan", no_wrap=True) for line in pasted),
    ]
    # The last line of the terminal stays free for the cursor.
    room = height - 1 - (max(len(rows), MOST_ROWS) + 1 + len(heading))
    shown: list[RenderableType] = [*top]
    if room >= MOST_RESOURCES:
        # Their room is reserved from the start, so that the layout does not change.
        shown += [Text(line, no_wrap=True, overflow="ellipsis") for line in (devices or [""])[:MOST_RESOURCES]]
        room -= MOST_RESOURCES
    if room >= MOST_FACTS + len(below):
        shown += [Text(line, no_wrap=True, overflow="ellipsis") for line in (facts or [""])[:MOST_FACTS]]
        room -= MOST_FACTS
    blank_lines = room - len(legend) - len(below)
    if blank_lines >= 0:
        shown += [*[Text()] * min(blank_lines, 1), *legend]
    if room >= len(below):
        shown += [*[Text()] * (blank_lines > 1 or (blank_lines < 0 and room > len(below))), *below]
    return Group(*shown)


def _legend_lines(name: str, text: str, width: int) -> list[str]:
    first, *others = textwrap.wrap(text, max(1, width - _LEGEND))
    return [f"{name:<{_LEGEND}}{first}", *(" " * _LEGEND + line for line in others)]


def _pasted_lines(command: str, width: int) -> list[str]:
    """Split a command into lines that a shell joins: each but the last ends with a backslash."""
    if len(_INDENT + command) <= width:
        return [_INDENT + command]
    lines = [_INDENT]
    for word in _words(command):
        if lines[-1] != _INDENT and len(lines[-1] + word) + 2 > width:
            lines[-1] += "\\"
            lines.append(_INDENT)
        lines[-1] += word + " "
    lines[-1] = lines[-1].rstrip()
    return [piece for line in lines for piece in _pieces(line, width)]


def _words(command: str) -> list[str]:
    """Split a command into words; spaces within quotes do not end a word."""
    words: list[str] = []
    for part in command.split(" "):
        if words and not _is_whole(words[-1]):
            words[-1] += f" {part}"
        else:
            words.append(part)
    return words


def _is_whole(word: str) -> bool:
    try:
        shlex.split(word)
    except ValueError:
        return False
    return True


def _pieces(line: str, width: int) -> list[str]:
    """Split a line that is too long. Within quotes, no backslash is added, since a shell would keep it."""
    if len(line) <= width:
        return [line]
    end = "" if {"'", '"'} & set(line) else "\\"
    size = max(1, width - len(end))
    pieces = [line[start : start + size] for start in range(0, len(line), size)]
    return [*(piece + end for piece in pieces[:-1]), pieces[-1]]

"""Plugins as text: a table on a terminal, plain columns in a pipe, and everything about one plugin.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

from ...protocol.status_json import Json
from ...protocol.text import escaped
from .client import Plugin

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = ("NAME", "TYPE", "STATE", "SINCE", "ATTEMPT", "NEXT TRY", "SOCKET", "REASON")
_GAP = "  "
#: How a table is made to fit, in this order: the columns that are left out, and how far the others may be cut. A column
#: that is not named here is never cut.
_FITTINGS: tuple[tuple[frozenset[str], dict[str, int]], ...] = (
    (frozenset(), {"SOCKET": 12, "REASON": 12}),
    (frozenset({"SOCKET"}), {"REASON": 12}),
    (frozenset({"SOCKET"}), {"REASON": 12, "NAME": 16}),
    (frozenset({"SOCKET", "TYPE"}), {"REASON": 8, "NAME": 10}),
    (frozenset({"SOCKET", "TYPE", "REASON"}), {"NAME": 4}),
)
_COLOURS = {
    "registered": "green",
    "waiting": "yellow",
    "stale": "yellow",
    "parked": "red",
    "leaving": "magenta",
    "gone": "dim",
}


def text(value: Json) -> str:
    """Return a value as one word that is safe to show; what is absent is a dash."""
    return "-" if value is None or value == "" else escaped(str(value))


def duration(value: Json) -> str:
    """Return seconds in the unit that fits: ``12ms``, ``3.4s``, ``2m05s``, ``4h10m``, ``3d07h``."""
    if not isinstance(value, int | float):
        return "-"
    if value < 1:
        return f"{value * 1000:.0f}ms" if value else "0s"
    if value < 60:
        return f"{value:.1f}s"
    seconds = int(value)
    for unit, size, smaller, of in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if seconds >= size:
            return f"{seconds // size}{unit}{seconds % size // of:02d}{smaller}"
    return f"{seconds}s"


def remarks(plugin: Plugin) -> str:
    """Return the cause, the role and the warnings of a plugin in one text; empty if there is nothing to say."""
    warnings = plugin.get("warnings")
    cause = plugin.get("cause") or plugin.get("reason")
    parts = [
        text(cause) if cause else "",
        f"not serving: {text(plugin['not_serving'])}" if plugin.get("not_serving") else "",
        "stands by for another instance of its name" if plugin.get("active") is False else "",
        *(map(text, warnings) if isinstance(warnings, list) else ()),
    ]
    return "; ".join(part for part in parts if part)


def row(plugin: Plugin) -> tuple[str, ...]:
    """Return the cells of one plugin's line."""
    return (
        text(plugin.get("name")),
        text(plugin.get("type")),
        text(plugin.get("state")),
        duration(plugin.get("since")),
        text(plugin.get("attempt")),
        duration(plugin.get("next_try_in")),
        text(plugin.get("socket")),
        remarks(plugin),
    )


def in_order(plugins: Sequence[Plugin]) -> list[Plugin]:
    """Return ``plugins`` by type, name and socket; those without a name come last."""
    return sorted(
        plugins, key=lambda p: (p.get("type") is None, *(str(p.get(key)) for key in ("type", "name", "socket")))
    )


def plain(plugins: Sequence[Plugin]) -> str:
    """Return the table in columns of plain text, uncut: for pipes."""
    lines = [COLUMNS, *map(row, in_order(plugins))]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS) - 1)]
    return "".join(
        _GAP.join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[-1]]).rstrip() + "\n"
        for line in lines
    )


def rich_table(plugins: Sequence[Plugin], width: int, columns: Sequence[str] = COLUMNS) -> Table:
    """Return the table for a terminal of ``width`` columns.

    Sockets and reasons are cut first, then names; columns that still do not fit are left out. States, times, attempts
    and headings stay whole.
    """
    # rich takes a tenth of a second to import, which a pipe need not pay.
    from rich.table import Table
    from rich.text import Text

    lines = [dict(zip(COLUMNS, row(plugin), strict=True)) for plugin in in_order(plugins)]
    for line in lines:
        # Where there is little room, what is the same in every reason goes first.
        line["REASON"] = line["REASON"].removeprefix("RegisterPlugin error -- ")
    widths = _widths(lines, columns, width)
    table = Table(box=None, pad_edge=False, padding=(0, len(_GAP), 0, 0), header_style="bold")
    for column, size in widths.items():
        table.add_column(column, no_wrap=True, overflow="ellipsis", width=size)
    for line in lines:
        if "SOCKET" in widths and len(line["SOCKET"]) > widths["SOCKET"]:
            # The end of a path tells one from another.
            line["SOCKET"] = "…" + line["SOCKET"][1 - widths["SOCKET"] :]
        colour = _COLOURS.get(line["STATE"], "cyan")
        # Text, never markup: what a plugin says about itself must not style the terminal.
        table.add_row(
            *(Text(_cell(line, column, widths), style=colour if column == "STATE" else "") for column in widths)
        )
    return table


def _widths(lines: Sequence[dict[str, str]], columns: Sequence[str], width: int) -> dict[str, int]:
    """Return the width of each column that is shown: the first fitting that has room, or else the last."""
    widths: dict[str, int] = {}
    for left_out, least in _FITTINGS:
        shown = [column for column in columns if column not in left_out]
        widths = {
            column: min(width, max(len(column), *(len(_cell(line, column, shown)) for line in lines), 0))
            for column in shown
        }
        if _shrink(widths, least, width):
            break
    return widths


def _cell(line: dict[str, str], column: str, shown: Container[str]) -> str:
    """Return a cell. Without the column of sockets, one that has not said its name is shown by the end of its path."""
    nameless = column == "NAME" and line["NAME"] == "-" and "SOCKET" not in shown
    return os.path.basename(line["SOCKET"]) if nameless else line[column]


def _shrink(widths: dict[str, int], least: dict[str, int], width: int) -> bool:
    """Narrow the columns of ``least``, the widest first, until all fit into ``width``; return whether they do."""
    excess = sum(widths.values()) + len(_GAP) * (len(widths) - 1) - width
    while excess > 0:
        wide = [column for column in widths if widths[column] > least.get(column, width)]
        if not wide:
            return False
        widths[max(wide, key=widths.__getitem__)] -= 1
        excess -= 1
    return True


def show(plugins: Sequence[Plugin]) -> None:
    """Print the table to standard output."""
    if not sys.stdout.isatty():
        sys.stdout.write(plain(plugins))
        return
    from rich.console import Console

    console = Console(highlight=False)
    console.print(rich_table(plugins, console.width), soft_wrap=False)


def described(plugin: Plugin) -> str:
    """Return all that is known of one plugin, line by line, with nothing cut off."""
    versions = plugin.get("versions")
    facts: list[tuple[str, str]] = [
        ("Socket", text(plugin.get("socket"))),
        ("Root", text(plugin.get("root"))),
        ("Name", text(plugin.get("name"))),
        ("Type", text(plugin.get("type"))),
        ("Endpoint", text(plugin.get("endpoint"))),
        ("Versions", ", ".join(map(text, versions)) if isinstance(versions, list) and versions else "-"),
        ("State", f"{text(plugin.get('state'))} for {duration(plugin.get('since'))}"),
        ("Reason", text(plugin.get("reason"))),
        ("Attempt", text(plugin.get("attempt"))),
        ("Next try", _in(plugin.get("next_try_in"))),
        ("Registered", f"in {duration(plugin['registered_in'])}" if plugin.get("registered_in") is not None else "-"),
        (
            "Role",
            {True: "active", False: "standby"}.get(plugin.get("active") is True, "-")
            if plugin.get("active") is not None
            else "-",
        ),
        ("Serving", _serving(plugin)),
        ("Generation", text(plugin.get("generation"))),
        ("Process", f"pid {text(plugin.get('pid'))}, uid {text(plugin.get('uid'))}"),
    ]
    warnings = plugin.get("warnings")
    facts += [("Warning", text(warning)) for warning in (warnings if isinstance(warnings, list) else ())]
    lines = [f"{label + ':':<12}{value}" for label, value in facts]
    history = plugin.get("history")
    if isinstance(history, list) and history:
        lines.append("History:")
        lines += [_entry(entry) for entry in history if isinstance(entry, dict)]
    return "\n".join(lines) + "\n"


def _serving(plugin: Plugin) -> str:
    if plugin.get("not_serving"):
        return f"no: {text(plugin['not_serving'])}"
    return "yes" if plugin.get("serving") is True else "-"


def _in(seconds: Json) -> str:
    return "-" if seconds is None else f"in {duration(seconds)}"


def _entry(entry: Plugin) -> str:
    attempt = f" (attempt {entry['attempt']})" if entry.get("attempt") else ""
    reason = f": {text(entry['reason'])}" if entry.get("reason") else ""
    return f"  {duration(entry.get('ago')) + ' ago':>12}  {text(entry.get('state'))}{attempt}{reason}"


def change(plugin: Plugin) -> str:
    """Return one line for a change, with the time of day at which it happened."""
    when = plugin.get("time")
    clock = "--:--:--" if not isinstance(when, int | float) else time.strftime("%H:%M:%S", time.localtime(when))
    parts = [clock, f"{text(plugin.get('state')):<11}", text(plugin.get("name")), text(plugin.get("type"))]
    said = remarks(plugin)
    return "  ".join([*parts, text(plugin.get("socket")), *([said] if said else [])]) + "\n"

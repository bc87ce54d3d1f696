"""Plugins as a table: fitted to the width of a terminal, elsewhere in plain columns.

The first columns are those that identify the plugin and the cause of its state. On a narrow terminal, the last columns
are dropped. A name or a cause that does not fit is shown under the row.
"""

from __future__ import annotations

import argparse
import collections
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from .answers import Plugin
from .ending import say
from .phrases import NOT_SERVING, age, ago, duration, remarks, state, state_words, text

if TYPE_CHECKING:
    from rich.text import Text

COLUMNS = ("STATE", "NAME", "TYPE", "CAUSE", "AGE", "HEALTH", "NEXT TRY", "ATTEMPT", "SINCE", "SOCKET")
#: The columns in a pipe, where a long cause comes last so that it displaces no column.
PIPED = (*(column for column in COLUMNS if column != "CAUSE"), "CAUSE")
_GAP = "  "
_INDENT = "    "
#: The least width of a column for causes, unless all causes are shorter.
_CAUSE = 48
#: Wider cells are not padded in a pipe.
_PADDED = 60
_COLOURS = {
    "registered": "green",
    "observed": "green",
    "waiting": "yellow",
    "stale": "yellow",
    NOT_SERVING: "yellow",
    "parked": "red",
    "leaving": "magenta",
    "gone": "dim",
}
#: The cells of a row, by column.
Cells = Mapping[str, str]


class TableLine(NamedTuple):
    """A line of a table; its first ``coloured`` characters have a colour."""

    text: str
    coloured: int = 0
    colour: str = ""


def row(plugin: Plugin) -> dict[str, str]:
    """Return the cells of one plugin's row."""
    cells = (
        state(plugin),
        text(plugin.get("name")),
        text(plugin.get("type")),
        remarks(plugin) or "-",
        duration(age(plugin)),
        text(plugin.get("health")),
        duration(plugin.get("next_try_in")),
        text(plugin.get("attempt")),
        ago(age(plugin)),
        text(plugin.get("socket")),
    )
    return dict(zip(COLUMNS, cells, strict=True))


def in_order(plugins: Iterable[Plugin]) -> list[Plugin]:
    """Sort ``plugins`` by type, name and socket; those without a type come last."""
    return sorted(
        plugins, key=lambda p: (p.get("type") is None, *(str(p.get(key)) for key in ("type", "name", "socket")))
    )


def summary(plugins: Sequence[Plugin], total: int | None = None) -> str:
    """Return how many plugins are in which state, in one line; ``total`` is how many they were selected from."""
    counts = collections.Counter(text(plugin.get("state")) for plugin in plugins)
    idle = collections.Counter(text(plugin.get("state")) for plugin in plugins if NOT_SERVING in state_words(plugin))
    states = [
        f"{count} {state}" + (f" ({idle[state]} not serving)" if idle[state] else "")
        for state, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
    of = len(plugins) if total is None else total
    counted = f"{of} plugin" + ("" if of == 1 else "s")
    return (
        (f"{len(plugins)} of " if of != len(plugins) else "") + counted + (f": {', '.join(states)}" if states else "")
    )


def plain(plugins: Iterable[Plugin]) -> str:
    """Return one line for each plugin, with all columns and uncut, for pipes."""
    rows = [dict(zip(COLUMNS, COLUMNS, strict=True)), *map(row, in_order(plugins))]
    widths = {column: min(_PADDED, _widest(rows, column)) for column in PIPED[:-1]}
    return "".join(_joined(cells, widths, PIPED) + "\n" for cells in rows)


def fitted(plugins: Iterable[Plugin], width: int, *, one_line: bool = False) -> list[TableLine]:
    """Return the table for ``width`` columns; with ``one_line``, causes are cut and there are no lines under rows."""
    ordered = in_order(plugins)
    rows = [row(plugin) for plugin in ordered]
    widths = _fitting(rows, width)
    if one_line and "CAUSE" not in widths:
        widths = _with_narrow_cause(rows, widths, width)
    header = _joined({column: column for column in widths}, widths, widths)
    lines = [TableLine(header, len(header), "bold")]
    for plugin, cells in zip(ordered, rows, strict=True):
        shown = dict(_shown(cells, widths, one_line=one_line))
        words = state_words(plugin)
        colour = _COLOURS[NOT_SERVING] if NOT_SERVING in words else _COLOURS.get(cells["STATE"], "cyan")
        lines.append(TableLine(_joined(shown, widths, widths), len(cells["STATE"]), colour))
        if not one_line:
            lines += map(TableLine, _under(cells, shown, width))
    return lines


def _fitting(rows: Sequence[Cells], width: int) -> dict[str, int]:
    """Return the columns to show, with their widths: the first set that fits, or else only the state."""
    natural = {column: max(len(column), _widest(rows, column)) for column in COLUMNS}
    # A few long names must not take all the room.
    natural["NAME"] = min(natural["NAME"], max(12, width // 3))
    natural["TYPE"] = min(natural["TYPE"], max(12, width // 6))
    longest = natural["CAUSE"]
    natural["CAUSE"] = min(longest, _CAUSE)
    for columns in _choices():
        room = width - sum(natural[column] for column in columns) - len(_GAP) * (len(columns) - 1)
        if room >= 0:
            widths = {column: natural[column] for column in columns}
            if "CAUSE" in widths:
                widths["CAUSE"] = min(longest, widths["CAUSE"] + room)
            return widths
    return {"STATE": natural["STATE"]}


def _choices() -> Iterator[tuple[str, ...]]:
    """Yield the sets of columns, the best first: with the cause, then with the cause under each row."""
    for count in range(len(COLUMNS), 3, -1):
        yield COLUMNS[:count]
    without = tuple(column for column in COLUMNS if column != "CAUSE")
    for count in range(len(without), 1, -1):
        yield without[:count]


def _with_narrow_cause(rows: Sequence[Cells], widths: Mapping[str, int], width: int) -> dict[str, int]:
    """Return columns without the type, and with the cause in the remaining room."""
    times = {column: max(len(column), _widest(rows, column)) for column in ("AGE", "NEXT TRY", "ATTEMPT")}
    first = {column: widths[column] for column in ("STATE", "NAME") if column in widths}
    room = width - sum((*first.values(), *times.values())) - len(_GAP) * (len(first) + len(times))
    if room >= len("CAUSE"):
        return {**first, "CAUSE": room, **times}
    return {**first, "CAUSE": max(1, width - sum(first.values()) - len(_GAP) * len(first))}


def _shown(cells: Cells, widths: Mapping[str, int], *, one_line: bool) -> Iterator[tuple[str, str]]:
    """Yield the cells of the row. Without the column of sockets, a nameless one has its file name as name."""
    for column, size in widths.items():
        cell = cells[column]
        if column == "NAME" and cell == "-" and "SOCKET" not in widths:
            cell = os.path.basename(cells["SOCKET"])
        if _cells(cell) > size:
            cell = "" if column == "CAUSE" and not one_line else _cut(cell, size)
        yield column, cell


def _under(cells: Cells, shown: Cells, width: int) -> Iterator[str]:
    """Yield the lines under a row: cells that do not fit, and the next try if its column is dropped."""
    parts = []
    if shown.get("NAME") != cells["NAME"]:
        parts.append(cells["SOCKET"] if cells["NAME"] == "-" else cells["NAME"])
    if "TYPE" in cells and shown.get("TYPE") != cells["TYPE"] and cells["TYPE"] != "-":
        parts.append(cells["TYPE"])
    if shown.get("CAUSE") != cells["CAUSE"] and cells["CAUSE"] != "-":
        parts.append(cells["CAUSE"])
    if "NEXT TRY" not in shown and cells["NEXT TRY"] != "-":
        parts.append(f"attempt {cells['ATTEMPT']}, next try in {cells['NEXT TRY']}")
    said = "; ".join(parts)
    room = max(1, width - len(_INDENT))
    # No character takes more than two columns.
    room = max(room // 2, 1, room - (_cells(said) - len(said)))
    for line in textwrap.wrap(said, room, break_on_hyphens=False):
        yield _INDENT + line


def _joined(cells: Cells, widths: Mapping[str, int], columns: Iterable[str]) -> str:
    padded = (cells[column] + " " * (widths.get(column, 0) - _cells(cells[column])) for column in columns)
    return _GAP.join(padded).rstrip()


def _widest(rows: Sequence[Cells], column: str) -> int:
    return max((_cells(cells[column]) for cells in rows), default=0)


def _cells(shown: str) -> int:
    """Return how many columns of a terminal ``shown`` takes."""
    if shown.isascii():
        return len(shown)
    from rich.cells import cell_len

    return cell_len(shown)


def _cut(shown: str, size: int) -> str:
    from rich.cells import set_cell_size

    return set_cell_size(shown, size - 1).rstrip() + "…"


def rich_lines(lines: Iterable[TableLine]) -> Text:
    """Return the lines for rich, in colour."""
    # rich takes a tenth of a second to import, which a pipe does not need.
    from rich.text import Text

    # A plugin's text is never markup, so it cannot change the style of the terminal.
    return Text("\n", no_wrap=True).join(
        Text.assemble((line.text[: line.coloured], line.colour), line.text[line.coloured :]) for line in lines
    )


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a line for each row, with all columns aligned and uncut, except very long cells."""
    widths = [min(_PADDED, max(map(_cells, column))) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = (cell + " " * (width - _cells(cell)) for cell, width in zip(row, widths, strict=True))
        yield _GAP.join(padded).rstrip()


def fits(rows: Sequence[Sequence[str]], width: int) -> bool:
    """Whether a terminal of ``width`` columns has room for the table."""
    return max(map(_cells, aligned(rows))) <= width


#: A size above that of all names.
WHOLE: Final = 1_000_000
#: The sizes of shortened names.
_NAME: Final = 24
_SHORT_NAME: Final = 12


def shortened(name: str, size: int) -> str:
    """Return a name with at most ``size`` characters, cut in the middle, because the ends tell names apart."""
    half = (size - 1) // 2
    return name if len(name) <= size else f"{name[: size - 1 - half]}…{name[-half:]}"


def fitting(
    table: Callable[[int], Sequence[Sequence[str]]], width: int | None, first: Sequence[str], then: Sequence[str]
) -> Iterator[str]:
    """Yield the lines of a table for a terminal of ``width`` columns, or of the whole table for a pipe.

    ``table`` returns the rows, the header first, with names of at most so many characters. If they do not fit, the
    columns ``first`` are dropped, one after the other; then names are shortened; then the columns ``then`` are dropped.
    """
    if width is None:
        return aligned(table(WHOLE))
    for size in (WHOLE, _NAME, _SHORT_NAME):
        rows = narrowed(table(size), width, first)
        if fits(rows, width):
            return aligned(rows)
    return aligned(narrowed(table(_SHORT_NAME), width, (*first, *then)))


def narrowed(rows: Sequence[Sequence[str]], width: int, dropped: Iterable[str]) -> Sequence[Sequence[str]]:
    """Return ``rows``, the header first, without those of the columns ``dropped`` that have no room in ``width``."""
    for column in dropped:
        if fits(rows, width):
            break
        place = rows[0].index(column)
        rows = [[*row[:place], *row[place + 1 :]] for row in rows]
    return rows


def add_table_argument(parser: argparse.ArgumentParser, what: str, csv: str | None = None) -> None:
    """Add ``-o`` and ``--json`` of a table, both for the attribute ``output``; ``what`` and ``csv`` describe them."""
    forms, more = (("wide", "json"), "") if csv is None else (("wide", "json", "csv"), f"; csv: {csv}")
    parser.add_argument("-o", "--output", choices=forms, help=f"wide: all columns; json: {what}{more}")
    parser.add_argument("--json", action="store_const", const="json", dest="output", help="the same as -o json")


def table_width(args: argparse.Namespace) -> int | None:
    """Return the width of the terminal for which a table is printed; None if the whole table is printed."""
    from .lines import terminal_width  # It brings shutil.

    return terminal_width() if args.output is None else None


def show(plugins: Sequence[Plugin], *, total: int | None = None, notes: Sequence[str] = (), wide: bool = False) -> None:
    """Print the table, the summary and the lines of ``notes`` to standard output."""
    end = [summary(plugins, total), *notes]
    if wide or not sys.stdout.isatty():
        say(plain(plugins) + "".join(f"{line}\n" for line in end))
        return
    # Only a terminal's table needs these modules.
    import shutil

    from rich.console import Console

    width = shutil.get_terminal_size().columns
    lines = [*fitted(plugins, width), *(TableLine(piece) for line in end for piece in textwrap.wrap(line, width))]
    Console(highlight=False).print(rich_lines(lines), soft_wrap=True)

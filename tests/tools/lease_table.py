"""Generates the table of the states of a lease in ``docs/leases.md``.

    python -m tests.tools.lease_table           print the current table
    python -m tests.tools.lease_table --write   write it into the page

A row represents a state and the events with the same outcome in it. Events that change nothing, and events that cannot
happen, have no row.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from plugind.protocol.errors import IllegalStepError
from plugind.protocol.leases.states import Event, Phase, step

PAGE = Path(__file__).resolve().parents[2] / "docs" / "leases.md"
BEGIN = "<!-- The table: written by python -m tests.tools.lease_table --write -->"
END = "<!-- The end of the table -->"
_BLOCK = re.compile(re.escape(BEGIN) + ".*" + re.escape(END), re.DOTALL)


def table() -> str:
    """Return the table, with a line for each state and group of events."""
    rows = ["| state | shown as | event | next state | what is done |", "|---|---|---|---|---|"]
    for phase in Phase:
        for events, after, actions in decisions(phase):
            rows.append(
                f"| {phase.value} | {phase.shown.value} | {', '.join(events)} | {after} | {', '.join(actions)} |"
            )
    return "\n".join(rows)


def decisions(phase: Phase) -> Iterator[tuple[list[str], str, tuple[str, ...]]]:
    """Yield each group of events with the same outcome in ``phase``, the state that follows and what is done."""
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for event in Event:
        try:
            after, actions = step(phase, event)
        except IllegalStepError:
            continue
        if (after, actions) != (phase, ()):
            groups.setdefault((after.value, tuple(it.value for it in actions)), []).append(event.value)
    for (after_word, words), events in groups.items():
        yield events, after_word, words


def filled(page: str) -> str:
    """Return ``page`` with the table between its marks."""
    if not _BLOCK.search(page):
        raise ValueError(f"the page has no line {BEGIN!r} before a line {END!r}")
    block = f"{BEGIN}\n\n{table()}\n\n{END}"
    return _BLOCK.sub(lambda _: block, page)


def main() -> None:
    """Print the table, or write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write docs/leases.md")
    if parser.parse_args().write:
        PAGE.write_text(filled(PAGE.read_text()))
    else:
        print(table())


if __name__ == "__main__":
    main()

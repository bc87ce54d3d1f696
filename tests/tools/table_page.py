"""A page with a table that a tool writes, between two marks."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path

import attrs

DOCS = Path(__file__).resolve().parents[2] / "docs"
END = "<!-- The end of the table -->"


@attrs.frozen
class TablePage:
    """A page of ``docs`` in which the module ``tool`` of this package writes the table."""

    name: str
    tool: str
    table: Callable[[], str]

    @property
    def path(self) -> Path:
        """The path of the page."""
        return DOCS / self.name

    def filled(self, page: str) -> str:
        """Return ``page`` with the table between its marks."""
        begin = f"<!-- The table: written by python -m tests.tools.{self.tool} --write -->"
        block = re.compile(re.escape(begin) + ".*" + re.escape(END), re.DOTALL)
        if not block.search(page):
            raise ValueError(f"the page has no line {begin!r} before a line {END!r}")
        written = f"{begin}\n\n{self.table()}\n\n{END}"
        return block.sub(lambda _: written, page)

    def main(self, description: str | None) -> None:
        """Print the table, or write it into the page."""
        parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--write", action="store_true", help=f"write docs/{self.name}")
        if parser.parse_args().write:
            self.path.write_text(self.filled(self.path.read_text()))
        else:
            print(self.table())

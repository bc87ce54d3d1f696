"""Lines with a label and a text: whole in a pipe, and broken at spaces where a terminal is not so wide."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable

#: Characters of the labels, at least.
_LABELS = 12


def terminal_width() -> int | None:
    """Return how many columns the terminal has to which the output goes; None if it goes elsewhere."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def wrapped(head: str, text: str, width: int | None, indent: int | None = None) -> str:
    """Return ``head`` and ``text`` in as many lines as it takes, the later ones indented, as far as ``head`` is long.

    A word that is longer than a line stays whole, so that it can be copied.
    """
    if width is None or len(head) + len(text) <= width:
        return head + text
    under = " " * (len(head) if indent is None else indent)
    lines = textwrap.wrap(
        text, width, initial_indent=head, subsequent_indent=under, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines)


def labelled(facts: Iterable[tuple[str, str]], width: int | None) -> list[str]:
    """Return a line for each label with its text, the texts below each other."""
    facts = [*facts]
    start = max(_LABELS, *(len(label) + 2 for label, _ in facts))
    return [wrapped(f"{label + ':':<{start}}", text, width) for label, text in facts]

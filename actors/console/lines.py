"""Lines with a label and a text: whole in a pipe, and broken at spaces on a narrow terminal."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable

#: The least width of the labels.
_LABELS = 12


def terminal_width() -> int | None:
    """Return the columns of the terminal on standard output; None if it is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def wrapped(head: str, text: str, width: int | None, indent: int | None = None) -> str:
    """Return ``head`` and ``text`` in lines, the later ones indented by the length of ``head``, or by ``indent``.

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
    """Return a line for each label with its text, with aligned texts."""
    facts = [*facts]
    start = max(_LABELS, *(len(label) + 2 for label, _ in facts))
    return [wrapped(f"{label + ':':<{start}}", text, width) for label, text in facts]

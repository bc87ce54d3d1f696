"""What commands print, as files in ``printed/``: one for each command, with a section for each case.

``PLUGIND_SNAPSHOTS=write pytest tests/actors/console`` writes them anew. Read the difference before you commit it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

FOLDER = Path(__file__).parent / "printed"
#: Half past nine in the morning in Berlin. The fixture ``in_berlin`` lets it be that.
UNIX = 1_700_037_000.0


def check(command: str, cases: Mapping[str, str | Iterable[str]]) -> None:
    """Compare what ``command`` prints in each case, as text or as lines, with its snapshot."""
    texts = {title: text if isinstance(text, str) else "\n".join(text) for title, text in cases.items()}
    printed = "\n".join(f"=== {title}\n{text.rstrip()}\n" for title, text in texts.items())
    path = FOLDER / f"{command}.txt"
    if os.environ.get("PLUGIND_SNAPSHOTS") == "write":
        path.write_text(printed)
    assert printed == path.read_text()

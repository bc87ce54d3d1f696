"""Write the manual pages and the completions of bash, zsh and fish below a prefix such as ``/usr/local``.

    python -m deploy.manuals PREFIX

They are made from the parsers of the command line and from the table of settings. ``SOURCE_DATE_EPOCH`` is the time at
the foot of the pages, if it is set.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

try:
    from plugind.deploy.completions import PLACES, completions
    from plugind.deploy.man_pages import PLACE, man_pages
except ModuleNotFoundError as error:
    sys.exit(f"{error}: install plugind from this tree with its extra dev: pip install -e '.[dev]'")


def manuals() -> Mapping[str, str]:
    """Return all pages and completions, by their paths below a prefix."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    day = None if epoch is None else datetime.fromtimestamp(int(epoch), UTC)
    pages = {f"{PLACE}/{path}": text for path, text in man_pages(day).items()}
    return pages | {PLACES[shell]: text for shell, text in completions().items()}


def main() -> None:
    """Write all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prefix", type=Path, metavar="PREFIX")
    prefix = parser.parse_args().prefix
    for place, text in manuals().items():
        path = prefix / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()

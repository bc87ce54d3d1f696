"""What the Debian package has in ``/usr/share/doc/plugind``: the pages for those who run plugind, and what they name.

Files lie there as in the tree, so that a page names another one as it does there. Pages for those who change plugind,
or use it as a library, are left out: the library of the package is for its own commands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

_REPOSITORY: Final = Path(__file__).resolve().parents[2]
_PAGES: Final = (
    "operations",
    "configuration",
    "commands",
    "status-socket",
    "states",
    "leases",
    "engines",
    "gpus",
    "page",
    "beside-a-kubelet",
    "fleet",
    "upgrades",
    "api",
)
#: What the pages name besides each other.
_NAMED: Final = ("docs/page*.png", "deploy/*/*", "deploy/*/*/*", "examples/*.py")
#: The tools that make packages are no part of one.
_OF_BUILD: Final = "deploy/debian/"
#: A path of the tree in a page, as code.
_NAME_IN_PAGE: Final = re.compile(
    r"`((?:docs|deploy|examples|tests|benchmarks|actors|protocol|\.ci)/[A-Za-z0-9_./*-]*)`"
)
_TITLE: Final = re.compile(r"^# (.+)$", re.MULTILINE)
_README: Final = """\
# plugind

The documentation for those who run plugind, and what it names: `deploy/` has files for other engines, for metrics and
for many nodes, and `examples/` has programs that use the Python library, which is installed by pip. The manual is
plugind(1).

| page | about |
|---|---|
"""


def documents() -> Mapping[str, bytes]:
    """Return the content of each file, by its path below the directory."""
    named = {name for pattern in _NAMED for name in _files(pattern) if not name.startswith(_OF_BUILD)}
    pages = {f"docs/{name}.md": _text(f"docs/{name}.md") for name in _PAGES} | {"SECURITY.md": _text("SECURITY.md")}
    there = named | {*pages}
    listed = "".join(f"| `{name}` | {_title(text)} |\n" for name, text in pages.items())
    return {
        "README.md": (_README + listed).encode(),
        **{name: _marked(text, there).encode() for name, text in pages.items()},
        **{name: (_REPOSITORY / name).read_bytes() for name in sorted(named)},
    }


def missing(text: str, there: Iterable[str]) -> Iterator[str]:
    """Yield each path that a page names as code and that is not among the files ``there``."""
    files = frozenset(there)
    yield from (name for name in _NAME_IN_PAGE.findall(text) if not _is_there(name, files))


def _is_there(name: str, files: frozenset[str]) -> bool:
    begin = name.rstrip("*").rstrip("/")
    return name in files or any(file.startswith(f"{begin}/") for file in files)


def _marked(text: str, there: Iterable[str]) -> str:
    """Return a page that says of what is not there where it is."""
    files = frozenset(there)

    def mark(found: re.Match[str]) -> str:
        return found[0] if _is_there(found[1], files) else f"{found[0]} (in plugind's source)"

    return _NAME_IN_PAGE.sub(mark, text)


def _title(text: str) -> str:
    found = _TITLE.search(text)
    if found is None:
        raise ValueError("a page has no title")
    return found[1]


def _text(name: str) -> str:
    return (_REPOSITORY / name).read_text(encoding="utf-8")


def _files(pattern: str) -> Iterator[str]:
    found = (path for path in _REPOSITORY.glob(pattern) if path.is_file() and path.suffix != ".pyc")
    return (str(path.relative_to(_REPOSITORY)) for path in found)

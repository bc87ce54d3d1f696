"""Fills in which tests check each rule of ``docs/rules.md``, the rule book.

    python -m tests.tools.rules_page           print the current page
    python -m tests.tools.rules_page --write   write it

A rule is cited by its number (``fault 19``, ``behaviours 20 to 22``), or by the name of a test case of the reference.
A test checks the rules that its docstring cites. Other citations explain: those of modules, helpers and comments.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "rules.md"
#: The parts of the project whose citations must exist.
SOURCES = ("actors", "protocol", "tests", "benchmarks", "examples", "docs")
NOT_YET = "not yet: "
#: What the page calls the folders of ``tests/`` whose tests check rules, in this order.
LEVELS = {
    "protocol": "pure",
    "actors": "node",
    "wire": "wire",
    "end_to_end": "process",
    "fuzz": "scripts",
    "differential": "kubelet",
}

_NUMBERS = re.compile(
    r"\b(fault|behaviour)s?\s+(\d+(?:(?:\s*,\s*|\s+and\s+|\s*,?\s+or\s+|\s+to\s+)\d+)*)", re.IGNORECASE
)
_RANGE = re.compile(r"(\d+)(?:\s+to\s+(\d+))?")
_CASE = re.compile(r"\bTest(?:_[A-Za-z]+)*_?[A-Z]\w+\b")
_BREAK = re.compile(r"\n *(?:#:? )?")
_ROW = re.compile(r"^\| (?:(?P<number>(?:fault|behaviour) \d+)|`(?P<case>\w+)`) \|.*\|(?P<last>[^|]*)\|$")


def rules(page: str) -> dict[str, str]:
    """Return the last column of the page for each rule, by its number or name."""
    rows = (_ROW.match(line) for line in page.splitlines())
    return {row["number"] or row["case"]: row["last"].strip() for row in rows if row}


def citations(text: str, cases: frozenset[str]) -> Iterator[str]:
    """Yield the rules that ``text`` cites; names of test cases count if they are among ``cases``."""
    for match in _NUMBERS.finditer(text):
        for first, last in _RANGE.findall(match[2]):
            for number in range(int(first), int(last or first) + 1):
                yield f"{match[1].lower()} {number}"
    yield from (name for name in _CASE.findall(text) if name in cases)


def prose(source: str) -> str:
    """Return a file with the line breaks of its sentences, comments among them, as spaces."""
    return " ".join(_BREAK.sub(" ", source).split())


def _docstrings_of_tests(source: str) -> Iterator[str]:
    """Yield the docstring of each test of a file."""
    for test in re.split(r"^ *(?:async )?def test_", source, flags=re.MULTILINE)[1:]:
        _, _, body = test.partition(":\n")
        text = body.lstrip()
        if text.startswith('"""'):
            yield prose(text[3 : text.index('"""', 3)])


@cache
def checked_by(cases: frozenset[str]) -> dict[str, dict[str, set[str]]]:
    """Return the test files that check each rule, by folder of ``tests/``, as paths below it.

    ``actors/discovery/test_watcher.py`` is ``discovery/watcher`` of ``actors``.
    """
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for folder in LEVELS:
        top = ROOT / "tests" / folder
        for path in top.rglob("test_*.py"):
            name = (path.parent / path.stem.removeprefix("test_")).relative_to(top).as_posix()
            for docstring in _docstrings_of_tests(path.read_text()):
                for rule in citations(docstring, cases):
                    found[rule][folder].add(name)
    return found


def cited_anywhere(cases: frozenset[str]) -> dict[str, set[str]]:
    """Return the files of the whole project that cite each rule."""
    found: dict[str, set[str]] = defaultdict(set)
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".md") and path != PAGE and "_pb2" not in path.name:
                for rule in citations(prose(path.read_text()), cases):
                    found[rule].add(path.relative_to(ROOT).as_posix())
    return found


def filled(page: str) -> str:
    """Return ``page`` with the tests that check each rule in its last column, or the reason why there is none yet."""
    checked = checked_by(frozenset(rules(page)))

    def fill(line: str) -> str:
        row = _ROW.match(line)
        if row is None:
            return line
        tests = checked.get(row["number"] or row["case"], {})
        if not tests and row["last"].strip().startswith(NOT_YET):
            return line
        levels = (f"{LEVELS[folder]}: {', '.join(sorted(tests[folder]))}" for folder in LEVELS if folder in tests)
        return f"{line[: row.start('last')]} {'; '.join(levels)} |"

    return "\n".join(map(fill, page.splitlines())) + "\n"


def main() -> None:
    """Print the page, or write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write docs/rules.md")
    page = filled(PAGE.read_text())
    if parser.parse_args().write:
        PAGE.write_text(page)
    else:
        print(page, end="")


if __name__ == "__main__":
    main()

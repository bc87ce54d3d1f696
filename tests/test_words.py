"""Words that the project no longer uses: private metaphors for which its field has a standard term.

The vocabulary of Trio, Kubernetes and OTP is enough to read the code; ``docs/design.md`` has a glossary.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: Old words and the terms that replace them. A key is a regular expression for whole words; in lower case it matches
#: any case.
GONE = {
    r"lapses?|lapsed": "expire",
    r"overstay(s|ed|ing)?": "overdue",
    r"lend|lends|lent|Places": "acquire, DialSlots",
    r"stragglers?": "detached",
    r"debts?": "owed, pending deregistration",
    r"nudge[ds]?": "retrigger, wake",
    r"leave_off|leaves? off|left off": "abandon",
    r"told_to_leave": "stopping",
    r"unlucky": "blocked",
    r"Lookers?|the eyes of": "Scanner",
    r"thorough|timely|alarmed": "deep, scheduled, needs_rescan",
    r"rivals?|astray|untaken": "hard_link_of, parent_unknown, over_limit",
    r"deaf": "drop_events",
    r"whole mind": "decisions",
    r"made good|make good|makes good": "recovered from",
    r"spare the collector": "tune_gc",
    r"floors of these runs|moods?": "baseline, load",
    r"headway|excuses?|shaky": "livelock guard, grace, faulty",
    r"diall(ing|ed|er|ers)": "dialing",
    r"troubled|plainest|unsaid": "disturbed, simplest, unsent",
    r"whereof|thereof|wherein|therein|lest|nought|naught": "of which, in which, so that it does not, nothing",
    r"whilst|albeit|forthwith|henceforth|hinders?|amongst": "while, although, at once, from now on, prevent, among",
}
#: Words that English needs in a sentence, but that say too little as an identifier.
UNCLEAR = {
    "told": "notified, sent, reported",
    "known": "registry, or what it is that is known",
    "mind": "decisions",
    "trouble": "last_error",
    "bell": "interrupt",
    "rang": "interrupted",
    # In prose this is a term of security: a HPACK bomb expands when it is read.
    "bomb": "PoisonMessage",
}


def sources() -> list[Path]:
    """The Python and Markdown files of the project, without what is installed or made beside them."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.py", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = (ROOT / name for name in listed.stdout.split("\0") if name)
    # This file lists the words; protoc chooses the words of the files that it generates.
    return [path for path in paths if path != Path(__file__) and "_pb2" not in path.name and path.is_file()]


def lines_with(pattern: re.Pattern[str], path: Path) -> Iterator[str]:
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if pattern.search(line):
            yield f"{path.relative_to(ROOT)}:{number}: {line.strip()}"


def whole_words(words: str) -> re.Pattern[str]:
    """Match ``words`` also as a part of an identifier, where ``_`` or a capital ends a word."""
    return re.compile(rf"(?<![A-Za-z])(?:{words})(?![a-z])", re.IGNORECASE if words.islower() else 0)


def identifiers(source: str) -> Iterator[tuple[int, str]]:
    """The lines and the text of all identifiers of a module, those in f-strings included."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Constant):
            for _, value in ast.iter_fields(node):
                if isinstance(value, str):
                    yield getattr(node, "lineno", 0), value


def unclear(source: str) -> Iterator[tuple[int, str]]:
    return ((line, name) for line, name in identifiers(source) if name.strip("_").lower() in UNCLEAR)


@pytest.mark.parametrize("words", GONE)
def test_old_words_are_gone_from_code_and_prose(words: str) -> None:
    pattern = whole_words(words)
    found = [line for path in sources() for line in lines_with(pattern, path)]
    assert not found, "\n".join([f"write {GONE[words]} instead:", *found])


def test_unclear_words_are_not_identifiers() -> None:
    # Few files have one of the words at all, and to parse a file takes long.
    has_one = re.compile("|".join(UNCLEAR), re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}, for {UNCLEAR[name.strip('_').lower()]}"
        for path in sources()
        if path.suffix == ".py" and has_one.search(source := path.read_text())
        for line, name in unclear(source)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("words", "text", "found"),
    [
        ("nudge[ds]?", "The actor was nudged.", True),
        ("nudge[ds]?", "Nudge", True),
        ("nudge[ds]?", "_was_nudged", True),
        ("nudge[ds]?", "nudging", False),
        ("lend|Places", "in two places", False),
        ("lend|Places", "Places()", True),
    ],
)
def test_whole_words_are_found_in_any_identifier(words: str, text: str, found: bool) -> None:
    assert (whole_words(words).search(text) is not None) is found


def test_every_kind_of_identifier_is_searched() -> None:
    source = """
import bell
from mind import trouble as rang
class Bomb:
    _trouble: int
def told(known): pass
mind.trouble(bell=f"{told}")
match rang:
    case trouble: pass
"""
    assert [name for _, name in sorted(unclear(source))] == [
        *("bell", "mind", "rang", "trouble", "Bomb", "_trouble", "known", "told"),
        *("bell", "mind", "told", "trouble", "rang", "trouble"),
    ]
    assert list(unclear('"""What is known and told."""\ntold_twice = "told"  # known')) == []

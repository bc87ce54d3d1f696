"""The rule book agrees with the citations in code and tests."""

from __future__ import annotations

from plugind.tests.tools import rules_page as book

PAGE = book.PAGE.read_text()
RULES = book.rules(PAGE)
CASES = frozenset(name for name in RULES if name.startswith("Test"))


def test_citations_are_read_from_lists_and_ranges() -> None:
    text = "Faults 11, 12 and 20 to 22; behaviour 3, fault 4. TestDelete_ and TestDelete; 5 faults 6 times"
    assert list(book.citations(text, frozenset({"TestDelete"}))) == [
        "fault 11",
        "fault 12",
        "fault 20",
        "fault 21",
        "fault 22",
        "behaviour 3",
        "fault 4",
        "fault 6",
        "TestDelete",
    ]


def test_every_number_is_listed_once_and_in_order() -> None:
    behaviours = [f"behaviour {number}" for number in range(1, 46)]
    faults = [f"fault {number}" for number in range(1, 97)]
    assert [rule for rule in RULES if rule not in CASES] == behaviours + faults
    assert PAGE.count("\n| behaviour ") == 45
    assert PAGE.count("\n| fault ") == 96


def test_every_cited_rule_is_listed() -> None:
    unknown = {rule: files for rule, files in book.cited_anywhere(CASES).items() if rule not in RULES}
    assert unknown == {}


def test_every_listed_rule_is_checked_by_a_test_or_says_why_not_yet() -> None:
    silent = [rule for rule, last in RULES.items() if not last or last == book.NOT_YET.strip()]
    assert silent == []


def test_no_test_checks_a_rule_that_does_not_hold_yet() -> None:
    """Remove ``not yet`` from the page when a test cites the rule."""
    checked = book.checked_by(CASES)
    contradictory = {rule for rule, last in RULES.items() if last.startswith(book.NOT_YET) and rule in checked}
    assert contradictory == set()


def test_the_page_names_the_tests_that_check_each_rule() -> None:
    """``python -m tests.tools.rules_page --write`` updates the page."""
    assert book.filled(PAGE) == PAGE

"""docs/states.md has every word in which the daemon says how something is, and no other one."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from plugind.protocol.leases.values import LeaseState
from plugind.protocol.plugins.devices import ResourceState
from plugind.protocol.plugins.status import Operation, Outcome
from plugind.protocol.status.metrics import CLAIM_REFUSED, ENTRY_REFUSED, LOOPING, OTHER, watched
from plugind.protocol.words import CRASH_LOOP, STATE_IN, DirectoryCondition, Health, StateName, Step

PAGE = (Path(__file__).parents[2] / "docs" / "states.md").read_text()


def words(words_of: type[enum.StrEnum]) -> list[str]:
    return [word.value for word in words_of]


#: The words of each table, by the line above its rule.
TABLES: dict[str, Iterable[str]] = {
    "| state | what it means | what to do |": [
        word for word in words(StateName) if word == "registering" or word not in STATE_IN.values()
    ],
    "| step | that state | what it means | what to do |": words(Step),
    "| word | where | what it means |": ["not-serving", "standby", CRASH_LOOP],
    "| health | what it means |": words(Health),
    "| step | what plugind does in it |": words(Operation),
    "| outcome | what it means |": words(Outcome),
    "| cause | what it means |": [CLAIM_REFUSED, ENTRY_REFUSED, LOOPING, OTHER],
    "## Roots and directories": watched([]),
    "A directory below a root may be:": words(DirectoryCondition),
    "## Resources": words(ResourceState),
    "## Leases": words(LeaseState),
}


@pytest.mark.parametrize("above", TABLES)
def test_a_table_has_each_word_once(above: str) -> None:
    (after,) = PAGE.split(above + "\n")[1:]
    table = re.search(r"(?:^\| .*\n)+", after.partition("|---")[2], re.MULTILINE)
    assert table is not None
    assert re.findall(r"^\| `([^`]+)` \|", table[0], re.MULTILINE) == list(TABLES[above])

"""The mutation check makes the changes that it lists, one at a time, and none that no test can notice."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest

from plugind.tests.tools import mutants
from plugind.tests.tools.mutants import MODULES
from plugind.tests.tools.mutations import mutations

pytestmark = pytest.mark.extended

ROOT = Path(__file__).resolve().parents[2]

MODULE = '''
"""What it is for."""
from __future__ import annotations
T = TypeVar("T")
LIMIT: int = 3

def admit(count: int, done: list[str], name: str = "a") -> bool:
    """Whether there is room."""
    if count + 1 < LIMIT and not done:
        done.append(name)
        return True
    raise ValueError("full")

class Count:
    def __init__(self) -> None:
        self.kind: str
        self.most: int = LIMIT
'''


def test_each_change_that_a_test_could_notice_is_made_once() -> None:
    made = [f"{mutation.line}: {mutation.before} → {mutation.after}" for mutation in mutations(ast.parse(MODULE))]

    assert "\n".join(made) == textwrap.dedent("""\
        5: 3 → 4
        7: 'a' → ''
        9: count + 1 < LIMIT and (not done) → not (count + 1 < LIMIT and (not done))
        9: count + 1 < LIMIT and (not done) → count + 1 < LIMIT or not done
        9: count + 1 < LIMIT → count + 1 <= LIMIT
        9: count + 1 → count - 1
        9: 1 → 2
        9: not done → done
        10: done.append(name) → pass
        11: return True → return None
        11: True → False
        12: raise ValueError('full') → pass
        17: self.most: int = LIMIT → pass""")


def test_a_mutant_differs_in_one_line_and_the_tree_is_restored() -> None:
    tree = ast.parse(MODULE)
    original = ast.unparse(tree)

    sources = [mutation.source(tree) for mutation in mutations(tree)]

    assert ast.unparse(tree) == original
    assert len(set(sources)) == len(sources)
    for source in sources:
        changed = [line for line in source.splitlines() if line not in original.splitlines()]
        assert len(changed) == 1, changed


@pytest.mark.parametrize("module", MODULES)
def test_each_module_exists_and_has_tests(module: str) -> None:
    assert (ROOT / module).is_file()
    assert mutants.tests_of(ROOT, module)


def test_the_tests_of_a_module_are_those_of_its_room_and_its_own_come_first() -> None:
    tests = mutants.tests_of(ROOT, "protocol/world/claims.py")
    assert tests[0] == "tests/protocol/world/test_claims.py"
    assert {"tests/protocol/world/test_worlds.py", "tests/actors/world/test_reconciler.py"} <= {*tests}
    assert mutants.tests_of(ROOT, "protocol/text.py")[0] == "tests/protocol/test_text.py"

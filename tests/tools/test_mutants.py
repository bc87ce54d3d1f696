"""The mutation check makes the changes that it says, one at a time, and can tell a test that sees one from one that
does not.
"""

from __future__ import annotations

import ast
import textwrap

from plugind.tests.tools.mutations import mutations

MODULE = '''
"""What it is for."""
from __future__ import annotations
LIMIT: int = 3

def admit(count: int, done: list[str], name: str = "a") -> bool:
    """Whether there is room."""
    if count + 1 < LIMIT and not done:
        done.append(name)
        return True
    raise ValueError("full")
'''


def test_every_place_that_a_test_could_tell_is_changed_in_its_turn() -> None:
    told = [f"{mutation.line}: {mutation.before} → {mutation.after}" for mutation in mutations(ast.parse(MODULE))]

    assert "\n".join(told) == textwrap.dedent("""\
        4: 3 → 4
        6: 'a' → ''
        8: count + 1 < LIMIT and (not done) → not (count + 1 < LIMIT and (not done))
        8: count + 1 < LIMIT and (not done) → count + 1 < LIMIT or not done
        8: count + 1 < LIMIT → count + 1 <= LIMIT
        8: count + 1 → count - 1
        8: 1 → 2
        8: not done → done
        9: done.append(name) → pass
        10: return True → return None
        10: True → False
        11: raise ValueError('full') → pass""")


def test_a_mutant_differs_in_its_one_place_and_the_tree_comes_back_as_it_was() -> None:
    tree = ast.parse(MODULE)
    original = ast.unparse(tree)

    sources = [mutation.source(tree) for mutation in mutations(tree)]

    assert ast.unparse(tree) == original
    assert len(set(sources)) == len(sources)
    for source in sources:
        changed = [line for line in source.splitlines() if line not in original.splitlines()]
        assert len(changed) == 1, changed

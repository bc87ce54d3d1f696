"""A planted bug is active within its context manager, and ``simulate`` finds it.

The bugs that plugind once had are tested in ``tests/fuzz/test_fuzz.py``.
"""

from __future__ import annotations

import pytest

from plugind.tests.tools import planted_bugs
from plugind.tests.tools.planted_bugs import NEW, OLD, Planted

pytestmark = pytest.mark.extended


@pytest.mark.parametrize("planted", NEW, ids=lambda planted: planted.name)
def test_a_planted_bug_is_found_and_is_gone_after_its_context(planted: Planted) -> None:
    """If no violation is found, the patch no longer matches plugind: see ``plugind.tests.tools.planted_bugs``."""
    assert planted.with_it().violations[0].oracle == planted.rule
    assert planted.without_it().violations == ()


def test_the_command_searches_for_the_named_bugs_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert planted_bugs.main(["register_without_validating", "--events", "20"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("register_without_validating: seed ")
    assert line.endswith(" was not validated")

    assert planted_bugs.main(["reuse_a_backoff", "--events", "0", "--most", "1"]) == 1
    assert capsys.readouterr().out == "reuse_a_backoff: not found in 1 seeds\n"


def test_each_bug_has_one_name() -> None:
    names = [planted.name for planted in NEW + OLD]
    assert len(set(names)) == len(names)

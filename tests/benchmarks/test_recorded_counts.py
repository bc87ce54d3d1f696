"""A registration and a removal take no more bytecodes and messages than was recorded, on the simulated node.

``python -m benchmarks.counts --record`` records the present figures: a commit that changes them does so on purpose.
"""

from __future__ import annotations

import pytest

from plugind.benchmarks.simulated import PYTHON, measure, recorded

#: How much more a figure may be than was recorded.
GROWTH = 1.05


@pytest.mark.skipif(PYTHON not in recorded(), reason=f"Python {PYTHON} has bytecodes of its own: none were recorded")
def test_a_registration_and_a_removal_cost_no_more_than_was_recorded() -> None:
    figures, before = measure(), recorded()[PYTHON]

    assert figures.keys() == before.keys()
    grown = {what: (before[what], now) for what, now in figures.items() if now > GROWTH * before[what]}
    assert grown == {}, "if that is meant: python -m benchmarks.counts --record"

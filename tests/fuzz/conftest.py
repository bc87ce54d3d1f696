"""The tests of the fuzzer are extended tests: they search for faults, or test what searches."""

from __future__ import annotations

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark each test of this directory."""
    item.add_marker(pytest.mark.extended)

"""The numbers that tell those who ask for leases apart.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import itertools

_NUMBERS = itertools.count(1)


def new_ticket() -> int:
    """Return a number that no asker of this process has had."""
    return next(_NUMBERS)

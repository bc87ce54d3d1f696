"""The number of examples of property tests: the test's own number times ``PLUGIND_EXAMPLES``, which is 1 by default.

``PLUGIND_EXAMPLES=50 pytest tests/protocol`` searches for rare failures; the suite itself must stay fast.
"""

from __future__ import annotations

import os

from hypothesis import settings


def examples(count: int, *, steps: int | None = None) -> settings:
    """Return settings for ``count`` examples. ``steps`` is the number of steps of each example of a state machine."""
    many = count * int(os.environ.get("PLUGIND_EXAMPLES", "1"))
    if steps is None:
        return settings(max_examples=many, deadline=None)
    return settings(max_examples=many, deadline=None, stateful_step_count=steps)

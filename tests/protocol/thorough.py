"""How many examples the properties try: as many as their tests say, times ``PLUGIND_EXAMPLES``, which is 1 unless set.

`PLUGIND_EXAMPLES=50 pytest tests/protocol` is the search for rare ones; the suite itself must stay quick.
"""

from __future__ import annotations

import os

from hypothesis import settings


def examples(count: int, *, steps: int | None = None) -> settings:
    """Return settings for so many examples, and for a machine for so many steps of each."""
    many = count * int(os.environ.get("PLUGIND_EXAMPLES", "1"))
    if steps is None:
        return settings(max_examples=many, deadline=None)
    return settings(max_examples=many, deadline=None, stateful_step_count=steps)

"""How values are made: messages, states, events, commands.

A value never changes. Only the type checker enforces that. A class that refuses assignments at run time takes three
times as long to make an instance of (1.3 µs instead of 0.4 µs with six attributes), and a registration makes
some fifty. ``docs/performance.md`` has the measurement.

PYTEST_DONT_REWRITE
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attrs import frozen as value
else:
    from functools import partial

    import attrs

    #: A class with slots whose instances compare and hash by their attributes, as ``attrs.frozen`` makes it.
    value = partial(attrs.define, unsafe_hash=True)

__all__ = ["value"]

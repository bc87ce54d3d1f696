"""How values are made: messages, states, events, commands.

A value never changes. What says so is the type checker: at run time an attribute could be set, since a class that
refuses it costs three times as much to make an instance of (1.3 µs where this takes 0.4, with six attributes), and a
registration makes some fifty. `docs/performance.md` has the measurement.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attrs import frozen as value
else:
    from functools import partial

    import attrs

    #: Equal and hashed by what it holds, with slots, as `attrs.frozen` would make it.
    value = partial(attrs.define, unsafe_hash=True)

__all__ = ["value"]

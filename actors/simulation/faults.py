"""Crashes of actors that a script asks for.

A crash comes from where a bug would: an actor receives a message that no actor sends, or its port raises an error that
no port raises.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from typing import Final, Literal

import attrs

from ..supervision import leaves

Actor = Literal["watcher", "reconciler", "registration", "status", "handler"]
#: The actors that :meth:`plugind.testing.SimulatedNode.crash` can crash.
ACTORS: Final[tuple[Actor, ...]] = ("watcher", "reconciler", "registration", "status", "handler")


class InjectedError(Exception):
    """The crash of an actor that the script asked for, raised by one of its ports."""


@attrs.frozen
class PoisonMessage:
    """A message that no actor knows; it crashes the actor that receives it."""


def is_injected(error: BaseException) -> bool:
    """Return whether ``error``, which may be a group, consists of crashes that a script asked for."""
    return all(isinstance(leaf, InjectedError) or PoisonMessage.__name__ in str(leaf) for leaf in leaves(error))

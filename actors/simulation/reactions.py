"""What fake plugins do with a call.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import enum


class Reaction(enum.Enum):
    """What a fake plugin does with one call."""

    ANSWERED = "answered"
    #: The call ends with an error.
    REFUSED = "refused"
    #: The call is never answered; the client's deadline ends it.
    HUNG = "hung"
    #: The connection breaks.
    DIED = "died"

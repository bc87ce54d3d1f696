"""The settings of registrations that may change while a node runs.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import attrs

from .backoff import Backoff
from .plugins import InfoLimits
from .timeouts import Timeouts
from .trust import AS_ROOT, Trust, Users
from .values import value


@value
class RegistrationSettings:
    """What a registration actor goes by. All actors of a node share one; a change sends each of them another one."""

    timeouts: Timeouts = attrs.field(factory=Timeouts)
    backoff: Backoff = attrs.field(factory=Backoff)
    limits: InfoLimits = attrs.field(factory=InfoLimits)
    trust: Trust = attrs.field(factory=Trust)
    users: Users = AS_ROOT
    #: Where endpoints may be; None: in the directories of the start.
    endpoint_directories: tuple[str, ...] | None = None
    #: How often they have changed. Of two, those with the higher number count.
    number: int = 0

"""The settings of registrations, which can change while a node runs: deadlines, backoff, limits and trust."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ..backoff import Backoff
from ..checks import above_zero, by_type, each_above_zero, not_negative
from ..plugins.info import CSI, InfoLimits
from ..trust.users import AS_ROOT, Trust, Users
from ..values import value


def _of_handlers(seconds: Mapping[str, float]) -> Mapping[str, float]:
    return by_type({CSI: 175.0, **seconds})


@attrs.frozen
class Timeouts:
    """Seconds that each step may take in all. A trickle of bytes extends no deadline (behaviour 26, fault 63).

    Raises:
      ConfigError: if a time is not a finite number, is negative, or is 0 where a step could never succeed.
    """

    #: From the first attempt to connect until the plugin is connected.
    dial: float = attrs.field(default=10.0, validator=above_zero)
    #: How long connections may be refused while a plugin has bound its socket and does not listen yet (behaviour 12).
    refused_grace: float = attrs.field(default=1.0, validator=not_negative)
    #: The plugin's answer to GetInfo.
    get_info: float = attrs.field(default=1.0, validator=above_zero)
    #: The plugin's answer to NotifyRegistrationStatus.
    notify: float = attrs.field(default=5.0, validator=above_zero)
    #: One call of a handler: validate, register or deregister.
    handler: float = attrs.field(default=60.0, validator=above_zero)
    #: The same for the handlers of certain plugin types. The handler of CSI drivers has 175 s by default, because one
    #: answer of a driver may take two minutes.
    handlers: Mapping[str, float] = attrs.field(default={}, converter=_of_handlers, validator=each_above_zero)
    #: From the request to stop until unfinished work is cancelled. Roll-backs begin after half of it.
    stop_grace: float = attrs.field(default=10.0, validator=not_negative)

    def of_handler(self, plugin_type: str) -> float:
        """Return how long one call of the handler for ``plugin_type`` may take."""
        return self.handlers.get(plugin_type, self.handler)


@value
class RegistrationSettings:
    """The settings of a registration actor. All actors of a node share one object until a reload replaces it."""

    timeouts: Timeouts = attrs.field(factory=Timeouts)
    backoff: Backoff = attrs.field(factory=Backoff)
    limits: InfoLimits = attrs.field(factory=InfoLimits)
    trust: Trust = attrs.field(factory=Trust)
    users: Users = AS_ROOT
    #: Where endpoints may be; None for the directories of the start.
    endpoint_directories: tuple[str, ...] | None = None
    #: How often the settings have changed. The higher number is the newer one.
    number: int = 0

"""When an endpoint is checked, and what the checks show: one rule for all plugin types.

While there is a connection, a check begins every 30 s, ± 20 %, and has 3 s. After a failed check the next two follow 5
s apart. Three failures in a row make the endpoint unhealthy, one success makes it healthy, and the end of the
connection makes it disconnected. Nothing here reads a clock, draws random numbers or changes a registration.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import assert_never

import attrs

from ..checks import above_zero, at_least_one, by_type, each_above_zero, refusing_text
from ..errors import ConfigError, IllegalStepError
from ..plugins.health import Health
from ..text import escaped
from ..values import value


def _types(types: Iterable[str]) -> frozenset[str]:
    return frozenset(types)


@attrs.frozen(field_transformer=refusing_text)
class HealthChecks:
    """How the endpoints of registered plugins are checked. Times are in seconds.

    Raises:
      ConfigError: if a number is out of range.
    """

    #: Between the beginnings of two checks.
    period: float = attrs.field(default=30.0, validator=above_zero)
    #: The largest part of the period by which one is longer or shorter, so that checks stay spread out.
    jitter: float = attrs.field(default=0.2)
    #: Until a check without an answer has failed.
    deadline: float = attrs.field(default=3.0, validator=above_zero)
    #: From a check that failed to the next one, until it is clear that the endpoint is unhealthy.
    confirm_after: float = attrs.field(default=5.0, validator=above_zero)
    #: How many failures in a row make it unhealthy.
    failures: int = attrs.field(default=3, validator=at_least_one)
    #: The period of certain plugin types: a check may cost a driver something.
    periods: Mapping[str, float] = attrs.field(factory=dict, converter=by_type, validator=each_above_zero)
    #: The plugin types that are not checked; with ``ALL_TYPES`` among them, none is but those of ``periods``.
    off: frozenset[str] = attrs.field(default=frozenset(), converter=_types)

    @jitter.validator
    def _check_jitter(self, _: object, jitter: float) -> None:
        if not 0 <= jitter < 1:
            raise ConfigError(f"HealthChecks.jitter is {jitter!r}: it must be a part of the period, from 0 to below 1")

    def checks(self, plugin_type: str) -> bool:
        """Whether plugins of this type are checked."""
        return plugin_type not in self.off and (ALL_TYPES not in self.off or plugin_type in self.periods)

    def why_not_checked(self, plugin_type: str) -> str | None:
        """Return why the health of plugins of this type is not known, and what to do; None if they are checked."""
        if self.checks(plugin_type):
            return None
        return f"{NOT_CHECKED}: 'plugind run --health {escaped(plugin_type)}={self.period:g}' turns them on"

    def of_type(self, plugin_type: str) -> HealthChecks:
        """Return the rule for plugins of this type."""
        period = self.periods.get(plugin_type)
        return self if period is None else attrs.evolve(self, period=period)

    def next_period(self, chance: float) -> float:
        """Return the seconds to the next check; ``chance`` is a random number from [0, 1)."""
        return self.period * (1.0 + self.jitter * (2.0 * chance - 1.0))

    def on_grid(self, due: float) -> float:
        """Return when a check that is due at ``due`` begins: slightly earlier, together with others."""
        step = min(GRID, self.period / 50, self.confirm_after / 10)
        return math.floor(due / step) * step


#: The most seconds by which a check begins before it is due.
GRID = 0.5

#: In :attr:`HealthChecks.off`: all types.
ALL_TYPES = "*"
#: The beginning of the reason why the health of a plugin is not known.
NOT_CHECKED = "checks of its type are off"


@value
class Checked:
    """The results of the checks of one endpoint."""

    #: ``unknown`` before the first success or enough failures, ``healthy``, ``unhealthy``, or ``disconnected``.
    health: Health = Health.UNKNOWN
    #: Why the endpoint is unhealthy or disconnected, or why nothing is known.
    reason: str = ""
    failures: int = 0
    #: When the next check begins; infinity during a check or without a connection.
    due: float = math.inf
    began: float | None = None


@value
class Connected:
    """There is a connection to the endpoint. ``chance``, from [0, 1), spreads the first checks over the period."""

    time: float
    chance: float


@value
class CheckBegan:
    """A check has begun."""

    time: float


@value
class CheckPassed:
    """The check under way has found nothing wrong."""

    chance: float


@value
class CheckFailed:
    """The check under way has failed."""

    reason: str
    chance: float


@value
class Disconnected:
    """The connection has ended."""

    reason: str


CheckEvent = Connected | CheckBegan | CheckPassed | CheckFailed | Disconnected


def step(rule: HealthChecks, before: Checked, event: CheckEvent) -> Checked:
    """Return the state after ``event``.

    Raises:
      IllegalStepError: if a check begins while one is out or there is no connection.
    """
    match event:
        case Connected(time, chance):
            return Checked(due=time + rule.period * chance)
        case Disconnected(reason):
            return disconnected(reason)
        case CheckBegan(time):
            if before.due == math.inf:
                raise IllegalStepError(f"a check began, and none was due: {before}")
            return Checked(before.health, before.reason, before.failures, began=time)
        case CheckPassed(chance):
            return before if before.began is None else _passed(rule, before.began, chance)
        case CheckFailed(reason, chance):
            return before if before.began is None else _failed(rule, before, before.began, reason, chance)
        case _:
            assert_never(event)


def disconnected(reason: str) -> Checked:
    """Return the state after the end of the connection."""
    return Checked(Health.DISCONNECTED, reason)


def _passed(rule: HealthChecks, began: float, chance: float) -> Checked:
    return Checked(Health.HEALTHY, due=began + rule.next_period(chance))


def _failed(rule: HealthChecks, before: Checked, began: float, reason: str, chance: float) -> Checked:
    failures = before.failures + 1
    if failures < rule.failures:
        return Checked(before.health, before.reason, failures, began + rule.confirm_after)
    return Checked(Health.UNHEALTHY, reason, failures, began + rule.next_period(chance))


_BADNESS = {Health.UNHEALTHY: 1, Health.DISCONNECTED: 2}


def is_worse(health: Health, than: Health) -> bool:
    """Whether ``health`` is worse than ``than``: disconnected, then unhealthy, then all others."""
    return _BADNESS.get(health, 0) > _BADNESS.get(than, 0)


def silence(deadline: float) -> str:
    """Return the reason for a check that was not answered in time."""
    return f"no answer within {deadline:g}s"

"""What ``plugind probe`` has found: the steps, and what becomes of the plugin.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import attrs
import trio

from ...protocol.text import cut

#: Characters of a detail (fault 94).
MAX_DETAIL = 2048


class Verdict(enum.StrEnum):
    """The result of a step."""

    OK = "ok"
    #: A daemon would go on, but the author should know.
    WARNING = "warning"
    WRONG = "wrong"


class Fate(enum.StrEnum):
    """What becomes of a plugin."""

    REGISTERED = "registered"
    #: Registered, but nothing can be called on its endpoint.
    UNUSABLE = "unusable"
    #: Not a socket that is looked at.
    IGNORED = "ignored"
    #: Nobody listens.
    STALE = "stale"
    #: Not registered, and tried again.
    FAILED = "failed"
    #: Not registered, and not tried again by itself.
    PARKED = "parked"
    NO_HANDLER = "no-handler"
    #: Registered, and then deregistered because it cannot be notified.
    DEREGISTERED = "deregistered"


@attrs.frozen
class ProbeStep:
    """One thing that was checked."""

    step: str
    verdict: Verdict
    detail: str
    #: Seconds that it took; None where nothing was waited for.
    seconds: float | None = None


@attrs.frozen
class ProbeOptions:
    """What a probe is asked to do."""

    #: Seconds for all of it.
    timeout: float = 10.0
    #: Whether to notify the plugin of its registration, if it would be registered.
    notify: bool = False
    #: Whether to judge as the kubelet does, where a daemon judges otherwise.
    strict: bool = False
    #: Whether the socket's root is marked deprecated (behaviour 16).
    deprecated: bool = False


@attrs.frozen
class ProbeResult:
    """What was found."""

    steps: tuple[ProbeStep, ...]
    fate: Fate

    @property
    def well(self) -> bool:
        """Whether nothing is wrong."""
        return all(step.verdict is not Verdict.WRONG for step in self.steps)


class StopError(Exception):
    """The steps after this one make no sense."""


@attrs.define
class Findings:
    """The steps so far, and what becomes of the plugin."""

    _on_step: Callable[[ProbeStep], None]
    steps: list[ProbeStep] = attrs.field(factory=list)
    fate: Fate = Fate.REGISTERED

    def note(self, step: str, verdict: Verdict, detail: str, seconds: float | None = None) -> None:
        """Note a step."""
        done = ProbeStep(step, verdict, cut(detail, MAX_DETAIL), seconds)
        self.steps.append(done)
        self._on_step(done)

    def wrong(self, step: str, detail: str, fate: Fate, seconds: float | None = None) -> None:
        """Note what is wrong. The first thing that keeps the plugin from being registered decides about its fate."""
        self.note(step, Verdict.WRONG, detail, seconds)
        if self.fate in (Fate.REGISTERED, Fate.UNUSABLE):
            self.fate = fate

    def stop(self, step: str, detail: str, fate: Fate, seconds: float | None = None) -> StopError:
        """Note what is wrong; the result is to be raised."""
        self.wrong(step, detail, fate, seconds)
        return StopError(detail)


@attrs.frozen
class Clock:
    """The time that a step has taken, and what is left of the whole."""

    deadline: float
    began: float = attrs.field(factory=trio.current_time)

    @property
    def took(self) -> float:
        """Seconds since it began."""
        return trio.current_time() - self.began

    @property
    def left(self) -> float:
        """Seconds until the deadline of the whole."""
        return max(0.0, self.deadline - trio.current_time())

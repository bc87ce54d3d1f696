"""The findings of ``plugind probe``: its steps, and the fate of the plugin."""

from __future__ import annotations

import enum
from collections.abc import Callable

import attrs
import trio

from ...protocol.settings.config import Root
from ...protocol.text import cut
from ...protocol.trust.users import AS_ROOT, Trust, Users

#: Characters of a detail (fault 94).
MAX_DETAIL = 2048


class Verdict(enum.StrEnum):
    """The result of a step."""

    OK = "ok"
    #: A daemon would continue, but the author of the plugin should be informed.
    WARNING = "warning"
    WRONG = "wrong"


class Fate(enum.StrEnum):
    """The fate of a plugin."""

    REGISTERED = "registered"
    #: Registered, but nothing can be called on its endpoint.
    UNUSABLE = "unusable"
    #: It is not a socket that a daemon considers.
    IGNORED = "ignored"
    #: The socket has no listener.
    STALE = "stale"
    #: Not registered, and tried again.
    FAILED = "failed"
    #: Not registered, and not retried automatically.
    PARKED = "parked"
    NO_HANDLER = "no-handler"
    #: Registered once it calls Register, and not for its socket.
    BY_CALL = "by-call"
    #: Registered, and then deregistered because it cannot be notified.
    DEREGISTERED = "deregistered"


@attrs.frozen
class ProbeStep:
    """One check and its result."""

    step: str
    verdict: Verdict
    detail: str
    #: The duration in seconds; None if the step did not wait.
    seconds: float | None = None


@attrs.frozen
class ProbeOptions:
    """The options of a probe."""

    #: Seconds for the whole probe but ``exercise``.
    timeout: float = 10.0
    #: Whether to notify the plugin of its registration, if it would be registered.
    notify: bool = False
    #: Whether to follow a device plugin then, and to call what leases call, which can program devices.
    exercise: bool = False
    #: Whether to apply the kubelet's rules where plugind's rules differ.
    strict: bool = False
    #: Whether the socket's root is marked deprecated (behaviour 16).
    deprecated: bool = False
    #: The users whose plugins the daemon registers (fault 40). The kubelet does not check users.
    trust: Trust = attrs.field(factory=Trust)
    #: What the system reports about users, for a daemon of the same user.
    users: Users = AS_ROOT
    #: The roots of the daemon. Without roots, the kubelet's directory or that of the socket is assumed.
    roots: tuple[Root, ...] = ()
    #: Whether others may write to such a root.
    insecure: bool = False
    #: Additional directories for endpoints besides the defaults; with ``roots``, the only ones.
    endpoint_directories: tuple[str, ...] = ()
    #: The status socket of the daemon whose rules were requested.
    asked: str | None = None
    #: Whether it answered: the options are its rules with additions.
    answered: bool = False

    def trusts(self, uid: int) -> bool:
        """Whether the daemon takes plugins of this user."""
        return self.trust.includes(uid, self.users)


@attrs.frozen
class ProbeResult:
    """The result of a probe."""

    steps: tuple[ProbeStep, ...]
    fate: Fate

    @property
    def well(self) -> bool:
        """Whether no step found an error."""
        return all(step.verdict is not Verdict.WRONG for step in self.steps)


class StopError(Exception):
    """The remaining steps cannot be made."""


@attrs.define
class Findings:
    """The steps so far, and the fate of the plugin."""

    _on_step: Callable[[ProbeStep], None]
    steps: list[ProbeStep] = attrs.field(factory=list)
    fate: Fate = Fate.REGISTERED

    def note(self, step: str, verdict: Verdict, detail: str, seconds: float | None = None) -> None:
        """Record a step."""
        done = ProbeStep(step, verdict, cut(detail, MAX_DETAIL), seconds)
        self.steps.append(done)
        self._on_step(done)

    def wrong(self, step: str, detail: str, fate: Fate, seconds: float | None = None) -> None:
        """Record an error. The first error that prevents the registration decides the fate of the plugin."""
        self.note(step, Verdict.WRONG, detail, seconds)
        if self.fate in (Fate.REGISTERED, Fate.UNUSABLE):
            self.fate = fate

    def stop(self, step: str, detail: str, fate: Fate, seconds: float | None = None) -> StopError:
        """Record an error, and return the exception to raise."""
        self.wrong(step, detail, fate, seconds)
        return StopError(detail)


@attrs.frozen
class Clock:
    """The duration of a step, and the time that is left for the probe."""

    deadline: float
    began: float = attrs.field(factory=trio.current_time)

    @property
    def took(self) -> float:
        """Seconds since it began."""
        return trio.current_time() - self.began

    @property
    def left(self) -> float:
        """Seconds until the deadline of the probe."""
        return max(0.0, self.deadline - trio.current_time())

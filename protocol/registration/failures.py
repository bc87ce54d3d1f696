"""The failures of a step of a registration, and what users and plugins are told about them."""

from __future__ import annotations

import enum

from ..plugins.info import PluginInfo
from ..plugins.status import Outcome
from ..values import value

#: What a plugin is told that was not accepted, and one that could not be registered.
VALIDATION = "plugin validation failed"
REGISTRATION = "plugin registration failed"

#: What a refused plugin that called Register has to do.
CALL_AGAIN = "the plugin has to call Register again"

REPLACED = "another socket took its place; the watcher looks again"


class Retry(enum.Enum):
    """What a failure means for the next try."""

    BACKOFF = "backoff"
    #: Nobody listens: the socket is stale, and is dialed again by the backoff and when it changes (behaviour 15).
    STALE = "stale"
    #: Each further try would fail alike: the plugin is parked until its socket changes or a retry is requested.
    NEVER = "never"
    #: Another file is at the path: the try does not count, and the watcher looks there (fault 41).
    REPLACED = "replaced"


class StepFailedError(Exception):
    """A step of a try failed: a dial, GetInfo, a claim, a handler's call or a notification."""

    def __init__(
        self,
        reason: str,
        retry: Retry = Retry.BACKOFF,
        outcome: Outcome = Outcome.FAILED,
        cause: str | None = None,
        *,
        answered: bool = False,
    ) -> None:
        """``cause`` is the error alone, without the words of the reference around it.

        ``answered`` says that the plugin itself answered with this error.
        """
        super().__init__(reason)
        self.reason = reason
        self.retry = retry
        self.outcome = outcome
        self.cause = cause
        self.answered = answered


class PluginRefusedError(StepFailedError):
    """A rule, the reconciler or the handler refuses the plugin, which is told so."""

    def __init__(
        self,
        reason: str,
        outcome: Outcome = Outcome.REFUSED,
        cause: str | None = None,
        *,
        info: PluginInfo | None = None,
        no_handler: bool = False,
        silent: bool = False,
    ) -> None:
        """``info`` has type and name, if valid, from an unacceptable answer to GetInfo.

        ``no_handler`` says that no handler takes plugins of the type yet (behaviour 29), and ``silent`` that the plugin
        is not told, because the handler is away.
        """
        super().__init__(reason, Retry.BACKOFF, outcome, cause, answered=not silent)
        self.info = info
        self.no_handler = no_handler
        self.silent = silent


@value
class Cause:
    """Why a plugin is not registered, in few words. Users see this first.

    What the plugin answered, or was told, stays the cause in all later tries of its generation, until it answers
    something else or is registered. Otherwise a registrar that exits when it is refused would be shown with the failed
    dials that follow, and not with the reason for the refusal.
    """

    error: str
    #: Whether the plugin gave this answer, or was told so.
    answered: bool = False
    #: The error of the last try, if the plugin did not answer in it.
    now: str | None = None

    def __str__(self) -> str:
        return self.error if self.now is None else f"{self.error} (now: {self.now})"

    def kept(self) -> Cause | None:
        """Return the cause with which the next try begins."""
        return Cause(self.error, answered=True) if self.answered else None


def kept(cause: Cause | None) -> Cause | None:
    """Return the cause with which the next try begins, for a cause that may be None."""
    return None if cause is None else cause.kept()


def cause_after(before: Cause | None, failure: StepFailedError) -> Cause:
    """Return the cause after ``failure``. What the plugin answered or was told earlier takes precedence."""
    error = failure.cause or failure.reason
    if before is None or failure.answered:
        return Cause(error, failure.answered)
    return Cause(before.error, answered=True, now=error)


@value
class Refusal:
    """What a refused plugin is told, and why it is refused."""

    error: str
    #: The reason alone, for a plugin that called Register.
    reason: str
    outcome: Outcome
    cause: Cause


def refusal(what: str, reason: str, words: str | None, outcome: Outcome) -> Refusal:
    """Return a refusal in the words of the reference; ``words`` is a shorter text for ``reason``, if there is one."""
    cause = Cause(f"{what}: {reason if words is None else words}", answered=True)
    return Refusal(f"RegisterPlugin error -- {what} with err: {reason}", reason, outcome, cause)


def refusal_before_register(failure: PluginRefusedError) -> Refusal:
    """Return the refusal of a plugin that is not acceptable."""
    if failure.no_handler:
        cause = Cause(failure.cause or failure.reason, answered=True)
        return Refusal(failure.reason, cause.error, Outcome.FAILED, cause)
    return refusal(VALIDATION, failure.reason, failure.cause, failure.outcome)

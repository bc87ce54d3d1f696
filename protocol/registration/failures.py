"""How a step of a registration fails, and what users and plugins are told of it."""

from __future__ import annotations

import enum

from ..plugins.info import PluginInfo
from ..plugins.status import Outcome
from ..values import value

#: What is said of a plugin that its handler, or a rule, does not accept, and of one that it could not register.
VALIDATION = "plugin validation failed"
REGISTRATION = "plugin registration failed"

#: What a plugin has to do that announced itself by a call of Register, and was refused.
CALL_AGAIN = "the plugin has to call Register again"

#: Why a registration waits whose dial found another file at the path.
REPLACED = "another socket took its place; the watcher looks again"


class Retry(enum.Enum):
    """What a failure means for the next try."""

    #: Wait as the backoff says, and try again.
    BACKOFF = "backoff"
    #: There is no listener: the socket is stale, and is dialed again by backoff and when it changes (behaviour 15).
    STALE = "stale"
    #: Every further try would fail in the same way: the plugin is parked until the socket changes or a retry is
    #: requested.
    NEVER = "never"
    #: Another file is at the path than the socket of this generation, which is no fault of the plugin: the try does not
    #: count, and the watcher looks there (fault 41).
    REPLACED = "replaced"


class StepFailedError(Exception):
    """A step of a try failed: a dial, GetInfo, a claim, a call of the handler or a notification."""

    def __init__(
        self,
        reason: str,
        retry: Retry = Retry.BACKOFF,
        outcome: Outcome = Outcome.FAILED,
        cause: str | None = None,
        *,
        answered: bool = False,
    ) -> None:
        """Note the ``reason``; ``cause`` is the error alone, without the words of the reference around it.

        ``answered`` says that it is what the plugin answered.
        """
        super().__init__(reason)
        self.reason = reason
        self.retry = retry
        self.outcome = outcome
        self.cause = cause
        self.answered = answered


class PluginRefusedError(StepFailedError):
    """The plugin is refused for what it says or is, and is told so: by a rule, the reconciler or the handler."""

    def __init__(
        self,
        reason: str,
        outcome: Outcome = Outcome.REFUSED,
        cause: str | None = None,
        *,
        info: PluginInfo | None = None,
        no_handler: bool = False,
    ) -> None:
        """``info`` is what may be shown of an answer to GetInfo that is not acceptable: type and name, if sound.

        ``no_handler`` says that no handler takes plugins of the type yet (behaviour 29).
        """
        super().__init__(reason, Retry.BACKOFF, outcome, cause, answered=True)
        self.info = info
        self.no_handler = no_handler


@value
class Cause:
    """Why a plugin is not registered, in few words: what users are shown first.

    What the plugin answered, or was told, stays the cause in all later tries of its generation, until it answers
    something else or is registered. A registrar that exits once it is refused would otherwise be shown with the dials
    that fail after that, and nothing would tell why it was refused.
    """

    #: The error alone.
    error: str
    #: Whether the plugin answered so or was told so.
    answered: bool = False
    #: How the last try ended, if the plugin did not answer in it.
    now: str | None = None

    def __str__(self) -> str:
        return self.error if self.now is None else f"{self.error} (now: {self.now})"

    def kept(self) -> Cause | None:
        """Return the cause with which the next try begins."""
        return Cause(self.error, answered=True) if self.answered else None


def kept(cause: Cause | None) -> Cause | None:
    """Return the cause with which the next try begins."""
    return None if cause is None else cause.kept()


def cause_after(before: Cause | None, failure: StepFailedError) -> Cause:
    """Return the cause once ``failure`` ended a try: what the plugin answered or was told before counts for more."""
    error = failure.cause or failure.reason
    if before is None or failure.answered:
        return Cause(error, failure.answered)
    return Cause(before.error, answered=True, now=error)


@value
class Refusal:
    """What a plugin that is not registered is told, and why it is not."""

    #: In the words of the reference.
    error: str
    #: The reason alone, for a plugin that called Register.
    reason: str
    outcome: Outcome
    cause: Cause


def refusal(what: str, reason: str, words: str | None, outcome: Outcome) -> Refusal:
    """Return the refusal in the words of the reference; ``words`` are few ones for ``reason``, if there are."""
    cause = Cause(f"{what}: {reason if words is None else words}", answered=True)
    return Refusal(f"RegisterPlugin error -- {what} with err: {reason}", reason, outcome, cause)


def refusal_before_register(failure: PluginRefusedError) -> Refusal:
    """Return what a plugin that is not acceptable is told."""
    if failure.no_handler:
        cause = Cause(failure.cause or failure.reason, answered=True)
        return Refusal(failure.reason, cause.error, Outcome.FAILED, cause)
    return refusal(VALIDATION, failure.reason, failure.cause, failure.outcome)

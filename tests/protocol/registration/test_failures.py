"""How a step fails: the cause that users are shown first, and the words that plugins are notified."""

from __future__ import annotations

import pytest

from plugind.protocol.plugins.status import Outcome
from plugind.protocol.registration.failures import (
    REGISTRATION,
    Cause,
    PluginRefusedError,
    Refusal,
    Retry,
    StepFailedError,
    cause_after,
    kept,
    refusal,
    refusal_before_register,
)

NOBODY = StepFailedError("RegisterPlugin error -- dial failed", Retry.STALE, cause="nobody listens")
BUG = StepFailedError("… err: INTERNAL: bug", cause="GetInfo failed: INTERNAL: bug", answered=True)
TOO_OLD = Cause("plugin validation failed: too old", answered=True)
UNREACHED = Cause("nobody listens")
ANSWERED = Cause("GetInfo failed: INTERNAL: bug", answered=True)


@pytest.mark.parametrize(
    ("before", "failure", "after"),
    [
        (None, NOBODY, UNREACHED),
        (None, BUG, ANSWERED),
        (TOO_OLD, NOBODY, Cause(TOO_OLD.error, answered=True, now="nobody listens")),
        (TOO_OLD, BUG, ANSWERED),
        (TOO_OLD, PluginRefusedError("too new"), Cause("too new", answered=True)),
    ],
    ids=["not reached", "answers", "notified, not reached", "notified, answers", "notified, notified something else"],
)
def test_what_the_plugin_answered_or_was_told_counts_for_more(
    before: Cause | None, failure: StepFailedError, after: Cause
) -> None:
    assert cause_after(before, failure) == after


def test_only_what_the_plugin_answered_or_was_told_is_kept_for_the_next_try() -> None:
    assert kept(None) is None
    assert kept(UNREACHED) is None
    assert kept(TOO_OLD) == TOO_OLD
    assert kept(cause_after(TOO_OLD, NOBODY)) == TOO_OLD


def test_a_cause_says_how_the_last_try_ended() -> None:
    assert str(UNREACHED) == "nobody listens"
    assert str(cause_after(TOO_OLD, NOBODY)) == "plugin validation failed: too old (now: nobody listens)"


def test_a_plugin_that_is_refused_before_register_is_told_so_in_the_words_of_the_reference() -> None:
    """Behaviour 30."""
    notified = refusal_before_register(PluginRefusedError("version 0.1 is too old", cause="too old"))
    assert notified == Refusal(
        "RegisterPlugin error -- plugin validation failed with err: version 0.1 is too old",
        "version 0.1 is too old",
        Outcome.REFUSED,
        TOO_OLD,
    )


@pytest.mark.parametrize("outcome", [Outcome.TIMED_OUT, Outcome.BROKEN, Outcome.FAILED])
def test_a_plugin_that_called_register_is_told_how_the_handler_ended(outcome: Outcome) -> None:
    assert refusal_before_register(PluginRefusedError("slow", outcome)).outcome is outcome


def test_a_plugin_that_could_not_be_registered_is_told_so_in_the_words_of_the_reference() -> None:
    """Behaviour 31."""
    assert refusal(REGISTRATION, "boom", None, Outcome.FAILED) == Refusal(
        "RegisterPlugin error -- plugin registration failed with err: boom",
        "boom",
        Outcome.FAILED,
        Cause("plugin registration failed: boom", answered=True),
    )


def test_an_orphan_is_told_the_words_of_the_reconciler_and_its_call_the_short_ones() -> None:
    """Behaviour 29."""
    reason = "RegisterPlugin error -- no handler registered for plugin type: T at socket /reg/a.sock"
    cause = "no handler registered for plugin type: T"
    notified = refusal_before_register(PluginRefusedError(reason, cause=cause, no_handler=True))
    assert notified == Refusal(reason, cause, Outcome.FAILED, Cause(cause, answered=True))

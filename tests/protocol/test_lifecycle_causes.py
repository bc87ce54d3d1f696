"""The cause that users are shown of each state: the error alone, and the first one that the plugin knows of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugind.protocol import messages as m
from plugind.protocol import states as s
from plugind.protocol.states import Dialed, Failed, HandlerAccepted, InfoReceived, InfoRejected, Notified, Retry
from plugind.protocol.states import TimerElapsed as Elapsed
from plugind.tests.protocol.playbook import (
    ADMITTED,
    CLAIM_REFUSED,
    INFO,
    SOCKET,
    TO_CLAIM,
    TO_INFO,
    TO_NOTIFY,
    TO_REGISTER,
    TO_REGISTERED,
    TO_VALIDATE,
    TOUCHED,
    after,
    appeared,
    script,
)
from plugind.tests.protocol.test_lifecycle_properties import live

NOBODY = Failed(
    f"RegisterPlugin error -- dial failed at socket {SOCKET}, err: nobody listens on '{SOCKET}'",
    Retry.STALE,
    cause="nobody listens",
)
SILENT = Failed(f"RegisterPlugin error -- … at socket {SOCKET}, err: no answer in 5 s", cause="GetInfo failed: …")
BUG = Failed(
    f"RegisterPlugin error -- … at socket {SOCKET}, err: INTERNAL: bug",
    cause="GetInfo failed: INTERNAL: bug",
    answered=True,
)
ORPHAN = m.NoHandler(1, f"RegisterPlugin error -- no handler for T at socket {SOCKET}", "no handler for T")
TOO_OLD = "plugin validation failed: too old"
TO_TOO_OLD = (*TO_VALIDATE, Failed("too old"))


def causes(*events: s.Event) -> str:
    """Return the states that ``events`` lead to, each with its cause."""
    lines = []
    for count in range(len(events) + 1):
        state = after(*events[:count])
        cause = s.cause_of(state)
        lines.append(s.name_of(state) + ("" if cause is None else f": {cause}"))
    return "\n".join(lines)


def cause_after(*events: s.Event) -> str | None:
    cause = s.cause_of(after(*events))
    return None if cause is None else str(cause)


def test_a_refused_plugin_that_no_longer_listens_is_shown_with_its_refusal() -> None:
    """A registrar such as node-driver-registrar exits when it is refused; fault 28."""
    assert causes(*TO_TOO_OLD, Failed("it exited"), Elapsed(), NOBODY, Elapsed(), NOBODY) == script(
        """
        dialing
        asking-info
        validating
        validating
        notifying: plugin validation failed: too old
        waiting: plugin validation failed: too old
        dialing: plugin validation failed: too old
        stale: plugin validation failed: too old (now: nobody listens)
        dialing: plugin validation failed: too old
        stale: plugin validation failed: too old (now: nobody listens)
        """
    )


def test_the_reason_has_the_words_of_the_last_failure_still() -> None:
    stale = after(*TO_TOO_OLD, Notified(), Elapsed(), NOBODY)
    assert isinstance(stale, s.Stale)
    assert stale.reason == NOBODY.reason


@pytest.mark.parametrize(
    ("events", "cause"),
    [
        ((*TO_INFO, InfoRejected("no name")), "plugin validation failed: no name"),
        ((*TO_CLAIM, CLAIM_REFUSED), "plugin validation failed: taken"),
        ((*TO_CLAIM, ORPHAN), "no handler for T"),
        (TO_TOO_OLD, TOO_OLD),
        ((*TO_REGISTER, Failed("boom")), "plugin registration failed: boom"),
    ],
    ids=["info rejected", "name taken", "no handler", "not valid", "not registered"],
)
@pytest.mark.parametrize("failure", [NOBODY, SILENT], ids=["nobody listens", "silent"])
def test_what_a_plugin_was_told_stays_the_cause_while_dials_fail(
    events: tuple[s.Event, ...], cause: str, failure: Failed
) -> None:
    notified = (
        (*events, Notified(), m.TryNow(), HandlerAccepted()) if "registration" in cause else (*events, Notified())
    )
    again = () if "registration" in cause else (m.TryNow(),)
    assert cause_after(*events) == cause_after(*notified, *again) == cause
    assert cause_after(*notified, *again, failure) == f"{cause} (now: {failure.cause})"


def test_what_a_plugin_answers_later_is_the_cause_then() -> None:
    assert cause_after(*TO_TOO_OLD, Notified(), Elapsed(), Dialed(), BUG) == "GetInfo failed: INTERNAL: bug"
    assert (
        cause_after(*TO_TOO_OLD, Notified(), Elapsed(), Dialed(), BUG, Elapsed(), NOBODY)
        == "GetInfo failed: INTERNAL: bug (now: nobody listens)"
    )
    notified = (Elapsed(), Dialed(), InfoReceived(INFO), ADMITTED, Failed("too new"))
    assert cause_after(*TO_TOO_OLD, Notified(), *notified) == "plugin validation failed: too new"


def test_a_failure_to_reach_a_plugin_gives_way_to_the_next_failure() -> None:
    """Only what the plugin answered or was told is kept."""
    assert cause_after(*TO_INFO, SILENT) == "GetInfo failed: …"
    assert cause_after(*TO_INFO, SILENT, Elapsed()) is None
    assert cause_after(*TO_INFO, SILENT, Elapsed(), NOBODY) == "nobody listens"


@pytest.mark.parametrize("trigger", [Elapsed(), TOUCHED, m.NameFreed(), m.TryNow()], ids=lambda e: type(e).__name__)
def test_a_try_for_whatever_reason_keeps_the_refusal_as_its_cause(trigger: s.Event) -> None:
    assert cause_after(*TO_TOO_OLD, Notified(), trigger) == TOO_OLD


def test_a_new_socket_begins_without_a_cause() -> None:
    assert cause_after(*TO_TOO_OLD, Notified(), appeared(2)) is None
    assert cause_after(*TO_TOO_OLD, appeared(2)) is None
    assert cause_after(*TO_REGISTER, Failed("boom"), Notified(), appeared(2), HandlerAccepted()) is None


def test_a_handler_that_is_added_takes_the_cause_of_its_orphans_away() -> None:
    """Behaviour 29."""
    assert cause_after(*TO_CLAIM, ORPHAN, Notified(), m.HandlerAvailable("T")) is None
    assert cause_after(*TO_CLAIM, ORPHAN, m.HandlerAvailable("T"), Notified()) is None


def test_a_plugin_that_is_registered_in_a_later_try_has_no_cause() -> None:
    refused = (*TO_TOO_OLD, Notified(), Elapsed())
    assert cause_after(*refused, *TO_REGISTER) == TOO_OLD
    assert cause_after(*refused, *TO_NOTIFY) is None
    assert cause_after(*refused, *TO_REGISTERED) is None


def test_what_a_plugin_answered_to_its_notification_stays_while_dials_fail() -> None:
    """Behaviour 33, fault 35."""
    no = Failed("… err: INTERNAL: bug", cause="NotifyRegistrationStatus failed: INTERNAL: bug", answered=True)
    assert causes(*TO_NOTIFY, no, NOBODY, Elapsed(), Dialed(), Notified()).splitlines()[-6:] == [
        "notifying",
        "dialing: NotifyRegistrationStatus failed: INTERNAL: bug",
        "waiting: NotifyRegistrationStatus failed: INTERNAL: bug (now: nobody listens)",
        "dialing: NotifyRegistrationStatus failed: INTERNAL: bug",
        "notifying: NotifyRegistrationStatus failed: INTERNAL: bug",
        "registered",
    ]


@given(st.data())
def test_in_any_life_the_cause_is_what_the_plugin_last_knew_until_its_socket_changes(data: st.DataObject) -> None:
    """The refusals and answers of a generation, told apart from its other failures by a model of their own."""
    life = live(data)
    if isinstance(life.state, s.Leaving | s.Gone):
        return  # They tell of the end of the generation before.
    cause = s.cause_of(life.state)
    assert (cause.error if cause is not None and cause.answered else None) == life.answer

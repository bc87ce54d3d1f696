"""The lifecycle as transcripts: the commands of a registration actor, step by step."""

from __future__ import annotations

import pytest

from plugind.protocol import lifecycle
from plugind.protocol import messages as m
from plugind.protocol import states as s
from plugind.protocol.crashes import Crash
from plugind.protocol.errors import IllegalStepError
from plugind.protocol.states import Dialed, Failed, HandlerAccepted, InfoRejected, Notified, Retry
from plugind.protocol.states import TimerElapsed as Elapsed
from plugind.protocol.status import StateName
from plugind.tests.protocol.playbook import (
    CLAIM_REFUSED,
    INFO,
    NO_HANDLER,
    STATE_TYPES,
    TO_CLAIM,
    TO_INFO,
    TO_NOTIFY,
    TO_REGISTER,
    TO_REGISTERED,
    TO_VALIDATE,
    TOUCHED,
    after,
    appeared,
    outcome,
    play,
    script,
    then,
    vanished,
)

# --- a plugin without faults ------------------------------------------------------------------------------------------


def test_a_plugin_without_faults_is_dialed_validated_registered_and_notified() -> None:
    """The order of the reference: dial, GetInfo, handler by type, validate, register, notify."""
    assert play(*TO_REGISTERED) == script(
        """
        Dialing(g1 #1) | Dial(patient)
        Dialed → AskingInfo(g1 #1) | AskInfo
        InfoReceived(a) → Claiming(g1 #1 a) | ClaimName(a)
        Admitted → Validating(g1 #1 a) | AskValidate(a)
        HandlerAccepted → Registering(g1 #1 a) | AskRegister(a)
        HandlerAccepted → Notifying(g1 #1 a) | Announce, Notify(None)
        Notified → Registered(g1 #1 a) | HangUp
        """
    )


def test_a_registered_plugin_whose_socket_is_removed_is_deregistered() -> None:
    """Behaviour 36 and fault 38: even if its process still runs."""
    assert then(after(*TO_REGISTERED), vanished(), HandlerAccepted()) == script(
        """
        SocketVanished(g1) → Leaving(g1 a 'the socket was removed' then=ThenEnd) | HangUp, AskDeregister(a g1)
        HandlerAccepted → Gone(g1) | Release(g1)
        """
    )


def test_a_failed_deregistration_is_not_repeated() -> None:
    """Fault 84."""
    assert then(after(*TO_REGISTERED, vanished()), Failed("boom")) == "Failed('boom') → Gone(g1) | Release(g1)"


# --- failures ---------------------------------------------------------------------------------------------------------


def test_a_dial_that_fails_is_retried_by_backoff() -> None:
    """Behaviours 23 and 27: without a connection the plugin is not notified."""
    assert play(Failed("no answer"), Elapsed(), Failed("no answer"), Elapsed(), *TO_INFO) == script(
        """
        Dialing(g1 #1) | Dial(patient)
        Failed('no answer') → Waiting(g1 #1 'no answer') | HangUp, StartTimer(1)
        TimerElapsed → Dialing(g1 #2) | Dial(patient=False)
        Failed('no answer') → Waiting(g1 #2 'no answer') | HangUp, StartTimer(2)
        TimerElapsed → Dialing(g1 #3) | Dial(patient=False)
        Dialed → AskingInfo(g1 #3) | AskInfo
        """
    )


def test_a_dial_that_this_process_cannot_make_is_no_attempt_and_is_made_as_patiently_once_it_can() -> None:
    """Fault 46."""
    held_up = s.HeldUp("no descriptors left")
    assert play(held_up, held_up, Failed("refused", Retry.STALE)) == script(
        """
        Dialing(g1 #1) | Dial(patient)
        HeldUp('no descriptors left') → Dialing(g1 #1 held_up='no descriptors left') | Dial(patient held_up)
        HeldUp('no descriptors left') → Dialing(g1 #1 held_up='no descriptors left') | Dial(patient held_up)
        Failed('refused' STALE) → Stale(g1 #1 'refused') | HangUp, StartTimer(1)
        """
    )


def test_a_socket_without_a_listener_is_stale_and_dialed_again() -> None:
    """Behaviour 15, fault 28."""
    assert then(after(), Failed("refused", Retry.STALE), Elapsed(), Failed("refused", Retry.STALE), TOUCHED) == script(
        """
        Failed('refused' STALE) → Stale(g1 #1 'refused') | HangUp, StartTimer(1)
        TimerElapsed → Dialing(g1 #2) | Dial(patient=False)
        Failed('refused' STALE) → Stale(g1 #2 'refused') | HangUp, StartTimer(2)
        SocketTouched(g1) → Dialing(hurried g1 #3) | Dial(patient=False)
        """
    )


def test_a_socket_that_can_never_be_dialed_is_parked_until_it_changes() -> None:
    """Fault 31: for example, a datagram socket."""
    assert then(
        after(), Failed("datagrams", Retry.NEVER), TOUCHED, Failed("datagrams", Retry.NEVER), vanished()
    ) == script(
        """
        Failed('datagrams' NEVER) → Parked(g1 #1 'datagrams') | HangUp
        SocketTouched(g1) → Dialing(hurried g1 #2) | Dial(patient=False)
        Failed('datagrams' NEVER) → Parked(hurried g1 #2 'datagrams') | HangUp, PassTurn
        SocketVanished(g1) → Gone(g1)
        """
    )


def test_a_plugin_that_does_not_implement_get_info_is_parked_until_a_retry_is_requested() -> None:
    """Behaviour 28, fault 71: terminal for that generation."""
    assert then(after(*TO_INFO), Failed("UNIMPLEMENTED", Retry.NEVER), m.NameFreed(), m.TryNow()) == script(
        """
        Failed('UNIMPLEMENTED' NEVER) → Parked(g1 #1 'UNIMPLEMENTED') | HangUp
        NameFreed → Parked(g1 #1 'UNIMPLEMENTED')
        TryNow → Dialing(g1 #1) | Dial(patient)
        """
    )


def test_a_get_info_that_fails_is_retried_by_backoff() -> None:
    """Behaviour 28, fault 34: nothing is registered, and no notification is sent."""
    assert then(after(*TO_INFO), Failed("died"), Elapsed()) == script(
        """
        Failed('died') → Waiting(g1 #1 'died') | HangUp, StartTimer(1)
        TimerElapsed → Dialing(g1 #2) | Dial(patient=False)
        """
    )


def test_a_plugin_whose_info_is_rejected_is_notified_and_retried() -> None:
    """Faults 51, 72 and 73."""
    assert then(after(*TO_INFO), InfoRejected("no name"), Notified(), Elapsed()) == script(
        """
        InfoRejected('no name') → Refusing(g1 #1 None '…validation failed with err: no name' then=ThenWait(#1))
            | Notify('…validation failed with err: no name')
        Notified → Waiting(g1 #1 '…validation failed with err: no name') | HangUp, StartTimer(1)
        TimerElapsed → Dialing(g1 #2) | Dial(patient=False)
        """
    )


def test_an_orphan_is_notified_parked_and_dialed_at_once_when_its_handler_is_added() -> None:
    """Behaviour 29, fault 74. Messages about other types do not wake it."""
    assert then(
        after(*TO_CLAIM), NO_HANDLER, Notified(), m.HandlerAvailable("U"), m.NameFreed(), m.HandlerAvailable("T")
    ) == script(
        """
        NoHandler('no handler for T') → Refusing(g1 #1 a 'no handler for T' then=ThenPark(#1 until_type='T'))
            | Notify('no handler for T')
        Notified → Parked(g1 #1 'no handler for T' a until_type='T') | HangUp
        HandlerAvailable('U') → Parked(g1 #1 'no handler for T' a until_type='T')
        NameFreed → Parked(g1 #1 'no handler for T' a until_type='T')
        HandlerAvailable('T') → Dialing(g1 #1) | Dial(patient)
        """
    )


def test_an_orphan_is_dialed_if_its_handler_is_added_while_it_is_notified() -> None:
    """Behaviour 29."""
    assert then(after(*TO_CLAIM, NO_HANDLER), m.HandlerAvailable("T"), Notified()) == script(
        """
        HandlerAvailable('T') → Refusing(g1 #1 a 'no handler for T' then=ThenDial(g1 #1))
        Notified → Dialing(g1 #1) | HangUp, Dial(patient)
        """
    )


def test_a_plugin_that_fails_validation_releases_its_claim_is_notified_and_retried() -> None:
    """Behaviour 30; nothing was registered, so nothing is rolled back."""
    assert then(after(*TO_VALIDATE), Failed("too old"), Notified(), Elapsed()) == script(
        """
        Failed('too old') → Refusing(g1 #1 a '…validation failed with err: too old' then=ThenWait(#1))
            | Release(g1), Notify('…validation failed with err: too old')
        Notified → Waiting(g1 #1 '…validation failed with err: too old' a) | HangUp, StartTimer(1)
        TimerElapsed → Dialing(g1 #2) | Dial(patient=False)
        """
    )


def test_a_plugin_whose_name_is_taken_is_notified_and_retried_when_the_name_is_free() -> None:
    """Behaviour 37, with the policy REJECT."""
    assert then(after(*TO_CLAIM), CLAIM_REFUSED, Notified(), m.NameFreed()) == script(
        """
        ClaimRefused('taken') → Refusing(g1 #1 a '…validation failed with err: taken' then=ThenWait(#1))
            | Notify('…validation failed with err: taken')
        Notified → Waiting(g1 #1 '…validation failed with err: taken' a) | HangUp, StartTimer(1)
        NameFreed → Dialing(hurried g1 #2) | Dial(patient=False)
        """
    )


def test_a_claim_that_is_never_answered_is_released() -> None:
    assert then(after(*TO_CLAIM), Failed("no answer in 240 s"), Elapsed()) == script(
        """
        Failed('no answer in 240 s') → Waiting(g1 #1 'no answer in 240 s' a) | HangUp, Release(g1), StartTimer(1)
        TimerElapsed → Dialing(g1 #2) | Dial(patient=False)
        """
    )


def test_a_plugin_that_fails_to_register_is_notified_deregistered_and_retried() -> None:
    """Behaviours 31, 34 and 36, fault 81: an attempted Register is rolled back and retried."""
    assert then(after(*TO_REGISTER), Failed("boom"), Notified(), HandlerAccepted(), Elapsed()) == script(
        """
        Failed('boom') → Refusing(g1 #1 a '…registration failed with err: boom' then=ThenWait(#1) to_deregister=a)
            | Notify('…registration failed with err: boom')
        Notified → Leaving(g1 a '…registration failed with err: boom' then=ThenWait(#1))
            | HangUp, AskDeregister(a g1)
        HandlerAccepted → Waiting(g1 #1 '…registration failed with err: boom' a) | Release(g1), StartTimer(1)
        TimerElapsed → Dialing(g1 #2) | Dial(patient=False)
        """
    )


@pytest.mark.parametrize(
    ("events", "error"),
    [
        ((*TO_INFO, InfoRejected("E")), "RegisterPlugin error -- plugin validation failed with err: E"),
        ((*TO_CLAIM, NO_HANDLER), NO_HANDLER.reason),
        ((*TO_CLAIM, m.ClaimRefused(1, "E")), "RegisterPlugin error -- plugin validation failed with err: E"),
        ((*TO_VALIDATE, Failed("E")), "RegisterPlugin error -- plugin validation failed with err: E"),
        ((*TO_REGISTER, Failed("E")), "RegisterPlugin error -- plugin registration failed with err: E"),
    ],
    ids=["info rejected", "no handler", "name taken", "validation failed", "registration failed"],
)
@pytest.mark.parametrize("delivery", [Notified(), Failed("the plugin hung up")], ids=["notified", "not notified"])
def test_the_first_cause_is_kept_whether_or_not_the_plugin_could_be_notified(
    events: tuple[s.Event, ...], error: str, delivery: s.Event
) -> None:
    """Behaviours 29 to 32 and fault 77, with the messages of the reference."""
    refusing = after(*events)
    assert isinstance(refusing, s.Refusing)
    _, commands = lifecycle.step(after(*events[:-1]), events[-1])
    settled, _ = lifecycle.step(refusing, delivery)

    assert commands[-1] == s.Notify(error)
    assert isinstance(settled, s.Waiting | s.Parked | s.Leaving)
    assert settled.reason == error


# --- notifying a plugin of its success --------------------------------------------------------------------------------


def test_a_notification_that_fails_is_repeated_alone_on_a_new_connection() -> None:
    """Behaviour 33, faults 35 and 36; the reference's "a failed notify is retried". Register is not called again."""
    assert then(after(*TO_NOTIFY), Failed("EOF"), Dialed(), Notified()) == script(
        """
        Failed('EOF') → Dialing(g1 #1 to_notify=a notify_try=2) | HangUp, Dial(patient=False)
        Dialed → Notifying(g1 #1 a notify_try=2) | Notify(None)
        Notified → Registered(g1 #1 a) | HangUp
        """
    )


def test_a_registration_whose_notifications_all_fail_is_rolled_back() -> None:
    """Behaviour 33, fault 35: at once, then by backoff, five tries in all."""
    no = Failed("EOF")
    dial_no = Failed("refused", Retry.STALE)
    assert then(
        after(*TO_NOTIFY),
        *(no, Dialed(), no, Elapsed(), dial_no, Elapsed(), Dialed(), no, Elapsed(), Dialed(), no),
        *(HandlerAccepted(), Elapsed()),
    ) == script(
        """
        Failed('EOF') → Dialing(g1 #1 to_notify=a notify_try=2) | HangUp, Dial(patient=False)
        Dialed → Notifying(g1 #1 a notify_try=2) | Notify(None)
        Failed('EOF') → Waiting(g1 #1 'EOF' a to_notify=a notify_try=2) | HangUp, StartTimer(1)
        TimerElapsed → Dialing(g1 #1 to_notify=a notify_try=3) | Dial(patient=False)
        Failed('refused' STALE) → Waiting(g1 #1 'refused' a to_notify=a notify_try=3) | HangUp, StartTimer(2)
        TimerElapsed → Dialing(g1 #1 to_notify=a notify_try=4) | Dial(patient=False)
        Dialed → Notifying(g1 #1 a notify_try=4) | Notify(None)
        Failed('EOF') → Waiting(g1 #1 'EOF' a to_notify=a notify_try=4) | HangUp, StartTimer(3)
        TimerElapsed → Dialing(g1 #1 to_notify=a notify_try=5) | Dial(patient=False)
        Dialed → Notifying(g1 #1 a notify_try=5) | Notify(None)
        Failed('EOF') → Leaving(g1 a 'EOF' then=ThenWait(#1)) | HangUp, AskDeregister(a g1)
        HandlerAccepted → Waiting(g1 #1 'EOF' a) | Release(g1), StartTimer(1)
        TimerElapsed → Dialing(g1 #2) | Dial(patient=False)
        """
    )


@pytest.mark.parametrize("event", [m.TryNow(), TOUCHED], ids=["asked", "touched"])
def test_a_retrigger_shortens_the_wait_before_a_notification_is_retried(event: s.Event) -> None:
    """Behaviours 3 and 33."""
    waiting = after(*TO_NOTIFY, Failed("EOF"), Dialed(), Failed("EOF"))

    retriggered, commands = lifecycle.step(waiting, event)

    assert isinstance(retriggered, s.Dialing)
    assert retriggered.to_notify == INFO
    assert commands == (s.Dial(patient=False),)


# --- a newer or a removed socket --------------------------------------------------------------------------------------

TO_REFUSE_AFTER_REGISTER = (*TO_REGISTER, Failed("boom"))
TO_DIAL_FOR_NOTIFY = (*TO_NOTIFY, Failed("EOF"))
TO_WAIT_FOR_NOTIFY = (*TO_DIAL_FOR_NOTIFY, Failed("EOF"))
TO_WAIT = (Failed("no"), Elapsed(), Failed("no"))

#: Events that lead to every state without a pending deregistration, and the commands that then clean up first.
OWING_NOTHING: dict[str, tuple[tuple[s.Event, ...], tuple[s.Command, ...]]] = {
    "dialing": ((), (s.HangUp(),)),
    "asking info": (TO_INFO, (s.HangUp(),)),
    "claiming": (TO_CLAIM, (s.HangUp(), s.Release(1))),
    "validating": (TO_VALIDATE, (s.HangUp(), s.Release(1))),
    "refusing": ((*TO_VALIDATE, Failed("no")), (s.HangUp(),)),
    "waiting": (TO_WAIT, ()),
    "stale": ((Failed("no", Retry.STALE),), ()),
    "parked": ((Failed("no", Retry.NEVER),), ()),
    "observed": ((*TO_INFO, s.InfoObserved(INFO)), (s.StopObserving(), s.HangUp())),
    "parked orphan": ((*TO_CLAIM, NO_HANDLER, Notified()), ()),
}
#: Events that lead to every state with a pending deregistration.
OWING: dict[str, tuple[s.Event, ...]] = {
    "registering": TO_REGISTER,
    "notifying": TO_NOTIFY,
    "refusing after register": TO_REFUSE_AFTER_REGISTER,
    "dialing to notify": TO_DIAL_FOR_NOTIFY,
    "waiting to notify": TO_WAIT_FOR_NOTIFY,
    "registered": TO_REGISTERED,
}


def test_the_event_sequences_lead_to_every_state() -> None:
    reached = {type(after(*way)) for way, _ in OWING_NOTHING.values()} | {type(after(*way)) for way in OWING.values()}

    assert reached == STATE_TYPES - {s.Leaving, s.Gone}


@pytest.mark.parametrize("name", OWING_NOTHING)
def test_a_newer_socket_is_dialed_at_once_if_no_deregistration_is_pending(name: str) -> None:
    """Behaviour 24: a re-created socket inherits no backoff. The reference's Test_Run_Positive_ReRegister."""
    way, settled = OWING_NOTHING[name]

    assert lifecycle.step(after(*way), appeared(2)) == (s.Dialing(2, 1), (*settled, s.Dial(patient=True)))


@pytest.mark.parametrize("name", OWING_NOTHING)
def test_a_removed_socket_ends_the_actor_if_no_deregistration_is_pending(name: str) -> None:
    way, settled = OWING_NOTHING[name]

    assert lifecycle.step(after(*way), vanished()) == (s.Gone(1), settled)


@pytest.mark.parametrize("name", OWING)
def test_a_newer_socket_is_dialed_once_the_older_plugin_is_deregistered(name: str) -> None:
    """Behaviours 19, 20, 24 and 34: unregister before register."""
    assert then(after(*OWING[name]), appeared(2), HandlerAccepted()) == script(
        """
        SocketAppeared(g2) → Leaving(g1 a 'a newer socket is in its place' then=ThenDial(g2 #1))
            | HangUp, AskDeregister(a g1)
        HandlerAccepted → Dialing(g2 #1) | Release(g1), Dial(patient)
        """
    )


@pytest.mark.parametrize("name", OWING)
def test_a_removed_socket_is_deregistered_from_every_state_with_a_pending_deregistration(name: str) -> None:
    """Behaviours 34 and 36: Deregister is asked exactly once for each attempted Register."""
    assert then(after(*OWING[name]), vanished(), HandlerAccepted()) == script(
        """
        SocketVanished(g1) → Leaving(g1 a 'the socket was removed' then=ThenEnd) | HangUp, AskDeregister(a g1)
        HandlerAccepted → Gone(g1) | Release(g1)
        """
    )


def test_the_last_message_during_leaving_decides_what_follows() -> None:
    assert then(
        after(*TO_REGISTERED), vanished(), appeared(2), vanished(2), appeared(3), HandlerAccepted(), *TO_INFO
    ) == script(
        """
        SocketVanished(g1) → Leaving(g1 a 'the socket was removed' then=ThenEnd) | HangUp, AskDeregister(a g1)
        SocketAppeared(g2) → Leaving(g1 a 'the socket was removed' then=ThenDial(g2 #1))
        SocketVanished(g2) → Leaving(g1 a 'the socket was removed' then=ThenEnd)
        SocketAppeared(g3) → Leaving(g1 a 'the socket was removed' then=ThenDial(g3 #1))
        HandlerAccepted → Dialing(g3 #1) | Release(g1), Dial(patient)
        Dialed → AskingInfo(g3 #1) | AskInfo
        """
    )


def test_the_successor_of_a_crashed_actor_deregisters_first() -> None:
    """Fault 85: the crash was that of the old socket, so that a newer one is dialed at once."""
    assert play(HandlerAccepted(), start=lifecycle.resume(appeared(2), INFO, 1, Crash(1, "Oops"))) == script(
        """
        Leaving(g1 a 'its actor crashed' then=ThenDial(g2 #1)) | AskDeregister(a g1)
        HandlerAccepted → Dialing(g2 #1) | Release(g1), Dial(patient)
        """
    )


def test_the_successor_of_a_crashed_actor_waits_once_nothing_is_pending() -> None:
    """Fault 85: the backoff is that of the crashes, and no event brings the next try forward."""
    events = (HandlerAccepted(), TOUCHED, m.NameFreed(), Elapsed())
    assert play(*events, start=lifecycle.resume(appeared(1), INFO, 1, Crash(3, "Oops"))) == script(
        """
        Leaving(g1 a 'its actor crashed' then=ThenWait('internal error: Oops' #3 firm))
            | AskDeregister(a g1)
        HandlerAccepted → Waiting(g1 #3 'internal error: Oops' a firm) | Release(g1), StartTimer(3)
        SocketTouched(g1) → Waiting(g1 #3 'internal error: Oops' a firm)
        NameFreed → Waiting(g1 #3 'internal error: Oops' a firm)
        TimerElapsed → Dialing(g1 #4) | Dial(patient=False)
        """
    )
    assert outcome(lifecycle.start(appeared(1), Crash(1, "Oops"))) == script(
        "Waiting(g1 #1 'internal error: Oops' firm) | StartTimer(1)"
    )


def test_a_socket_after_short_lives_waits_until_its_time_and_no_event_brings_that_forward() -> None:
    """Fault 49: the plugin before it is deregistered first; a retry ends the wait."""
    delayed = m.SocketAppeared("/r/a", 2, appeared().identity, "/r", 0.0, not_before=9.0, short_lives=3)
    leaving = after(*TO_REGISTERED, delayed)
    assert leaving == s.Leaving(
        1, INFO, "a newer socket is in its place", s.ThenDial(2, 1, not_before=9.0, short_lives=3)
    )
    assert then(leaving, HandlerAccepted(), TOUCHED, Elapsed()) == script(
        """
        HandlerAccepted → Waiting(g2 #0 'crash loop: 3 short lives' firm)
            | Release(g1), StartTimer(3 not_before=9.0)
        SocketTouched(g1) → Waiting(g2 #0 'crash loop: 3 short lives' firm)
        TimerElapsed → Dialing(g2 #1) | Dial(patient)
        """
    )
    waiting, _ = lifecycle.start(delayed)
    assert waiting == s.Waiting(2, 0, "crash loop: 3 short lives", firm=True)
    assert lifecycle.step(waiting, m.TryNow())[0] == s.Dialing(2, 1)
    retried = lifecycle.step(leaving, m.TryNow())[0]
    assert isinstance(retried, s.Leaving)
    assert retried.then == s.ThenDial(2, 1)


def test_after_five_crashes_in_a_row_a_socket_is_parked_until_a_retry_or_another_socket() -> None:
    """Fault 85."""
    parked = lifecycle.start(appeared(1), Crash(5, "Oops"))
    assert isinstance(parked[0], s.Parked)
    assert parked[0].reason == (
        "internal error, 5 times in a row: Oops; see the log, report it, then use plugind retry"
    )
    ignored: tuple[s.Event, ...] = (TOUCHED, m.NameFreed())
    assert [lifecycle.step(parked[0], event) for event in ignored] == [(parked[0], ())] * 2
    ending: tuple[s.Event, ...] = (m.TryNow(), appeared(2))
    assert [type(lifecycle.step(parked[0], event)[0]) for event in ending] == [s.Dialing] * 2


# --- a removed handler ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in OWING if name != "refusing after register"])
def test_a_plugin_of_a_withdrawn_handler_is_deregistered_and_becomes_an_orphan(name: str) -> None:
    assert then(
        after(*OWING[name]), m.HandlerWithdrawn("T"), HandlerAccepted(), *TO_CLAIM, NO_HANDLER, Notified()
    ) == script(
        """
        HandlerWithdrawn('T') → Leaving(g1 a 'the handler for T was removed' then=ThenDial(g1 #1))
            | HangUp, AskDeregister(a g1)
        HandlerAccepted → Dialing(g1 #1) | Release(g1), Dial(patient)
        Dialed → AskingInfo(g1 #1) | AskInfo
        InfoReceived(a) → Claiming(g1 #1 a) | ClaimName(a)
        NoHandler('no handler for T') → Refusing(g1 #1 a 'no handler for T' then=ThenPark(#1 until_type='T'))
            | Notify('no handler for T')
        Notified → Parked(g1 #1 'no handler for T' a until_type='T') | HangUp
        """
    )


def test_a_withdrawn_handler_does_not_interrupt_the_notification_of_a_failed_register() -> None:
    """The plugin will be deregistered anyway."""
    assert then(after(*TO_REFUSE_AFTER_REGISTER), m.HandlerWithdrawn("T"), Notified()) == script(
        """
    HandlerWithdrawn('T') → Refusing(g1 #1 a '…registration failed with err: boom' then=ThenWait(#1) to_deregister=a)
    Notified → Leaving(g1 a '…registration failed with err: boom' then=ThenWait(#1))
        | HangUp, AskDeregister(a g1)
    """
    )


@pytest.mark.parametrize("way", [TO_CLAIM, TO_VALIDATE], ids=["claiming", "validating"])
def test_a_plugin_on_its_way_to_a_withdrawn_handler_starts_over(way: tuple[s.Event, ...]) -> None:
    assert then(after(*way), m.HandlerWithdrawn("T")) == (
        "HandlerWithdrawn('T') → Dialing(g1 #1) | HangUp, Release(g1), Dial(patient)"
    )


# --- plugind stops ----------------------------------------------------------------------------------------------------


def test_a_stop_leaves_registered_plugins_registered() -> None:
    """Behaviour 42."""
    assert then(after(*TO_REGISTERED), m.StopAsked()) == "StopAsked → Gone(g1 stopped)"


def test_a_stop_that_deregisters_deregisters_registered_plugins() -> None:
    """Behaviour 42, with the option."""
    assert then(after(*TO_REGISTERED), m.StopAsked(deregister=True), HandlerAccepted()) == script(
        """
        StopAsked(deregister) → Leaving(g1 a 'plugind stops' then=ThenEnd(stopped)) | HangUp, AskDeregister(a g1)
        HandlerAccepted → Gone(g1 stopped) | Release(g1)
        """
    )


def test_a_stop_waits_for_a_registration_in_flight() -> None:
    """Behaviour 42, fault 87: the plugin is registered and notified."""
    assert then(after(*TO_REGISTER), m.StopAsked(), HandlerAccepted(), Notified()) == script(
        """
        StopAsked → Registering(g1 #1 a stopping)
        HandlerAccepted → Notifying(g1 #1 a stopping) | Announce, Notify(None)
        Notified → Gone(g1 stopped) | HangUp
        """
    )


def test_a_registration_that_fails_during_a_stop_is_notified_rolled_back_and_not_retried() -> None:
    """Fault 87."""
    assert then(after(*TO_REGISTER, m.StopAsked()), Failed("boom"), Notified(), HandlerAccepted()) == script(
        """
        Failed('boom') → Refusing(g1 #1 a '…registration failed with err: boom' then=ThenEnd(stopped) to_deregister=a)
            | Notify('…registration failed with err: boom')
        Notified → Leaving(g1 a '…registration failed with err: boom' then=ThenEnd(stopped))
            | HangUp, AskDeregister(a g1)
        HandlerAccepted → Gone(g1 stopped) | Release(g1)
        """
    )


def test_a_registration_whose_notification_fails_during_a_stop_is_rolled_back() -> None:
    """Fault 87."""
    assert then(after(*TO_NOTIFY, m.StopAsked()), Failed("EOF"), HandlerAccepted()) == script(
        """
        Failed('EOF') → Leaving(g1 a 'EOF' then=ThenEnd(stopped)) | HangUp, AskDeregister(a g1)
        HandlerAccepted → Gone(g1 stopped) | Release(g1)
        """
    )


@pytest.mark.parametrize("name", OWING_NOTHING)
@pytest.mark.parametrize("stop", [m.StopAsked(), m.StopAsked(deregister=True), m.StopForced()], ids=repr)
def test_a_stop_ends_the_actor_if_no_deregistration_is_pending(name: str, stop: s.Event) -> None:
    """Behaviour 42."""
    way, settled = OWING_NOTHING[name]

    assert lifecycle.step(after(*way), stop) == (s.Gone(1, stopped=True), settled)


@pytest.mark.parametrize("name", [name for name in OWING if name != "registered"])
@pytest.mark.parametrize("stop", [m.StopAsked(deregister=True), m.StopForced()], ids=["deregister", "forced"])
def test_a_stop_that_does_not_wait_rolls_back_registrations_in_flight(name: str, stop: s.Event) -> None:
    """Fault 87: a stop that deregisters also deregisters a plugin that has not been notified yet."""
    leaving, commands = lifecycle.step(after(*OWING[name]), stop)

    assert leaving == s.Leaving(1, INFO, "plugind stops", s.ThenEnd(stopped=True))
    assert commands == (s.HangUp(), s.AskDeregister(INFO, 1))


@pytest.mark.parametrize("event", [appeared(2), m.HandlerWithdrawn("T")], ids=["newer socket", "handler withdrawn"])
@pytest.mark.parametrize("way", [TO_REGISTER, TO_NOTIFY], ids=["registering", "notifying"])
def test_nothing_new_begins_after_a_stop_request(way: tuple[s.Event, ...], event: s.Event) -> None:
    """Behaviour 42: whatever plugins do, a daemon that stops comes to an end."""
    leaving = after(*way, m.StopAsked(), event)

    assert isinstance(leaving, s.Leaving)
    assert leaving.then == s.ThenEnd(stopped=True)
    assert lifecycle.step(leaving, appeared(3)) == (leaving, ())


# --- retriggers -------------------------------------------------------------------------------------------------------


def test_a_requested_retry_resets_the_backoff() -> None:
    """``plugind retry`` resets the count of failures; other triggers of a waiting socket do not."""
    waiting = after(Failed("no"), Elapsed(), Failed("no"))

    assert then(waiting, m.TryNow()) == "TryNow → Dialing(g1 #1) | Dial(patient)"
    assert then(waiting, m.NameFreed()) == "NameFreed → Dialing(hurried g1 #3) | Dial(patient=False)"
    assert then(waiting, TOUCHED) == "SocketTouched(g1) → Dialing(hurried g1 #3) | Dial(patient=False)"


@pytest.mark.parametrize(
    ("way", "ending"),
    [
        ((*TO_VALIDATE, Failed("no")), (Notified(),)),
        (TO_REFUSE_AFTER_REGISTER, (Notified(), HandlerAccepted())),
        ((*TO_REFUSE_AFTER_REGISTER, Notified()), (HandlerAccepted(),)),
    ],
    ids=["refusing", "refusing after register", "leaving"],
)
@pytest.mark.parametrize(("wake", "attempt"), [(m.TryNow(), 1), (m.NameFreed(), 2)], ids=["asked", "name freed"])
def test_a_trigger_before_the_backoff_begins_is_not_lost(
    way: tuple[s.Event, ...], ending: tuple[s.Event, ...], wake: s.Event, attempt: int
) -> None:
    dialing = after(*way, wake, *ending)
    assert isinstance(dialing, s.Dialing)
    assert (dialing.generation, dialing.attempt, dialing.to_notify) == (1, attempt, None)


def test_no_event_is_legal_in_gone() -> None:
    gone = after(vanished())

    with pytest.raises(IllegalStepError, match=r"^nothing follows Gone\(generation=1, stopped=False\)$"):
        lifecycle.step(gone, appeared(2))


def test_the_outcome_of_a_command_that_was_not_given_is_illegal() -> None:
    with pytest.raises(IllegalStepError, match=r"^Notified\(\) cannot happen in Dialing"):
        lifecycle.step(after(), Notified())


# --- shown states -----------------------------------------------------------------------------------------------------


def test_every_state_is_shown_under_a_published_name() -> None:
    states = [after(*way) for way, _ in OWING_NOTHING.values()] + [after(*way) for way in OWING.values()]
    states += [after(*TO_REGISTERED, vanished()), after(vanished())]

    assert {type(state) for state in states} == STATE_TYPES
    assert {s.name_of(state) for state in states} == set(StateName)

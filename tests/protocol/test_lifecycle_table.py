"""The outcome of every pair of a state and an event; illegal pairs are listed too."""

from __future__ import annotations

import pytest

from plugind.protocol import lifecycle
from plugind.protocol import messages as m
from plugind.protocol import states as s
from plugind.protocol.states import Failed, Retry
from plugind.tests.protocol.playbook import (
    ADMITTED,
    CLAIM_REFUSED,
    EVENT_TYPES,
    INFO,
    NO_HANDLER,
    SOCKET,
    STATE_TYPES,
    TOUCHED,
    appeared,
    decisions,
    script,
    vanished,
)

EVENTS: tuple[s.Event, ...] = (
    appeared(2),
    vanished(1),
    TOUCHED,
    m.TryNow(),
    m.NameFreed(),
    m.HandlerAvailable("T"),
    m.HandlerAvailable("U"),
    m.HandlerWithdrawn("T"),
    m.HandlerWithdrawn("U"),
    m.ListenerFound(SOCKET, 1),
    m.ListenerLost(SOCKET, 1, "nobody listens"),
    m.StopAsked(),
    m.StopAsked(deregister=True),
    m.StopForced(),
    ADMITTED,
    NO_HANDLER,
    CLAIM_REFUSED,
    s.Dialed(),
    s.Replaced(),
    s.InfoReceived(INFO),
    s.InfoRejected("bad"),
    s.HandlerAccepted(),
    s.Notified(),
    s.TimerElapsed(),
    Failed("no"),
    Failed("no", Retry.STALE),
    Failed("no", Retry.NEVER),
    s.HeldUp("no"),
    s.InfoDelayed("late"),
    s.InfoObserved(INFO),
)

STATES: dict[str, s.State] = {
    "dialing": s.Dialing(1, 2),
    "dialing to notify": s.Dialing(1, 2, INFO, 2),
    "dialing to notify for the last time": s.Dialing(1, 2, INFO, 5),
    "dialing after an event": s.Dialing(1, 2, hurried=True),
    "asking info": s.AskingInfo(1, 2),
    "asking info after an event": s.AskingInfo(1, 2, hurried=True),
    "claiming": s.Claiming(1, 2, INFO),
    "validating": s.Validating(1, 2, INFO),
    "registering": s.Registering(1, 2, INFO),
    "registering before a stop": s.Registering(1, 2, INFO, stopping=True),
    "notifying": s.Notifying(1, 2, INFO),
    "notifying for the second time": s.Notifying(1, 2, INFO, 2),
    "notifying for the last time": s.Notifying(1, 2, INFO, 5),
    "notifying before a stop": s.Notifying(1, 2, INFO, stopping=True),
    "refusing": s.Refusing(1, 2, INFO, "e", s.ThenWait("e", 2)),
    "refusing before it dials": s.Refusing(1, 2, INFO, "e", s.ThenDial(1, 3)),
    "refusing without info": s.Refusing(1, 2, None, "e", s.ThenWait("e", 2)),
    "refusing after an event": s.Refusing(1, 2, INFO, "e", s.ThenWait("e", 2), hurried=True),
    "refusing an orphan": s.Refusing(1, 2, INFO, "e", s.ThenPark("e", 2, "T")),
    "refusing after register": s.Refusing(1, 2, INFO, "e", s.ThenWait("e", 2), INFO),
    "refusing after register before a stop": s.Refusing(1, 2, INFO, "e", s.ThenEnd(stopped=True), INFO),
    "waiting": s.Waiting(1, 2, "no", INFO),
    "waiting after an event": s.Waiting(1, 2, "no", INFO, hurried=True),
    "waiting after a crash": s.Waiting(1, 2, "internal error", INFO, firm=True),
    "waiting to notify": s.Waiting(1, 2, "no", INFO, INFO, 2),
    "waiting to notify after an event": s.Waiting(1, 2, "no", INFO, INFO, 2, hurried=True),
    "stale": s.Stale(1, 2, "no"),
    "stale after an event": s.Stale(1, 2, "no", hurried=True),
    "parked": s.Parked(1, 2, "no"),
    "parked after an event": s.Parked(1, 2, "no", hurried=True),
    "parked after crashes": s.Parked(1, 2, "internal error", firm=True),
    "parked orphan": s.Parked(1, 2, "no", INFO, "T"),
    "registered": s.Registered(1, 2, INFO),
    "observed": s.Observed(1, 2, INFO),
    "observed and asked again": s.Observed(1, 2, INFO, asking=True),
    "leaving to wait": s.Leaving(1, INFO, "no", s.ThenWait("no", 2)),
    "leaving after a crash": s.Leaving(1, INFO, "no", s.ThenWait("internal error", 2, firm=True)),
    "leaving to park": s.Leaving(1, INFO, "no", s.ThenPark("no", 2)),
    "leaving to park after an event": s.Leaving(1, INFO, "no", s.ThenPark("no", 2), hurried=True),
    "leaving to dial": s.Leaving(1, INFO, "no", s.ThenDial(2)),
    "leaving to start over": s.Leaving(1, INFO, "no", s.ThenDial(1)),
    "leaving to try again": s.Leaving(1, INFO, "no", s.ThenDial(1, 3)),
    "leaving to end": s.Leaving(1, INFO, "no", s.ThenEnd()),
    "leaving to stop": s.Leaving(1, INFO, "no", s.ThenEnd(stopped=True)),
    "gone": s.Gone(1),
}

TABLE: dict[str, str] = {
    "dialing": """
        SocketAppeared(g2) → Dialing(g2 #1) | HangUp, Dial(patient)
        SocketVanished(g1) → Gone(g1) | HangUp
        StopAsked, StopAsked(deregister), StopForced → Gone(g1 stopped) | HangUp
        Dialed → AskingInfo(g1 #2) | AskInfo
        Replaced → Waiting(g1 #1 'another socket took its place; the watcher looks again')
            | HangUp, ReportReplaced, StartTimer(1)
        Failed('no') → Waiting(g1 #2 'no') | HangUp, StartTimer(2)
        Failed('no' STALE) → Stale(g1 #2 'no') | HangUp, StartTimer(2)
        Failed('no' NEVER) → Parked(g1 #2 'no') | HangUp
        HeldUp('no') → Dialing(g1 #2 held_up='no') | Dial(patient=False held_up)
        unchanged: SocketTouched(g1), TryNow, NameFreed, HandlerAvailable('T'), HandlerAvailable('U'),
            HandlerWithdrawn('T'), HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), InfoReceived(a),
            InfoRejected('bad'), HandlerAccepted, Notified, TimerElapsed, InfoDelayed('late'), InfoObserved(a)
    """,
    "dialing to notify": """
        SocketAppeared(g2) → Leaving(g1 a 'a newer socket is in its place' then=ThenDial(g2 #1))
            | HangUp, AskDeregister(a g1)
        SocketVanished(g1) → Leaving(g1 a 'the socket was removed' then=ThenEnd) | HangUp, AskDeregister(a g1)
        HandlerWithdrawn('T') → Leaving(g1 a 'the handler for T was removed' then=ThenDial(g1 #1))
            | HangUp, AskDeregister(a g1)
        StopAsked, StopAsked(deregister), StopForced
            → Leaving(g1 a 'plugind stops' then=ThenEnd(stopped)) | HangUp, AskDeregister(a g1)
        Dialed → Notifying(g1 #2 a notify_try=2) | Notify(None)
        Replaced
            → Waiting(g1 #2 'another socket took its place; the watcher looks again' a to_notify=a notify_try=1)
            | HangUp, ReportReplaced, StartTimer(1)
        Failed('no'), Failed('no' STALE) → Waiting(g1 #2 'no' a to_notify=a notify_try=2) | HangUp, StartTimer(1)
        Failed('no' NEVER) → Leaving(g1 a 'no' then=ThenPark(#2)) | HangUp, AskDeregister(a g1)
        HeldUp('no') → Dialing(g1 #2 to_notify=a notify_try=2 held_up='no') | Dial(patient=False held_up)
        unchanged: SocketTouched(g1), TryNow, NameFreed, HandlerAvailable('T'), HandlerAvailable('U'),
            HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), InfoReceived(a),
            InfoRejected('bad'), HandlerAccepted, Notified, TimerElapsed, InfoDelayed('late'), InfoObserved(a)
    """,
    "dialing to notify for the last time": """
        SocketAppeared(g2) → Leaving(g1 a 'a newer socket is in its place' then=ThenDial(g2 #1))
            | HangUp, AskDeregister(a g1)
        SocketVanished(g1) → Leaving(g1 a 'the socket was removed' then=ThenEnd) | HangUp, AskDeregister(a g1)
        HandlerWithdrawn('T') → Leaving(g1 a 'the handler for T was removed' then=ThenDial(g1 #1))
            | HangUp, AskDeregister(a g1)
        StopAsked, StopAsked(deregister), StopForced
            → Leaving(g1 a 'plugind stops' then=ThenEnd(stopped)) | HangUp, AskDeregister(a g1)
        Dialed → Notifying(g1 #2 a notify_try=5) | Notify(None)
        Replaced
            → Waiting(g1 #2 'another socket took its place; the watcher looks again' a to_notify=a notify_try=4)
            | HangUp, ReportReplaced, StartTimer(1)
        Failed('no'), Failed('no' STALE) → Leaving(g1 a 'no' then=ThenWait(#2)) | HangUp, AskDeregister(a g1)
        Failed('no' NEVER) → Leaving(g1 a 'no' then=ThenPark(#2)) | HangUp, AskDeregister(a g1)
        HeldUp('no') → Dialing(g1 #2 to_notify=a notify_try=5 held_up='no') | Dial(patient=False held_up)
        unchanged: SocketTouched(g1), TryNow, NameFreed, HandlerAvailable('T'), HandlerAvailable('U'),
            HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), InfoReceived(a),
            InfoRejected('bad'), HandlerAccepted, Notified, TimerElapsed, InfoDelayed('late'), InfoObserved(a)
    """,
    "dialing after an event": """
        SocketAppeared(g2) → Dialing(g2 #1) | HangUp, Dial(patient)
        SocketVanished(g1) → Gone(g1) | HangUp
        StopAsked, StopAsked(deregister), StopForced → Gone(g1 stopped) | HangUp
        Dialed → AskingInfo(hurried g1 #2) | AskInfo
        Replaced → Waiting(hurried g1 #1 'another socket took its place; the watcher looks again')
            | HangUp, ReportReplaced, StartTimer(1)
        Failed('no') → Waiting(hurried g1 #2 'no') | HangUp, PassTurn, StartTimer(2)
        Failed('no' STALE) → Stale(hurried g1 #2 'no') | HangUp, PassTurn, StartTimer(2)
        Failed('no' NEVER) → Parked(hurried g1 #2 'no') | HangUp, PassTurn
        HeldUp('no') → Dialing(hurried g1 #2 held_up='no') | Dial(patient=False held_up)
        unchanged: SocketTouched(g1), TryNow, NameFreed, HandlerAvailable('T'), HandlerAvailable('U'),
            HandlerWithdrawn('T'), HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), InfoReceived(a),
            InfoRejected('bad'), HandlerAccepted, Notified, TimerElapsed, InfoDelayed('late'), InfoObserved(a)
    """,
    "asking info": """
        SocketAppeared(g2) → Dialing(g2 #1) | HangUp, Dial(patient)
        SocketVanished(g1) → Gone(g1) | HangUp
        StopAsked, StopAsked(deregister), StopForced → Gone(g1 stopped) | HangUp
        InfoReceived(a) → Claiming(g1 #2 a) | ClaimName(a)
        InfoRejected('bad') → Refusing(g1 #2 None '…validation failed with err: bad' then=ThenWait(#2))
            | Notify('…validation failed with err: bad')
        Failed('no') → Waiting(g1 #2 'no') | HangUp, StartTimer(2)
        Failed('no' STALE) → Stale(g1 #2 'no') | HangUp, StartTimer(2)
        Failed('no' NEVER) → Parked(g1 #2 'no') | HangUp
        InfoDelayed('late') → AskingInfo(g1 #2 delayed='late')
        InfoObserved(a) → Observed(g1 #2 a) | HangUp, Observe(a), AskLater
        unchanged: SocketTouched(g1), TryNow, NameFreed, HandlerAvailable('T'), HandlerAvailable('U'),
            HandlerWithdrawn('T'), HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, HandlerAccepted,
            Notified, TimerElapsed, HeldUp('no')
    """,
    "asking info after an event": """
        SocketAppeared(g2) → Dialing(g2 #1) | HangUp, Dial(patient)
        SocketVanished(g1) → Gone(g1) | HangUp
        StopAsked, StopAsked(deregister), StopForced → Gone(g1 stopped) | HangUp
        InfoReceived(a) → Claiming(hurried g1 #2 a) | ClaimName(a)
        InfoRejected('bad') → Refusing(hurried g1 #2 None '…validation failed with err: bad' then=ThenWait(#2))
            | PassTurn, Notify('…validation failed with err: bad')
        Failed('no') → Waiting(hurried g1 #2 'no') | HangUp, PassTurn, StartTimer(2)
        Failed('no' STALE) → Stale(hurried g1 #2 'no') | HangUp, PassTurn, StartTimer(2)
        Failed('no' NEVER) → Parked(hurried g1 #2 'no') | HangUp, PassTurn
        InfoDelayed('late') → AskingInfo(hurried g1 #2 delayed='late')
        InfoObserved(a) → Observed(g1 #2 a) | HangUp, Observe(a), AskLater
        unchanged: SocketTouched(g1), TryNow, NameFreed, HandlerAvailable('T'), HandlerAvailable('U'),
            HandlerWithdrawn('T'), HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, HandlerAccepted,
            Notified, TimerElapsed, HeldUp('no')
    """,
    "claiming": """
        SocketAppeared(g2) → Dialing(g2 #1) | HangUp, Release(g1), Dial(patient)
        SocketVanished(g1) → Gone(g1) | HangUp, Release(g1)
        HandlerWithdrawn('T') → Dialing(g1 #1) | HangUp, Release(g1), Dial(patient)
        StopAsked, StopAsked(deregister), StopForced → Gone(g1 stopped) | HangUp, Release(g1)
        Admitted → Validating(g1 #2 a) | AskValidate(a)
        NoHandler('no handler for T') → Refusing(g1 #2 a 'no handler for T' then=ThenPark(#2 until_type='T'))
            | Notify('no handler for T')
        ClaimRefused('taken') → Refusing(g1 #2 a '…validation failed with err: taken' then=ThenWait(#2))
            | Notify('…validation failed with err: taken')
        Failed('no'), Failed('no' STALE), Failed('no' NEVER)
            → Waiting(g1 #2 'no' a) | HangUp, Release(g1), StartTimer(2)
        unchanged: SocketTouched(g1), TryNow, NameFreed, HandlerAvailable('T'), HandlerAvailable('U'),
            HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Dialed, Replaced, InfoReceived(a), InfoRejected('bad'), HandlerAccepted, Notified, TimerElapsed,
            HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "validating": """
        SocketAppeared(g2) → Dialing(g2 #1) | HangUp, Release(g1), Dial(patient)
        SocketVanished(g1) → Gone(g1) | HangUp, Release(g1)
        HandlerWithdrawn('T') → Dialing(g1 #1) | HangUp, Release(g1), Dial(patient)
        StopAsked, StopAsked(deregister), StopForced → Gone(g1 stopped) | HangUp, Release(g1)
        HandlerAccepted → Registering(g1 #2 a) | AskRegister(a)
        Failed('no'), Failed('no' STALE), Failed('no' NEVER)
            → Refusing(g1 #2 a '…validation failed with err: no' then=ThenWait(#2))
            | Release(g1), Notify('…validation failed with err: no')
        unchanged: SocketTouched(g1), TryNow, NameFreed, HandlerAvailable('T'), HandlerAvailable('U'),
            HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), Notified, TimerElapsed, HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "registering": """
        SocketAppeared(g2) → Leaving(g1 a 'a newer socket is in its place' then=ThenDial(g2 #1))
            | HangUp, AskDeregister(a g1)
        SocketVanished(g1) → Leaving(g1 a 'the socket was removed' then=ThenEnd) | HangUp, AskDeregister(a g1)
        HandlerWithdrawn('T') → Leaving(g1 a 'the handler for T was removed' then=ThenDial(g1 #1))
            | HangUp, AskDeregister(a g1)
        StopAsked → Registering(g1 #2 a stopping)
        StopAsked(deregister), StopForced
            → Leaving(g1 a 'plugind stops' then=ThenEnd(stopped)) | HangUp, AskDeregister(a g1)
        HandlerAccepted → Notifying(g1 #2 a) | Announce, Notify(None)
        Failed('no'), Failed('no' STALE), Failed('no' NEVER)
            → Refusing(g1 #2 a '…registration failed with err: no' then=ThenWait(#2) to_deregister=a)
            | Notify('…registration failed with err: no')
        unchanged: SocketTouched(g1), TryNow, NameFreed, HandlerAvailable('T'), HandlerAvailable('U'),
            HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), Notified, TimerElapsed, HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "registering before a stop": """
        SocketAppeared(g2) → Leaving(g1 a 'a newer socket is in its place' then=ThenEnd(stopped))
            | HangUp, AskDeregister(a g1)
        SocketVanished(g1) → Leaving(g1 a 'the socket was removed' then=ThenEnd(stopped))
            | HangUp, AskDeregister(a g1)
        HandlerWithdrawn('T') → Leaving(g1 a 'the handler for T was removed' then=ThenEnd(stopped))
            | HangUp, AskDeregister(a g1)
        StopAsked(deregister), StopForced
            → Leaving(g1 a 'plugind stops' then=ThenEnd(stopped)) | HangUp, AskDeregister(a g1)
        HandlerAccepted → Notifying(g1 #2 a stopping) | Announce, Notify(None)
        Failed('no'), Failed('no' STALE), Failed('no' NEVER)
            → Refusing(g1 #2 a '…registration failed with err: no' then=ThenEnd(stopped) to_deregister=a)
            | Notify('…registration failed with err: no')
        unchanged: SocketTouched(g1), TryNow, NameFreed, HandlerAvailable('T'), HandlerAvailable('U'),
            HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens'), StopAsked
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), Notified, TimerElapsed, HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "notifying": """
        SocketAppeared(g2) → Leaving(g1 a 'a newer socket is in its place' then=ThenDial(g2 #1))
            | HangUp, AskDeregister(a g1)
        SocketVanished(g1) → Leaving(g1 a 'the socket was removed' then=ThenEnd) | HangUp, AskDeregister(a g1)
        HandlerWithdrawn('T') → Leaving(g1 a 'the handler for T was removed' then=ThenDial(g1 #1))
            | HangUp, AskDeregister(a g1)
        StopAsked → Notifying(g1 #2 a stopping)
        StopAsked(deregister), StopForced
            → Leaving(g1 a 'plugind stops' then=ThenEnd(stopped)) | HangUp, AskDeregister(a g1)
        Notified → Registered(g1 #2 a) | HangUp
        Failed('no'), Failed('no' STALE) → Dialing(g1 #2 to_notify=a notify_try=2) | HangUp, Dial(patient=False)
        Failed('no' NEVER) → Leaving(g1 a 'no' then=ThenPark(#2)) | HangUp, AskDeregister(a g1)
        unchanged: SocketTouched(g1), TryNow, NameFreed, HandlerAvailable('T'), HandlerAvailable('U'),
            HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), HandlerAccepted, TimerElapsed, HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "notifying for the second time": """
        SocketAppeared(g2) → Leaving(g1 a 'a newer socket is in its place' then=ThenDial(g2 #1))
            | HangUp, AskDeregister(a g1)
        SocketVanished(g1) → Leaving(g1 a 'the socket was removed' then=ThenEnd) | HangUp, AskDeregister(a g1)
        HandlerWithdrawn('T') → Leaving(g1 a 'the handler for T was removed' then=ThenDial(g1 #1))
            | HangUp, AskDeregister(a g1)
        StopAsked → Notifying(g1 #2 a notify_try=2 stopping)
        StopAsked(deregister), StopForced
            → Leaving(g1 a 'plugind stops' then=ThenEnd(stopped)) | HangUp, AskDeregister(a g1)
        Notified → Registered(g1 #2 a) | HangUp
        Failed('no'), Failed('no' STALE) → Waiting(g1 #2 'no' a to_notify=a notify_try=2) | HangUp, StartTimer(1)
        Failed('no' NEVER) → Leaving(g1 a 'no' then=ThenPark(#2)) | HangUp, AskDeregister(a g1)
        unchanged: SocketTouched(g1), TryNow, NameFreed, HandlerAvailable('T'), HandlerAvailable('U'),
            HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), HandlerAccepted, TimerElapsed, HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "notifying for the last time": """
        SocketAppeared(g2) → Leaving(g1 a 'a newer socket is in its place' then=ThenDial(g2 #1))
            | HangUp, AskDeregister(a g1)
        SocketVanished(g1) → Leaving(g1 a 'the socket was removed' then=ThenEnd) | HangUp, AskDeregister(a g1)
        HandlerWithdrawn('T') → Leaving(g1 a 'the handler for T was removed' then=ThenDial(g1 #1))
            | HangUp, AskDeregister(a g1)
        StopAsked → Notifying(g1 #2 a notify_try=5 stopping)
        StopAsked(deregister), StopForced
            → Leaving(g1 a 'plugind stops' then=ThenEnd(stopped)) | HangUp, AskDeregister(a g1)
        Notified → Registered(g1 #2 a) | HangUp
        Failed('no'), Failed('no' STALE) → Leaving(g1 a 'no' then=ThenWait(#2)) | HangUp, AskDeregister(a g1)
        Failed('no' NEVER) → Leaving(g1 a 'no' then=ThenPark(#2)) | HangUp, AskDeregister(a g1)
        unchanged: SocketTouched(g1), TryNow, NameFreed, HandlerAvailable('T'), HandlerAvailable('U'),
            HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), HandlerAccepted, TimerElapsed, HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "notifying before a stop": """
        SocketAppeared(g2) → Leaving(g1 a 'a newer socket is in its place' then=ThenEnd(stopped))
            | HangUp, AskDeregister(a g1)
        SocketVanished(g1) → Leaving(g1 a 'the socket was removed' then=ThenEnd(stopped))
            | HangUp, AskDeregister(a g1)
        HandlerWithdrawn('T') → Leaving(g1 a 'the handler for T was removed' then=ThenEnd(stopped))
            | HangUp, AskDeregister(a g1)
        StopAsked(deregister), StopForced
            → Leaving(g1 a 'plugind stops' then=ThenEnd(stopped)) | HangUp, AskDeregister(a g1)
        Notified → Gone(g1 stopped) | HangUp
        Failed('no'), Failed('no' STALE), Failed('no' NEVER)
            → Leaving(g1 a 'no' then=ThenEnd(stopped)) | HangUp, AskDeregister(a g1)
        unchanged: SocketTouched(g1), TryNow, NameFreed, HandlerAvailable('T'), HandlerAvailable('U'),
            HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens'), StopAsked
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), HandlerAccepted, TimerElapsed, HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "refusing": """
        SocketAppeared(g2) → Dialing(g2 #1) | HangUp, Dial(patient)
        SocketVanished(g1) → Gone(g1) | HangUp
        TryNow → Refusing(g1 #2 a 'e' then=ThenDial(g1 #1))
        NameFreed → Refusing(hurried g1 #2 a 'e' then=ThenDial(g1 #3))
        StopAsked, StopAsked(deregister), StopForced → Gone(g1 stopped) | HangUp
        Notified, Failed('no'), Failed('no' STALE), Failed('no' NEVER)
            → Waiting(g1 #2 'e' a) | HangUp, StartTimer(2)
        unchanged: SocketTouched(g1), HandlerAvailable('T'), HandlerAvailable('U'), HandlerWithdrawn('T'),
            HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), HandlerAccepted, TimerElapsed, HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "refusing before it dials": """
        SocketAppeared(g2) → Dialing(g2 #1) | HangUp, Dial(patient)
        SocketVanished(g1) → Gone(g1) | HangUp
        StopAsked, StopAsked(deregister), StopForced → Gone(g1 stopped) | HangUp
        Notified, Failed('no'), Failed('no' STALE), Failed('no' NEVER)
            → Dialing(g1 #3) | HangUp, Dial(patient=False)
        unchanged: SocketTouched(g1), TryNow, NameFreed, HandlerAvailable('T'), HandlerAvailable('U'),
            HandlerWithdrawn('T'), HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), HandlerAccepted, TimerElapsed, HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "refusing without info": """
        SocketAppeared(g2) → Dialing(g2 #1) | HangUp, Dial(patient)
        SocketVanished(g1) → Gone(g1) | HangUp
        TryNow → Refusing(g1 #2 None 'e' then=ThenDial(g1 #1))
        NameFreed → Refusing(hurried g1 #2 None 'e' then=ThenDial(g1 #3))
        StopAsked, StopAsked(deregister), StopForced → Gone(g1 stopped) | HangUp
        Notified, Failed('no'), Failed('no' STALE), Failed('no' NEVER) → Waiting(g1 #2 'e') | HangUp, StartTimer(2)
        unchanged: SocketTouched(g1), HandlerAvailable('T'), HandlerAvailable('U'), HandlerWithdrawn('T'),
            HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), HandlerAccepted, TimerElapsed, HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "refusing after an event": """
        SocketAppeared(g2) → Dialing(g2 #1) | HangUp, Dial(patient)
        SocketVanished(g1) → Gone(g1) | HangUp
        TryNow → Refusing(g1 #2 a 'e' then=ThenDial(g1 #1))
        StopAsked, StopAsked(deregister), StopForced → Gone(g1 stopped) | HangUp
        Notified, Failed('no'), Failed('no' STALE), Failed('no' NEVER)
            → Waiting(hurried g1 #2 'e' a) | HangUp, StartTimer(2)
        unchanged: SocketTouched(g1), NameFreed, HandlerAvailable('T'), HandlerAvailable('U'),
            HandlerWithdrawn('T'), HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), HandlerAccepted, TimerElapsed, HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "refusing an orphan": """
        SocketAppeared(g2) → Dialing(g2 #1) | HangUp, Dial(patient)
        SocketVanished(g1) → Gone(g1) | HangUp
        TryNow, HandlerAvailable('T') → Refusing(g1 #2 a 'e' then=ThenDial(g1 #1))
        StopAsked, StopAsked(deregister), StopForced → Gone(g1 stopped) | HangUp
        Notified, Failed('no'), Failed('no' STALE), Failed('no' NEVER)
            → Parked(g1 #2 'e' a until_type='T') | HangUp
        unchanged: SocketTouched(g1), NameFreed, HandlerAvailable('U'), HandlerWithdrawn('T'),
            HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), HandlerAccepted, TimerElapsed, HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "refusing after register": """
        SocketAppeared(g2) → Leaving(g1 a 'a newer socket is in its place' then=ThenDial(g2 #1))
            | HangUp, AskDeregister(a g1)
        SocketVanished(g1) → Leaving(g1 a 'the socket was removed' then=ThenEnd) | HangUp, AskDeregister(a g1)
        TryNow → Refusing(g1 #2 a 'e' then=ThenDial(g1 #1) to_deregister=a)
        NameFreed → Refusing(hurried g1 #2 a 'e' then=ThenDial(g1 #3) to_deregister=a)
        StopAsked, StopAsked(deregister), StopForced
            → Leaving(g1 a 'plugind stops' then=ThenEnd(stopped)) | HangUp, AskDeregister(a g1)
        Notified, Failed('no'), Failed('no' STALE), Failed('no' NEVER)
            → Leaving(g1 a 'e' then=ThenWait(#2)) | HangUp, AskDeregister(a g1)
        unchanged: SocketTouched(g1), HandlerAvailable('T'), HandlerAvailable('U'), HandlerWithdrawn('T'),
            HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), HandlerAccepted, TimerElapsed, HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "refusing after register before a stop": """
        SocketAppeared(g2) → Leaving(g1 a 'a newer socket is in its place' then=ThenEnd(stopped))
            | HangUp, AskDeregister(a g1)
        SocketVanished(g1) → Leaving(g1 a 'the socket was removed' then=ThenEnd(stopped))
            | HangUp, AskDeregister(a g1)
        StopAsked, StopAsked(deregister), StopForced
            → Leaving(g1 a 'plugind stops' then=ThenEnd(stopped)) | HangUp, AskDeregister(a g1)
        Notified, Failed('no'), Failed('no' STALE), Failed('no' NEVER)
            → Leaving(g1 a 'e' then=ThenEnd(stopped)) | HangUp, AskDeregister(a g1)
        unchanged: SocketTouched(g1), TryNow, NameFreed, HandlerAvailable('T'), HandlerAvailable('U'),
            HandlerWithdrawn('T'), HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), HandlerAccepted, TimerElapsed, HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "waiting": """
        SocketAppeared(g2) → Dialing(g2 #1) | Dial(patient)
        SocketVanished(g1) → Gone(g1)
        SocketTouched(g1), NameFreed → Dialing(hurried g1 #3) | Dial(patient=False)
        TryNow → Dialing(g1 #1) | Dial(patient)
        StopAsked, StopAsked(deregister), StopForced → Gone(g1 stopped)
        TimerElapsed → Dialing(g1 #3) | Dial(patient=False)
        unchanged: HandlerAvailable('T'), HandlerAvailable('U'), HandlerWithdrawn('T'), HandlerWithdrawn('U'),
            ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), HandlerAccepted, Notified, Failed('no'), Failed('no' STALE), Failed('no' NEVER),
            HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "waiting after an event": """
        SocketAppeared(g2) → Dialing(g2 #1) | Dial(patient)
        SocketVanished(g1) → Gone(g1)
        TryNow → Dialing(g1 #1) | Dial(patient)
        StopAsked, StopAsked(deregister), StopForced → Gone(g1 stopped)
        TimerElapsed → Dialing(g1 #3) | Dial(patient=False)
        unchanged: SocketTouched(g1), NameFreed, HandlerAvailable('T'), HandlerAvailable('U'),
            HandlerWithdrawn('T'), HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), HandlerAccepted, Notified, Failed('no'), Failed('no' STALE), Failed('no' NEVER),
            HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "waiting after a crash": """
        SocketAppeared(g2) → Dialing(g2 #1) | Dial(patient)
        SocketVanished(g1) → Gone(g1)
        TryNow → Dialing(g1 #1) | Dial(patient)
        StopAsked, StopAsked(deregister), StopForced → Gone(g1 stopped)
        TimerElapsed → Dialing(g1 #3) | Dial(patient=False)
        unchanged: SocketTouched(g1), NameFreed, HandlerAvailable('T'), HandlerAvailable('U'),
            HandlerWithdrawn('T'), HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), HandlerAccepted, Notified, Failed('no'), Failed('no' STALE), Failed('no' NEVER),
            HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "waiting to notify": """
        SocketAppeared(g2) → Leaving(g1 a 'a newer socket is in its place' then=ThenDial(g2 #1))
            | HangUp, AskDeregister(a g1)
        SocketVanished(g1) → Leaving(g1 a 'the socket was removed' then=ThenEnd) | HangUp, AskDeregister(a g1)
        SocketTouched(g1) → Dialing(hurried g1 #2 to_notify=a notify_try=3) | Dial(patient=False)
        TryNow → Dialing(g1 #2 to_notify=a notify_try=1) | Dial(patient=False)
        HandlerWithdrawn('T') → Leaving(g1 a 'the handler for T was removed' then=ThenDial(g1 #1))
            | HangUp, AskDeregister(a g1)
        StopAsked, StopAsked(deregister), StopForced
            → Leaving(g1 a 'plugind stops' then=ThenEnd(stopped)) | HangUp, AskDeregister(a g1)
        TimerElapsed → Dialing(g1 #2 to_notify=a notify_try=3) | Dial(patient=False)
        unchanged: NameFreed, HandlerAvailable('T'), HandlerAvailable('U'), HandlerWithdrawn('U'),
            ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), HandlerAccepted, Notified, Failed('no'), Failed('no' STALE), Failed('no' NEVER),
            HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "waiting to notify after an event": """
        SocketAppeared(g2) → Leaving(hurried g1 a 'a newer socket is in its place' then=ThenDial(g2 #1))
            | HangUp, AskDeregister(a g1)
        SocketVanished(g1) → Leaving(hurried g1 a 'the socket was removed' then=ThenEnd)
            | HangUp, AskDeregister(a g1)
        TryNow → Dialing(g1 #2 to_notify=a notify_try=1) | Dial(patient=False)
        HandlerWithdrawn('T') → Leaving(hurried g1 a 'the handler for T was removed' then=ThenDial(g1 #1))
            | HangUp, AskDeregister(a g1)
        StopAsked, StopAsked(deregister), StopForced → Leaving(hurried g1 a 'plugind stops' then=ThenEnd(stopped))
            | HangUp, AskDeregister(a g1)
        TimerElapsed → Dialing(g1 #2 to_notify=a notify_try=3) | Dial(patient=False)
        unchanged: SocketTouched(g1), NameFreed, HandlerAvailable('T'), HandlerAvailable('U'),
            HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), HandlerAccepted, Notified, Failed('no'), Failed('no' STALE), Failed('no' NEVER),
            HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "stale": """
        SocketAppeared(g2) → Dialing(g2 #1) | Dial(patient)
        SocketVanished(g1) → Gone(g1)
        SocketTouched(g1) → Dialing(hurried g1 #3) | Dial(patient=False)
        TryNow, ListenerFound(g1) → Dialing(g1 #1) | Dial(patient)
        StopAsked, StopAsked(deregister), StopForced → Gone(g1 stopped)
        TimerElapsed → Dialing(g1 #3) | Dial(patient=False)
        unchanged: NameFreed, HandlerAvailable('T'), HandlerAvailable('U'), HandlerWithdrawn('T'),
            HandlerWithdrawn('U'), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), HandlerAccepted, Notified, Failed('no'), Failed('no' STALE), Failed('no' NEVER),
            HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "stale after an event": """
        SocketAppeared(g2) → Dialing(g2 #1) | Dial(patient)
        SocketVanished(g1) → Gone(g1)
        TryNow, ListenerFound(g1) → Dialing(g1 #1) | Dial(patient)
        StopAsked, StopAsked(deregister), StopForced → Gone(g1 stopped)
        TimerElapsed → Dialing(g1 #3) | Dial(patient=False)
        unchanged: SocketTouched(g1), NameFreed, HandlerAvailable('T'), HandlerAvailable('U'),
            HandlerWithdrawn('T'), HandlerWithdrawn('U'), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), HandlerAccepted, Notified, Failed('no'), Failed('no' STALE), Failed('no' NEVER),
            HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "parked": """
        SocketAppeared(g2) → Dialing(g2 #1) | Dial(patient)
        SocketVanished(g1) → Gone(g1)
        SocketTouched(g1) → Dialing(hurried g1 #3) | Dial(patient=False)
        TryNow → Dialing(g1 #1) | Dial(patient)
        StopAsked, StopAsked(deregister), StopForced → Gone(g1 stopped)
        unchanged: NameFreed, HandlerAvailable('T'), HandlerAvailable('U'), HandlerWithdrawn('T'),
            HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), HandlerAccepted, Notified, TimerElapsed, Failed('no'), Failed('no' STALE),
            Failed('no' NEVER), HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "parked after an event": """
        SocketAppeared(g2) → Dialing(g2 #1) | Dial(patient)
        SocketVanished(g1) → Gone(g1)
        SocketTouched(g1) → Waiting(hurried g1 #2 'no') | StartTimer(2)
        TryNow → Dialing(g1 #1) | Dial(patient)
        StopAsked, StopAsked(deregister), StopForced → Gone(g1 stopped)
        unchanged: NameFreed, HandlerAvailable('T'), HandlerAvailable('U'), HandlerWithdrawn('T'),
            HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), HandlerAccepted, Notified, TimerElapsed, Failed('no'), Failed('no' STALE),
            Failed('no' NEVER), HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "parked after crashes": """
        SocketAppeared(g2) → Dialing(g2 #1) | Dial(patient)
        SocketVanished(g1) → Gone(g1)
        TryNow → Dialing(g1 #1) | Dial(patient)
        StopAsked, StopAsked(deregister), StopForced → Gone(g1 stopped)
        unchanged: SocketTouched(g1), NameFreed, HandlerAvailable('T'), HandlerAvailable('U'),
            HandlerWithdrawn('T'), HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), HandlerAccepted, Notified, TimerElapsed, Failed('no'), Failed('no' STALE),
            Failed('no' NEVER), HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "parked orphan": """
        SocketAppeared(g2) → Dialing(g2 #1) | Dial(patient)
        SocketVanished(g1) → Gone(g1)
        TryNow, HandlerAvailable('T') → Dialing(g1 #1) | Dial(patient)
        StopAsked, StopAsked(deregister), StopForced → Gone(g1 stopped)
        unchanged: SocketTouched(g1), NameFreed, HandlerAvailable('U'), HandlerWithdrawn('T'),
            HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), HandlerAccepted, Notified, TimerElapsed, Failed('no'), Failed('no' STALE),
            Failed('no' NEVER), HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "registered": """
        SocketAppeared(g2) → Leaving(g1 a 'a newer socket is in its place' then=ThenDial(g2 #1))
            | HangUp, AskDeregister(a g1)
        SocketVanished(g1) → Leaving(g1 a 'the socket was removed' then=ThenEnd) | HangUp, AskDeregister(a g1)
        HandlerWithdrawn('T') → Leaving(g1 a 'the handler for T was removed' then=ThenDial(g1 #1))
            | HangUp, AskDeregister(a g1)
        ListenerLost(g1 'nobody listens')
            → Leaving(g1 a 'nobody listens' then=ThenDial(g1 #1)) | HangUp, AskDeregister(a g1)
        StopAsked, StopForced → Gone(g1 stopped)
        StopAsked(deregister) → Leaving(g1 a 'plugind stops' then=ThenEnd(stopped)) | HangUp, AskDeregister(a g1)
        unchanged: SocketTouched(g1), TryNow, NameFreed, HandlerAvailable('T'), HandlerAvailable('U'),
            HandlerWithdrawn('U'), ListenerFound(g1)
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), HandlerAccepted, Notified, TimerElapsed, Failed('no'), Failed('no' STALE),
            Failed('no' NEVER), HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "observed": """
        SocketAppeared(g2) → Dialing(g2 #1) | StopObserving, HangUp, Dial(patient)
        SocketVanished(g1) → Gone(g1) | StopObserving, HangUp
        TryNow, TimerElapsed → Observed(g1 #2 a asking) | Dial(patient=False)
        ListenerLost(g1 'nobody listens') → Dialing(g1 #1) | StopObserving, HangUp, Dial(patient)
        StopAsked, StopAsked(deregister), StopForced → Gone(g1 stopped) | StopObserving, HangUp
        unchanged: SocketTouched(g1), NameFreed, HandlerAvailable('T'), HandlerAvailable('U'),
            HandlerWithdrawn('T'), HandlerWithdrawn('U'), ListenerFound(g1)
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), HandlerAccepted, Notified, Failed('no'), Failed('no' STALE), Failed('no' NEVER),
            HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "observed and asked again": """
        SocketAppeared(g2) → Dialing(g2 #1) | StopObserving, HangUp, Dial(patient)
        SocketVanished(g1) → Gone(g1) | StopObserving, HangUp
        ListenerLost(g1 'nobody listens') → Dialing(g1 #1) | StopObserving, HangUp, Dial(patient)
        StopAsked, StopAsked(deregister), StopForced → Gone(g1 stopped) | StopObserving, HangUp
        Dialed → Observed(g1 #2 a asking) | AskInfo
        Replaced → Waiting(g1 #0 'another socket took its place; the watcher looks again')
            | StopObserving, HangUp, ReportReplaced, StartTimer(1)
        InfoRejected('bad') → Waiting(g1 #1 'bad') | HangUp, StopObserving, StartTimer(1)
        Failed('no') → Waiting(g1 #1 'no') | StopObserving, HangUp, StartTimer(1)
        Failed('no' STALE) → Stale(g1 #1 'no') | StopObserving, HangUp, StartTimer(1)
        Failed('no' NEVER) → Parked(g1 #1 'no') | StopObserving, HangUp
        HeldUp('no') → Observed(g1 #2 a asking) | Dial(patient=False held_up)
        InfoObserved(a) → Observed(g1 #2 a) | HangUp, AskLater
        unchanged: SocketTouched(g1), TryNow, NameFreed, HandlerAvailable('T'), HandlerAvailable('U'),
            HandlerWithdrawn('T'), HandlerWithdrawn('U'), ListenerFound(g1)
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), InfoReceived(a), HandlerAccepted,
            Notified, TimerElapsed, InfoDelayed('late')
    """,
    "leaving to wait": """
        SocketAppeared(g2) → Leaving(g1 a 'no' then=ThenDial(g2 #1))
        SocketVanished(g1) → Leaving(g1 a 'no' then=ThenEnd)
        TryNow → Leaving(g1 a 'no' then=ThenDial(g1 #1))
        NameFreed → Leaving(hurried g1 a 'no' then=ThenDial(g1 #3))
        StopAsked, StopAsked(deregister), StopForced → Leaving(g1 a 'no' then=ThenEnd(stopped))
        HandlerAccepted, Failed('no'), Failed('no' STALE), Failed('no' NEVER)
            → Waiting(g1 #2 'no' a) | Release(g1), StartTimer(2)
        unchanged: SocketTouched(g1), HandlerAvailable('T'), HandlerAvailable('U'), HandlerWithdrawn('T'),
            HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), Notified, TimerElapsed, HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "leaving after a crash": """
        SocketAppeared(g2) → Leaving(g1 a 'no' then=ThenDial(g2 #1))
        SocketVanished(g1) → Leaving(g1 a 'no' then=ThenEnd)
        TryNow → Leaving(g1 a 'no' then=ThenDial(g1 #1))
        StopAsked, StopAsked(deregister), StopForced → Leaving(g1 a 'no' then=ThenEnd(stopped))
        HandlerAccepted, Failed('no'), Failed('no' STALE), Failed('no' NEVER)
            → Waiting(g1 #2 'internal error' a firm) | Release(g1), StartTimer(2)
        unchanged: SocketTouched(g1), NameFreed, HandlerAvailable('T'), HandlerAvailable('U'),
            HandlerWithdrawn('T'), HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), Notified, TimerElapsed, HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "leaving to park": """
        SocketAppeared(g2) → Leaving(g1 a 'no' then=ThenDial(g2 #1))
        SocketVanished(g1) → Leaving(g1 a 'no' then=ThenEnd)
        SocketTouched(g1) → Leaving(hurried g1 a 'no' then=ThenDial(g1 #3))
        TryNow → Leaving(g1 a 'no' then=ThenDial(g1 #1))
        StopAsked, StopAsked(deregister), StopForced → Leaving(g1 a 'no' then=ThenEnd(stopped))
        HandlerAccepted, Failed('no'), Failed('no' STALE), Failed('no' NEVER) → Parked(g1 #2 'no' a) | Release(g1)
        unchanged: NameFreed, HandlerAvailable('T'), HandlerAvailable('U'), HandlerWithdrawn('T'),
            HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), Notified, TimerElapsed, HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "leaving to park after an event": """
        SocketAppeared(g2) → Leaving(hurried g1 a 'no' then=ThenDial(g2 #1))
        SocketVanished(g1) → Leaving(hurried g1 a 'no' then=ThenEnd)
        SocketTouched(g1) → Leaving(hurried g1 a 'no' then=ThenWait(#2))
        TryNow → Leaving(g1 a 'no' then=ThenDial(g1 #1))
        StopAsked, StopAsked(deregister), StopForced → Leaving(hurried g1 a 'no' then=ThenEnd(stopped))
        HandlerAccepted, Failed('no'), Failed('no' STALE), Failed('no' NEVER)
            → Parked(hurried g1 #2 'no' a) | Release(g1)
        unchanged: NameFreed, HandlerAvailable('T'), HandlerAvailable('U'), HandlerWithdrawn('T'),
            HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), Notified, TimerElapsed, HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "leaving to dial": """
        SocketVanished(g1) → Leaving(g1 a 'no' then=ThenEnd)
        StopAsked, StopAsked(deregister), StopForced → Leaving(g1 a 'no' then=ThenEnd(stopped))
        HandlerAccepted, Failed('no'), Failed('no' STALE), Failed('no' NEVER)
            → Dialing(g2 #1) | Release(g1), Dial(patient)
        unchanged: SocketAppeared(g2), SocketTouched(g1), TryNow, NameFreed, HandlerAvailable('T'),
            HandlerAvailable('U'), HandlerWithdrawn('T'), HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1
            'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), Notified, TimerElapsed, HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "leaving to start over": """
        SocketAppeared(g2) → Leaving(g1 a 'no' then=ThenDial(g2 #1))
        SocketVanished(g1) → Leaving(g1 a 'no' then=ThenEnd)
        StopAsked, StopAsked(deregister), StopForced → Leaving(g1 a 'no' then=ThenEnd(stopped))
        HandlerAccepted, Failed('no'), Failed('no' STALE), Failed('no' NEVER)
            → Dialing(g1 #1) | Release(g1), Dial(patient)
        unchanged: SocketTouched(g1), TryNow, NameFreed, HandlerAvailable('T'), HandlerAvailable('U'),
            HandlerWithdrawn('T'), HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), Notified, TimerElapsed, HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "leaving to try again": """
        SocketAppeared(g2) → Leaving(g1 a 'no' then=ThenDial(g2 #1))
        SocketVanished(g1) → Leaving(g1 a 'no' then=ThenEnd)
        StopAsked, StopAsked(deregister), StopForced → Leaving(g1 a 'no' then=ThenEnd(stopped))
        HandlerAccepted, Failed('no'), Failed('no' STALE), Failed('no' NEVER)
            → Dialing(g1 #3) | Release(g1), Dial(patient=False)
        unchanged: SocketTouched(g1), TryNow, NameFreed, HandlerAvailable('T'), HandlerAvailable('U'),
            HandlerWithdrawn('T'), HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1 'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), Notified, TimerElapsed, HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "leaving to end": """
        SocketAppeared(g2) → Leaving(g1 a 'no' then=ThenDial(g2 #1))
        StopAsked, StopAsked(deregister), StopForced → Leaving(g1 a 'no' then=ThenEnd(stopped))
        HandlerAccepted, Failed('no'), Failed('no' STALE), Failed('no' NEVER) → Gone(g1) | Release(g1)
        unchanged: SocketVanished(g1), SocketTouched(g1), TryNow, NameFreed, HandlerAvailable('T'),
            HandlerAvailable('U'), HandlerWithdrawn('T'), HandlerWithdrawn('U'), ListenerFound(g1), ListenerLost(g1
            'nobody listens')
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), Notified, TimerElapsed, HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "leaving to stop": """
        HandlerAccepted, Failed('no'), Failed('no' STALE), Failed('no' NEVER) → Gone(g1 stopped) | Release(g1)
        unchanged: SocketAppeared(g2), SocketVanished(g1), SocketTouched(g1), TryNow, NameFreed,
            HandlerAvailable('T'), HandlerAvailable('U'), HandlerWithdrawn('T'), HandlerWithdrawn('U'),
            ListenerFound(g1), ListenerLost(g1 'nobody listens'), StopAsked, StopAsked(deregister), StopForced
        illegal: Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), Notified, TimerElapsed, HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
    "gone": """
        illegal: SocketAppeared(g2), SocketVanished(g1), SocketTouched(g1), TryNow, NameFreed,
            HandlerAvailable('T'), HandlerAvailable('U'), HandlerWithdrawn('T'), HandlerWithdrawn('U'),
            ListenerFound(g1), ListenerLost(g1 'nobody listens'), StopAsked, StopAsked(deregister), StopForced,
            Admitted, NoHandler('no handler for T'), ClaimRefused('taken'), Dialed, Replaced, InfoReceived(a),
            InfoRejected('bad'), HandlerAccepted, Notified, TimerElapsed, Failed('no'), Failed('no' STALE),
            Failed('no' NEVER), HeldUp('no'), InfoDelayed('late'), InfoObserved(a)
    """,
}


def test_the_table_has_every_state_and_every_event() -> None:
    """This fails for a new state or event until its outcomes are listed."""
    assert {type(state) for state in STATES.values()} == STATE_TYPES
    assert {type(event) for event in EVENTS} == EVENT_TYPES
    assert list(TABLE) == list(STATES)


@pytest.mark.parametrize("name", STATES)
def test_every_state_has_a_decision_for_every_event(name: str) -> None:
    assert decisions(STATES[name], EVENTS) == script(TABLE[name])


IN_LINE = (s.Dialing, s.AskingInfo, s.Notifying, s.Refusing)
IDLE = (s.Waiting, s.Stale, s.Parked, s.Registered)


@pytest.mark.parametrize("name", [name for name in STATES if name != "gone"])
def test_the_answer_to_a_retry_is_what_the_retry_does(name: str) -> None:
    state = STATES[name]
    after, commands = lifecycle.step(state, m.TryNow())
    answer = lifecycle.answer_to_retry("/r/a.sock", state)
    dials = any(isinstance(command, s.Dial) for command in commands)
    assert (answer.why == "tried now") == dials
    ends = isinstance(after, s.Refusing | s.Leaving) and isinstance(after.then, s.ThenEnd)
    assert answer.tried == (dials or not (ends or isinstance(state, IDLE)))
    if isinstance(after, s.Refusing | s.Leaving):
        assert ("right after that" in answer.why) == isinstance(after.then, s.ThenDial)


@pytest.mark.parametrize("name", [name for name, state in STATES.items() if isinstance(state, IN_LINE)])
def test_a_message_interrupts_a_call_if_and_only_if_it_leads_to_another_state(name: str) -> None:
    """Otherwise an actor would make the same call twice, or finish a call that is no longer needed."""
    state = STATES[name]
    for message in EVENTS[:14]:
        assert isinstance(message, m.RegistrationMessage)
        after, commands = lifecycle.step(state, message)
        leads_away = bool(commands) or isinstance(after, s.Gone)
        assert lifecycle.interrupts(state, message) == leads_away, message

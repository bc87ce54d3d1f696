"""Parts of timelines that many tests share."""

from __future__ import annotations

from plugind.testing import Call

Line = tuple[float, str]

STEPS = ("dialing", "asking-info", "validating", "registering", "notifying", "registered")


def at(time: float, *states: str) -> list[Line]:
    """Return these states, all entered at ``time``."""
    return [(time, state) for state in states]


def registered_at(time: float) -> list[Line]:
    """Return a whole registration, which takes no time by itself."""
    return at(time, *STEPS)


def refused_at(time: float) -> list[Line]:
    """Return a registration that fails validation, up to the notification."""
    return at(time, "dialing", "asking-info", "validating", "notifying")


def notified_ok(time: float) -> Call:
    return Call(time, "NotifyRegistrationStatus", registered=True)


def notified_error(time: float, error: str) -> Call:
    return Call(time, "NotifyRegistrationStatus", registered=False, error=error)


def asked(time: float) -> Call:
    return Call(time, "GetInfo")

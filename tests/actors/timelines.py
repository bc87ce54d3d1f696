"""Pieces of timelines that many tests share."""

from __future__ import annotations

from plugind.testing import Call

Line = tuple[float, str]

STEPS = ("dialing", "asking-info", "validating", "registering", "notifying", "registered")


def at(time: float, *states: str) -> list[Line]:
    """These states, all entered at one time."""
    return [(time, state) for state in states]


def registered_at(time: float) -> list[Line]:
    """The whole way, none of which takes time by itself."""
    return at(time, *STEPS)


def refused_at(time: float) -> list[Line]:
    """The way of a plugin that does not pass validation, up to the point where it was told."""
    return at(time, "dialing", "asking-info", "validating", "notifying")


def told_yes(time: float) -> Call:
    return Call(time, "NotifyRegistrationStatus", registered=True)


def told_no(time: float, error: str) -> Call:
    return Call(time, "NotifyRegistrationStatus", registered=False, error=error)


def asked(time: float) -> Call:
    return Call(time, "GetInfo")

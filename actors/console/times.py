"""Times on the command line."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Final

from ...protocol.text import span as of_text

#: The longest time that the daemon accepts.
_MOST: Final = 2.0**31 - 1


def seconds(least: float, most: float) -> Callable[[str], float]:
    """Return a parser of a number of seconds from ``least`` to ``most``."""

    def parsed(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = least - 1.0
        # NaN is not between any two numbers.
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from {least:g} to {most:.10g}")
        return value

    return parsed


def span(text: str) -> float:
    """Return the seconds of a time: ``90``, ``90s``, ``15m``, ``2h`` or ``1.5d``."""
    value = of_text(text)
    # NaN is not between any two numbers.
    if value is None or not 0.0 <= value <= _MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time, such as 90, 90s, 15m, 2h or 1d")
    return value


def moment(text: str) -> float:
    """Return the Unix seconds of a time from now on, as :func:`span` takes it, or of a date and a time of day."""
    from datetime import datetime  # Most commands take no date.

    try:
        return time.time() + some_span(text)
    except argparse.ArgumentTypeError as error:
        try:
            return datetime.fromisoformat(text).timestamp()
        except (ValueError, OverflowError):
            raise argparse.ArgumentTypeError(f"{error}, nor a date, such as 2027-01-31T18:00 or 2027-01-31") from None


def past(text: str) -> float:
    """Return the Unix seconds of a time that is over, as :func:`past_moment` takes it."""
    return past_moment(text, time.time())


def past_moment(text: str, now: float) -> float:
    """Return the Unix seconds of a time that is over, in the forms of ``journalctl``.

    ``2h``, ``-2h`` and ``2h ago`` are so long before ``now``. ``02:14`` and ``02:14:30`` are the last such time of day,
    and ``today`` and ``yesterday`` the begin of a day. A date, with a time of day or without, is in local time unless
    it has an offset.
    """
    from datetime import datetime, timedelta  # Most commands take no date.
    from datetime import time as time_of_day

    try:
        return max(0.0, now - span(text.removesuffix(" ago").removeprefix("-")))
    except argparse.ArgumentTypeError:
        pass
    today = datetime.fromtimestamp(now)
    midnight = today.replace(hour=0, minute=0, second=0, microsecond=0)
    words = {"now": today, "today": midnight, "yesterday": midnight - timedelta(days=1)}
    try:
        if text in words:
            return words[text].timestamp()
        if len(text) in (len("02:14"), len("02:14:30")) and text[2:3] == ":":
            clock = time_of_day.fromisoformat(text)
            last = datetime.combine(today, clock)
            return (last if last <= today else last - timedelta(days=1)).timestamp()
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time, such as 02:14, 2027-01-31 02:14, 2027-01-31T02:14:00Z, yesterday or 2h"
        ) from None


def some_span(text: str) -> float:
    """Return the seconds of a time above 0."""
    value = span(text)
    if not value:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: give more than 0")
    return value

"""A handler's reports about a registered plugin: its health and facts, within bounds, and not too often.

A handler can report at any rate. :class:`HealthReports` joins the reports of one plugin to one a second, the newest.
The loss of health and the first facts are never delayed. Nothing here reads a clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import cast

import attrs

from ..text import cut, quoted
from ..values import record, value
from ..words import Health

__all__ = ["Health"]  # defined elsewhere

#: How many facts of one plugin are kept, and the bytes of UTF-8 of their keys and texts together.
MAX_FACTS = 64
MAX_FACT_BYTES = 16 * 1024
#: Characters of a fact's key in a warning.
_MAX_KEY = 64
#: Characters of a reason that are kept (fault 94).
MAX_REASON = 1024
#: How many warnings about facts are kept.
MAX_WARNINGS = 8
#: Seconds between two reports of one plugin.
INTERVAL = 1.0

#: The facts of a plugin in the order in which they were reported.
Facts = tuple[tuple[str, str], ...]


@value
class Report:
    """One report of a handler about one plugin."""

    health: Health = Health.UNKNOWN
    reason: str = ""
    facts: Facts = ()
    #: Problems with what the plugin says, and a note if facts were cut off.
    warnings: tuple[str, ...] = ()
    #: How many checks have failed in a row, if the health comes from checks.
    failed_checks: int = 0


def bounded(
    health: Health,
    reason: object,
    facts: Mapping[str, str] | None,
    before: Report,
    failed_checks: int = 0,
    warnings: Iterable[str] = (),
) -> Report:
    """Return a report within the bounds. Without ``facts``, it has the facts and warnings of the report ``before``.

    Raises:
      TypeError: if a fact or the reason is not a string.
      ValueError: if ``health`` is not valid.
    """
    if not isinstance(reason, str):
        raise TypeError(f"the reason {reason!r} is no text")
    health, reason = Health(health), reason[:MAX_REASON]
    if facts is None:
        return Report(health, reason, before.facts, before.warnings, failed_checks)
    kept = tuple(facts.items() if _facts_fit(facts) else _within_bounds(cast("Mapping[object, object]", facts)))
    said = tuple(warning[:MAX_REASON] for warning in islice(warnings, MAX_WARNINGS))
    if len(kept) == len(facts):
        return Report(health, reason, kept, said, failed_checks)
    return Report(health, reason, kept, (*said, _cut_off(facts, len(kept))), failed_checks)


def _cut_off(facts: Mapping[str, str], kept: int) -> str:
    """Return the warning that only the first facts are kept, with the first key that is not."""
    first = quoted(cut(str(next(islice(facts, kept, None))), _MAX_KEY))
    size = f"{MAX_FACTS} with {MAX_FACT_BYTES // 1024} KiB are kept"
    return f"{len(facts) - kept} of {len(facts)} facts were cut off, from {first} on: at most {size}"


def _facts_fit(facts: Mapping[str, str]) -> bool:
    """Return whether all facts are strings and within the bounds, as is usual."""
    if len(facts) > MAX_FACTS:
        return False
    try:
        return _size("".join([*facts, *facts.values()])) <= MAX_FACT_BYTES
    except TypeError:
        return False


def _within_bounds(facts: Mapping[object, object]) -> Iterator[tuple[str, str]]:
    """Yield the first facts, each as a whole, as long as there is room for them."""
    left = MAX_FACT_BYTES
    for key, text in islice(facts.items(), MAX_FACTS):
        if not isinstance(key, str) or not isinstance(text, str):
            raise TypeError(f"the fact {key!r}: {text!r} is not a text for a text")
        left -= _size(key) + _size(text)
        if left < 0:
            return
        yield key, text


def _size(text: str) -> int:
    # A text with more characters than the bound is not encoded, since it has at least as many bytes.
    return len(text) if len(text) > MAX_FACT_BYTES else len(text.encode("utf-8", "backslashreplace"))


@record
class HealthReports:
    """The reports of one plugin on their way to the status actor."""

    #: The last report that was sent; None if there was none.
    _sent: Report | None = attrs.field(init=False, default=None)
    _sent_at: float = attrs.field(init=False, default=-math.inf)
    _has_sent_facts: bool = attrs.field(init=False, default=False)
    #: The next report; None if there is no news.
    _next: Report | None = attrs.field(init=False, default=None)

    @property
    def newest(self) -> Report:
        """The newest report, sent or not."""
        return self._next or self._sent or Report()

    def put(self, report: Report) -> None:
        """Set a newer report, which replaces one that was not sent."""
        self._next = None if report == self._sent else report

    def put_again(self) -> None:
        """Send the newest report again, since it may have been lost."""
        self._next, self._sent = self.newest, None

    @property
    def due(self) -> float:
        """When the next report must be sent; infinity if there is none."""
        if self._next is None:
            return math.inf
        if self._sent is not None and self._sent.health is Health.HEALTHY and self._next.health is not Health.HEALTHY:
            return -math.inf
        if self._next.facts and not self._has_sent_facts:
            return -math.inf
        return self._sent_at + INTERVAL

    def take(self, now: float) -> Report | None:
        """Return the report that is due and mark it as sent; None if there is none."""
        if self.due > now:
            return None
        assert self._next is not None, "it is due"
        self._sent, self._sent_at, self._next = self._next, now, None
        self._has_sent_facts = self._has_sent_facts or bool(self._sent.facts)
        return self._sent

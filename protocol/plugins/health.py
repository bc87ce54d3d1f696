"""What a handler reports of a registered plugin: its health and facts, within bounds, and not too often.

A handler may report as often as it likes. :class:`HealthReports` joins the reports of one plugin to one a second, and
the newest of them counts. It never delays that a plugin is no longer healthy, and never its first facts. Nothing here
reads a clock.
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

__all__ = ["Health"]  # what is defined elsewhere

#: How many facts are kept of one plugin, and how many bytes of UTF-8 their keys and texts may have together.
MAX_FACTS = 64
MAX_FACT_BYTES = 16 * 1024
#: Characters of the key of a fact in a warning.
_MAX_KEY = 64
#: Characters of a reason that are kept (fault 94).
MAX_REASON = 1024
#: How many warnings are kept that come with facts.
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
    #: What is wrong with what the plugin says, and what was cut off, in words.
    warnings: tuple[str, ...] = ()
    #: How many checks have failed in a row, if they say how the plugin is.
    failed_checks: int = 0


def bounded(
    health: Health,
    reason: object,
    facts: Mapping[str, str] | None,
    before: Report,
    failed_checks: int = 0,
    warnings: Iterable[str] = (),
) -> Report:
    """Return a report within the bounds; without ``facts`` those of the report ``before`` hold, and its warnings.

    Raises:
      TypeError: if a fact or the reason is no text.
      ValueError: if ``health`` is none.
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
    """Say that only the first facts are kept, and which one is the first that is not."""
    first = quoted(cut(str(next(islice(facts, kept, None))), _MAX_KEY))
    size = f"{MAX_FACTS} with {MAX_FACT_BYTES // 1024} KiB are kept"
    return f"{len(facts) - kept} of {len(facts)} facts were cut off, from {first} on: at most {size}"


def _facts_fit(facts: Mapping[str, str]) -> bool:
    """Return whether all facts are texts and there is room for them, as there mostly is."""
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
    # A text that is too long is not encoded: it has no more characters than bytes.
    return len(text) if len(text) > MAX_FACT_BYTES else len(text.encode("utf-8", "backslashreplace"))


@record
class HealthReports:
    """The reports of one plugin on their way to the status actor."""

    #: What was sent last; None if nothing was.
    _sent: Report | None = attrs.field(init=False, default=None)
    _sent_at: float = attrs.field(init=False, default=-math.inf)
    _has_sent_facts: bool = attrs.field(init=False, default=False)
    #: What is to be sent next; None if that is nothing new.
    _next: Report | None = attrs.field(init=False, default=None)

    @property
    def newest(self) -> Report:
        """The newest report, sent or not."""
        return self._next or self._sent or Report()

    def put(self, report: Report) -> None:
        """Take a newer report, which replaces one that was not sent."""
        self._next = None if report == self._sent else report

    def put_again(self) -> None:
        """Have the newest report sent, even if it was sent before: it may have been lost."""
        self._next, self._sent = self.newest, None

    @property
    def due(self) -> float:
        """When the next report is to be sent; infinity if there is none."""
        if self._next is None:
            return math.inf
        if self._sent is not None and self._sent.health is Health.HEALTHY and self._next.health is not Health.HEALTHY:
            return -math.inf
        if self._next.facts and not self._has_sent_facts:
            return -math.inf
        return self._sent_at + INTERVAL

    def take(self, now: float) -> Report | None:
        """Return the report that is to be sent now, which counts as sent; None if there is none."""
        if self.due > now:
            return None
        assert self._next is not None, "it is due"
        self._sent, self._sent_at, self._next = self._next, now, None
        self._has_sent_facts = self._has_sent_facts or bool(self._sent.facts)
        return self._sent

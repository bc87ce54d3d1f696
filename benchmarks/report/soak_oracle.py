"""The oracle of a soak: what the plugins heard, and what the daemon shows, must be true and agree.

Everything here is a pure function of what the soak observed, and returns violations in words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import linear_regression

import attrs

from plugind.benchmarks.plugins.cheap_plugin import PluginReport

#: How much more memory than in the warm-up the daemon may have at rest: what its allocator may keep (KiB).
MEMORY_SLACK = 8 * 1024
#: How many more descriptors than in the warm-up the daemon may have at rest.
DESCRIPTOR_SLACK = 8
#: Of so many times at rest the least counts: a single figure may include what is about to be freed.
_LAST = 3


#: The kinds whose plugins must never be told that they are registered, since none says what a plugin must say.
REFUSED = frozenset({"invalid", "chmod"})


@attrs.frozen
class Rest:
    """The daemon between two mixtures, with good plugins alone: seconds since the start, KiB, and descriptors."""

    at: float
    rss_kib: int
    descriptors: int


def check_generations(report: Sequence[PluginReport], now_ns: int, patience: float) -> Iterator[str]:
    """Check that each good plugin was told exactly once that it is registered, and never anything else.

    One that was there for less than ``patience`` seconds need not have been told yet.
    """
    for plugin in report:
        lived = ((plugin["removed_ns"] or now_ns) - plugin["listening_ns"]) / 1e9
        who = f"the good plugin {plugin['name']}, which lived {lived:.1f} s,"
        if plugin["refused"]:
            yield f"{who} was refused: {plugin['error']}"
        if plugin["notified"] > 1:
            yield f"{who} was told {plugin['notified']} times that it is registered"
        if not plugin["notified"] and lived > patience:
            yield f"{who} was never told that it is registered"


def check_words(words: Mapping[str, bool], shown: Mapping[str, str]) -> dict[str, str]:
    """Compare the last word to each plugin with the state that the daemon shows; return what is wrong, by path."""
    found = {}
    for path, registered in words.items():
        state = shown.get(path, "unknown")
        if registered != (state == "registered"):
            found[path] = (
                f"{path} was told that it is {'registered' if registered else 'refused'}, and is shown as {state}"
            )
    for path, state in shown.items():
        if state == "registered" and path not in words:
            found[path] = f"{path} is shown as registered, and was not told so"
    return found


def check_refused(kind: str, notified: int) -> Iterator[str]:
    """Check that plugins whose info is invalid were never told that they are registered."""
    if kind in REFUSED and notified:
        yield f"{notified} plugins of the kind {kind} were told that they are registered"


def check_flat(warm: Sequence[Rest], later: Sequence[Rest]) -> Iterator[str]:
    """Check that memory and descriptors at rest do not grow beyond what they were in the warm-up."""
    if not warm or len(later) < _LAST:
        return
    memory, descriptors = max(rest.rss_kib for rest in warm), max(rest.descriptors for rest in warm)
    last = later[-_LAST:]
    if (kib := min(rest.rss_kib for rest in last)) > memory + MEMORY_SLACK:
        yield f"the daemon has {kib:,} KiB at rest, after at most {memory:,} in the warm-up"
    if (count := min(rest.descriptors for rest in last)) > descriptors + DESCRIPTOR_SLACK:
        yield f"the daemon has {count:,} descriptors at rest, after at most {descriptors:,} in the warm-up"


def slope(rests: Sequence[Rest]) -> float:
    """Return how much the memory at rest grows, in KiB per minute."""
    if len(rests) < 2:
        return 0.0
    return linear_regression([rest.at for rest in rests], [rest.rss_kib for rest in rests]).slope * 60


def check_health(ended: bool, ready: int, healthy: int) -> Iterator[str]:
    """Check that the daemon runs, is ready and works; ``ready`` and ``healthy`` are codes of HTTP."""
    if ended:
        yield "the daemon has ended"
    if ready != 200:
        yield f"/readyz answers {ready}"
    if healthy != 200:
        yield f"/healthz answers {healthy}"

"""What the lifecycle does in observe mode, for ``plugind.protocol.lifecycle``: a plugin is asked, and told nothing.

Another consumer, such as a kubelet, registers the plugins (behaviour 45). So a plugin that has said what it is goes
neither to a handler nor to a notification: it is *observed*, and is followed over its endpoint. A registrar that is
refused exits, so a plugin whose info is not acceptable is not told so either; it waits for a backoff.

An observed plugin is asked for its info again and again. It stays ``Observed`` meanwhile, so that nobody is shown a
change unless there is one: a plugin that does not answer any more, or that answers something else.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from .plugins import PluginInfo
from .states import (
    AskInfo,
    AskingInfo,
    AskLater,
    Cause,
    Dial,
    HangUp,
    InfoObserved,
    InfoRejected,
    Observe,
    Observed,
    StartTimer,
    Step,
    StopObserving,
    Waiting,
)
from .text import quoted


def observe(state: AskingInfo, info: PluginInfo) -> Step:
    """Observe a plugin that has just said what it is."""
    return Observed(state.generation, state.attempt, info), (HangUp(), Observe(info), AskLater())


def ask_again(state: Observed) -> Step:
    """Ask an observed plugin for its info again, unless that is under way."""
    if state.asking:
        return state, ()
    return Observed(state.generation, state.attempt, state.info, state.before, asking=True), (Dial(patient=False),)


def dial_again(state: Observed) -> Step:
    """Wait until this process has a descriptor, to ask the plugin again: it is none of the plugin's faults."""
    return state, (Dial(patient=False, held_up=True),)


def ask_on(state: Observed) -> Step:
    """Ask the plugin, which is connected again."""
    return state, (AskInfo(),)


def compare(state: Observed, event: InfoObserved) -> Step:
    """Observe on. If the plugin has said something else than before, it is followed anew, and users are shown that."""
    info = event.info
    change = changed(state.info, info)
    if not change:
        same = Observed(state.generation, state.attempt, state.info, state.before)
        return same, (HangUp(), AskLater())
    after = Observed(state.generation, state.attempt, info, change)
    return after, (HangUp(), StopObserving(), Observe(info), AskLater())


def reject(state: AskingInfo | Observed, event: InfoRejected) -> Step:
    """Wait because the info is not acceptable, without a word to the plugin."""
    cause = Cause(event.reason, answered=True)
    attempt = 1 if isinstance(state, Observed) else state.attempt
    waiting = Waiting(state.generation, attempt, event.reason, event.info, cause=cause)
    stop = (StopObserving(),) if isinstance(state, Observed) else ()
    return waiting, (HangUp(), *stop, StartTimer(attempt))


def changed(before: PluginInfo, after: PluginInfo) -> str:
    """Return in words what a plugin has said before, as far as it says something else now; empty if it does not."""
    said = (
        ("type", before.type, after.type),
        ("name", before.name, after.name),
        ("endpoint", before.endpoint, after.endpoint),
        ("versions", ", ".join(before.versions), ", ".join(after.versions)),
    )
    words = [f"the {what} {quoted(was)}" for what, was, is_now in said if was != is_now]
    return f"at the same socket it gave {' and '.join(words)} before" if words else ""

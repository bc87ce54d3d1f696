"""The JSON forms of a plugin's status in the status socket and the commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..logs.lines import timestamp
from ..messages.reconciler import RetryAnswer
from ..plugins.status import HistoryEntry, PluginStatus, StateName
from ..text import encodable
from ..version import STATUS_VERSION
from ..words import Step

Json = Mapping[str, "Json"] | Sequence["Json"] | str | int | float | None


def _text(text: str | None) -> str | None:
    return None if text is None else encodable(text)


def _seconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _time_of(moment: float | None, now: float, unix: float) -> str | None:
    return None if moment is None else timestamp(unix - max(0.0, now - moment))


def _state(of: PluginStatus | HistoryEntry, version: int) -> dict[str, Json]:
    """Return the state; in version 1 of the status socket each step is a state."""
    if version < 2:
        return {"state": of.state.value}
    if of.step is None:
        return {"state": of.state.value, "step": None}
    return {"state": StateName.REGISTERING.value, "step": of.step.value}


def plugin_to_json(plugin: PluginStatus, now: float, unix: float, version: int = STATUS_VERSION) -> dict[str, Json]:
    """Return the JSON form of a status. ``now`` is Trio's clock, and ``unix`` the wall clock at the same moment.

    Times of day are computed from the present wall clock and the age, so they are right after the clock was set
    (fault 90). ``version`` is the version of the status socket that the client knows.
    """
    age = max(0.0, now - plugin.since)
    next_try_in = None if plugin.next_try is None else max(0.0, plugin.next_try - now)
    return {
        "socket": encodable(plugin.socket),
        "root": encodable(plugin.root),
        "type": _text(plugin.type),
        "name": _text(plugin.name),
        "endpoint": _text(plugin.endpoint),
        "versions": None if plugin.versions is None else [encodable(supported) for supported in plugin.versions],
        **_state(plugin, version),
        "reason": _text(plugin.reason),
        "cause": _text(plugin.cause),
        "attempt": plugin.attempt,
        "next_try_in": _seconds(next_try_in),
        "next_try_at": None if next_try_in is None else timestamp(unix + next_try_in),
        "generation": plugin.generation,
        "age": _seconds(age),
        "since": timestamp(unix - age),
        "registered_in": _seconds(plugin.registered_in),
        "active": plugin.active,
        "serving": plugin.serving,
        "not_serving": _text(plugin.not_serving),
        "not_serving_since": _time_of(plugin.not_serving_since, now, unix),
        "warnings": list(plugin.warnings),
        "uid": plugin.uid,
        "pid": plugin.pid,
        "owner": plugin.owner,
        "health": None if plugin.health is None else plugin.health.value,
        "health_reason": _text(plugin.health_reason),
        "health_since": _time_of(plugin.health_since, now, unix),
        "failed_checks": plugin.failed_checks,
        "source": encodable(plugin.source),
        "last_known": plugin.last_known,
        "steps": {step.value: _seconds(seconds) for step, seconds in plugin.steps},
    }


def history_to_json(plugin: PluginStatus, now: float, unix: float, version: int = STATUS_VERSION) -> list[Json]:
    """Return the JSON form of a history, the oldest entry first; ``ago`` is in seconds."""
    steps_before = (None, *(entry.step for entry in plugin.history))
    return [
        {
            "ago": _seconds(max(0.0, now - entry.time)),
            "at": timestamp(unix - max(0.0, now - entry.time)),
            **_state(entry, version),
            "reason": _text(entry.reason),
            "cause": _text(entry.cause),
            "attempt": entry.attempt,
        }
        for before, entry in zip(steps_before, plugin.history, strict=False)
        # In version 1 a claim and the validation after it are one state.
        if version > 1 or (before, entry.step) != (Step.CLAIM, Step.VALIDATE)
    ]


def described_to_json(plugin: PluginStatus, now: float, unix: float, version: int = STATUS_VERSION) -> dict[str, Json]:
    """Return the JSON form of a status with its facts and its history."""
    facts = {encodable(key): encodable(text) for key, text in plugin.facts}
    history = history_to_json(plugin, now, unix, version)
    return plugin_to_json(plugin, now, unix, version) | {"facts": facts, "history": history}


def retried_to_json(answers: Sequence[RetryAnswer]) -> dict[str, Json]:
    """Return the JSON form of the answers to a retry; ``sockets`` are those that are tried now."""
    return {
        "sockets": [encodable(answer.socket) for answer in answers if answer.tried],
        "answers": [
            {"socket": encodable(answer.socket), "tried": answer.tried, "why": encodable(answer.why)}
            for answer in answers
        ],
    }

"""A daemon's reports about a plugin, in words and units for people."""

from __future__ import annotations

import math
import re
import time
from datetime import datetime
from typing import TYPE_CHECKING

from ...protocol.text import escaped, quoted
from ...protocol.words import CRASH_LOOP, STATE_IN, Health, StateName, words_of_steps
from .answers import Plugin

if TYPE_CHECKING:
    from ...protocol.status.json import Json

#: The word for a registered plugin that does not serve.
NOT_SERVING = "not-serving"
#: The states of usable plugins: in observe mode another consumer registers them.
IN_USE = (StateName.REGISTERED.value, StateName.OBSERVED.value)
#: The words to select plugins by: the states of existing plugins, and one more.
STATE_WORDS = (*(state.value for state in StateName if state is not StateName.GONE), NOT_SERVING)
#: The fixed words of a reason: they are for the plugin, which knows no other state than a failed registration.
_FIXED_WORDS = re.compile(r"^RegisterPlugin error -- (?:(.*?) at socket .*?, err: |.*? with err: )?", re.DOTALL)


def text(value: Json) -> str:
    """Return a value as one word that is safe to print; a dash if it is missing."""
    return "-" if value is None or value == "" else escaped(str(value))


def exact(value: Json) -> str:
    """Return a plugin's word like :func:`text`, but quoted if it could be confused with another word, or with none."""
    if isinstance(value, str) and (value != value.strip() or value[:1] in ("", '"')):
        return quoted(value)
    return text(value)


def duration(value: Json) -> str:
    """Return seconds in a suitable unit: ``12ms``, ``3.4s``, ``2m05s``, ``4h10m``, ``3d07h``."""
    if not isinstance(value, int | float):
        return "-"
    if value < 1:
        return f"{value * 1000:.0f}ms" if value else "0s"
    if value < 60:
        return f"{value:.1f}s"
    seconds = int(value)
    for unit, size, smaller, of in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if seconds >= size:
            return f"{seconds // size}{unit}{seconds % size // of:02d}{smaller}"
    return f"{seconds}s"


def by_the_clock(seconds: Json) -> str:
    """Return seconds like a clock: ``00:00:04``, ``27:15:00``."""
    if not isinstance(seconds, int | float):
        return "-"
    minutes, second = divmod(int(seconds), 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{second:02d}"


def time_of_day(unix: float, now: float) -> str:
    """Return the local time with its offset, ``14:03:05+01:00``; with the date if it is not that of ``now``."""
    then = time.localtime(unix)
    offset = time.strftime("%z", then)
    clock = f"{time.strftime('%H:%M:%S', then)}{offset[:3]}:{offset[3:]}"
    return clock if then[:3] == time.localtime(now)[:3] else f"{time.strftime('%Y-%m-%d', then)} {clock}"


def ago(seconds: Json) -> str:
    """Return the time of day ``seconds`` ago by the present clock; negative is ahead."""
    if not isinstance(seconds, int | float):
        return "-"
    now = time.time()
    return time_of_day(now - seconds, now)


def unix_time(value: Json) -> float | None:
    """Return a time of the JSON, which is RFC 3339; watches of older daemons have seconds since 1970."""
    if isinstance(value, int | float):
        return value
    try:
        return datetime.fromisoformat(str(value)).timestamp()
    except ValueError:
        return None


def age(plugin: Plugin) -> Json:
    """Return for how many seconds the plugin has been in its state. Older daemons have that under ``since``."""
    return plugin.get("age", plugin.get("since"))


def serves(plugin: Plugin) -> bool | None:
    """Return whether the plugin serves; None if that is not known."""
    serving = plugin.get("serving")
    return serving if isinstance(serving, bool) else None


def state(plugin: Plugin) -> str:
    """Return the state, with the step of a try that is under way."""
    step = plugin.get("step")
    return text(plugin.get("state")) + (f" ({text(step)})" if step is not None else "")


def state_words(plugin: Plugin) -> set[str]:
    """Return the words of :data:`STATE_WORDS` that apply to the plugin; each step has one, too."""
    words = {str(plugin.get("state"))} | ({NOT_SERVING} if serves(plugin) is False else set())
    return words | {state.value for step, state in STATE_IN.items() if step == plugin.get("step")}


def steps(plugin: Plugin) -> str:
    """Return how long each step took; empty if that is not known, as with older daemons."""
    found = plugin.get("steps")
    taken = found.items() if isinstance(found, dict) else ()
    return words_of_steps((text(step), seconds) for step, seconds in taken if isinstance(seconds, int | float))


def cause(plugin: Plugin) -> str:
    """Return the cause of the plugin's state, without the fixed words of its reason; empty if there is none."""
    found = plugin.get("cause") or plugin.get("reason")
    if str(found).startswith(CRASH_LOOP) and isinstance(seconds := plugin.get("next_try_in"), int | float):
        return f"{text(found)}, next try in {math.ceil(seconds)} s"
    return text(_FIXED_WORDS.sub(lambda fixed: f"{fixed[1]}: " if fixed[1] else "", str(found))) if found else ""


def _health(plugin: Plugin) -> str:
    """Return the text about the plugin's health; empty if it is healthy and has no reason."""
    health, why = plugin.get("health"), plugin.get("health_reason")
    if health in (None, Health.HEALTHY, Health.UNKNOWN):
        # Without a reason, nothing was reported yet.
        return text(why) if why else ""
    return f"{health}: {text(why)}" if why else f"{health}"


def remarks(plugin: Plugin) -> str:
    """Return the event, cause, role, health and warnings of a plugin; empty if there are none."""
    warnings = plugin.get("warnings")
    why = plugin.get("not_serving")
    parts = [
        text(plugin["event"]) if plugin.get("event") else "",
        cause(plugin),
        ("not serving" + (f": {text(why)}" if why else "")) if serves(plugin) is False else "",
        _health(plugin),
        "stands by for another instance of its name" if plugin.get("active") is False else "",
        *(map(text, warnings) if isinstance(warnings, list) else ()),
    ]
    return "; ".join(part for part in parts if part)

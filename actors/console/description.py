"""The full description of a plugin, line by line, and a change in one line."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from ...protocol.status.json import Json
from ...protocol.words import STATE_IN
from .answers import Plugin
from .device_description import device_lines
from .driver_description import driver_lines, driver_shown
from .lines import labelled, wrapped
from .phrases import age, ago, cause, duration, remarks, serves, state, steps, text, time_of_day, unix_time


def described(plugin: Plugin, width: int | None = None) -> str:
    """Return the full description of a plugin, line by line.

    On a terminal of ``width`` columns, long lines are broken.
    """
    facts: list[tuple[str, str]] = [
        ("Socket", text(plugin.get("socket"))),
        ("Name", text(plugin.get("name")) + _last_known(plugin)),
        ("Type", text(plugin.get("type")) + _last_known(plugin)),
        ("State", f"{state(plugin)} for {duration(age(plugin))}, since {ago(age(plugin))}"),
        ("Cause", cause(plugin) or "-"),
        ("Attempt", text(plugin.get("attempt"))),
        ("Next try", _next_try(plugin.get("next_try_in"))),
        ("Registered", _registered(plugin)),
        ("Role", {None: "-", True: "active"}.get(_active(plugin), "standby")),
        ("Serving", _serving(plugin)),
        ("Source", text(plugin.get("source"))),
        *device_lines(plugin),
        *driver_lines(plugin),
        *(() if plugin.get("health") is None else (("Health", _health(plugin)),)),
        ("Root", text(plugin.get("root"))),
        ("Endpoint", text(plugin.get("endpoint"))),
        ("Versions", ", ".join(_texts(plugin.get("versions"))) or "-"),
        ("Reason", text(plugin.get("reason"))),
        ("Generation", text(plugin.get("generation"))),
        ("Process", _process(plugin)),
        ("File owner", "-" if plugin.get("owner") is None else f"uid {text(plugin.get('owner'))}"),
        *(("Warning", warning) for warning in _texts(plugin.get("warnings"))),
    ]
    lines = labelled(facts, width)
    if rest := [*_other_facts(plugin)]:
        lines += ["Facts:", *(wrapped(f"  {text(key)}: ", text(value), width, 4) for key, value in rest)]
    history = plugin.get("history")
    if isinstance(history, list) and history:
        lines.append("History:")
        lines += _entries([entry for entry in history if isinstance(entry, dict)], width)
    return "\n".join(lines) + "\n"


def _other_facts(plugin: Plugin) -> Iterator[tuple[str, Json]]:
    """Yield the facts that have no line of their own."""
    facts = plugin.get("facts")
    if isinstance(facts, dict):
        shown = {*driver_shown(plugin)}
        yield from ((key, value) for key, value in facts.items() if key not in shown)


def change(plugin: Plugin) -> str:
    """Return one line for a change, with the time of day."""
    when = unix_time(plugin.get("time"))
    clock = "--:--:--" if when is None else time_of_day(when, time.time())
    return f"{clock}  {said_of(plugin)}\n"


def said_of(plugin: Plugin) -> str:
    """Return the line for a change without the time."""
    parts = [f"{state(plugin):<11}", text(plugin.get("name")), text(plugin.get("type"))]
    said = remarks(plugin)
    return "  ".join([*parts, text(plugin.get("socket")), *([said] if said else [])])


def _texts(values: Json) -> list[str]:
    return [text(value) for value in values] if isinstance(values, list) else []


def _last_known(plugin: Plugin) -> str:
    """Mark the value as that of the last plugin at the path."""
    return " (last known)" if plugin.get("last_known") is True else ""


def _registered(plugin: Plugin) -> str:
    """Return how long the registration and each of its steps took."""
    took, each = plugin.get("registered_in"), steps(plugin)
    said = "-" if took is None else f"in {duration(took)}"
    return said + (f": {each}" if each and took is not None else f" (last try: {each})" if each else "")


def _active(plugin: Plugin) -> bool | None:
    return None if plugin.get("active") is None else plugin.get("active") is True


def _serving(plugin: Plugin) -> str:
    if serves(plugin) is not False:
        return "-" if serves(plugin) is None else "yes: somebody listens on its registration socket"
    why, since = plugin.get("not_serving"), unix_time(plugin.get("not_serving_since"))
    begun = "" if since is None else f", since {time_of_day(since, time.time())}"
    return f"no{begun}" + (f": {text(why)}" if why else "")


def _health(plugin: Plugin) -> str:
    """Return the health by the plugin's handler, and when it began."""
    why, since = plugin.get("health_reason"), unix_time(plugin.get("health_since"))
    checks = plugin.get("failed_checks")
    counted = f"{checks} checks, " if checks else ""
    begun = "" if since is None else f" ({counted}since {time_of_day(since, time.time())})"
    return text(plugin.get("health")) + (f": {text(why)}" if why else "") + begun


def _process(plugin: Plugin) -> str:
    """Return the process that was dialed; it may have ended if nobody listens now."""
    was = "was " if serves(plugin) is False else ""
    return f"{was}pid {text(plugin.get('pid'))}, uid {text(plugin.get('uid'))}"


def _next_try(seconds: Json) -> str:
    return f"in {duration(seconds)}, at {ago(-seconds)}" if isinstance(seconds, int | float) else "-"


def _entries(history: Sequence[Plugin], width: int | None) -> Iterator[str]:
    """Yield the lines of a history, with causes. The whole reason of the present state is shown once, above.

    While an attempt is under way, the cause of the attempt before is not repeated.
    """
    before = ""
    for entry in history:
        why = cause(entry)
        shown = "" if why == before and entry.get("state") in STATE_IN.values() else why
        yield _entry(entry, shown, width)
        before = why


def _entry(entry: Plugin, why: str, width: int | None) -> str:
    attempt = f" (attempt {entry['attempt']})" if entry.get("attempt") else ""
    passed = entry.get("ago")
    after = f"{attempt}: {why}" if why else attempt
    when = f"  {ago(passed)}  {duration(passed) + ' ago':>12}  "
    return wrapped(when, f"{state(entry)}{after}", width)

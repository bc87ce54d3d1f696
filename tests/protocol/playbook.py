"""Helpers for tests of the lifecycle: the input is events, the output is a transcript of states and commands.

A step is one line, ``event → state | commands``, with only the important parts of each value, so that a difference is
readable. Generations are written ``g1``, attempts ``#1``, a plugin by its name, and errors in the reference's wording
begin with ``…``.
"""

from __future__ import annotations

import textwrap
import typing

import attrs

from plugind.protocol import lifecycle
from plugind.protocol import messages as m
from plugind.protocol import states as s
from plugind.protocol.errors import IllegalStepError
from plugind.protocol.identity import Identity
from plugind.protocol.plugins import PluginInfo

SOCKET = "/reg/a.sock"
INFO = PluginInfo("T", "a", SOCKET, ("1.0.0",))

STATE_TYPES: frozenset[type] = frozenset(typing.get_args(s.State))
EVENT_TYPES: frozenset[type] = frozenset(typing.get_args(s.Event))
WAITING_COMMANDS: tuple[type[s.Command], ...] = typing.get_args(s.WaitingCommand)


class Nowhere:
    """An address whose messages no test reads."""

    def send_nowait(self, message: object, /) -> None:
        raise AssertionError(f"no actor is there to receive {message}")


NOWHERE = Nowhere()


def appeared(generation: int = 1, path: str = SOCKET) -> m.SocketAppeared:
    return m.SocketAppeared(path, generation, Identity(1, generation, generation), "/reg", 0.0)


def vanished(generation: int = 1, path: str = SOCKET) -> m.SocketVanished:
    return m.SocketVanished(path, generation)


TOUCHED = m.SocketTouched(SOCKET, 1)
ADMITTED = m.Admitted(1, NOWHERE)
NO_HANDLER = m.NoHandler(1, "no handler for T")
CLAIM_REFUSED = m.ClaimRefused(1, "taken")
#: Events that lead to each state of a plugin without faults.
TO_INFO = (s.Dialed(),)
TO_CLAIM = (*TO_INFO, s.InfoReceived(INFO))
TO_VALIDATE = (*TO_CLAIM, ADMITTED)
TO_REGISTER = (*TO_VALIDATE, s.HandlerAccepted())
TO_NOTIFY = (*TO_REGISTER, s.HandlerAccepted())
TO_REGISTERED = (*TO_NOTIFY, s.Notified())

_TITLES = {"generation": "g", "attempt": "#", "failures": "", "type": "", "info": "", "reason": "", "error": ""}
_OMITTED = {"path", "identity", "root", "time", "deprecated", "first_scan", "ticket", "handler", "outcome", "versions"}
#: ``test_lifecycle_causes`` has transcripts of causes.
_OMITTED |= {"cause"}


def words(value: object) -> str:
    """Format a state, an event or a command."""
    if isinstance(value, PluginInfo):
        return value.name
    kind = type(value)
    if not attrs.has(kind):
        return repr(value).replace("RegisterPlugin error -- plugin ", "…")
    if isinstance(value, s.Refusing | s.Leaving):
        value = attrs.evolve(value, then=_without(_reason(value), value.then))
    said = [_field(field.name, getattr(value, field.name)) for field in attrs.fields(kind) if _is_shown(value, field)]
    return f"{kind.__name__}({' '.join(said)})" if said else type(value).__name__


def _reason(state: s.Refusing | s.Leaving) -> str:
    return state.error if isinstance(state, s.Refusing) else state.reason


def _without(reason: str, then: s.Then) -> s.Then:
    """Remove the reason from ``then`` if the state shows the same one."""
    return (
        attrs.evolve(then, reason="") if isinstance(then, s.ThenWait | s.ThenPark) and then.reason == reason else then
    )


def _is_shown(value: object, field: attrs.Attribute[object]) -> bool:
    said = getattr(value, field.name)
    return field.name not in _OMITTED and said != "" and (field.name == "attempt" or said != field.default)


def _field(name: str, value: object) -> str:
    if value is True:
        return name
    if isinstance(value, s.Retry):
        return value.name
    return f"{_TITLES.get(name, f'{name}=')}{words(value)}"


def outcome(step: s.Step) -> str:
    """Format the state and the commands of a step."""
    state, commands = step
    line = words(state)
    if not commands:
        return line
    performed = ", ".join(map(words, commands))
    # A long step is split into two lines.
    gap = " " if len(line) + len(performed) < 85 else "\n    "
    return f"{line}{gap}| {performed}"


def play(*events: s.Event, start: s.Step | None = None) -> str:
    """Return the transcript of ``events``, beginning with a socket that appeared unless another state is given."""
    step = start or lifecycle.start(appeared())
    lines = [outcome(step)]
    for event in events:
        step = lifecycle.step(step[0], event)
        lines.append(f"{words(event)} → {outcome(step)}")
    return "\n".join(lines)


def after(*events: s.Event, start: s.Step | None = None) -> s.State:
    """Return the state that ``events`` lead to."""
    state, _ = start or lifecycle.start(appeared())
    for event in events:
        state, _ = lifecycle.step(state, event)
    return state


def then(state: s.State, *events: s.Event) -> str:
    """Return the transcript of ``events`` beginning in ``state``."""
    return play(*events, start=(state, ())).removeprefix(f"{words(state)}\n")


def decisions(state: s.State, events: tuple[s.Event, ...]) -> str:
    """Format what follows ``state`` and each of ``events``; events with one outcome share a line."""
    decided: dict[str, list[str]] = {}
    unchanged: list[str] = []
    illegal: list[str] = []
    for event in events:
        try:
            step = lifecycle.step(state, event)
        except IllegalStepError:
            illegal.append(words(event))
        else:
            named = unchanged if step == (state, ()) else decided.setdefault(outcome(step), [])
            named.append(words(event))
    lines = [_decision(", ".join(names), text) for text, names in decided.items()]
    return "\n".join([*lines, *_group("unchanged", unchanged), *_group("illegal", illegal)])


def _decision(events: str, text: str) -> str:
    gap = " " if len(events) + len(text.partition("\n")[0]) < 105 else "\n    "
    return f"{events}{gap}→ {text}"


def _group(title: str, names: list[str]) -> list[str]:
    return [textwrap.fill(f"{title}: {', '.join(names)}", 108, subsequent_indent="    ")] if names else []


def script(text: str) -> str:
    """Return a transcript as written in a test, without its indentation."""
    return textwrap.dedent(text).strip("\n").rstrip()

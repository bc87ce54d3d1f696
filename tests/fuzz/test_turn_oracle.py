"""The oracle of turns itself: what it takes for a plugin that waits too long for a name that is free."""

from __future__ import annotations

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.protocol.plugins.status import PluginStatus, StateName
from plugind.tests.fuzz.turn_oracle import TurnOracle

REFUSED = "Colour 'red' is registered already, by the socket /plugins/h"
BACKOFF = 60.0


@attrs.define
class Script:
    """Plays words of an act and a plugin.

    ``+p`` is registered, ``-p`` is deregistered, ``?p`` waits for the name, ``*p`` is tried, ``>p``
    is shown so; ``.`` is ten seconds.
    """

    uids: dict[str, int]
    violations: list[str] = attrs.field(factory=list)

    async def play(self, text: str) -> list[str]:
        oracle = TurnOracle(lambda rule, text: self.violations.append(f"{rule}: {text}"), privileged=(0,))
        for word in text.split():
            if word == ".":
                await trio.sleep(10.0)
            elif word == "!":
                oracle.forget()
            elif word[0] == "-":
                oracle.deregistering(word[1])
                oracle.freed("red")
            elif word[0] == "+":
                oracle.registered(word[1], "red", privileged=self.uid(word[1]) == 0)
            elif word[0] == "*":
                oracle.dialed(word[1])
            elif word[0] == ">":
                oracle.begun(word[1])
            else:
                oracle.asked(word[1], "red", self.uid(word[1]))
                oracle.shown(self.refused(word[1]))
        return [violation.split(" for red")[0] for violation in self.violations]

    def uid(self, path: str) -> int:
        return self.uids.get(path, 0)

    def refused(self, path: str) -> PluginStatus:
        now, uid = trio.current_time(), self.uid(path)
        return PluginStatus(path, "/", 1, StateName.WAITING, now, REFUSED, 2, now + BACKOFF, "Colour", "red", uid=uid)


@pytest.mark.parametrize(
    ("script", "violations"),
    [
        ("+h ?p -h *p", []),
        ("+h ?p -h . *p", ["turns: p is tried"]),
        # A try that was brought forward is dialed before the wait that it ended is shown.
        ("+h *p ?p >p ?p -h . *p", []),
        ("+h *p ?p -h . *p", ["turns: p is tried"]),
        # Nothing was deregistered, or another one of root has the name by then.
        ("+h ?p . *p", []),
        ("+h +i ?p -h . *p", []),
        ("+h ?p -h +i . *p", []),
        # What other users have does not matter, and they have no such right themselves.
        ("+u +h ?p -h . *p", ["turns: p is tried"]),
        ("+h ?u -h . *u", []),
        # One that was tried ahead of time waits for its backoff.
        ("+h ?p *p ?p -h . *p", []),
        ("+h ?p . . . . . . *p ?p -h . *p", ["turns: p is tried"]),
        # A crash ends what is expected.
        ("+h ?p -h ! . *p", []),
    ],
)
async def test_a_privileged_plugin_has_its_turn_once_no_other_one_has_the_name(
    script: str, violations: list[str], autojump_clock: MockClock
) -> None:
    """Fault 80."""
    assert await Script({"u": 1001}).play(script) == violations

"""The oracle of dials itself: what it takes for a plugin that waits behind retries."""

from __future__ import annotations

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.protocol.identity import Identity
from plugind.protocol.plugins.status import StateName
from plugind.testing import FakePlugin, SimulatedNode
from plugind.tests.fuzz.dial_order_oracle import DialOrderOracle


def file_of(path: str) -> tuple[int, Identity]:
    return ord(path), Identity(1, ord(path), 0)


@attrs.define
class Script:
    """Plays ``+a`` (a socket is made), ``*a`` (one that has failed is to be dialed again), ``a`` (it is dialed).

    A tenth of a second lies between two words.
    """

    violations: list[str] = attrs.field(factory=list)

    async def play(self, text: str, pause: float = 0.1) -> list[str]:
        async with SimulatedNode() as node:
            node.plug("a.sock", FakePlugin("T", "a"))
            await trio.sleep(0.001)
            status = node.status("a.sock")
            assert status is not None
        oracle, made = DialOrderOracle(lambda rule, text: self.violations.append(f"{rule}: {text}")), dict[str, float]()
        for path in {word[1] for word in text.split() if word[0] == "*"}:
            oracle.dialed(path, *file_of(path), trio.current_time())
        for word in text.split():
            now, path = trio.current_time(), word[-1]
            if word[0] == "!":
                oracle.disturbed()
            elif word[0] == "*":
                waits = attrs.evolve(status, socket=path, state=StateName.WAITING, since=now, next_try=now)
                oracle.shown(waits)
            elif word[0] == "+":
                made[path] = now
            else:
                oracle.dialed(path, *file_of(path), made.get(path, 0.0))
            await trio.sleep(pause)
        return [violation.split(" waits")[0] for violation in self.violations]


@pytest.mark.parametrize(
    ("script", "violations"),
    [
        ("+a *b a b", []),
        ("*b +a a b", []),
        ("*b +a b a", ["newcomers: a"]),
        ("*b *c +a b c a", ["newcomers: a"]),
        ("+b +a b a", []),
        ("*b b +a a", []),
        # Nobody knows when the node has noticed the socket.
        ("! *b +a b a", []),
    ],
)
async def test_a_retry_that_is_dialed_while_a_newcomer_waits_is_a_violation(
    script: str, violations: list[str], autojump_clock: MockClock
) -> None:
    """Faults 32 and 47."""
    assert await Script().play(script) == violations


async def test_a_retry_that_has_waited_for_ten_seconds_may_go_first(autojump_clock: MockClock) -> None:
    assert await Script().play("*b +a b a", pause=6.0) == []

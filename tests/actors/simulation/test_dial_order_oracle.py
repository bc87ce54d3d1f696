"""The oracle of dials itself: what it takes for a plugin that waits behind retries."""

from __future__ import annotations

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.actors.simulation.fuzz.dial_order_oracle import DialOrderOracle
from plugind.protocol.status import StateName
from plugind.testing import FakePlugin, SimulatedNode


@attrs.define
class Script:
    """Plays ``+a`` (a socket asks for its first dial), ``*a`` (for a retry), ``a`` (it is dialed), a tenth apart."""

    violations: list[str] = attrs.field(factory=list)

    async def play(self, text: str, pause: float = 0.1) -> list[str]:
        async with SimulatedNode() as node:
            node.plug("a.sock", FakePlugin("T", "a"))
            await trio.sleep(0.001)
            status = node.status("a.sock")
            assert status is not None
        oracle = DialOrderOracle(lambda rule, text: self.violations.append(f"{rule}: {text}"))
        for word in text.split():
            path = word[-1]
            if len(word) == 2:
                asked = attrs.evolve(
                    status,
                    socket=path,
                    state=StateName.DIALING,
                    reason=None,
                    attempt=1 if word[0] == "+" else 2,
                    since=trio.current_time(),
                )
                oracle.shown(asked, to_notify=False)
            else:
                oracle.dialed(path)
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
    ],
)
async def test_a_retry_that_is_dialed_while_a_newcomer_waits_is_a_violation(
    script: str, violations: list[str], autojump_clock: MockClock
) -> None:
    """Faults 32 and 47."""
    assert await Script().play(script) == violations


async def test_a_retry_that_has_waited_for_ten_seconds_may_go_first(autojump_clock: MockClock) -> None:
    assert await Script().play("*b +a b a", pause=6.0) == []

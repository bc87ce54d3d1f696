"""The line for a name: when a plugin leaves it, those that were refused it are told one after the other."""

from __future__ import annotations

import math

import attrs
import pytest

from plugind.protocol import messages as m
from plugind.protocol.effects import Effect, Send
from plugind.protocol.plugins import InstancePolicy, PluginInfo
from plugind.protocol.world import TURN, World
from plugind.tests.protocol.playbook import Nowhere, appeared, vanished

HANDLER = Nowhere()
HOLDER = "/reg/holder.sock"
A, B, C = "/reg/a.sock", "/reg/b.sock", "/reg/c.sock"
LINE = {A: 2, B: 3, C: 4}
INFO = PluginInfo("T", "x", A, ("1.0.0",))
OTHER = PluginInfo("T", "y", "/reg/.other.sock", ("1.0.0",))


@attrs.define
class Rig:
    """A world at a certain time."""

    world: World
    now: float = 100.0

    def take(self, *messages: m.ReconcilerMessage) -> list[Effect]:
        return [effect for message in messages for effect in self.world.handle(message, self.now)]

    def woken(self, *messages: m.ReconcilerMessage) -> list[str]:
        """Return the paths that are told that the name is free."""
        return freed(self.take(*messages))


def freed(effects: list[Effect]) -> list[str]:
    return [effect.path for effect in effects if isinstance(effect, Send) and isinstance(effect.message, m.NameFreed)]


def claim(path: str, info: PluginInfo = INFO) -> m.Claimed:
    return m.Claimed(path, LINE.get(path, 1), info, 1)


def registers(path: str) -> tuple[m.ReconcilerMessage, ...]:
    return claim(path), m.PluginRegistered(path, LINE.get(path, 1))


def refused_by_handler(path: str) -> tuple[m.ReconcilerMessage, ...]:
    return claim(path), m.Released(path, LINE[path])


def in_line(policy: InstancePolicy = InstancePolicy.ALL) -> Rig:
    """Return a rig in which one plugin has the name and three were refused it."""
    rig = Rig(World((m.HandlerAdded("T", HANDLER, policy),)))
    rig.take(appeared(1, HOLDER), *registers(HOLDER))
    for path, generation in LINE.items():
        rig.take(appeared(generation, path), *refused_by_handler(path))
    return rig


LEAVES = (vanished(1, HOLDER), m.Released(HOLDER, 1))


def test_a_release_wakes_the_next_in_line_only() -> None:
    """Fault 49: the removal of a name's registered socket had all refused ones dialed at once."""
    assert in_line().woken(*LEAVES) == [A]


@pytest.mark.parametrize(
    "ending",
    [
        registers(A),
        refused_by_handler(A),
        (m.Released(A, 2),),
        (vanished(2, A),),
        (appeared(9, A),),
        (claim(A, OTHER),),
        (m.RegistrationEnded(A, crashed=True),),
    ],
    ids=["registers", "is refused", "fails", "vanishes", "is replaced", "has another name", "crashes"],
)
def test_the_one_after_it_is_told_when_its_turn_has_ended(ending: tuple[m.ReconcilerMessage, ...]) -> None:
    rig = in_line()
    rig.woken(*LEAVES)
    assert rig.woken(*ending) == [B]


def test_a_plugin_that_validates_has_its_turn_for_a_second_at_the_latest() -> None:
    rig = in_line()
    assert rig.world.next_turn == math.inf
    rig.woken(*LEAVES, claim(A))
    assert rig.world.next_turn == rig.now + TURN
    assert freed(rig.world.pass_turns(rig.now + TURN - 0.01)) == []
    assert freed(rig.world.pass_turns(rig.now + TURN)) == [B]
    assert rig.world.next_turn == rig.now + 2 * TURN
    # What it does later ends no turn but its own.
    assert rig.woken(m.PluginRegistered(A, 2)) == []


def test_each_is_told_once_of_a_release_and_again_of_the_next() -> None:
    rig = in_line()
    assert rig.woken(*LEAVES, *refused_by_handler(A), *refused_by_handler(B), *refused_by_handler(C)) == [A, B, C]
    assert rig.world.next_turn == math.inf
    rig.take(appeared(5, HOLDER), m.Claimed(HOLDER, 5, INFO, 1), m.PluginRegistered(HOLDER, 5))
    assert rig.woken(vanished(5, HOLDER), m.Released(HOLDER, 5)) == [A]


def test_a_release_during_a_turn_is_one_more_for_those_that_were_told_already() -> None:
    rig = in_line()
    assert rig.woken(*LEAVES, *registers(A)) == [A, B]
    assert rig.woken(vanished(2, A), m.Released(A, 2)) == []
    assert freed(rig.world.pass_turns(rig.now + TURN)) == [C]
    assert rig.woken(*refused_by_handler(C)) == [B]


def test_a_plugin_that_is_refused_after_a_release_is_not_told_of_it() -> None:
    rig = in_line()
    rig.woken(*LEAVES)
    rig.take(*refused_by_handler(C))
    assert rig.woken(*refused_by_handler(A)) == [B]
    assert rig.woken(*refused_by_handler(B)) == []


def test_nobody_is_told_of_a_name_that_takes_no_plugin_more() -> None:
    """Behaviour 37, REJECT: whoever tried would certainly be refused."""
    rig = in_line(InstancePolicy.REJECT)
    assert rig.woken(*LEAVES) == [A]
    assert rig.woken(*registers(A)) == []
    assert rig.world.next_turn == math.inf
    # The line goes on with the next release.
    assert rig.woken(vanished(2, A), m.Released(A, 2)) == [B]


def test_one_of_thousands_is_told() -> None:
    """Fault 48."""
    rig = in_line()
    for number in range(5, 3000):
        path = f"/reg/{number}.sock"
        rig.take(
            appeared(number, path),
            m.Claimed(path, number, INFO, 1),
            m.Released(path, number),
        )
    assert rig.woken(*LEAVES) == [A]

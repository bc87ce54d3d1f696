"""The line for a name: when a plugin leaves it, those that were refused it are told one after the other."""

from __future__ import annotations

import math

import attrs
import pytest

from plugind.protocol.messages.reconciler import (
    Claimed,
    ClaimReleased,
    HandlerAdded,
    PluginRegistered,
    ReconcilerMessage,
    RegistrationEnded,
)
from plugind.protocol.messages.registration import NameFreed
from plugind.protocol.plugins.info import InstancePolicy, PluginInfo
from plugind.protocol.world.effects import Effect, Send
from plugind.protocol.world.kept_names import NAME_KEPT
from plugind.protocol.world.line import TURN, NameLine, TurnEnds
from plugind.protocol.world.worlds import World
from plugind.tests.protocol.sockets import Nowhere, appeared, vanished

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

    def take(self, *messages: ReconcilerMessage) -> list[Effect]:
        return [effect for message in messages for effect in self.world.handle(message, self.now)]

    def woken(self, *messages: ReconcilerMessage) -> list[str]:
        """Return the paths that are told that the name is free."""
        return freed(self.take(*messages))


def freed(effects: list[Effect]) -> list[str]:
    return [effect.path for effect in effects if isinstance(effect, Send) and isinstance(effect.message, NameFreed)]


def claim(path: str, info: PluginInfo = INFO) -> Claimed:
    return Claimed(path, LINE.get(path, 1), info)


def registers(path: str) -> tuple[ReconcilerMessage, ...]:
    return claim(path), PluginRegistered(path, LINE.get(path, 1))


def refused_by_handler(path: str) -> tuple[ReconcilerMessage, ...]:
    return claim(path), ClaimReleased(path, LINE[path])


def in_line(policy: InstancePolicy = InstancePolicy.ALL) -> Rig:
    """Return a rig in which one plugin has the name and three were refused it."""
    rig = Rig(World((HandlerAdded("T", HANDLER, policy),)))
    rig.take(appeared(1, HOLDER), *registers(HOLDER))
    for path, generation in LINE.items():
        rig.take(appeared(generation, path), *refused_by_handler(path))
    return rig


LEAVES = (vanished(1, HOLDER), ClaimReleased(HOLDER, 1))


def test_a_release_wakes_the_next_in_line_only() -> None:
    """Fault 49: the removal of a name's registered socket had all refused ones dialed at once."""
    assert in_line().woken(*LEAVES) == [A]


@pytest.mark.parametrize(
    "ending",
    [
        registers(A),
        refused_by_handler(A),
        (ClaimReleased(A, 2),),
        (vanished(2, A),),
        (appeared(9, A),),
        (claim(A, OTHER),),
        (RegistrationEnded(A, crashed=True),),
    ],
    ids=["registers", "is refused", "fails", "vanishes", "is replaced", "has another name", "crashes"],
)
def test_the_one_after_it_is_told_when_its_turn_has_ended(ending: tuple[ReconcilerMessage, ...]) -> None:
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
    assert rig.woken(PluginRegistered(A, 2)) == []


def test_each_is_told_once_of_a_release_and_again_of_the_next() -> None:
    rig = in_line()
    assert rig.woken(*LEAVES, *refused_by_handler(A), *refused_by_handler(B), *refused_by_handler(C)) == [A, B, C]
    assert rig.world.next_turn == math.inf
    rig.take(appeared(5, HOLDER), Claimed(HOLDER, 5, INFO), PluginRegistered(HOLDER, 5))
    assert rig.woken(vanished(5, HOLDER), ClaimReleased(HOLDER, 5)) == [A]


def test_a_release_during_a_turn_is_one_more_for_those_that_were_told_already() -> None:
    rig = in_line()
    assert rig.woken(*LEAVES, *registers(A)) == [A, B]
    assert rig.woken(vanished(2, A), ClaimReleased(A, 2)) == []
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
    assert rig.woken(vanished(2, A), ClaimReleased(A, 2)) == [B]


SOMEBODY = 1001
U, V, P, Q = "/reg/u.sock", "/reg/v.sock", "/reg/p.sock", "/reg/q.sock"
#: Sockets and their users; those of root and of plugind's own user are privileged.
USERS = {U: SOMEBODY, V: SOMEBODY, P: 0, Q: 0, HOLDER: 0, A: SOMEBODY, B: SOMEBODY}


def claim_of(path: str) -> Claimed:
    return Claimed(path, 1, attrs.evolve(INFO, uid=USERS[path]))


def mixed(policy: InstancePolicy, *holders: str, line: tuple[str, ...], most: int = 64) -> Rig:
    """Return a rig in which ``holders`` register one after the other, and those in ``line`` are refused."""
    rig = Rig(World((HandlerAdded("T", HANDLER, policy),), max_instances=most))
    for path in holders:
        rig.take(appeared(1, path), claim_of(path), PluginRegistered(path, 1))
    assert rig.world.actual() == dict.fromkeys(holders, 1)
    for path in line:
        # Refused as the name is full, or else by its handler.
        rig.take(appeared(1, path), claim_of(path), ClaimReleased(path, 1))
    assert rig.world.actual() == dict.fromkeys(holders, 1)
    return rig


def ended(path: str) -> tuple[ReconcilerMessage, ...]:
    return vanished(1, path), ClaimReleased(path, 1)


@pytest.mark.parametrize("line", [(U, P), (P, U), (U, V, P)], ids=["last", "first", "last of three"])
def test_a_privileged_plugin_does_not_wait_behind_those_for_which_the_name_is_taken(line: tuple[str, ...]) -> None:
    """Fault 80, REJECT: root's plugin that succeeded another user's leaves, and another one of root waits."""
    rig = mixed(InstancePolicy.REJECT, A, HOLDER, line=line)
    assert rig.woken(*ended(HOLDER)) == [P]
    assert rig.woken(claim_of(P), PluginRegistered(P, 1)) == []
    # The others may have the name once its holder of their user has left, and the privileged one as well.
    assert rig.woken(*ended(P)) == []
    rig.now += NAME_KEPT
    assert rig.woken(*ended(A)) == [path for path in line if path != P][:1]


def test_a_privileged_plugin_does_not_wait_behind_those_for_which_the_name_has_too_many_instances() -> None:
    """Faults 49 and 80: for others the name is full with the plugins of all users, for it with those of root alone."""
    rig = mixed(InstancePolicy.ALL, A, B, HOLDER, Q, line=(U, P), most=2)
    assert rig.woken(*ended(HOLDER)) == [P]
    assert rig.woken(claim_of(P), PluginRegistered(P, 1)) == []


def test_privileged_plugins_are_told_first_and_each_line_in_its_order() -> None:
    """Fault 80: nobody is told twice of one release."""
    rig = mixed(InstancePolicy.ALL, A, line=(U, Q, V, P))
    woken = rig.woken(*ended(A))
    while len(woken) < 4:
        woken += rig.woken(claim_of(woken[-1]), ClaimReleased(woken[-1], 1))
    assert woken == [Q, P, U, V]
    assert rig.woken(claim_of(V), ClaimReleased(V, 1)) == []
    # Whoever is refused again stands at the end of its own line.
    rig.take(claim_of(Q), ClaimReleased(Q, 1), appeared(1, A), claim_of(A), PluginRegistered(A, 1))
    assert rig.woken(*ended(A)) == [P]


def test_a_plugin_that_comes_back_as_another_user_stands_in_the_other_line() -> None:
    """Fault 80."""
    rig = mixed(InstancePolicy.REJECT, A, HOLDER, line=(U, P))
    rig.take(attrs.evolve(claim_of(P), info=attrs.evolve(INFO, uid=SOMEBODY)))
    rig.take(attrs.evolve(claim_of(U), info=attrs.evolve(INFO, uid=0)))
    assert rig.woken(*ended(HOLDER)) == [U]


def test_thousands_of_another_user_in_line_are_not_looked_at_while_the_name_is_kept() -> None:
    """Faults 48 and 80: a search past them for each turn would take minutes."""
    line = NameLine()
    for number in range(20_000):
        line.add(f"u{number}", 1001, privileged=False)
    for number in range(20_000):
        line.add(f"v{number}", 1002, privileged=False)
    line.add("p", 0, privileged=True)
    line.releases += 1
    woken = [line.give_turn(line.first_of(1002)) for _ in range(20_001)]
    assert woken == ["p", *(f"v{number}" for number in range(20_000))]
    assert line.give_turn(line.first_of(1002)) is None
    assert line.first_of(1003) is None
    assert line.first() == "u0"
    for path in woken:
        line.remove(path or "")
    assert len(line) == 20_000


def test_the_first_of_thousands_of_turns_is_found_at_once() -> None:
    """Fault 48: a plain dictionary would be read over all turns that have ended before it, which would take minutes."""
    turns = TurnEnds()
    names = [("T", str(number)) for number in range(100_000)]
    for number, named in enumerate(names):
        turns.begin(named, float(number))
    found = []
    for named in names[:-1]:
        found.append(turns.next_end)
        turns.end(named)
    assert found == [number + TURN for number in range(99_999)]
    assert turns.take_ended(99_999.0 + TURN) == names[-1:]
    assert turns.next_end == math.inf
    assert len(turns) == 0

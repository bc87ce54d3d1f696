"""Bugs put in on purpose, and the seed with which ``plugind simulate`` finds each.

``python -m plugind.tests.tools.planted_bugs [--most SEEDS] [--shrink] [NAME ...]`` prints a line for each bug. A seed
finds a bug if it is violated with the bug and not without it. Exit code 1 if a bug is not found.

Some bugs were thought out; the others plugind had, and are put back by taking out what mended them
(``plugind.tests.tools.old_bugs``). Tests play the few events of :data:`NEW` and :data:`OLD` that find each. Where they
do so no more, because the order of tasks is another, ``--shrink`` finds others; where a bug cannot be put in any more,
because what it patches has another name or place, it must be mended here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from unittest.mock import patch

import attrs

from plugind.actors import conversation, registration
from plugind.actors.handlers import actor as handler_actor
from plugind.actors.simulation.fuzz.run import EVENTS, SeedResult, simulate
from plugind.actors.simulation.fuzz.shrink import shrink
from plugind.protocol import lifecycle, states, world
from plugind.protocol import messages as m
from plugind.protocol.claims import Name
from plugind.protocol.view import View
from plugind.protocol.watches import Notice, Watches
from plugind.tests.tools import old_bugs

#: Puts a bug in for as long as it is entered.
Bug = Callable[[], AbstractContextManager[None]]


@contextmanager
def drop_a_message() -> Iterator[None]:
    """The reconciler loses every 40th message of its inbox."""
    handle, count = world.World.handle, 0

    def dropping(self: world.World, message: m.ReconcilerMessage, now: float) -> list[world.Effect]:
        nonlocal count
        count += 1
        return [] if count % 40 == 0 else handle(self, message, now)

    with patch.object(world.World, "handle", dropping):
        yield


@contextmanager
def skip_a_deregistration() -> Iterator[None]:
    """A socket that vanishes while it is registered ends without a Deregister."""
    step = lifecycle.step

    def skipping(state: states.State, event: states.Event) -> states.Step:
        after, commands = step(state, event)
        match state, after:
            case states.Registered(), states.Leaving(then=states.ThenEnd()):
                return states.Gone(state.generation), ()
            case _:
                return after, commands

    with patch.object(lifecycle, "step", skipping):
        yield


@contextmanager
def ignore_an_overflow() -> Iterator[None]:
    """An overflow of the event queue is noted, and no rescan follows."""
    note = Watches.note

    def ignoring(self: Watches, notice: Notice) -> None:
        note(self, notice)
        self.clear_overflow()

    with patch.object(Watches, "note", ignoring):
        yield


@contextmanager
def reuse_a_backoff() -> Iterator[None]:
    """Every delay is the first one: failures in a row are not counted."""
    seconds_for = registration.seconds_for

    def reusing(command: states.WaitingCommand, config: registration.RegistrationConfig) -> float:
        return seconds_for(states.StartTimer(1) if isinstance(command, states.StartTimer) else command, config)

    with patch.object(registration, "seconds_for", reusing):
        yield


@contextmanager
def let_two_operations_overlap() -> Iterator[None]:
    """The handler actor forgets its lanes: calls of one name run side by side."""
    take = handler_actor._Pool._take

    async def overlapping(self: handler_actor._Pool, ask: m.HandlerMessage) -> None:
        self._lanes = _Forgetful()
        await take(self, ask)

    with patch.object(handler_actor._Pool, "_take", overlapping):
        yield


class _Forgetful(dict[str, handler_actor.Lane]):
    def __delitem__(self, name: str) -> None:
        self.pop(name, None)


@contextmanager
def admit_two_of_one_name() -> Iterator[None]:
    """Whoever is busy with a name, coming or leaving, does not keep others from being admitted."""
    admit = world.World._admit

    def hasty(self: world.World, key: tuple[str, str], name: Name) -> None:
        while name.waiting:
            busy, name.busy = name.busy, {}
            admit(self, key, name)
            name.busy |= busy
        self._names[key] = name

    with patch.object(world.World, "_admit", hasty):
        yield


@contextmanager
def register_without_validating() -> Iterator[None]:
    """An admitted plugin is registered at once."""
    step = lifecycle.step

    def hasty(state: states.State, event: states.Event) -> states.Step:
        if isinstance(state, states.Claiming) and isinstance(event, m.Admitted):
            return states.Registering(state.generation, state.attempt, state.info), (states.AskRegister(state.info),)
        return step(state, event)

    with patch.object(lifecycle, "step", hasty):
        yield


@contextmanager
def notify_before_registering() -> Iterator[None]:
    """The plugin is told that it is registered before its handler took it."""
    step = lifecycle.step

    def early(state: states.State, event: states.Event) -> states.Step:
        if isinstance(state, states.Validating) and isinstance(event, states.HandlerAccepted):
            return states.Notifying(state.generation, state.attempt, state.info), (states.Notify(None),)
        return step(state, event)

    with patch.object(lifecycle, "step", early):
        yield


@contextmanager
def show_the_dead() -> Iterator[None]:
    """The view keeps every fifth socket that is gone."""
    apply = View.apply

    def keeping(self: View, change: m.StateChanged) -> object:
        if change.state == "gone" and change.generation % 5 == 0:
            return None, None
        return apply(self, change)

    with patch.object(View, "apply", keeping):
        yield


@contextmanager
def tell_no_roles() -> Iterator[None]:
    """Roles are never told: every instance counts as active."""
    with patch.object(Name, "change_roles", lambda self, policy: []):
        yield


@contextmanager
def leave_connections_open() -> Iterator[None]:
    """A registration does not hang up."""
    hang_up = conversation.Conversation.hang_up

    def keep(self: conversation.Conversation) -> None:
        self._channel = None
        hang_up(self)

    with patch.object(conversation.Conversation, "hang_up", keep):
        yield


@contextmanager
def one_hangs_all_wait() -> Iterator[None]:
    """The handler actor serves one ask at a time, whatever its name."""
    take = handler_actor._Pool._take

    async def alone(self: handler_actor._Pool, ask: m.HandlerMessage) -> None:
        self._idle += 1
        try:
            await take(self, ask)
        finally:
            self._idle -= 1

    with patch.object(handler_actor._Pool, "_take", alone):
        yield


@attrs.frozen
class Planted:
    """A bug, and events that find it: the fewest, for a test that takes no time."""

    bug: Bug
    seed: int
    #: Numbers of events of the seed's script, as ``--shrink`` prints them.
    events: tuple[int, ...]

    @property
    def name(self) -> str:
        """The name by which it is asked for."""
        return getattr(self.bug, "__name__", "?")

    def with_it(self) -> SeedResult:
        """Play its events on a plugind that has it."""
        with self.bug():
            return simulate(self.seed, only=self.events)

    def without_it(self) -> SeedResult:
        """Play its events on plugind as it is."""
        return simulate(self.seed, only=self.events)


#: Bugs that were thought out.
NEW = (
    Planted(drop_a_message, 0, (102, 104, 106, 107, 110, 111)),
    Planted(skip_a_deregistration, 0, (176, 191, 192, 193)),
    Planted(ignore_an_overflow, 9, (0, 1, 3)),
    Planted(reuse_a_backoff, 3, (196,)),
    Planted(let_two_operations_overlap, 0, (193, 198)),
    Planted(admit_two_of_one_name, 3, (168, 169, 171)),
    Planted(register_without_validating, 0, (199,)),
    Planted(notify_before_registering, 0, (199,)),
    Planted(show_the_dead, 0, (176, 177, 178, 179, 180)),
    Planted(tell_no_roles, 1, (193, 199)),
    Planted(leave_connections_open, 0, (189, 190, 192)),
    Planted(one_hangs_all_wait, 1, (162, 165, 167, 198)),
)

#: Bugs that ``simulate`` found in plugind, put back.
OLD = (
    Planted(old_bugs.look_for_ever, 5, (12, 14, 17)),
    Planted(old_bugs.show_what_vanished_meanwhile, 10, (34, 86, 87, 99)),
    Planted(old_bugs.crash_while_cancelled, 94, (40, 43, 51, 55, 56)),
    Planted(old_bugs.lose_what_waits_in_lanes, 136, (140, 141, 170)),
    Planted(old_bugs.leave_a_validation_behind, 1, (110, 116, 121)),
    Planted(old_bugs.give_a_deregistration_up, 1297, (30, 33, 35, 42, 46, 47, 103, 185)),
    Planted(
        old_bugs.forget_what_could_not_be_seen, 982, (3, 29, 40, 72, 80, 87, 89, 107, 130, 134, 137, 152, 166, 172, 190)
    ),
    Planted(old_bugs.take_what_no_directory_has, 3195, (10, 30, 39, 41, 53, 78, 83, 103, 109, 118, 198, 199)),
    Planted(old_bugs.give_away_the_path_of_who_is_not_let_go, 2420, (80, 104, 105, 113, 114, 117, 118)),
    Planted(
        old_bugs.show_for_ever_who_crashed_when_it_was_gone,
        1191,
        (20, 44, 61, 105, 110, 119, 120, 132, 141, 143, 146, 153, 154),
    ),
)


def find(bug: Bug, seeds: range, events: int) -> tuple[int, SeedResult] | None:
    """Return the first of ``seeds`` that finds ``bug``, and what came of it."""
    for seed in seeds:
        with bug():
            outcome = simulate(seed, events=events)
        if outcome.violations and not simulate(seed, events=events).violations:
            return seed, outcome
    return None


def fewest(bug: Bug, seed: int, outcome: SeedResult) -> tuple[int, ...]:
    """Return the events of ``seed`` that suffice to break with ``bug`` what was broken in ``outcome``."""
    broken = {violation.oracle for violation in outcome.violations}

    def breaks(numbers: Collection[int]) -> bool:
        with bug():
            again = simulate(seed, events=outcome.events, only=set(numbers))
        return any(violation.oracle in broken for violation in again.violations)

    return shrink(range(outcome.events), breaks)[0]


def main(arguments: list[str] | None = None) -> int:
    """Look for each bug, and print the seed that finds it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=2000, help="how many seeds to try")
    parser.add_argument("--first", type=int, default=0, help="the first seed to try")
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--shrink", action="store_true", help="print the fewest events of the seed that find the bug")
    parser.add_argument("names", nargs="*", help="bugs, by the names of their functions; all by default")
    args = parser.parse_args(arguments)
    bugs = {planted.name: planted.bug for planted in NEW + OLD}
    if unknown := set(args.names) - bugs.keys():
        parser.error(f"no such bug: {', '.join(sorted(unknown))}")
    missed = 0
    for name in args.names or bugs:
        found = find(bugs[name], range(args.first, args.first + args.most), args.events)
        if found is None:
            missed += 1
            print(f"{name}: not found in {args.most} seeds", flush=True)
            continue
        seed, outcome = found
        print(f"{name}: seed {seed}, {outcome.violations[0].oracle}: {outcome.violations[0].text}", flush=True)
        if args.shrink:
            print(f"    {fewest(bugs[name], seed, outcome)}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

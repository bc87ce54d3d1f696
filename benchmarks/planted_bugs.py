"""Bugs put in on purpose, and the seed with which ``plugind simulate`` finds each.

``python -m plugind.benchmarks.planted_bugs [--most SEEDS] [--events M] [NAME ...]`` prints a line for each bug. A seed
finds a bug if it is violated with the bug and not without it. Exit code 1 if a bug is not found.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from plugind.actors import watcher
from plugind.actors.handlers import actor as handler_actor
from plugind.actors.simulate import Outcome, simulate
from plugind.protocol import lifecycle, states, world
from plugind.protocol import messages as m
from plugind.protocol.backoff import Backoff
from plugind.protocol.claims import Name
from plugind.protocol.view import View


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
    go = lifecycle._go

    def skipping(state: states.State, then: states.Then, reason: str) -> states.Step:
        if isinstance(state, states.Registered) and isinstance(then, states.ThenEnd):
            return states.Gone(state.generation), ()
        return go(state, then, reason)

    with patch.object(lifecycle, "_go", skipping):
        yield


@contextmanager
def ignore_an_overflow() -> Iterator[None]:
    """An overflow of the event queue is taken note of, and no scan follows."""

    async def follow(self: watcher._Watcher) -> None:
        import trio

        looker = self._looker
        while trio.current_time() < self._due:
            if self._root in looker.watches.marks:
                return
            await looker.wait(self._due)
            looker.collect()
            looker.watches.overflowed = False
            await looker.settle()

    with patch.object(watcher._Watcher, "follow_events", follow):
        yield


@contextmanager
def reuse_a_backoff() -> Iterator[None]:
    """Every delay is the first one: failures in a row are not counted."""
    delay = Backoff.delay

    def first(self: Backoff, failures: int, chance: float = 0.0) -> float:
        return delay(self, 1, chance)

    import plugind.actors.registration as registration

    class Reusing:
        def __init__(self, real: Backoff) -> None:
            self._real = real

        def delay(self, failures: int, chance: float = 0.0) -> float:
            return first(self._real, failures, chance)

    begin = registration._Registration._begin

    async def beginning(self: registration._Registration, command: states.WaitingCommand, state: states.State) -> None:
        if isinstance(command, states.StartTimer):
            command = states.StartTimer(1)
        await begin(self, command, state)

    with patch.object(registration._Registration, "_begin", beginning):
        yield


@contextmanager
def let_two_operations_overlap() -> Iterator[None]:
    """The handler actor forgets its lanes: calls of one name run side by side."""
    take = handler_actor._Pool._take

    async def overlapping(self: handler_actor._Pool, ask: m.HandlerMessage) -> None:
        self._lanes.clear()
        self._lanes = _Forgetful()
        await take(self, ask)

    with patch.object(handler_actor._Pool, "_take", overlapping):
        yield


class _Forgetful(dict):  # type: ignore[type-arg]
    def get(self, key: object, default: object = None) -> object:
        return default

    def __delitem__(self, key: object) -> None:
        self.pop(key, None)


@contextmanager
def admit_two_of_one_name() -> Iterator[None]:
    """A name that is leaving does not keep others from being admitted: register before unregister."""
    with patch.object(world.World, "_leave", lambda self, path: self._claims.pop(path, None)):
        yield


@contextmanager
def register_without_validating() -> Iterator[None]:
    """An admitted plugin is registered at once."""
    outcome = lifecycle._outcome

    def hasty(state: states.State, event: object) -> states.Step:
        if isinstance(state, states.Claiming) and isinstance(event, m.Admitted):
            return states.Registering(state.generation, state.attempt, state.info), (states.AskRegister(state.info),)
        return outcome(state, event)  # type: ignore[arg-type]

    with patch.object(lifecycle, "_outcome", hasty):
        yield


@contextmanager
def show_the_dead() -> Iterator[None]:
    """The view keeps sockets that are gone."""
    apply = View.apply

    def keeping(self: View, change: m.StateChanged) -> object:
        if change.state == "gone" and change.generation % 5 == 0:
            return None, None
        return apply(self, change)

    with patch.object(View, "apply", keeping):
        yield


@contextmanager
def notify_before_registering() -> Iterator[None]:
    """The plugin is told that it is registered before its handler took it."""
    outcome = lifecycle._outcome

    def early(state: states.State, event: object) -> states.Step:
        if isinstance(state, states.Validating) and isinstance(event, states.HandlerAccepted):
            return states.Notifying(state.generation, state.attempt, state.info), (states.Notify(None),)
        return outcome(state, event)  # type: ignore[arg-type]

    with patch.object(lifecycle, "_outcome", early):
        yield


@contextmanager
def forget_the_unlucky() -> Iterator[None]:
    """Roles are never told: every instance counts as active."""
    with patch.object(Name, "change_roles", lambda self, policy: []):
        yield


@contextmanager
def leave_connections_open() -> Iterator[None]:
    """A registration does not hang up."""
    import plugind.actors.conversation as conversation

    def keep(self: conversation.Conversation) -> None:
        self._channel, self._stub = None, None

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


BUGS = (
    drop_a_message,
    skip_a_deregistration,
    ignore_an_overflow,
    reuse_a_backoff,
    let_two_operations_overlap,
    admit_two_of_one_name,
    register_without_validating,
    notify_before_registering,
    show_the_dead,
    forget_the_unlucky,
    leave_connections_open,
    one_hangs_all_wait,
)


def find(bug: Callable[[], object], most: int, events: int) -> tuple[int, Outcome] | None:
    """Return the first seed that finds ``bug``, and what came of it."""
    for seed in range(most):
        with bug():  # type: ignore[attr-defined]
            outcome = simulate(seed, events=events)
        if outcome.violations and not simulate(seed, events=events).violations:
            return seed, outcome
    return None


def main(arguments: list[str] | None = None) -> int:
    """Look for each bug, and print the seed that finds it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=2000)
    parser.add_argument("--events", type=int, default=200)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args(arguments)
    missed = 0
    for bug in BUGS:
        if args.names and bug.__name__ not in args.names:
            continue
        found = find(bug, args.most, args.events)
        if found is None:
            missed += 1
            print(f"{bug.__name__}: not found in {args.most} seeds", flush=True)
        else:
            seed, outcome = found
            print(
                f"{bug.__name__}: seed {seed}, {outcome.violations[0].oracle}: {outcome.violations[0].text}", flush=True
            )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Check the model of leases by bugs in the book that are put in on purpose.

    python -m tests.protocol.leases.book_bugs [NAME …] [--seeds N]

The test of ``tests/protocol/leases/test_book_properties.py`` runs with each bug, at the size that it has in the suite,
once for each of N seeds (5). The exit code is 1 if there is a bug that no run finds.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final
from unittest.mock import patch

import attrs
import hypothesis

from plugind.protocol.leases import book, choosing, owners, states
from plugind.protocol.leases.book import Book
from plugind.protocol.leases.choosing import Reserved, choose
from plugind.protocol.leases.draining import DrainChange
from plugind.protocol.leases.effects import DrainReply, Effect
from plugind.protocol.leases.ends import Ends
from plugind.protocol.leases.entries import LeaseEntry
from plugind.protocol.leases.limits import UserTotals
from plugind.protocol.leases.messages import Kept
from plugind.protocol.leases.owners import begun
from plugind.protocol.leases.states import Action, Event, LeasePhase
from plugind.protocol.leases.stock import Stock
from plugind.protocol.leases.values import ContainerOwner, TimeOwner
from plugind.tests.protocol.leases.test_book_properties import SCRIPTS, SETTINGS, play

Bug = AbstractContextManager[object]


def _step(phase: LeasePhase, event: Event, outcome: states.Outcome) -> Bug:
    """Let one transition have another outcome."""
    changed: Mapping[LeasePhase, Mapping[Event, states.Outcome]] = {
        **states.STEPS,
        phase: {**states.STEPS[phase], event: outcome},
    }
    return patch.object(states, "STEPS", changed)


def _nothing(*_arguments: Any, **_options: Any) -> None:
    """Do nothing."""


def _requeue_last() -> Bug:
    queue = Book._queue

    def requeue(self: Book, entry: LeaseEntry) -> None:
        if entry.shown:  # It was in line before.
            self._arrivals += 1
            entry.arrival = self._arrivals
        queue(self, entry)

    return patch.object(Book, "_queue", requeue)


def _forget_drains() -> Bug:
    start = Book.start

    def start_without(self: Book, kept: Kept, now: float) -> list[Effect]:
        return start(self, attrs.evolve(kept, drains={}), now)

    return patch.object(Book, "start", start_without)


def _drain_early() -> Bug:
    change_drain = Book._change_drain

    def change_at_once(self: Book, asked: Any) -> None:
        change_drain(self, asked)
        if isinstance(change := next(reversed(self._awaited.values()), None), DrainChange):
            self._effects.append(DrainReply(change.reply, change.answer))

    return patch.object(Book, "_change_drain", change_at_once)


def _take_up_only_held() -> Bug:
    take_up = Book._take_up

    def only_held(self: Book, lease: Any) -> None:
        if lease.state.value != "pending":
            take_up(self, lease)

    return patch.object(Book, "_take_up", only_held)


def _take_up_without_watch() -> Bug:
    take_up = Book._take_up

    def unwatched(self: Book, lease: Any) -> None:
        with patch.object(Book, "_wait_for_owner", _nothing):
            take_up(self, lease)

    return patch.object(Book, "_take_up", unwatched)


def _take_up_for(seconds: float) -> Bug:
    take_up = Book._take_up

    def briefly(self: Book, lease: Any) -> None:
        with patch.object(book, "WITHHELD", seconds):
            take_up(self, lease)

    return patch.object(Book, "_take_up", briefly)


def _ignore(message: str) -> Bug:
    return patch.object(Book, message, _nothing)


def _keep_unlisted() -> Bug:
    give_back = Stock.give_back

    def keep(self: Stock, name: str, ids: Any) -> None:
        before = {**self.missing(name)}
        give_back(self, name, ids)
        if (resource := self._resources.get(name)) is not None:
            resource.missing = before

    return patch.object(Stock, "give_back", keep)


def _forget_a_held_one_named_again() -> Bug:
    ask_again = Book._ask_again

    def any_request(self: Book, entry: LeaseEntry, asked: Any) -> Any:
        return ask_again(self, entry, attrs.evolve(asked, request=entry.lease.request, uid=entry.lease.uid))

    return patch.object(Book, "_ask_again", any_request)


def _choose_without_include() -> Bug:
    return patch.object(book, "choose", lambda free, size, _include, *more: choose(free, size, (), *more))


def _choose_reserved() -> Bug:
    return patch.object(Reserved, "named", lambda _self, _resource: frozenset())


def _unhealthy_are_prepared() -> Bug:
    return patch.object(Stock, "is_healthy", lambda self, name, _ids: self.is_offered(name))


def _ends_never() -> Bug:
    return patch.object(Ends, "take", lambda _self, _now: [])


def _serve_though_withheld() -> Bug:
    def anyway(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(self: Book, *arguments: Any) -> Any:
            kept, self._withheld = self._withheld, None
            try:
                return call(self, *arguments)
            finally:
                self._withheld = kept

        return run

    return patch.multiple(Book, _serve=anyway(Book._serve), _refusal=anyway(Book._refusal))


def _containers_take_for_ever() -> Bug:
    wait_for_owner = Book._wait_for_owner

    def wait_longer(self: Book, entry: LeaseEntry) -> None:
        wait_for_owner(self, entry)
        if isinstance(entry.lease.owner, ContainerOwner) and self._ends.forget(entry.lease.id) is not None:
            self._ends.set(entry.lease.id, self._now + 1e9)

    return patch.object(Book, "_wait_for_owner", wait_longer)


def _free_at_end_of_container() -> Bug:
    return patch.object(book, "GRACE", 0.0)


BUGS: Final[dict[str, Callable[[], Bug]]] = {
    "a device that is listed later is not drained": lambda: patch.object(Stock, "_drain_of", _nothing),
    "a restart forgets drains": _forget_drains,
    "a drain counts before it is written": _drain_early,
    "a drain does not end": lambda: patch.object(Book, "_end_drains", _nothing),
    "renamed devices are free": lambda: patch.object(Stock, "missing", lambda *_: {}),
    "unlisted devices stay counted": _keep_unlisted,
    "later ones overtake": lambda: patch.object(Reserved, "add", _nothing),
    "named devices are not reserved": _choose_reserved,
    "one that wants too much shadows all": lambda: patch.object(Stock, "could", lambda *_: True),
    "one without devices goes to the end of the line": _requeue_last,
    "impatient ones are put in line": lambda: patch.object(Book, "_stop_waiting", _nothing),
    "a refusal withholds": lambda: _step(
        LeasePhase.PREPARING, Event.REFUSED, (LeasePhase.UNCERTAIN, (Action.FAIL, Action.WITHHOLD))
    ),
    "a lost call frees": lambda: _step(LeasePhase.PREPARING, Event.LOST, (LeasePhase.GONE, (Action.FAIL, Action.END))),
    "a lost call of an abandoned one frees": lambda: _step(
        LeasePhase.ABANDONED, Event.LOST, (LeasePhase.GONE, (Action.END,))
    ),
    "a release frees amid Allocate": lambda: _step(
        LeasePhase.PREPARING, Event.RELEASED, (LeasePhase.GONE, (Action.FAIL, Action.END))
    ),
    "an owner's end frees amid Allocate": lambda: _step(
        LeasePhase.PREPARING, Event.OWNER_ENDED, (LeasePhase.GONE, (Action.FAIL, Action.END))
    ),
    "a caller is told before it is written": lambda: _step(
        LeasePhase.FILING, Event.FILED, (LeasePhase.HELD, (Action.CONFIRM, Action.TELL))
    ),
    "a plugin is asked before it is written": lambda: _step(
        LeasePhase.CHOOSING, Event.CHOSEN, (LeasePhase.PREPARING, (Action.PREPARE,))
    ),
    "a lease whose write failed is held": lambda: _step(
        LeasePhase.CONFIRMING, Event.NOT_SAVED, (LeasePhase.HELD, (Action.TELL,))
    ),
    "a lease that is not held stays written": lambda: _step(
        LeasePhase.CONFIRMING, Event.NOT_SAVED, (LeasePhase.GONE, (Action.FAIL,))
    ),
    "uncertain devices are free at once": lambda: patch.object(book, "WITHHELD", 0.5),
    "uncertain devices are free after 30 s": lambda: patch.object(book, "WITHHELD", 30.0),
    "uncertain devices are never free": lambda: _step(
        LeasePhase.PREPARING, Event.LOST, (LeasePhase.UNCERTAIN, (Action.FAIL,))
    ),
    "a restart forgets pending leases": _take_up_only_held,
    "a restart frees pending ones early": lambda: _take_up_for(1.0),
    "a restart watches no owner": _take_up_without_watch,
    "a restart withholds nothing": _serve_though_withheld,
    "an undelivered answer keeps its lease": lambda: _step(LeasePhase.HELD, Event.LEFT, (LeasePhase.HELD, ())),
    "the end of an owner is not heard": lambda: _ignore("_owner_ended"),
    "nothing ever ends by itself": _ends_never,
    "containers may take for ever": _containers_take_for_ever,
    "a container has no grace": _free_at_end_of_container,
    "a grace yields to nobody": lambda: patch.object(book, "needed_of", lambda *_: []),
    "a grace yields to anybody": lambda: patch.object(book, "needed_of", lambda leases, *_: [*leases]),
    "a bind that was not written counts": lambda: patch.object(Book, "_undo", _nothing),
    "an amendment is not written": lambda: _amend_in_memory(),
    "users are never given back what they had": lambda: _usage_grows(),
    "another request with a name gets its lease": _forget_a_held_one_named_again,
    "devices that must be included are not": _choose_without_include,
    "unhealthy devices are prepared": _unhealthy_are_prepared,
    "no file is removed": lambda: _keep_files(),
    "the end of a plugin settles nothing": lambda: _ignore("_plugin_ended"),
    "no limit of a user is kept": lambda: patch.object(choosing, "held_back", _nothing),
    "who is held back reserves devices": lambda: patch.object(Reserved, "wait", _reserve_all),
    "who is held back is overtaken by its user": lambda: _forget_what_users_want(),
    "a longest time ends nothing": lambda: patch.object(Book, "_judge_longest", _nothing),
    "a renewal outlasts the longest time": lambda: _renew_without_end(),
    "the end of a longest time is not noted": lambda: patch.object(Book, "_bound_longest", _nothing),
}


def _reserve_all(self: Reserved, stock: Stock, waiting: choosing.Waiting) -> None:
    if stock.could(waiting.request):
        self.add(waiting.request)


def _forget_what_users_want() -> Bug:
    wait = Reserved.wait

    def forget(self: Reserved, stock: Stock, waiting: choosing.Waiting) -> None:
        wait(self, stock, waiting)
        self.by_user.clear()

    return patch.object(Reserved, "wait", forget)


def _renew_without_end() -> Bug:
    def begin(owner: TimeOwner, boottime: int, _until: int | None) -> TimeOwner:
        return begun(owner, boottime, None)

    return patch.object(owners, "begun", begin)


def _amend_in_memory() -> Bug:
    def amend(self: Book, entry: LeaseEntry, owner: Any, reply: Any) -> None:
        entry.lease = attrs.evolve(entry.lease, owner=owner)
        self._watch(entry)
        self._answer(reply, entry.lease)

    return patch.object(Book, "_amend", amend)


def _usage_grows() -> Bug:
    add = UserTotals.add

    def only_add(self: UserTotals, lease: Any, sign: int = 1) -> None:
        if sign > 0:
            add(self, lease)

    return patch.object(UserTotals, "add", only_add)


def _keep_files() -> Bug:
    end = Book._end

    def keep(self: Book, entry: LeaseEntry) -> None:
        entry.filed = False
        end(self, entry)

    return patch.object(Book, "_end", keep)


def found(bug: Bug, seed: int) -> str | None:
    """Return how the test finds a bug; None if it does not."""
    once = hypothesis.settings(SETTINGS, database=None, phases=[hypothesis.Phase.generate])
    test = once(hypothesis.seed(seed)(hypothesis.given(SCRIPTS)(play)))
    with bug, contextlib.redirect_stdout(io.StringIO()):
        try:
            test()
        except Exception as error:  # noqa: BLE001 - whatever it finds
            return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


def main(arguments: list[str] | None = None) -> int:
    """Run the test with each bug."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args(arguments)
    missed = 0
    for name, bug in BUGS.items():
        if not options.names or name in options.names:
            results = [found(bug(), seed) for seed in range(options.seeds)]
            missed += not any(results)
            what = next(filter(None, results), "MISSED")[:100]
            sys.stdout.write(f"{len(results) - results.count(None)}/{len(results)}  {name}: {what}\n")
            sys.stdout.flush()
    return missed > 0


if __name__ == "__main__":
    sys.exit(main())

"""A registration is disturbed at each of its suspensions: Deregister follows each Register exactly once."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import cache

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.actors.registration.actor import _Registration
from plugind.protocol.messages.reconciler import StopForced
from plugind.testing import FakeHandler, FakePlugin, PluggedIn, SimulatedNode
from plugind.tests.actors.registration.scenarios import SCENARIOS, Scenario
from plugind.tests.actors.registration.suspensions import Place, Suspensions, When


@attrs.define(eq=False)
class Run:
    """One life of a plugin on a node, with one disturbance."""

    scenario: Scenario
    node: SimulatedNode
    handler: FakeHandler
    plugin: PluggedIn
    nursery: trio.Nursery
    done: trio.Event = attrs.Factory(trio.Event)
    stopped: bool = False
    killed: bool = False
    crashed: bool = False
    removed: bool = False
    #: How long the disturbance took.
    seconds: float = 0.0

    def start(self, do: Callable[[], Awaitable[object]]) -> None:
        async def doing() -> None:
            began = trio.current_time()
            await do()
            self.seconds = trio.current_time() - began
            self.done.set()

        self.nursery.start_soon(doing)


def do_nothing(run: Run) -> None:
    run.done.set()


def stop(run: Run) -> None:
    run.stopped = True
    run.start(run.node.stop)


def stop_and_deregister(run: Run) -> None:
    stop(run)


def stop_by_force(run: Run) -> None:
    run.node.supervisor.internals.reconciler.address.send_nowait(StopForced())
    stop(run)


def kill(run: Run) -> None:
    run.killed = True
    run.start(run.node.kill)


def remove_socket(run: Run) -> None:
    if run.node.directory.exists(run.plugin.path):
        run.plugin.unlink()
    run.done.set()


def replace(run: Run) -> None:
    run.plugin.restart()
    run.done.set()


def remove_handler(run: Run) -> None:
    run.removed = True

    async def remove() -> None:
        await run.node.supervisor.remove_handler("Colour")

    run.start(remove)


def crash_reconciler(run: Run) -> None:
    run.node.crash("reconciler")
    run.done.set()


def crash(run: Run) -> None:
    run.crashed = True
    run.node.crash("registration", "a.sock")


def poison(run: Run) -> None:
    crash(run)
    run.done.set()


def crash_both(run: Run) -> None:
    poison(run)
    crash_reconciler(run)


def throw(run: Run) -> None:
    run.crashed = True
    run.done.set()


Disturbance = Callable[[Run], None]
STOPS = (stop, stop_and_deregister, stop_by_force, kill)
DURING = (*STOPS, remove_socket, replace, remove_handler, crash_reconciler, poison, crash_both)
AFTER = (*STOPS, remove_socket, replace, remove_handler, crash_reconciler, throw)
#: Waits that only a cancellation ends early: no error comes from there.
RAISES_NOTHING = {"NameTurns.take", "HandlerCalls._run_in_thread"}
#: Longer than a handler that hangs, and than all pauses together.
LONG = 300.0


async def live(scenario: Scenario, suspensions: Suspensions, disturbance: Disturbance) -> None:
    handler = scenario.handler()
    config = attrs.evolve(scenario.config, deregister_at_stop=disturbance is stop_and_deregister)
    handlers = {} if config.observe else {"Colour": handler}
    with suspensions.watching(), scenario.played(handler):
        async with SimulatedNode(config, handlers=handlers) as node, trio.open_nursery() as nursery:
            plugin = node.plug("a.sock", scenario.plugin(), listening=not scenario.listens_after)
            run = Run(scenario, node, handler, plugin, nursery)
            suspensions.disturbance = lambda: disturbance(run)
            await trio.sleep(scenario.listens_after)
            if not plugin.alive and node.directory.exists(plugin.path):
                plugin.listen()
            if scenario.crashes:
                await trio.sleep(1.0)
                if not run.stopped and not run.killed:
                    crash(run)
            for _ in range(2):
                await trio.sleep(LONG)
                remove_socket(run)
            await trio.sleep(LONG)
            suspensions.ended = True
            await end(run)


async def end(run: Run) -> None:
    node, plugin, observes = run.node, run.plugin, run.scenario.config.observe
    await run.done.wait()
    check(run)
    later = FakeHandler()
    if run.stopped or run.killed:
        await node.start(handlers={} if observes else {"Colour": later})
    elif run.removed:
        await node.supervisor.add_handler("Colour", later)
    else:
        later = run.handler
        later.calm()
    before = len(later.calls)
    plugin.plugin = FakePlugin("Colour", "red")
    plugin.restart()
    await trio.sleep(300.0)
    registered = [] if observes else ["validate", "register"]
    assert node.state("a.sock") == ("observed" if observes else "registered")
    assert [call.ask for call in later.calls[before:]] == registered
    plugin.stop()
    await trio.sleep(10.0)
    assert [call.ask for call in later.calls[before:]] == registered + ([] if observes else ["deregister"])
    assert node.leftovers() == []
    assert run.handler.most_at_once <= 1


def check(run: Run) -> None:
    """Each Register is followed by its Deregister, unless plugind has stopped, and the plugin stays registered."""
    asked = [(ask, plugin.generation) for ask, plugin in run.handler.plugins if ask != "validate"]
    notified = [call.registered for call in run.plugin.calls if call.method == "NotifyRegistrationStatus"]
    registered: int | None = None
    for ask, generation in asked:
        if ask == "register":
            assert registered is None, asked
            registered = generation
        elif registered is None:
            # The successor of an actor that crashed in Deregister calls it once more.
            assert run.crashed, asked
            run.crashed = False
        else:
            assert generation == registered, asked
            registered = None
    if run.scenario.config.observe:
        assert (asked, notified) == ([], [])
    if registered is not None:
        # A call that outlasts the grace is left behind (fault 87).
        left_behind = run.stopped and run.seconds >= run.node.config.timeouts.stop_grace
        stays = run.stopped and not run.node.config.deregister_at_stop and notified[-1:] == [True]
        assert run.killed or stays or left_behind, asked


def play(scenario: Scenario, suspensions: Suspensions, disturbance: Disturbance) -> None:
    trio.run(live, scenario, suspensions, disturbance, clock=MockClock(autojump_threshold=0))


Places = tuple[tuple[Scenario, int, Place], ...]


@cache
def places() -> tuple[Places, Places]:
    """Return where a registration is ever suspended, each place with the first suspension there.

    The second part has the places of the scenarios that are disturbed everywhere, where others are suspended too.
    """
    once: dict[Place, tuple[Scenario, int, Place]] = {}
    again: dict[tuple[Place, str], tuple[Scenario, int, Place]] = {}
    for scenario in SCENARIOS:
        suspensions = Suspensions()
        play(scenario, suspensions, do_nothing)
        for number, place in enumerate(suspensions.places):
            found = (scenario, number, place)
            if once.setdefault(place, found)[0] is not scenario and scenario.everywhere:
                again.setdefault((place, scenario.name), found)
    return tuple(once.values()), tuple(again.values())


def disturb(disturbance: Disturbance, when: When, places: Places) -> None:
    for scenario, at, place in places:
        if scenario.config.observe and disturbance is remove_handler:
            continue  # There is none.
        if disturbance is throw and RAISES_NOTHING & dict(place).keys():
            continue
        try:
            play(scenario, Suspensions(at=at, when=when, crashes=disturbance is throw), disturbance)
        except BaseException as error:
            error.add_note(f"{scenario.name}: suspension {at}, {place}")
            raise


@pytest.mark.parametrize("disturbance", DURING, ids=lambda disturbance: disturbance.__name__)
def test_each_register_is_undone_once_whatever_happens_during_any_suspension(disturbance: Disturbance) -> None:
    """Behaviour 36, faults 82, 85 and 87."""
    disturb(disturbance, When.DURING, places()[0])


@pytest.mark.extended
@pytest.mark.parametrize("disturbance", DURING, ids=lambda disturbance: disturbance.__name__)
def test_each_register_is_undone_once_also_amid_full_inboxes_crashes_and_late_threads(disturbance: Disturbance) -> None:
    """Behaviour 36, faults 82, 85 and 87."""
    disturb(disturbance, When.DURING, places()[1])


@pytest.mark.extended
@pytest.mark.parametrize("disturbance", AFTER, ids=lambda disturbance: disturbance.__name__)
def test_each_register_is_undone_once_whatever_happens_before_it_goes_on(disturbance: Disturbance) -> None:
    """Behaviour 36, faults 82, 85 and 87. With ``throw`` what it waits for raises an error that no code expects."""
    for part in places():
        disturb(disturbance, When.AFTER, part)


def test_the_scenarios_are_suspended_in_every_coroutine_of_the_actor() -> None:
    suspended = {function for _, _, place in places()[0] for function, _ in place}
    functions = {
        function.__qualname__ for _, function in inspect.getmembers(_Registration, inspect.iscoroutinefunction)
    }
    assert functions - suspended == set()

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
from plugind.testing import DEFAULT_CONFIG, Fails, FakeHandler, FakePlugin, Hangs, PluggedIn, SimulatedNode, Takes
from plugind.tests.actors.registration.suspensions import Place, Suspensions, When


@attrs.define(eq=False)
class Scenario:
    name: str
    handler: Callable[[], FakeHandler]
    plugin: Callable[[], FakePlugin]
    #: The plugin binds its socket, and listens only after so many seconds.
    listens_after: float = 0.0


def red(**faults: object) -> Callable[[], FakePlugin]:
    return lambda: FakePlugin("Colour", "red", **faults)  # type: ignore[arg-type]


def slow() -> FakeHandler:
    handler = FakeHandler()
    for ask in ("validate", "register", "deregister"):
        handler.always(ask, Takes(1.0))
    return handler


SCENARIOS = (
    Scenario("plain", FakeHandler, red()),
    Scenario("listens late", FakeHandler, red(), 0.3),
    Scenario("slow", slow, red(delay=0.2)),
    Scenario("hangs in validate", lambda: FakeHandler().script("validate", Hangs()), red()),
    Scenario("hangs in register", lambda: FakeHandler().script("register", Hangs()), red()),
    Scenario("hangs in deregister", lambda: FakeHandler().script("deregister", Hangs()), red()),
    Scenario("refuses in validate", lambda: FakeHandler().script("validate", Fails("no")), red()),
    Scenario("fails in register", lambda: FakeHandler().script("register", Fails("no")), red()),
    Scenario("notify fails", FakeHandler, red(notify_fails=3)),
    Scenario("notify fails for ever", FakeHandler, red(notify_fails=6)),
    Scenario("GetInfo fails", FakeHandler, red(get_info_fails=1)),
)


@attrs.define(eq=False)
class Run:
    """One life of a plugin on a node, with one disturbance."""

    node: SimulatedNode
    handler: FakeHandler
    plugin: PluggedIn
    nursery: trio.Nursery
    done: trio.Event = attrs.Factory(trio.Event)
    stopped: bool = False
    killed: bool = False
    crashed: bool = False
    removed: bool = False

    def start(self, do: Callable[[], Awaitable[object]]) -> None:
        async def doing() -> None:
            await do()
            self.done.set()

        self.nursery.start_soon(doing)


def do_nothing(run: Run) -> None:
    run.done.set()


def stop(run: Run) -> None:
    run.stopped = True
    run.start(run.node.stop)


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


def poison(run: Run) -> None:
    run.crashed = True
    run.node.crash("registration", "a.sock")
    run.done.set()


def crash_both(run: Run) -> None:
    poison(run)
    crash_reconciler(run)


def throw(run: Run) -> None:
    run.crashed = True
    run.done.set()


Disturbance = Callable[[Run], None]
DURING = (stop, kill, remove_socket, replace, remove_handler, crash_reconciler, poison, crash_both)
AFTER = (stop, kill, remove_socket, replace, remove_handler, crash_reconciler, throw)
#: Longer than a handler that hangs, and than all pauses together.
LONG = 300.0
#: Without what looks at all sockets again and again, which would be most of the work.
CONFIG = attrs.evolve(DEFAULT_CONFIG, rescan=3600.0, hung_after=None)


async def live(
    scenario: Scenario,
    suspensions: Suspensions,
    disturbance: Disturbance,
) -> None:
    handler = scenario.handler()
    with suspensions.watching():
        async with (
            SimulatedNode(CONFIG, handlers={"Colour": handler}) as node,
            trio.open_nursery() as nursery,
        ):
            plugin = node.plug("a.sock", scenario.plugin(), listening=not scenario.listens_after)
            run = Run(node, handler, plugin, nursery)
            suspensions.disturbance = lambda: disturbance(run)
            await trio.sleep(scenario.listens_after)
            if not plugin.alive and node.directory.exists(plugin.path):
                plugin.listen()
            for _ in range(2):
                await trio.sleep(LONG)
                remove_socket(run)
            await trio.sleep(LONG)
            suspensions.ended = True
            await end(run)


async def end(run: Run) -> None:
    node, plugin = run.node, run.plugin
    await run.done.wait()
    check(run)
    later = FakeHandler()
    if run.stopped or run.killed:
        await node.start(handlers={"Colour": later})
    elif run.removed:
        await node.supervisor.add_handler("Colour", later)
    else:
        later = run.handler
        later.calm()
    before = len(later.calls)
    plugin.plugin = FakePlugin("Colour", "red")
    plugin.restart()
    await trio.sleep(300.0)
    assert node.state("a.sock") == "registered"
    assert [call.ask for call in later.calls[before:]] == ["validate", "register"]
    plugin.stop()
    await node.settled()
    assert [call.ask for call in later.calls[before:]] == ["validate", "register", "deregister"]
    assert node.leftovers() == []


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
    if registered is not None:
        assert run.killed or (run.stopped and notified[-1:] == [True]), asked


def play(scenario: Scenario, suspensions: Suspensions, disturbance: Disturbance) -> None:
    trio.run(live, scenario, suspensions, disturbance, clock=MockClock(autojump_threshold=0))


@cache
def places() -> dict[Place, tuple[Scenario, int]]:
    """Return where a registration is ever suspended, each place with the first suspension there."""
    first: dict[Place, tuple[Scenario, int]] = {}
    for scenario in SCENARIOS:
        suspensions = Suspensions()
        play(scenario, suspensions, do_nothing)
        for number, place in enumerate(suspensions.places):
            first.setdefault(place, (scenario, number))
    return first


def disturb(disturbance: Disturbance, when: When) -> None:
    for place, (scenario, at) in places().items():
        try:
            play(scenario, Suspensions(at=at, when=when, crashes=disturbance is throw), disturbance)
        except BaseException as error:
            error.add_note(f"{scenario.name}: suspension {at}, {place}")
            raise


@pytest.mark.parametrize("disturbance", DURING, ids=lambda disturbance: disturbance.__name__)
def test_each_register_is_undone_once_whatever_happens_during_any_suspension(disturbance: Disturbance) -> None:
    """Behaviour 36, faults 82, 85 and 87."""
    disturb(disturbance, When.DURING)


@pytest.mark.parametrize("disturbance", AFTER, ids=lambda disturbance: disturbance.__name__)
def test_each_register_is_undone_once_whatever_happens_before_it_goes_on(disturbance: Disturbance) -> None:
    """Behaviour 36, faults 82, 85 and 87. With ``throw`` what it waits for raises an error that no code expects."""
    disturb(disturbance, When.AFTER)


#: Where no scenario is suspended: in observe mode, after a crash, and while the reconciler's inbox is full.
ELSEWHERE = {"_ask_again", "_clean_up", "_send_rest"}


def test_the_scenarios_are_suspended_in_every_coroutine_of_the_actor() -> None:
    suspended = {function for place in places() for function, _ in place}
    functions = {
        function.__qualname__ for _, function in inspect.getmembers(_Registration, inspect.iscoroutinefunction)
    }
    assert {name.split(".")[1] for name in functions - suspended} == ELSEWHERE

"""Lifecycles, handlers and World together: for any order of messages, actual becomes desired."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from plugind.protocol import messages as m
from plugind.protocol import states as s
from plugind.protocol.plugins import InstancePolicy, PluginInfo
from plugind.protocol.world import World
from plugind.tests.protocol.node import Node

POLICIES = {"A": InstancePolicy.ALL, "N": InstancePolicy.NEWEST, "R": InstancePolicy.REJECT}
#: Seven sockets of three types; several have one name.
NAMES = {
    "/r/1": ("A", "x"),
    "/r/2": ("A", "x"),
    "/r/3": ("N", "x"),
    "/r/4": ("N", "x"),
    "/r/5": ("N", "x"),
    "/r/6": ("R", "x"),
    "/r/7": ("R", "x"),
}
INFOS = {path: PluginInfo(kind, name, path, ("1.0.0",)) for path, (kind, name) in NAMES.items()}
SEEDS = st.integers(min_value=0, max_value=2**32)


def disturb(node: Node, *, crashes: bool = False) -> None:
    """Cause an event from outside: a socket or a handler appears or disappears, or a caller requests a retry."""
    path = node.rng.choice(sorted(NAMES))
    kind = NAMES[path][0]
    choice = node.rng.random()
    if choice < 0.15:
        if kind in node.handlers:
            node.remove_handler(kind)
        elif not any(not handler.retired for handler in node.retired):
            node.add_handler(kind)
    elif choice < 0.25:
        node.mail["watcher"].append(m.SocketTouched(path, node.there.get(path, 0)))
    elif choice < 0.3:
        node.mail["callers"].append(m.RetryAsked(path, Caller()))
    elif choice < 0.4 and crashes:
        actor = node.actors.get(path)
        if actor is not None and not actor.dead:
            node.crash(actor)
    elif path in node.there and choice < 0.65:
        node.vanish(path)
    else:
        node.appear(path)


class Caller:
    """A caller that reads no answers."""

    def send_nowait(self, message: m.RetryAnswered, /) -> None:
        assert message.answers is not None


def disturbed(seed: int, *, crashes: bool = False) -> Node:
    node = Node(INFOS, POLICIES, seed)
    for kind in POLICIES:
        node.add_handler(kind)
    for _ in range(node.rng.randrange(30)):
        disturb(node, crashes=crashes)
        node.run(node.rng.randrange(25))
    return node


def check_converged(node: Node) -> None:
    """Check that exactly the sockets that can be registered are."""
    assert node.world.desired() == node.there
    assert node.registered() == node.world.actual()
    for kind, policy in POLICIES.items():
        wanted = {path: generation for path, generation in node.there.items() if NAMES[path][0] == kind}
        actual = {path: generation for path, generation in node.world.actual().items() if NAMES[path][0] == kind}
        if kind not in node.handlers:
            assert actual == {}
        elif policy is InstancePolicy.REJECT:
            assert len(actual) == min(1, len(wanted))
            assert actual.items() <= wanted.items()
        else:
            assert actual == wanted
        active = [path for path, generation in actual.items() if node.roles.get((path, generation), True)]
        assert len(active) == (min(1, len(actual)) if policy is InstancePolicy.NEWEST else len(actual))


def check_empty(world: World) -> None:
    """Check that the world keeps nothing about sockets that are gone; the names of their plugins are kept a while."""
    world.pass_turns(math.inf)
    # The last holders of names are remembered, a bounded number of them (test_tables_at_rest).
    settings = ("_effects", "_handlers", "_users", "_max_instances", "_now", "_former")
    remembered = {name: value for name, value in vars(world).items() if name not in settings}
    assert {name: value for name, value in remembered.items() if value} == {}


@settings(max_examples=150)
@given(SEEDS)
def test_every_interleaving_ends_with_actual_equal_to_desired(seed: int) -> None:
    """Test_Run_Positive_Register, Test_Run_Positive_RegisterThenUnregister and Test_Run_Positive_ReRegister: any order.

    Behaviours 19 to 21 and 34 to 37.
    """
    node = disturbed(seed)

    node.settle()

    check_converged(node)


@settings(max_examples=100)
@given(SEEDS)
def test_actors_recover_from_crashes_in_every_interleaving(seed: int) -> None:
    """Fault 85."""
    node = disturbed(seed, crashes=True)

    node.settle()

    check_converged(node)


@settings(max_examples=100)
@given(SEEDS, st.booleans())
def test_nothing_is_kept_of_sockets_that_are_gone(seed: int, crashes: bool) -> None:
    """Names, claims and desired sockets do not leak. A removed handler retires after its last plugin."""
    node = disturbed(seed, crashes=crashes)
    for path in list(node.there):
        node.vanish(path)
    for kind in list(node.handlers):
        node.remove_handler(kind)

    node.settle()

    check_empty(node.world)
    assert all(actor.dead for actor in node.actors.values())
    assert all(handler.retired and not handler.registered for handler in node.retired)


@settings(max_examples=100)
@given(SEEDS, st.sampled_from([m.StopAsked(), m.StopAsked(deregister=True), m.StopForced()]))
def test_a_stop_finishes_in_every_interleaving(seed: int, stop: m.StopAsked | m.StopForced) -> None:
    """Behaviour 42, fault 87: nothing new begins, and no plugin stays half registered."""
    node = disturbed(seed)
    node.mail["supervisor"].append(stop)
    for path in sorted(NAMES):
        disturb_only_sockets(node, path)

    node.settle()

    assert node.finished
    assert all(actor.dead for actor in node.actors.values())
    left = node.registered()
    assert left == {} or stop != m.StopAsked(deregister=True)
    assert all(node.actors[path].state == s.Gone(generation, stopped=True) for path, generation in left.items())


def disturb_only_sockets(node: Node, path: str) -> None:
    if node.rng.random() < 0.3:
        node.appear(path)


@given(SEEDS)
def test_at_most_one_plugin_of_a_name_is_between_validation_and_registration(seed: int) -> None:
    """Behaviours 20, 21 and 37: of two plugins at once, the second is validated after the first is registered."""
    node = disturbed(seed)
    node.settle()

    for handler in (*node.handlers.values(), *node.retired):
        validated: str | None = None
        for call in handler.calls:
            ask, _, instance = call.partition(" ")
            if ask == "Register":
                assert instance == validated, handler.calls
            validated = instance if ask == "Validate" else None if ask == "Register" else validated

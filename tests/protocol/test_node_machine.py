"""A node of pure parts as a state machine. The rules hold for any order of events, and actual becomes desired.

``World`` and a lifecycle for each socket are connected in memory. ``plugind.tests.protocol.rules`` checks each call
of a plugin or a handler. This machine keeps its own model of the sockets, and compares it with the node at the end.
"""

from __future__ import annotations

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from plugind.protocol import messages as m
from plugind.protocol import states as s
from plugind.protocol.identity import Identity
from plugind.protocol.plugins import InstancePolicy, PluginInfo, highest_version
from plugind.protocol.status import StateName
from plugind.tests.protocol.hypothesis_settings import examples
from plugind.tests.protocol.node import Actor, Node

#: There are two types, two names and two versions for five paths, so names collide, and a recreated socket may have
#: another name.
PATHS = st.sampled_from(["/r/1", "/r/2", "/r/3", "/r/4", "/r/5"])
TYPES = st.sampled_from(["T", "T", "T", "U"])
NAMES = st.sampled_from(["x", "x", "x", "y"])
VERSIONS = st.sampled_from(["1.0.0", "1.1.0"])
#: Rare events share one rule, so that they are not as frequent as common ones.
RARE_EVENTS = st.sampled_from(
    ["touch", "retry", "retry", "report", "restart", "refuse", "unrefuse", "handler", "crash"]
)
CHOICES = st.lists(st.integers(0, 255), min_size=1, max_size=40)


@attrs.define(eq=False)
class Asker:
    """The caller who requested a retry."""

    answers: list[m.RetryAnswered] = attrs.Factory(list)

    def send_nowait(self, message: m.RetryAnswered, /) -> None:
        self.answers.append(message)


class NodeMachine(RuleBasedStateMachine):
    """Its rules are events from outside; ``follow`` makes the resulting steps inside the node."""

    node: Node
    #: The latest generation that the watcher sent for each path; the world may have an older one.
    seen: dict[str, int]
    #: Paths with an entry that is not a socket.
    refused: dict[str, int]

    @initialize(
        policies=st.tuples(*[st.sampled_from(InstancePolicy)] * 2),
        handlers=st.sampled_from([("T", "U"), ("T", "U"), ("T",), ()]),
        first=st.sets(PATHS, min_size=2),
        choices=st.lists(st.integers(0, 223), min_size=20, max_size=60),
    )
    def begin(
        self,
        policies: tuple[InstancePolicy, InstancePolicy],
        handlers: tuple[str, ...],
        first: set[str],
        choices: list[int],
    ) -> None:
        self.node = Node({}, dict(zip("TU", policies, strict=True)), 0)
        self.seen, self.refused = {}, {}
        for plugin_type in handlers:
            self.node.add_handler(plugin_type)
        for path in sorted(first):
            # All have one name, since most faults are between plugins of one name.
            self.a_socket_appears(path, "T", "x", "1.0.0")
        self.make_steps(choices)

    # --- events from outside ---

    @precondition(lambda self: not self.stopped)
    @rule(path=PATHS, plugin_type=TYPES, name=NAMES, version=VERSIONS)
    def a_socket_appears(self, path: str, plugin_type: str, name: str, version: str) -> None:
        self.node.infos[path] = PluginInfo(plugin_type, name, path, (version,))
        self.node.appear(path)
        self.seen[path] = self.node.generation
        self.refused.pop(path, None)

    @rule(path=PATHS)
    def a_socket_vanishes(self, path: str) -> None:
        if self.node.there.pop(path, None) is not None:
            self.send(m.SocketVanished(path, self.seen.pop(path)))

    @rule(what=RARE_EVENTS, path=PATHS, plugin_type=TYPES, name=NAMES, lost=st.sets(PATHS, max_size=2))
    def a_rare_event_happens(self, what: str, path: str, plugin_type: str, name: str, lost: set[str]) -> None:
        match what:
            case "touch":
                self.a_socket_is_touched(path)
            case "retry":
                self.a_retry_is_requested(path)
            case "report":
                self.node.mail["status"].append(m.ReportAsked())
            case "restart":
                self.the_watcher_is_restarted(lost)
            case "refuse":
                self.another_entry_appears(path)
            case "unrefuse":
                self.another_entry_vanishes(path)
            case "handler":
                self.a_handler_is_added_or_removed(plugin_type)
            case "crash" if not self.stopped:
                self.an_actor_crashes(path)
            case _:
                pass

    def a_socket_is_touched(self, path: str) -> None:
        self.send(m.SocketTouched(path, self.seen.get(path, 0)))

    def another_entry_appears(self, path: str) -> None:
        self.node.there.pop(path, None)
        self.seen.pop(path, None)
        self.node.generation += 1
        self.refused[path] = self.node.generation
        self.send(m.EntryRefused(path, self.node.generation, "/reg", "a symbolic link", 0.0))

    def another_entry_vanishes(self, path: str) -> None:
        if path in self.refused:
            self.send(m.SocketVanished(path, self.refused.pop(path)))

    def the_watcher_is_restarted(self, lost: set[str]) -> None:
        """Fault 85: no message reports what vanished in the meantime, and the other sockets get newer generations."""
        for path in sorted(lost):
            for entries in (self.node.there, self.seen, self.refused):
                entries.pop(path, None)
        for path in sorted(self.node.there):
            identity = Identity(1, self.node.there[path], self.node.there[path])
            self.node.generation += 1
            self.seen[path] = self.node.generation
            self.send(m.SocketAppeared(path, self.node.generation, identity, "/reg", 0.0, first_scan=True))
        paths = frozenset(self.node.there) | frozenset(self.refused)
        self.send(m.ScanCompleted("/reg", first=True, paths=paths))
        self.send(m.ScanCompleted("/elsewhere", first=True, paths=frozenset()))

    def a_handler_is_added_or_removed(self, plugin_type: str) -> None:
        if plugin_type in self.node.handlers:
            self.node.remove_handler(plugin_type)
        else:
            self.node.add_handler(plugin_type)

    def a_retry_is_requested(self, path: str) -> None:
        self.node.mail["callers"].append(m.RetryAsked(path, Asker()))

    def an_actor_crashes(self, path: str) -> None:
        actor = self.node.actors.get(path)
        if actor is not None and not actor.dead:
            self.node.crash(actor)

    @rule(choices=CHOICES)
    def follow(self, choices: list[int]) -> None:
        """Make some of the possible steps; one call in eight fails."""
        self.make_steps(choices)

    @rule(choices=CHOICES)
    def follow_on(self, choices: list[int]) -> None:
        """Do the same as ``follow``, so that steps are as frequent as events from outside."""
        self.make_steps(choices)

    def make_steps(self, choices: list[int]) -> None:
        for choice in choices:
            picks = self.node.picks(faults=True, goes_well=choice < 224)
            if not picks:
                return
            picks[choice % len(picks)]()

    @precondition(lambda self: len(self.node.calls()) > 30)
    @rule(how=st.sampled_from([m.StopAsked(), m.StopAsked(deregister=True), m.StopForced()]))
    def stop(self, how: m.StopAsked | m.StopForced) -> None:
        self.stops.append(how)
        self.node.mail["supervisor"].append(how)

    # --- invariants ---

    @invariant()
    def one_operation_is_under_way_per_path(self) -> None:
        if hasattr(self, "node"):
            under_way = [
                lane[0].plugin.socket
                for handler in self.node.all_handlers()
                for lane in handler.lanes.values()
                if lane and not isinstance(lane[0], m.Validate)
            ]
            assert len(under_way) == len(set(under_way)), under_way

    @invariant()
    def the_difference_is_that_of_the_two_worlds(self) -> None:
        if hasattr(self, "node"):
            world = self.node.world
            desired, actual = set(world.desired().items()), set(world.actual().items())
            to_unregister, to_register = world.difference()
            assert to_unregister == {path for path, _ in actual - desired}
            assert to_register == {path for path, _ in desired - actual}

    def teardown(self) -> None:
        if not hasattr(self, "node"):
            return
        self.node.settle()
        self.node.rules.check_rest(
            {instance for handler in self.node.all_handlers() for instance in handler.registered}
        )
        if self.stopped:
            self.check_stopped()
        else:
            self.check_converged()

    # --- the model ---

    def __init__(self) -> None:
        super().__init__()
        self.stops: list[m.StopAsked | m.StopForced] = []

    @property
    def stopped(self) -> bool:
        return bool(self.stops)

    def send(self, message: m.ReconcilerMessage) -> None:
        self.node.mail["watcher"].append(message)

    def check_stopped(self) -> None:
        """Behaviour 42."""
        assert self.node.finished
        assert all(actor.dead for actor in self.node.actors.values())
        left = self.node.registered()
        for path, generation in left.items():
            assert self.node.actors[path].state == s.Gone(generation, stopped=True)

    def check_converged(self) -> None:
        """Exactly the desired sockets are registered, and the active ones follow from the policy."""
        node = self.node
        assert node.world.desired() == node.there
        assert node.registered() == node.world.actual()
        assert node.world.difference()[0] == set()
        shown = {path: change.generation for path, change in node.shown.items() if change.state is StateName.PARKED}
        assert shown == self.refused
        assert all(change.state in (StateName.PARKED, StateName.GONE) for change in node.shown.values())
        for key in {(info.type, info.name) for info in node.infos.values()}:
            self.check_name(*key)
        for path, actor in node.actors.items():
            assert actor.dead == (path not in node.there)

    def check_name(self, plugin_type: str, name: str) -> None:
        node = self.node
        infos = [(path, node.infos[path]) for path in node.there]
        wanted = {path: node.there[path] for path, info in infos if (info.type, info.name) == (plugin_type, name)}
        actual = {path: generation for path, generation in node.registered().items() if path in wanted}
        if plugin_type not in node.handlers:
            assert actual == {}
            assert all(self.parked_for(node.actors[path], plugin_type) for path in wanted)
            return
        policy = node.policies[plugin_type]
        if policy is InstancePolicy.REJECT:
            assert len(actual) == min(1, len(wanted))
            assert actual.items() <= wanted.items()
        else:
            assert actual == wanted
        active = {path for path, generation in actual.items() if node.roles.get((path, generation), True)}
        assert active == self.expected_active(policy, list(actual))

    def expected_active(self, policy: InstancePolicy, actual: list[str]) -> set[str]:
        """Behaviour 37: ``actual`` has no order, so the order of the handler's calls determines the newest."""
        if policy in (InstancePolicy.ALL, InstancePolicy.REJECT) or not actual:
            return set(actual)
        order = self.node.announced
        newest = max(actual, key=lambda path: order.index((path, self.node.there[path])))
        if policy is InstancePolicy.NEWEST:
            return {newest}
        versions = {path: str(highest_version(self.node.infos[path].versions)) for path in actual}
        best = max(versions.values())
        ranked = [path for path in actual if versions[path] == best]
        return {max(ranked, key=lambda path: order.index((path, self.node.there[path])))}

    @staticmethod
    def parked_for(actor: Actor, plugin_type: str) -> bool:
        return isinstance(actor.state, s.Parked) and actor.state.until_type == plugin_type


TestNode = NodeMachine.TestCase
TestNode.settings = examples(40, steps=40)

"""What must hold on every node, told from outside: from what plugins and handlers are asked, and in which order.

A second opinion on `plugind.protocol.lifecycle` and `plugind.protocol.world`, which knows none of their states but
for the count of tries. The rules are those of docs/simulation.md, as far as they need no clock.
"""

from __future__ import annotations

from collections import defaultdict

import attrs

from plugind.protocol import messages as m
from plugind.protocol import states as s
from plugind.protocol.plugins import InstancePolicy, PluginInfo

#: A path and the generation of its socket.
Instance = tuple[str, int]


def instance_of(ask: m.Ask) -> Instance:
    return ask.plugin.socket, ask.plugin.generation


@attrs.define(eq=False)
class Rules:
    """Checks each word as it is said."""

    policies: dict[str, InstancePolicy] = attrs.Factory(dict)
    #: The plugin that was asked to be registered at a path, and not yet let go.
    held: dict[str, m.Register] = attrs.Factory(dict)
    #: Those of them of which the handler said that it has them.
    taken: set[Instance] = attrs.Factory(set)
    #: Instances that the handler found valid, and that were not asked to be registered since.
    valid: set[Instance] = attrs.Factory(set)
    #: Those that are being let go: asked, and not answered.
    leaving: dict[str, m.Deregister] = attrs.Factory(dict)
    #: What the plugin at each path said that it is, when it last asked for its name.
    claimed: dict[str, PluginInfo] = attrs.Factory(dict)
    #: Held ones that were told to go.
    told_to_go: set[str] = attrs.Factory(set)
    #: Paths whose actor crashed: it may be said again what was said, and later than else.
    excused: set[str] = attrs.Factory(set)
    #: A stop was asked: whoever is admitted was told of the stop before, and does nothing with it.
    stopping: bool = False
    #: How often each path was tried since something allowed it a fresh start.
    tries: dict[str, int] = attrs.Factory(lambda: defaultdict(int))
    #: How often the plugin was told of its registration, without success, since it was registered.
    notify_tries: dict[str, int] = attrs.Factory(lambda: defaultdict(int))

    # --- what a handler is asked ---

    def asked(self, ask: m.Ask) -> None:
        path, instance = ask.plugin.socket, instance_of(ask)
        match ask:
            case m.Validate():
                assert path not in self.held, f"{path} is validated while it is registered"
                self.valid.discard(instance)
                self.excused.discard(path)
            case m.Register():
                assert instance in self.valid, f"{instance} is registered without a Validate"
                assert path not in self.held, f"{path} is registered twice"
                self._check_alone(ask.plugin.socket, ask.plugin.type, ask.plugin.name)
                self.valid.discard(instance)
                self.held[path] = ask
                self.notify_tries[path] = 0
            case m.Deregister():
                self._check_deregister(ask)
                self.leaving[path] = ask

    def _check_alone(self, path: str, plugin_type: str, name: str) -> None:
        others = self._others(path, plugin_type, name)
        if self.policies[plugin_type] is InstancePolicy.REJECT:
            assert not others, f"{path} is registered beside {others}"

    def _others(self, path: str, plugin_type: str, name: str) -> list[str]:
        held = [held.plugin for other, held in self.held.items() if other != path]
        return [other.socket for other in held if (other.type, other.name) == (plugin_type, name)]

    def told(self, path: str, message: m.RegistrationMessage) -> None:
        """Behaviours 20, 21 and 37: who is told to go is let go before another of that name is admitted."""
        match message:
            case m.SocketAppeared() | m.SocketVanished() | m.HandlerWithdrawn():
                if path in self.held:
                    self.told_to_go.add(path)
            case m.StopAsked() | m.StopForced():
                self.stopping = True
            case m.Admitted() if not self.stopping:
                info = self.claimed[path]
                self._check_alone(path, info.type, info.name)
                going = self.told_to_go & set(self._others(path, info.type, info.name))
                assert not going, f"{path} is admitted before {going} are let go"
            case _:
                pass

    def _check_deregister(self, ask: m.Deregister) -> None:
        path = ask.plugin.socket
        if path in self.excused:
            return
        held = self.held.get(path)
        assert held is not None, f"{path} is let go, and is not registered"
        assert held.plugin == ask.plugin, "what is let go is what was registered"
        assert path not in self.leaving, f"{path} is let go twice"

    def answered(self, ask: m.Ask, *, ok: bool) -> None:
        instance = instance_of(ask)
        match ask:
            case m.Validate() if ok:
                self.valid.add(instance)
            case m.Register() if ok and self.held.get(ask.plugin.socket) is ask:
                self.taken.add(instance)
            case m.Deregister():
                self.taken.discard(instance)
                self.held.pop(ask.plugin.socket, None)
                self.leaving.pop(ask.plugin.socket, None)
                self.told_to_go.discard(ask.plugin.socket)
            case _:
                pass

    # --- what a plugin is asked, and when ---

    def stepped(self, path: str, before: s.State, event: s.Event, after: s.State) -> None:
        if after != before and is_fresh(before, event):
            self.tries[path] = 0

    def performed(self, path: str, state: s.State, command: s.Command) -> None:
        match command:
            case s.Dial():
                if path not in self.held:
                    self.tries[path] += 1
            case s.AskInfo():
                assert path not in self.held
            case s.Notify(error=None):
                assert (path, state.generation) in self.taken, f"{path} is told of what was not registered"
                self.notify_tries[path] += 1
            case s.Notify():
                assert (path, state.generation) not in self.taken, f"{path} is registered, and is told that it is not"
            case s.StartTimer():
                pending = s.pending_deregistration(state) is not None
                assert pending == (path in self.held)
                expected = self.tries[path] if not pending else None
                assert expected is None or command.failures == expected, f"{path}: {command} after {expected} tries"
            case _:
                pass

    def crashed(self, path: str) -> None:
        # What it asked of the handler goes on, and its successor lets go of what may have come of it.
        self.excused.add(path)

    def check_rest(self, registered: set[Instance]) -> None:
        """When nothing is under way, what is held is what the handlers have."""
        assert not self.leaving
        assert {instance_of(held) for held in self.held.values()} == registered == self.taken


def is_fresh(before: s.State, event: s.Event) -> bool:
    """Whether an event that changes something lets a path begin with its first try again (behaviour 23)."""
    parked = isinstance(before, s.Parked)
    if isinstance(before, s.Refusing | s.Leaving):
        parked = isinstance(before.then, s.ThenPark)
    match event:
        case m.SocketAppeared() | m.HandlerWithdrawn() | m.HandlerAvailable():
            return True
        case m.TryNow():
            return s.pending_deregistration(before) is None or isinstance(before, s.Refusing)
        case m.SocketTouched():
            return parked
        case _:
            return False

"""Checks the rules that hold on every node, using the calls to plugins and handlers and the order of these calls.

The checks do not rely on the decisions of ``plugind.protocol.lifecycle`` and ``plugind.protocol.world``.
docs/simulation.md describes the rules; those that need a clock are not checked here.
"""

from __future__ import annotations

from collections import defaultdict

import attrs

from plugind.protocol import messages as m
from plugind.protocol import states as s
from plugind.protocol.effects import StartRegistration
from plugind.protocol.plugins import InstancePolicy, PluginInfo

#: A path and the generation of its socket.
Instance = tuple[str, int]


def instance_of(ask: m.Ask) -> Instance:
    return ask.plugin.socket, ask.plugin.generation


@attrs.define(eq=False)
class Rules:
    """Records calls and messages, and checks each one when it is made."""

    policies: dict[str, InstancePolicy] = attrs.Factory(dict)
    #: For each path, the Register that no Deregister has undone yet.
    registered: dict[str, m.Register] = attrs.Factory(dict)
    #: Instances whose Register succeeded.
    taken: set[Instance] = attrs.Factory(set)
    #: Instances that passed validation and have had no Register since.
    valid: set[Instance] = attrs.Factory(set)
    #: For each path, the Deregister that is not answered yet.
    leaving: dict[str, m.Deregister] = attrs.Factory(dict)
    #: The info of the plugin at each path when it last claimed its name.
    claimed: dict[str, PluginInfo] = attrs.Factory(dict)
    #: Registered paths whose actor got a message after which it must deregister.
    must_leave: set[str] = attrs.Factory(set)
    #: Paths whose actor crashed: calls may be repeated, and may come later than usual.
    crashed_paths: set[str] = attrs.Factory(set)
    #: Whether a stop was requested. An actor that is admitted after that ignores its admission.
    stopping: bool = False
    #: Paths whose dial just found another file there.
    replaced: set[str] = attrs.Factory(set)
    #: For each path, the number of tries since its last fresh start.
    tries: dict[str, int] = attrs.Factory(lambda: defaultdict(int))
    #: For each path, the number of notifications of success since the Register.
    notify_tries: dict[str, int] = attrs.Factory(lambda: defaultdict(int))

    # --- calls of handlers ---

    def asked(self, ask: m.Ask) -> None:
        path, instance = ask.plugin.socket, instance_of(ask)
        match ask:
            case m.Validate():
                assert path not in self.registered, f"{path} is validated while it is registered"
                self.valid.discard(instance)
                self.crashed_paths.discard(path)
            case m.Register():
                assert instance in self.valid, f"{instance} is registered without a Validate"
                assert path not in self.registered, f"{path} is registered twice"
                self._check_alone(ask.plugin.socket, ask.plugin.type, ask.plugin.name)
                self.valid.discard(instance)
                self.registered[path] = ask
                self.notify_tries[path] = 0
            case m.Deregister():
                self._check_deregister(ask)
                self.leaving[path] = ask

    def _check_alone(self, path: str, plugin_type: str, name: str) -> None:
        others = self._others(path, plugin_type, name)
        if self.policies[plugin_type] is InstancePolicy.REJECT:
            assert not others, f"{path} is registered beside {others}"

    def _others(self, path: str, plugin_type: str, name: str) -> list[str]:
        others = [ask.plugin for other, ask in self.registered.items() if other != path]
        return [other.socket for other in others if (other.type, other.name) == (plugin_type, name)]

    def sent(self, path: str, message: m.RegistrationMessage) -> None:
        """Behaviours 20, 21 and 37: a plugin that must leave is deregistered before another of its name is admitted."""
        match message:
            case m.SocketAppeared() | m.SocketVanished() | m.HandlerWithdrawn():
                if path in self.registered:
                    self.must_leave.add(path)
            case m.StopAsked() | m.StopForced():
                self.stopping = True
            case m.Admitted() if not self.stopping:
                info = self.claimed[path]
                self._check_alone(path, info.type, info.name)
                leaving = self.must_leave & set(self._others(path, info.type, info.name))
                assert not leaving, f"{path} is admitted before {leaving} are deregistered"
            case _:
                pass

    def _check_deregister(self, ask: m.Deregister) -> None:
        path = ask.plugin.socket
        if path in self.crashed_paths:
            return
        registered = self.registered.get(path)
        assert registered is not None, f"{path} is deregistered without a Register"
        assert registered.plugin == ask.plugin, "a Deregister must name the plugin that its Register named"
        assert path not in self.leaving, f"{path} is deregistered twice"

    def answered(self, ask: m.Ask, *, ok: bool) -> None:
        instance = instance_of(ask)
        match ask:
            case m.Validate() if ok:
                self.valid.add(instance)
            case m.Register() if ok and self.registered.get(ask.plugin.socket) is ask:
                self.taken.add(instance)
            case m.Deregister():
                self.taken.discard(instance)
                self.registered.pop(ask.plugin.socket, None)
                self.leaving.pop(ask.plugin.socket, None)
                self.must_leave.discard(ask.plugin.socket)
            case _:
                pass

    # --- calls of plugins ---

    def stepped(self, path: str, before: s.State, event: s.Event, after: s.State) -> None:
        if after != before and is_fresh(before, event):
            self.tries[path] = 0

    def performed(self, path: str, state: s.State, command: s.Command) -> None:
        match command:
            case s.Dial():
                if path not in self.registered:
                    self.tries[path] += 1
            case s.AskInfo():
                assert path not in self.registered
            case s.Notify(error=None):
                assert (path, state.generation) in self.taken, (
                    f"{path} is notified of a registration that does not exist"
                )
                self.notify_tries[path] += 1
            case s.Notify():
                assert (path, state.generation) not in self.taken, f"{path} is registered, and is notified of a failure"
            case s.ReportReplaced():
                self.replaced.add(path)
                if path not in self.registered:
                    self.tries[path] -= 1  # No plugin was reached: the try does not count (fault 41).
            case s.StartTimer():
                pending = s.pending_deregistration(state) is not None
                assert pending == (path in self.registered)
                expected = self.tries[path] if not pending else None
                if path in self.replaced:
                    self.replaced.remove(path)
                    expected = 1
                assert expected is None or command.failures == expected, f"{path}: {command} after {expected} tries"
            case _:
                pass

    def started(self, path: str, effect: StartRegistration) -> None:
        """Fault 85: after a crash, the successor waits by the number of crashes; a newer socket does not wait."""
        crash, pending = effect.crash, effect.to_deregister
        waits = pending is None or pending.generation == effect.appeared.generation
        self.tries[path] = crash.count if crash is not None and waits else 0

    def crashed(self, path: str) -> None:
        # Calls of the crashed actor continue in the handler, and its successor deregisters whatever they may register.
        self.crashed_paths.add(path)

    def check_rest(self, registered: set[Instance]) -> None:
        """Check that the plugins with a Register are those that the handlers hold. No call may be in progress."""
        assert not self.leaving
        assert {instance_of(ask) for ask in self.registered.values()} == registered == self.taken


def is_fresh(before: s.State, event: s.Event) -> bool:
    """Return whether an event that changes the state resets the count of tries (behaviour 23)."""
    match event:
        case m.SocketAppeared() | m.HandlerWithdrawn() | m.HandlerAvailable():
            return True
        case m.ListenerFound() | m.ListenerLost():
            return True
        case m.TryNow():
            return s.pending_deregistration(before) is None or isinstance(before, s.Refusing)
        case _:
            return False

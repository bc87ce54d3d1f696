"""A whole node for tests, made of pure parts: a World, a lifecycle for each socket, handlers with lanes, no clock.

Concurrency is modelled as a set of steps that may happen next, of which the seed of a test picks one after another. The
rules that hold for every node are checked while it runs (``plugind.tests.protocol.rules``).
"""

from __future__ import annotations

import math
import random
from collections import defaultdict, deque
from collections.abc import Callable

import attrs

from plugind.protocol import lifecycle
from plugind.protocol import messages as m
from plugind.protocol import states as s
from plugind.protocol import world as w
from plugind.protocol.config_messages import CallTimeChanged, SettingsChanged
from plugind.protocol.plugins import InstancePolicy, Plugin, PluginInfo
from plugind.protocol.status import Outcome
from plugind.tests.protocol.sockets import appeared
from plugind.tests.protocol.rules import Rules

Pick = Callable[[], None]

#: The outcomes of a dial that reaches no plugin.
NOT_DIALED = (s.Failed("refused", s.Retry.STALE), s.Replaced())


@attrs.define(eq=False)
class Handler:
    """A handler that keeps the registered plugins and answers one call at a time for each name."""

    rules: Rules
    lanes: dict[str, deque[m.Ask]] = attrs.Factory(lambda: defaultdict(deque))
    registered: dict[tuple[str, int], str] = attrs.Factory(dict)
    retired: bool = False
    calls: list[str] = attrs.Factory(list)

    def send_nowait(self, message: m.HandlerMessage, /) -> None:
        if isinstance(message, m.Withdraw):
            lane = self.lanes[message.ask.plugin.name]
            self.lanes[message.ask.plugin.name] = deque(ask for ask in lane if ask is not message.ask)
            return
        assert not isinstance(message, m.GiveWay | CallTimeChanged), "no call waits for an endpoint, or has a time"
        assert not self.retired, f"{message} is sent to a handler that has retired"
        self.rules.asked(message)
        self.lanes[message.plugin.name].append(message)

    def answer(self, name: str, *, well: bool) -> None:
        ask = self.lanes[name].popleft()
        key = (ask.plugin.socket, ask.plugin.generation)
        self.calls.append(f"{type(ask).__name__} {ask.plugin.socket} g{ask.plugin.generation}")
        match ask:
            case m.Register():
                assert key not in self.registered, f"{key} is registered twice"
                self.registered[key] = name
            case m.Deregister():
                self.registered.pop(key, None)
            case m.Validate():
                pass
        ok = well or isinstance(ask, m.Deregister)
        self.rules.answered(ask, ok=ok)
        ask.reply.send_nowait(m.HandlerAnswered(ask.ticket, Outcome.OK if ok else Outcome.FAILED, "" if ok else "no"))


@attrs.define(eq=False)
class Actor:
    """A registration actor that never waits: :meth:`outcome` ends its current call."""

    path: str
    node: Node
    state: s.State
    inbox: deque[m.RegistrationMessage] = attrs.Factory(deque)
    waiting: s.Command | None = None
    asked: m.Ask | None = None
    ticket: int = 0
    handler: m.Address[m.HandlerMessage] | None = None
    dead: bool = False

    def send_nowait(self, message: m.RegistrationMessage, /) -> None:
        self.inbox.append(message)

    def read(self) -> None:
        message = self.inbox.popleft()
        match message:
            case m.ReportAsked() | m.NameWanted() | SettingsChanged():
                return
            case m.HandlerAnswered():
                if message.ticket == self.ticket:
                    self.take(s.HandlerAccepted() if message.outcome is Outcome.OK else s.Failed(message.error))
            case m.Admitted() | m.NoHandler() | m.ClaimRefused():
                if message.ticket == self.ticket:
                    if isinstance(message, m.Admitted):
                        self.handler = message.handler
                    self.take(message)
            case _:
                self.take(message)

    def take(self, event: s.Event) -> None:
        before = self.state
        after, commands = lifecycle.step(before, event)
        if commands or isinstance(event, s.CommandOutcome | m.Admission):
            # From here on the answer to any earlier call is too late.
            if not isinstance(event, s.CommandOutcome):
                self.withdraw()
            self.waiting, self.ticket = None, self.ticket + 1
        self.node.rules.stepped(self.path, before, event, after)
        self.enter(after, commands)

    def enter(self, state: s.State, commands: tuple[s.Command, ...]) -> None:
        self.state = state
        for command in commands:
            self.node.rules.performed(self.path, state, command)
            self.perform(command)
        if isinstance(state, s.Gone):
            self.end(crashed=False)

    def perform(self, command: s.Command) -> None:
        match command:
            case s.Announce():
                self.send(m.PluginRegistered(self.path, self.state.generation))
            case s.Release():
                self.send(m.Released(self.path, command.generation))
            case s.PassTurn():
                self.send(m.Released(self.path, self.state.generation))
            case s.ClaimName():
                self.send(m.Claimed(self.path, self.state.generation, command.info, self.next_ticket(command)))
            case s.AskValidate():
                self.ask(m.Validate, command, self.state.generation)
            case s.AskRegister():
                self.ask(m.Register, command, self.state.generation)
            case s.AskDeregister():
                self.ask(m.Deregister, command, command.generation)
            case s.ReportReplaced():
                self.send(m.SocketReplaced(self.path, self.state.generation))
            case s.HangUp() | s.AskLater() | s.Observe() | s.StopObserving():
                pass
            case s.Dial() | s.AskInfo() | s.Notify() | s.StartTimer():
                self.waiting = command

    def ask(
        self,
        ask: type[m.Validate] | type[m.Register] | type[m.Deregister],
        command: s.AskValidate | s.AskRegister | s.AskDeregister,
        generation: int,
    ) -> None:
        info = command.info
        plugin = Plugin(info.type, info.name, info.endpoint, info.versions, self.path, generation)
        assert self.handler is not None
        self.asked = ask(plugin, self.next_ticket(command), self)
        self.handler.send_nowait(self.asked)

    def withdraw(self) -> None:
        """Withdraw a Validate whose answer is no longer needed."""
        if isinstance(self.waiting, s.AskValidate) and isinstance(self.asked, m.Validate) and self.handler is not None:
            self.handler.send_nowait(m.Withdraw(self.asked))

    def next_ticket(self, command: s.Command) -> int:
        self.waiting = command
        self.ticket += 1
        return self.ticket

    def send(self, message: m.ReconcilerMessage) -> None:
        self.node.mail[self.path].append(message)

    def end(self, *, crashed: bool) -> None:
        self.dead = True
        self.send(m.RegistrationEnded(self.path, crashed))

    def outcome(self, *, well: bool) -> None:
        """End the current call or wait, with success or with a failure."""
        match self.waiting:
            case s.Dial():
                self.take(s.Dialed() if well else self.node.rng.choice(NOT_DIALED))
            case s.AskInfo():
                self.take(s.InfoReceived(self.node.infos[self.path]) if well else s.Failed("died"))
            case s.Notify():
                self.take(s.Notified() if well else s.Failed("EOF"))
            case s.StartTimer():
                self.take(s.TimerElapsed())
            case s.ClaimName():
                self.take(s.Failed("no answer"))
            case _:
                raise AssertionError(f"{self.waiting} is answered by a handler or the reconciler")


@attrs.define(eq=False)
class Node:
    """A node. :meth:`picks` returns its possible next steps."""

    infos: dict[str, PluginInfo]
    policies: dict[str, InstancePolicy]
    seed: int
    rng: random.Random = attrs.field(init=False)
    world: w.World = attrs.Factory(w.World)
    rules: Rules = attrs.Factory(Rules)
    #: Messages in flight to the reconciler, in order for each sender.
    mail: dict[str, deque[m.ReconcilerMessage]] = attrs.Factory(lambda: defaultdict(deque))
    actors: dict[str, Actor] = attrs.Factory(dict)
    handlers: dict[str, Handler] = attrs.Factory(dict)
    there: dict[str, int] = attrs.Factory(dict)
    roles: dict[tuple[str, int], bool] = attrs.Factory(dict)
    shown: dict[str, m.StateChanged] = attrs.Factory(dict)
    retired: list[Handler] = attrs.Factory(list)
    #: Instances in the order in which the reconciler was last notified that each is registered.
    announced: list[tuple[str, int]] = attrs.Factory(list)
    generation: int = 0
    finished: bool = False

    def __attrs_post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    # --- events from outside ---

    def appear(self, path: str) -> None:
        self.generation += 1
        self.there[path] = self.generation
        self.mail["watcher"].append(appeared(self.generation, path))

    def vanish(self, path: str) -> None:
        self.mail["watcher"].append(m.SocketVanished(path, self.there.pop(path)))

    def add_handler(self, plugin_type: str) -> None:
        handler = self.handlers[plugin_type] = Handler(self.rules)
        self.rules.policies[plugin_type] = self.policies[plugin_type]
        self.mail["supervisor"].append(m.HandlerAdded(plugin_type, handler, self.policies[plugin_type]))

    def remove_handler(self, plugin_type: str) -> None:
        self.retired.append(self.handlers.pop(plugin_type))
        self.mail["supervisor"].append(m.HandlerRemoved(plugin_type))

    def crash(self, actor: Actor) -> None:
        actor.withdraw()
        self.rules.crashed(actor.path)
        actor.end(crashed=True)

    # --- steps ---

    def deliver(self, sender: str) -> None:
        message = self.mail[sender].popleft()
        if isinstance(message, m.ReportAsked):
            self.roles.clear()  # The actor that waited for these answers is gone.
        elif isinstance(message, m.Claimed):
            self.rules.claimed[message.path] = message.info
        elif isinstance(message, m.PluginRegistered):
            instance = message.path, message.generation
            self.announced = [*(other for other in self.announced if other != instance), instance]
        for effect in self.world.handle(message, 0.0):
            self.carry_out(effect)

    def pass_turns(self) -> None:
        for effect in self.world.pass_turns(self.world.next_turn):
            self.carry_out(effect)

    def carry_out(self, effect: w.Effect) -> None:
        match effect:
            case w.Send():
                self.rules.sent(effect.path, effect.message)
                self.actors[effect.path].send_nowait(effect.message)
            case w.StartRegistration():
                self.start(effect)
            case w.Show(message=m.RoleChanged() as role):
                assert self.roles.get((role.socket, role.generation), True) != role.active, (
                    "a role is shown only when it changes"
                )
                self.roles[role.socket, role.generation] = role.active
            case w.Show(message=m.StateChanged() as shown):
                self.shown[shown.socket] = shown
            case w.HandlerRetired():
                assert isinstance(effect.handler, Handler)
                assert not effect.handler.retired
                effect.handler.retired = True
            case w.Stopped():
                self.finished = True
            case w.Look():
                path = effect.message.path
                assert effect.root == "/reg"
                assert self.world.desired()[path] == self.actors[path].state.generation, "it was superseded"
            case w.Show() | w.Answer() | w.AnswerCall() | w.RootLeft():
                pass

    def start(self, effect: w.StartRegistration) -> None:
        path = effect.appeared.path
        assert path not in self.actors or self.actors[path].dead, "one actor for each path"
        actor = self.actors[path] = Actor(path, self, s.Gone(0))
        self.rules.started(path, effect)
        if effect.to_deregister is None:
            actor.enter(*lifecycle.start(effect.appeared, effect.crash))
        else:
            actor.handler = effect.to_deregister.handler
            info, generation = effect.to_deregister.info, effect.to_deregister.generation
            assert effect.crash is not None
            actor.enter(*lifecycle.resume(effect.appeared, info, generation, effect.crash))

    def picks(self, *, faults: bool, goes_well: bool | None = None) -> list[Pick]:
        """Return the possible next steps.

        Without ``faults`` every call succeeds and no timer elapses. With ``faults``, ``goes_well`` decides the outcome
        of calls, or chance does if it is None.
        """

        def well() -> bool:
            return not faults or (self.rng.random() < 0.7 if goes_well is None else goes_well)

        picks: list[Pick] = [lambda sender=sender: self.deliver(sender) for sender, mail in self.mail.items() if mail]  # type: ignore[misc]
        if self.world.next_turn < math.inf:
            picks.append(self.pass_turns)
        for actor in self.actors.values():
            if actor.dead:
                continue
            if actor.inbox:
                picks.append(actor.read)
            elif isinstance(actor.waiting, s.Dial | s.AskInfo | s.Notify):
                picks.append(lambda actor=actor: actor.outcome(well=well()))  # type: ignore[misc]
            elif faults and isinstance(actor.waiting, s.StartTimer | s.ClaimName):
                picks.append(lambda actor=actor: actor.outcome(well=False))  # type: ignore[misc]
        for handler in self.all_handlers():
            for name, lane in handler.lanes.items():
                if lane:
                    picks.append(lambda handler=handler, name=name: handler.answer(name, well=well()))  # type: ignore[misc]
        return picks

    def run(self, steps: int) -> None:
        """Make up to ``steps`` steps, with faults."""
        for _ in range(steps):
            picks = self.picks(faults=True)
            if not picks:
                return
            self.rng.choice(picks)()

    def settle(self) -> None:
        """Make steps without faults until none is left; let timers elapse a few times."""
        for _ in range(8):
            while picks := self.picks(faults=False):
                self.rng.choice(picks)()
            for actor in self.actors.values():
                if not actor.dead and isinstance(actor.waiting, s.StartTimer):
                    actor.outcome(well=True)
        while picks := self.picks(faults=False):
            self.rng.choice(picks)()

    # --- results ---

    def all_handlers(self) -> list[Handler]:
        """Return all handlers, including the removed ones."""
        return [*self.handlers.values(), *self.retired]

    def calls(self) -> list[str]:
        """Return the calls of all handlers."""
        return [call for handler in self.all_handlers() for call in handler.calls]

    def registered(self) -> dict[str, int]:
        """Return the registered plugins of all handlers, by path."""
        return {socket: generation for handler in self.handlers.values() for socket, generation in handler.registered}

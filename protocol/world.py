"""The desired world, the actual world, and what is to be done about their difference.

The reconciler's whole mind, without its waiting. Desired is what the watchers say is there; actual is what
registration actors have claimed for their plugins. :meth:`World.handle` takes one message and answers with effects.
It is level-triggered: a message changes what is desired or actual of one path, and what follows is decided by looking
at that path as it stands (:meth:`World._reconcile`), never by what happened to it.

Names are claimed: per (type, name) at most one plugin at a time is between its claim and its registration, and none
while another of that name is leaving. So a plugin is always unregistered before another takes its name, and of two
that come at once the second is validated against the first (behaviours 20, 21 and 37).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import assert_never

import attrs

from . import messages as m
from .claims import Claim, Name, Phase, key_of, taken
from .effects import (
    Answer,
    Effect,
    HandlerRetired,
    Immediate,
    PendingDeregistration,
    Send,
    Show,
    StartRegistration,
    Stopped,
)
from .plugins import InstancePolicy
from .status import StateName

__all__ = [
    "Answer",
    "Effect",
    "HandlerRetired",
    "Immediate",
    "PendingDeregistration",
    "Send",
    "Show",
    "StartRegistration",
    "Stopped",
    "World",
]


@attrs.define
class _Actor:
    appeared: m.SocketAppeared
    stopping: bool = False
    #: The (type, name) that its plugin last claimed.
    key: tuple[str, str] | None = None
    #: The type for which it is parked.
    orphan_of: str | None = None


@attrs.frozen
class _Handler:
    address: m.Address[m.HandlerMessage]
    policy: InstancePolicy


class World:
    """Desired and actual, owned by the reconciler alone."""

    def __init__(self, handlers: Iterable[m.HandlerAdded] = ()) -> None:
        """Begin with these ``handlers`` and no socket known."""
        self._desired: dict[str, m.SocketAppeared] = {}
        self._refused: dict[str, m.EntryRefused] = {}
        self._actors: dict[str, _Actor] = {}
        self._claims: dict[str, Claim] = {}
        self._names: dict[tuple[str, str], Name] = {}
        self._handlers = {added.type: _Handler(added.handler, added.policy) for added in handlers}
        self._retiring: dict[str, list[m.Address[m.HandlerMessage]]] = {}
        self._stopping: m.StopAsked | m.StopForced | None = None
        self._effects: list[Effect] = []

    # --- to look at ---

    def desired(self) -> dict[str, int]:
        """Return the generation of each socket that is there, by path."""
        return {path: appeared.generation for path, appeared in self._desired.items()}

    def actual(self) -> dict[str, int]:
        """Return the generation of each plugin that counts as registered, by path."""
        return {claim.path: claim.generation for claim in self._claims.values() if claim.phase is Phase.REGISTERED}

    def difference(self) -> tuple[set[str], set[str]]:
        """Return the paths to unregister and those to register: the reference's two passes (behaviour 19)."""
        desired, actual = self.desired(), self.actual()
        to_unregister = {path for path, generation in actual.items() if desired.get(path) != generation}
        to_register = {path for path, generation in desired.items() if actual.get(path) != generation}
        return to_unregister, to_register

    # --- to drive ---

    def handle(self, message: m.ReconcilerMessage, now: float) -> list[Effect]:
        """Take one message in at ``now`` (seconds, of the same clock as the messages'), and say what is to be done."""
        self._effects = []
        self._handle(message, now)
        return self._effects

    def _handle(self, message: m.ReconcilerMessage, now: float) -> None:
        match message:
            case m.SocketAppeared():
                self._appeared(message, now)
            case m.Claimed():
                self._claimed(message)
            case m.PluginRegistered():
                self._registered(message)
            case m.Released():
                self._released(message.path, message.generation)
            case m.RegistrationEnded():
                self._ended(message, now)
            case m.SocketVanished():
                self._vanished(message.path, message.generation, now)
            case m.SocketTouched():
                self._touched(message)
            case m.EntryRefused():
                self._entry_refused(message, now)
            case m.ScanCompleted():
                self._scanned(message, now)
            case m.HandlerAdded():
                self._handler_added(message)
            case m.HandlerRemoved():
                self._handler_removed(message.type)
            case m.RetryAsked():
                self._retry(message)
            case m.StopAsked() | m.StopForced():
                self._stop(message)
            case m.ReportAsked():
                self._report_all(now)
            case _:
                assert_never(message)

    # --- desired ---

    def _appeared(self, message: m.SocketAppeared, now: float) -> None:
        if not message.path:
            raise ValueError("socket path is empty")
        known = self._desired.get(message.path)
        if known is not None and message.first_scan and known.identity == message.identity:
            return  # A restarted watcher sees again what it had told before.
        self._forget_refused(message.path, now)
        self._desired[message.path] = message
        self._reconcile(message.path)

    def _vanished(self, path: str, generation: int, now: float) -> None:
        refused = self._refused.get(path)
        if refused is not None and generation >= refused.generation:
            self._forget_refused(path, now)
        known = self._desired.get(path)
        # Not equality: a restarted watcher counts on, and its generation may be newer than the one that it confirmed.
        if known is not None and generation >= known.generation:
            del self._desired[path]
            self._reconcile(path)

    def _forget_refused(self, path: str, now: float) -> None:
        """What was refused at ``path`` is no longer there."""
        entry = self._refused.pop(path, None)
        if entry is not None:
            self._show_gone(entry, now)

    def _show_gone(self, entry: m.SocketAppeared | m.EntryRefused, now: float) -> None:
        """Nobody else is left to tell it."""
        gone = m.StateChanged(entry.path, entry.root, entry.generation, StateName.GONE, now)
        self._effects.append(Show(gone))

    def _touched(self, message: m.SocketTouched) -> None:
        actor = self._actors.get(message.path)
        if actor is not None and not actor.stopping:
            self._effects.append(Send(message.path, message))

    def _entry_refused(self, message: m.EntryRefused, now: float) -> None:
        self._refused.pop(message.path, None)
        self._vanished(message.path, message.generation, now)
        self._refused[message.path] = message
        self._effects.append(Show(_as_parked(message, now)))

    def _scanned(self, message: m.ScanCompleted, now: float) -> None:
        if message.paths is None:
            return
        known = [(path, entry.generation, entry.root) for path, entry in self._desired.items()]
        known += [(path, entry.generation, entry.root) for path, entry in self._refused.items()]
        for path, generation, root in known:
            if root == message.root and path not in message.paths:
                self._vanished(path, generation, now)

    def _reconcile(self, path: str) -> None:
        wanted = self._desired.get(path)
        actor = self._actors.get(path)
        if actor is None:
            if wanted is not None and self._stopping is None:
                self._actors[path] = _Actor(wanted)
                self._effects.append(StartRegistration(wanted))
        elif wanted is None:
            if not actor.stopping:
                actor.stopping = True
                self._supersede(path, actor, m.SocketVanished(path, actor.appeared.generation))
        elif actor.stopping or wanted.generation != actor.appeared.generation:
            actor.appeared, actor.stopping = wanted, False
            self._supersede(path, actor, wanted)

    def _supersede(self, path: str, actor: _Actor, message: m.SocketAppeared | m.SocketVanished) -> None:
        self._forget_wishes(path, actor)
        self._leave(path)
        self._effects.append(Send(path, message))

    def _leave(self, path: str) -> None:
        claim = self._claims.get(path)
        if claim is not None:
            claim.phase = Phase.LEAVING
            name = self._names[key_of(claim.info)]
            if name.registered.pop(path, None) is not None:
                self._show_roles(name, claim.info.type)
            name.busy[path] = None

    def _forget_wishes(self, path: str, actor: _Actor) -> None:
        """Forget what the actor's last attempt was refused for; its next one says anew what it wants."""
        actor.orphan_of = None
        self._forget_wait(path, actor)
        key, actor.key = actor.key, None
        name = None if key is None else self._names.get(key)
        if key is not None and name is not None:
            name.blocked.pop(path, None)
            if name.empty:
                del self._names[key]

    def _forget_wait(self, path: str, actor: _Actor) -> None:
        """Nobody waits at ``path`` any more for the answer to its claim: admitted later, it would block the name."""
        name = None if actor.key is None else self._names.get(actor.key)
        if name is not None and name.waiting:
            name.waiting = [claimed for claimed in name.waiting if claimed.path != path]

    # --- claims ---

    def _claimed(self, message: m.Claimed) -> None:
        actor = self._actors.get(message.path)
        if actor is None or actor.stopping or actor.appeared.generation != message.generation:
            return  # Superseded: what its actor was told since ends the attempt, and nobody waits for an answer.
        self._forget_wishes(message.path, actor)
        key = actor.key = key_of(message.info)
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = Name()
        name.waiting.append(message)
        self._admit(key, name)

    def _admit(self, key: tuple[str, str], name: Name) -> None:
        """Answer those who wait for the name, one after the other, as long as nobody is busy with it."""
        while name.waiting and not name.busy:
            claimed = name.waiting.pop(0)
            handler = self._handlers.get(claimed.info.type)
            if handler is None:
                self._turn_away(claimed)
            elif handler.policy is InstancePolicy.REJECT and name.registered:
                name.blocked[claimed.path] = None
                self._effects.append(Send(claimed.path, m.ClaimRefused(claimed.ticket, taken(claimed.info, name))))
            else:
                self._claims[claimed.path] = Claim(claimed.path, claimed.generation, claimed.info, handler.address)
                name.busy[claimed.path] = None
                self._effects.append(Send(claimed.path, m.Admitted(claimed.ticket, handler.address)))
        if name.empty:
            del self._names[key]

    def _turn_away(self, claimed: m.Claimed) -> None:
        self._actors[claimed.path].orphan_of = claimed.info.type
        reason = (
            f"RegisterPlugin error -- no handler registered for plugin type: {claimed.info.type} "
            f"at socket {claimed.path}"
        )
        self._effects.append(Send(claimed.path, m.NoHandler(claimed.ticket, reason)))

    def _registered(self, message: m.PluginRegistered) -> None:
        claim = self._claims.get(message.path)
        if claim is None or claim.generation != message.generation or claim.phase is not Phase.ADMITTED:
            return
        claim.phase = Phase.REGISTERED
        key = key_of(claim.info)
        name = self._names[key]
        name.busy.pop(message.path, None)
        name.registered[message.path] = claim
        self._show_roles(name, claim.info.type)
        self._admit(key, name)

    def _released(self, path: str, generation: int) -> None:
        claim = self._claims.get(path)
        if claim is None:
            if path in self._actors:
                self._forget_wait(path, self._actors[path])
            return
        if claim.generation != generation:
            return
        del self._claims[path]
        key = key_of(claim.info)
        name = self._names[key]
        name.busy.pop(path, None)
        if path in name.standby:
            # Whoever registers again in this generation counts as active until it is told otherwise.
            del name.standby[path]
            self._effects.append(Show(m.RoleChanged(path, generation, active=True)))
        was_registered = name.registered.pop(path, None) is not None or claim.phase is Phase.LEAVING
        actor = self._actors.get(path)
        if was_registered:
            self._show_roles(name, claim.info.type)
            self._effects.extend(Send(other, m.NameFreed()) for other in name.blocked)
        elif actor is not None and actor.key == key:
            name.blocked[path] = None
        self._admit(key, name)
        self._retire(claim.info.type)

    def _show_roles(self, name: Name, plugin_type: str) -> None:
        handler = self._handlers.get(plugin_type)
        if handler is None:
            return
        for claim in name.change_roles(handler.policy):
            active = claim.path not in name.standby
            self._effects.append(Show(m.RoleChanged(claim.path, claim.generation, active)))

    # --- actors ---

    def _ended(self, message: m.RegistrationEnded, now: float) -> None:
        actor = self._actors.pop(message.path, None)
        if actor is None:
            return
        self._forget_wishes(message.path, actor)
        claim = self._claims.get(message.path)
        if message.crashed and claim is not None:
            self._resume(actor, claim)
        elif claim is not None:
            self._released(message.path, claim.generation)
        elif message.crashed and message.path not in self._desired:
            self._show_gone(actor.appeared, now)
        self._reconcile(message.path)
        if self._stopping is not None and not self._actors:
            self._effects.append(Stopped())

    def _resume(self, actor: _Actor, claim: Claim) -> None:
        """A crashed actor may have asked to register: its successor deregisters first (fault 85)."""
        self._leave(claim.path)
        self._actors[claim.path] = _Actor(actor.appeared)
        pending = PendingDeregistration(claim.info, claim.generation, claim.handler)
        self._effects.append(StartRegistration(actor.appeared, pending))
        if self._stopping is not None:
            self._effects.append(Send(claim.path, self._stopping))

    # --- handlers ---

    def _handler_added(self, message: m.HandlerAdded) -> None:
        self._handlers[message.type] = _Handler(message.handler, message.policy)
        self._show_handlers()
        for path, actor in self._actors.items():
            if actor.orphan_of == message.type:
                self._effects.append(Send(path, m.HandlerAvailable(message.type)))

    def _handler_removed(self, plugin_type: str) -> None:
        handler = self._handlers.pop(plugin_type, None)
        if handler is None:
            return
        self._retiring.setdefault(plugin_type, []).append(handler.address)
        self._show_handlers()
        for claim in [claim for claim in self._claims.values() if claim.handler is handler.address]:
            if claim.phase is not Phase.LEAVING:
                self._leave(claim.path)
                self._effects.append(Send(claim.path, m.HandlerWithdrawn(plugin_type)))
        self._retire(plugin_type)

    def _retire(self, plugin_type: str) -> None:
        retiring = self._retiring.pop(plugin_type, None)
        if retiring is None:
            return  # The common case; what follows looks at every claim.
        busy = {id(claim.handler) for claim in self._claims.values()}
        self._effects.extend(HandlerRetired(plugin_type, address) for address in retiring if id(address) not in busy)
        if still := [address for address in retiring if id(address) in busy]:
            self._retiring[plugin_type] = still

    def _show_handlers(self) -> None:
        self._effects.append(Show(m.HandlersChanged(tuple(sorted(self._handlers)))))

    # --- people ---

    def _retry(self, message: m.RetryAsked) -> None:
        sockets = tuple(sorted(self._matching(message.target)))
        self._effects.extend(Send(path, m.TryNow()) for path in sockets)
        self._effects.append(Answer(message.reply, m.RetryAnswered(sockets)))

    def _matching(self, target: str) -> Iterator[str]:
        if target in self._actors:
            yield target
            return
        for path, actor in self._actors.items():
            if actor.key is not None and actor.key[1] == target:
                yield path

    def _stop(self, message: m.StopAsked | m.StopForced) -> None:
        self._stopping = message
        self._effects.extend(Send(path, message) for path in self._actors)
        if not self._actors:
            self._effects.append(Stopped())

    def _report_all(self, now: float) -> None:
        self._show_handlers()
        self._effects.extend(Show(_as_parked(entry, now)) for entry in self._refused.values())
        self._effects.extend(Send(path, m.ReportAsked()) for path in self._actors)
        for name in self._names.values():
            for path in name.standby:
                generation = self._claims[path].generation
                self._effects.append(Show(m.RoleChanged(path, generation, active=False)))


def _as_parked(entry: m.EntryRefused, now: float) -> m.StateChanged:
    return m.StateChanged(
        entry.path, entry.root, entry.generation, StateName.PARKED, now, entry.reason, deprecated=entry.deprecated
    )

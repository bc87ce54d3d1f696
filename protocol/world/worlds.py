"""The desired world, the actual world, and what to do about their difference.

This module makes all decisions of the reconciler and never waits. The *desired* world is what the watchers found: the
generation of the socket at each path. The *actual* world is the plugins that are registered. :meth:`World.handle` takes
one message and returns effects, which the reconciler carries out.

Sockets are level-triggered. A message changes what is desired at one path. Then :meth:`World._reconcile` compares that
with the socket that the path's registration actor was last sent, whatever the message was. An actor has a state of its
own, and deregisters before it continues. The world infers its progress from the :class:`Claim`, which is made when the
plugin is admitted, and deleted when the actor sends ``ClaimReleased`` or ends. Messages about handlers and stops are
not levels, and are passed on.

A plugin's (type, name) is claimed before the plugin is validated. No plugin is admitted to a name while another one is
leaving it, or is admitted and not registered yet. So no plugin is validated while another one of its name is being
deregistered, and of two that appear at once the second is validated against the first (behaviours 20, 21 and 37).

When a plugin leaves its name, the plugins that were refused the name have turns (``plugind.protocol.world.line``). The
next in line is sent ``NameFreed``, and the one after it when that one is registered, fails or is refused, after a
second at the latest. If all were told at once, the removal of one socket would have thousands of others dialed. The
reconciler calls :meth:`World.pass_turns` at :attr:`World.next_turn`, the only time that the world waits for.

"What happens when a registered plugin's socket is replaced" in ``docs/design.md`` is an example.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable
from typing import assert_never

import attrs

from ..backoff import Backoff
from ..messages.config import RootRemoved, WorldChanged
from ..messages.discovery import (
    CallAnswered,
    Called,
    EntryIgnored,
    EntryRefused,
    LookNow,
    ScanCompleted,
    SocketAppeared,
    SocketTouched,
    SocketVanished,
)
from ..messages.reconciler import (
    Claimed,
    ClaimReleased,
    HandlerAdded,
    HandlerPort,
    HandlerRemoved,
    ListenerChanged,
    PluginGone,
    PluginRefused,
    PluginRegistered,
    ReconcilerMessage,
    RegistrationEnded,
    ReportAsked,
    RetryAnswer,
    RetryAnswered,
    RetryAsked,
    RootAdded,
    SocketDialed,
    SocketReplaced,
    StopAsked,
    StopForced,
    UsableChanged,
)
from ..messages.registration import (
    Admitted,
    ClaimRefused,
    HandlerAvailable,
    HandlerWithdrawn,
    NameFreed,
    NameWanted,
    NoHandler,
    TryNow,
)
from ..messages.status import (
    HandlersChanged,
    Holder,
    NameDefended,
    NamePassed,
    PluginDisplaced,
    RoleChanged,
    StateChanged,
)
from ..plugins.info import MAX_INSTANCES, InstancePolicy, PluginInfo
from ..plugins.status import StateName
from ..registration.crashes import NO_CRASH, Crash, CrashSeries
from ..registration.lives import Life, Lives
from ..trust.users import AS_ROOT, Users
from ..values import record, value
from .claims import Claim, ClaimPhase, Name, crowded, key_of, rank_if, rank_of, taken, taken_by_another_user
from .effects import (
    AnswerCall,
    AnswerCaller,
    Effect,
    HandlerRetired,
    Immediate,
    Look,
    PendingDeregistration,
    RootLeft,
    Send,
    Show,
    StartRegistration,
    Stopped,
)
from .endpoint_owners import EndpointOwner, EndpointOwners, belongs_to
from .kept_names import FormerHolders, KeptNames, kept_for
from .line import TurnEnds

__all__ = [
    "AnswerCall",
    "AnswerCaller",
    "Effect",
    "HandlerRetired",
    "Immediate",
    "Look",
    "PendingDeregistration",
    "RootLeft",
    "Send",
    "Show",
    "StartRegistration",
    "Stopped",
    "World",
]


@record
class _Actor:
    """The world's record of the registration actor of one path."""

    #: The last ``SocketAppeared`` that the actor was started with or sent.
    sent: SocketAppeared
    #: Whether the actor was sent ``SocketVanished`` after that.
    sent_vanished: bool = False
    key: tuple[str, str] | None = None
    #: The user whose plugin last claimed a name here.
    uid: int | None = None
    #: The generation whose claim to another user's name was reported.
    reported: int | None = None
    #: The type of a plugin that has no handler.
    orphan_of: str | None = None
    #: The crashes in a row of this actor's predecessors, for the same socket.
    crashes: CrashSeries = NO_CRASH
    #: ``trio.current_time()`` when the handler registered the plugin.
    registered_at: float = math.inf
    life: Life = attrs.Factory(Life)


@value
class _Handler:
    address: HandlerPort
    policy: InstancePolicy
    #: Whether each role is reported to links of the handler.
    linked: bool
    #: Why it takes no plugins now; None if it takes some.
    away: str | None = None


def _handler(added: HandlerAdded) -> _Handler:
    return _Handler(added.handler, added.policy, added.linked, added.away)


class World:
    """The desired and the actual world. Only the reconciler has one."""

    def __init__(
        self,
        handlers: Iterable[HandlerAdded] = (),
        *,
        users: Users = AS_ROOT,
        max_instances: int = MAX_INSTANCES,
        lives: Lives | None = None,
    ) -> None:
        """Begin with these ``handlers`` and without a socket.

        ``users`` says who may take over another user's name, and ``max_instances`` limits the plugins of one name.
        ``lives`` are the earlier lives; without them no life counts as short.
        """
        self._lives = Lives(Backoff(), stable_after=0.0) if lives is None else lives
        self._users = users
        #: Names that are kept for a user whose plugin left.
        self._kept = KeptNames()
        self._former = FormerHolders()
        self._max_instances = max_instances
        self._desired: dict[str, SocketAppeared] = {}
        #: Refused directory entries by path. They are no plugin sockets, and have no actor.
        self._refused: dict[str, EntryRefused] = {}
        self._actors: dict[str, _Actor] = {}
        self._claims: dict[str, Claim] = {}
        #: How many claims each handler serves, by the ``id`` of its address, which the claims keep alive.
        self._served: collections.Counter[int] = collections.Counter()
        #: The names that a plugin has, claims, or was refused.
        self._names: dict[tuple[str, str], Name] = {}
        self._endpoints = EndpointOwners()
        self._handlers = {added.type: _handler(added) for added in handlers}
        self._retiring: dict[str, list[HandlerPort]] = {}
        #: The removed roots, each with the paths whose registration actors have not ended yet.
        self._leaving_roots: dict[str, set[str]] = {}
        self._stopping: StopAsked | StopForced | None = None
        self._turns = TurnEnds()
        self._now = 0.0
        self._effects: list[Effect] = []

    # --- to inspect ---

    @property
    def next_turn(self) -> float:
        """When to call :meth:`pass_turns`; infinity if no plugin has a turn or waits for a kept name."""
        return min(self._turns.next_end, self._kept.next_end)

    def desired(self) -> dict[str, int]:
        """Return the generation of each socket, by path."""
        return {path: appeared.generation for path, appeared in self._desired.items()}

    def actual(self) -> dict[str, int]:
        """Return the generation of each registered plugin, by path, without plugins that are leaving."""
        return {claim.path: claim.generation for claim in self._claims.values() if claim.phase is ClaimPhase.REGISTERED}

    def difference(self) -> tuple[set[str], set[str]]:
        """Return the paths to deregister and the paths to register: the two passes of the kubelet (behaviour 19)."""
        desired, actual = self.desired(), self.actual()
        to_unregister = {path for path, generation in actual.items() if desired.get(path) != generation}
        to_register = {path for path, generation in desired.items() if actual.get(path) != generation}
        return to_unregister, to_register

    # --- to drive ---

    def handle(self, message: ReconcilerMessage, now: float) -> list[Effect]:
        """Take one message and return what to do, in order; ``now`` is ``trio.current_time()`` in seconds."""
        self._effects, self._now = [], now
        self._handle(message, now)
        return self._effects

    def pass_turns(self, now: float) -> list[Effect]:
        """End the turns and the keeping of names whose time is over; return what to do, in order."""
        self._effects, self._now = [], now
        for key in self._turns.take_ended(now):
            if key in self._names:
                self._give_turn(key, self._names[key])
        for key in self._kept.ended(now):
            name = self._names.get(key)
            if name is not None:
                self._freed(key, name)
        return self._effects

    def _handle(self, message: ReconcilerMessage, now: float) -> None:
        match message:
            case SocketAppeared():
                self._appeared(message, now)
            case SocketDialed():
                self._dialed(message.path, message.generation, message.time)
            case Claimed():
                self._claimed(message)
            case PluginRegistered():
                self._registered(message)
            case PluginRefused():
                self._refused_plugin(message)
            case ListenerChanged():
                self._listener_changed(message)
            case ClaimReleased():
                self._released(message.path, message.generation)
            case SocketReplaced():
                self._replaced(message)
            case RegistrationEnded():
                self._ended(message, now)
            case UsableChanged():
                self._usable_changed(message)
            case PluginGone():
                self._gone(message)
            case SocketVanished():
                self._vanished(message.path, message.generation, now)
            case SocketTouched():
                self._touched(message)
            case EntryRefused():
                self._entry_refused(message, now)
            case EntryIgnored():
                self._effects.append(Show(message))
            case ScanCompleted():
                self._scanned(message, now)
            case HandlerAdded():
                self._handler_added(message)
            case HandlerRemoved():
                self._handler_removed(message.type)
            case RetryAsked():
                self._retry(message)
            case StopAsked() | StopForced():
                self._stop(message)
            case ReportAsked():
                self._report_all(now)
            case WorldChanged():
                self._reconfigure(message)
            case RootAdded():
                self._leaving_roots.pop(message.root, None)
            case RootRemoved():
                self._root_removed(message.root, now)
            case _:
                assert_never(message)

    def _reconfigure(self, message: WorldChanged) -> None:
        """Use new limits. Plugins over a lower limit stay; plugins that a higher limit admits may try."""
        self._lives.reconfigure(message.backoff, message.stable_after)
        more, self._max_instances = message.max_instances > self._max_instances, message.max_instances
        if more:
            for key, name in self._names.items():
                if name.line:
                    self._freed(key, name)

    def _root_removed(self, root: str, now: float) -> None:
        """Drop all sockets of ``root`` from the desired world."""
        for path in [path for path, entry in self._refused.items() if entry.root == root]:
            self._forget_refused(path, now)
        for path in [path for path, entry in self._desired.items() if entry.root == root]:
            del self._desired[path]
            self._end_life(path)
            self._reconcile(path, "its root was removed from the configuration")
        self._leaving_roots[root] = {path for path, actor in self._actors.items() if actor.sent.root == root}
        self._note_roots_left()

    def _note_roots_left(self) -> None:
        for root in [root for root, paths in self._leaving_roots.items() if not paths]:
            del self._leaving_roots[root]
            self._effects.append(RootLeft(root))

    # --- desired ---

    def _appeared(self, message: SocketAppeared, now: float) -> None:
        if not message.path:
            raise ValueError("socket path is empty")
        entry = self._desired.get(message.path)
        if entry is not None and message.first_scan and message.identity.is_same_unwatched(entry.identity):
            self._seen_again(entry, message)
            return
        if message.call is not None:
            self._called(message.call, message, entry)
            return
        self._forget_refused(message.path, now)
        self._end_life(message.path)
        hold = self._lives.hold(message.path, now)
        if hold is not None:
            message = attrs.evolve(
                message, not_before=hold.not_before, short_lives=hold.short_lives, last_known=hold.last_known
            )
        self._desired[message.path] = message
        self._reconcile(message.path)

    def _called(self, call: Called, message: SocketAppeared, entry: SocketAppeared | None) -> None:
        """Take a call of Register. If the plugin is registered already, answer at once: plugins call again at will.

        Short lives do not delay a call, since the caller chose the time and is answered within seconds.
        """
        if entry is not None and call.reply is not None and self._is_registered(entry, message):
            self._effects.append(AnswerCall(call.reply, CallAnswered(generation=entry.generation)))
            return
        self._desired[message.path] = message
        self._reconcile(message.path)

    def _is_registered(self, entry: SocketAppeared, message: SocketAppeared) -> bool:
        """Whether the plugin of ``entry`` is registered, and the call adds nothing new."""
        claim = self._claims.get(entry.path)
        return (
            entry.call is not None
            and message.call is not None
            and entry.call.info == message.call.info
            and entry.identity.is_same(message.identity)
            and claim is not None
            and claim.generation == entry.generation
            and claim.phase is ClaimPhase.REGISTERED
            and claim.usable is not False  # An unusable plugin may have called because it is back.
        )

    def _seen_again(self, entry: SocketAppeared, message: SocketAppeared) -> None:
        """Handle the repeated report of a restarted watcher. The socket may have been touched in the meantime."""
        if entry.identity != message.identity:
            self._touched(SocketTouched(entry.path, entry.generation, message.identity))

    def _vanished(self, path: str, generation: int, now: float) -> None:
        refused = self._refused.get(path)
        if refused is not None and generation >= refused.generation:
            self._forget_refused(path, now)
        entry = self._desired.get(path)
        # Not equality: a restarted watcher gives a new generation to a known socket.
        if entry is not None and generation >= entry.generation:
            del self._desired[path]
            self._end_life(path)
            self._reconcile(path)

    def _end_life(self, path: str) -> None:
        """Note the end of the life at ``path`` (fault 49)."""
        actor = self._actors.get(path)
        if actor is not None:
            self._lives.ended(path, actor.life, self._now)
            actor.life = Life()

    def _dialed(self, path: str, generation: int, time: float) -> None:
        actor = self._actors.get(path)
        if actor is None:
            return
        if actor.sent_vanished or actor.sent.generation != generation:
            # A late report: this life is over, and was not counted yet.
            self._lives.ended(path, Life(time), self._now)
        else:
            actor.life.dialed(time)

    def _refused_plugin(self, message: PluginRefused) -> None:
        actor = self._actors.get(message.path)
        if actor is not None and not actor.sent_vanished and actor.sent.generation == message.generation:
            actor.life.plugin = message.info or actor.life.plugin
            actor.life.notified(self._now)

    def _listener_changed(self, message: ListenerChanged) -> None:
        actor = self._actors.get(message.path)
        if actor is not None and actor.sent.generation == message.generation:
            actor.life.heard(self._now, listening=message.listening)

    def _forget_refused(self, path: str, now: float) -> None:
        """Show the refused entry at ``path``, if any, as gone."""
        entry = self._refused.pop(path, None)
        if entry is not None:
            self._show_gone(entry, now)

    def _show_gone(self, entry: SocketAppeared | EntryRefused, now: float) -> None:
        """Show an entry without a registration actor as gone."""
        gone = StateChanged(entry.path, entry.root, entry.generation, StateName.GONE, now)
        self._effects.append(Show(gone))

    def _replaced(self, message: SocketReplaced) -> None:
        """Have the watcher look, unless it has already reported a newer socket, or none."""
        entry = self._desired.get(message.path)
        if entry is not None and entry.generation == message.generation:
            self._effects.append(Look(entry.root, LookNow(message.path)))

    def _touched(self, message: SocketTouched) -> None:
        entry = self._desired.get(message.path)
        if entry is not None and entry.generation == message.generation and message.identity is not None:
            # Recorded so that the report of a restarted watcher does not count as another touch.
            self._desired[message.path] = attrs.evolve(entry, identity=message.identity)
        actor = self._actors.get(message.path)
        if actor is not None and not actor.sent_vanished:
            self._effects.append(Send(message.path, message))

    def _entry_refused(self, message: EntryRefused, now: float) -> None:
        self._refused.pop(message.path, None)
        self._vanished(message.path, message.generation, now)
        self._refused[message.path] = message
        self._effects.append(Show(_as_parked(message, now)))

    def _scanned(self, message: ScanCompleted, now: float) -> None:
        self._kept.forget_old(now)
        if message.paths is None:
            return
        shown = [(path, entry.generation, entry.root) for path, entry in self._desired.items()]
        shown += [(path, entry.generation, entry.root) for path, entry in self._refused.items()]
        for path, generation, root in shown:
            if root == message.root and path not in message.paths:
                self._vanished(path, generation, now)

    def _reconcile(self, path: str, reason: str = "the socket was removed") -> None:
        """Start the registration actor of ``path``, or send it the desired socket if that was not the last one sent.

        ``reason`` says why nothing is desired there, if so.
        """
        wanted = self._desired.get(path)
        actor = self._actors.get(path)
        if actor is None:
            if wanted is not None and self._stopping is None:
                self._actors[path] = _Actor(wanted)
                self._effects.append(StartRegistration(wanted))
        elif wanted is None:
            if not actor.sent_vanished:
                actor.sent_vanished = True
                self._supersede(path, actor, SocketVanished(path, actor.sent.generation, reason))
        elif actor.sent_vanished or wanted.generation != actor.sent.generation:
            actor.sent, actor.sent_vanished, actor.crashes = wanted, False, NO_CRASH
            self._supersede(path, actor, wanted)

    def _supersede(self, path: str, actor: _Actor, message: SocketAppeared | SocketVanished) -> None:
        """Tell the actor that its generation has ended. If Register was called, the actor deregisters first."""
        key = actor.key
        self._forget_attempt(path, actor)
        self._end_turn(key, path)
        self._leave(path)
        self._effects.append(Send(path, message))

    def _leave(self, path: str) -> None:
        """Count the plugin at ``path`` as deregistered from now on; its name is busy until it is released."""
        claim = self._claims.get(path)
        if claim is not None:
            claim.phase = ClaimPhase.LEAVING
            name = self._names[key_of(claim.info)]
            if name.leave(path):
                self._show_roles(name, claim.info.type)
            # The Deregister has to wait for the Register of the admitted plugin.
            if name.admitted is not None and name.admitted.info.endpoint != claim.info.endpoint:
                self._tell_wanted(name.admitted)

    def _forget_attempt(self, path: str, actor: _Actor) -> None:
        """Drop the claim and the refusal of the actor's last attempt. The next attempt claims again."""
        actor.orphan_of = None
        self._withdraw_claim(path, actor)
        key, actor.key = actor.key, None
        name = None if key is None else self._names.get(key)
        if key is not None and name is not None:
            name.line.remove(path)
            if name.empty:
                del self._names[key]

    def _withdraw_claim(self, path: str, actor: _Actor) -> None:
        """Drop an unanswered claim. If it were admitted later, it would block the name for all others."""
        name = None if actor.key is None else self._names.get(actor.key)
        if name is not None:
            name.withdraw(path)

    # --- claims ---

    def _claimed(self, message: Claimed) -> None:
        if message.dialed is not None:
            self._dialed(message.path, message.generation, message.dialed)
        actor = self._actors.get(message.path)
        if actor is None or actor.sent_vanished or actor.sent.generation != message.generation:
            return  # Superseded: the actor has an unread message that ends the attempt.
        before, key = actor.key, key_of(message.info)
        self._forget_attempt(message.path, actor)
        actor.key, actor.uid = key, message.info.uid
        actor.life.plugin = message.info
        if before != key:
            self._end_turn(before, message.path)
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = Name()
        self._admit(key, name, name.ask(message))

    def _admit(self, key: tuple[str, str], name: Name, claimed: Claimed | None) -> None:
        """Answer ``claimed`` and then the queued claims to the name, until one is admitted."""
        while claimed is not None:
            handler, privileged = self._handlers.get(claimed.info.type), self._users.is_privileged(claimed.info.uid)
            if handler is None or handler.away is not None:
                self._refuse_orphan(claimed, None if handler is None else handler.away)
            # A privileged plugin may take over a name from any user.
            elif not privileged and (reason := self._name_of_another_user(claimed.info, name)) is not None:
                name.line.add(claimed.path, claimed.info.uid, privileged=privileged)
                self._effects.append(Send(claimed.path, ClaimRefused(claimed, reason)))
                self._report_claim(claimed, reason)
            elif (
                reason := self._reason_against(claimed.info, name, handler.policy, privileged=privileged)
            ) is not None:
                name.line.add(claimed.path, claimed.info.uid, privileged=privileged)
                self._effects.append(Send(claimed.path, ClaimRefused(claimed, reason)))
            elif (owner := self._owner_of_endpoint(claimed, privileged=privileged)) is not None:
                reason = belongs_to(claimed.info.endpoint, owner)
                self._effects.append(Send(claimed.path, ClaimRefused(claimed, reason)))
            else:
                self._grant(claimed, name, handler, privileged=privileged)
                break
            self._end_turn(key, claimed.path)
            claimed = name.next_to_answer()
        if name.empty:
            del self._names[key]
        elif name.admitted is not None and name.is_wanted_at_another(name.admitted.info.endpoint):
            self._tell_wanted(name.admitted)

    def _tell_wanted(self, claim: Claim) -> None:
        """Tell the plugin that is admitted, once, that another one waits for its name."""
        if not claim.wanted:
            claim.wanted = True
            self._effects.append(Send(claim.path, NameWanted()))

    def _report_claim(self, claimed: Claimed, reason: str) -> None:
        """Report a claim to another user's name, once for each socket."""
        actor = self._actors[claimed.path]
        if actor.reported != claimed.generation:
            actor.reported = claimed.generation
            self._effects.append(Show(NameDefended(claimed.path, claimed.generation, claimed.info, reason)))

    def _name_of_another_user(self, info: PluginInfo, name: Name) -> str | None:
        """Return why an unprivileged plugin cannot have the name of another user's plugin (fault 80)."""
        reason = taken_by_another_user(info, name.holders(), self._users)
        keep = self._kept.get(key_of(info), self._now)
        if reason is None and keep is not None and keep.uid != info.uid:
            self._kept.wait(key_of(info), keep)
            reason = kept_for(info, keep)
        return reason

    def _keep_name(self, key: tuple[str, str], uid: int | None) -> None:
        """Keep a name for the user whose plugin left it; only a privileged user replaces another privileged one."""
        keep = self._kept.get(key, self._now)
        if keep is None or self._users.is_privileged(uid) or not self._users.is_privileged(keep.uid):
            self._kept.keep(key, uid, self._now)

    def _next_in_line(self, key: tuple[str, str], name: Name) -> str | None:
        """Give the turn to the next plugin in line, or, while the name is kept, to the next one of the right user."""
        keep, first = self._kept.get(key, self._now), name.line.first()
        if keep is None:
            return name.line.give_turn(first)
        path = name.line.first_of(keep.uid)
        if path != first:
            self._kept.wait(key, keep)
        return name.line.give_turn(path)

    def _reason_against(self, info: PluginInfo, name: Name, policy: InstancePolicy, *, privileged: bool) -> str | None:
        """Return why one more plugin cannot have the name; None if it can."""
        if not self._is_full(name, policy, privileged=privileged):
            return None
        if policy is InstancePolicy.REJECT:
            return taken(info, name.first_against(privileged=privileged))
        return crowded(info, self._max_instances)

    def _is_full(self, name: Name, policy: InstancePolicy, *, privileged: bool) -> bool:
        limit = 1 if policy is InstancePolicy.REJECT else self._max_instances
        return name.count_against(privileged=privileged) >= limit

    def _grant(self, claimed: Claimed, name: Name, handler: _Handler, *, privileged: bool) -> None:
        wanted = name.is_wanted_at_another(claimed.info.endpoint)
        claim = self._claims[claimed.path] = Claim(
            claimed.path,
            claimed.generation,
            claimed.info,
            handler.address,
            rank=rank_of(claimed.info, handler.policy, privileged=privileged),
            privileged=privileged,
            wanted=wanted,
        )
        self._served[id(handler.address)] += 1
        name.admit(claim)
        self._effects.append(Send(claimed.path, Admitted(claimed, handler.address, wanted)))

    def _owner_of_endpoint(self, claimed: Claimed, *, privileged: bool) -> EndpointOwner | None:
        """Return the plugin of another name that has the endpoint; if there is none, note this claim (fault 79)."""
        path, info, file, own = claimed.path, claimed.info, claimed.endpoint, self._actors[claimed.path].sent.identity
        owner = EndpointOwner(info, path, claimed.generation, privileged)
        if info.endpoint == path or (file is not None and own.is_same(file)):
            self._show_displaced(self._endpoints.add_own(owner, own))
            return None
        other = self._endpoints.other_owner(owner.named, info.endpoint, file, privileged=privileged)
        if other is None:
            self._show_displaced(self._endpoints.add(owner, file))
        return other

    def _show_displaced(self, changes: Iterable[PluginDisplaced]) -> None:
        self._effects.extend(map(Show, changes))

    def _refuse_orphan(self, claimed: Claimed, away: str | None) -> None:
        self._actors[claimed.path].orphan_of = claimed.info.type
        cause = f"no handler registered for plugin type: {claimed.info.type}" if away is None else away
        reason = f"RegisterPlugin error -- {cause} at socket {claimed.path}"
        # A plugin that called Register waits for the answer.
        silent = away is not None and not claimed.info.called
        self._effects.append(Send(claimed.path, NoHandler(claimed, reason, cause, silent)))

    def _freed(self, key: tuple[str, str], name: Name) -> None:
        """Let the plugins that were refused the name try again, one after the other."""
        name.line.releases += 1
        if name.line.turn is None:
            self._give_turn(key, name)

    def _give_turn(self, key: tuple[str, str], name: Name) -> None:
        """Tell the next plugin in line that it may try for the name, unless it is sure to be refused."""
        self._turns.end(key)
        handler, first = self._handlers.get(key[0]), name.line.first()
        privileged = first is not None and self._users.is_privileged(self._actors[first].uid)
        if handler is not None and self._is_full(name, handler.policy, privileged=privileged):
            name.line.turn = None
        elif (path := self._next_in_line(key, name)) is not None:
            self._turns.begin(key, self._now)
            self._effects.append(Send(path, NameFreed()))

    def _end_turn(self, key: tuple[str, str] | None, path: str) -> None:
        """If the plugin at ``path`` has the turn, give it to the next in line."""
        name = None if key is None else self._names.get(key)
        if key is not None and name is not None and name.line.turn == path:
            self._give_turn(key, name)

    def _registered(self, message: PluginRegistered) -> None:
        claim = self._claims.get(message.path)
        if claim is None or claim.generation != message.generation or claim.phase is not ClaimPhase.ADMITTED:
            return
        actor = self._actors[message.path]
        actor.registered_at = self._now
        actor.life.notified(self._now)
        self._note_answered(message.path, actor)
        claim.phase, claim.was_registered = ClaimPhase.REGISTERED, True
        key = key_of(claim.info)
        name = self._names[key]
        self._report_succession(claim, name)
        name.register(claim)
        self._show_roles(name, claim.info.type)
        self._show_first_role(name, claim)
        self._admit(key, name, name.next_to_answer())
        self._end_turn(key, message.path)

    def _report_succession(self, claim: Claim, name: Name) -> None:
        """Report that the name passes from one user's plugin to another user's (fault 80)."""
        last = name.registered.get(name.newest) if name.newest is not None else None
        before = self._former.get(key_of(claim.info)) if last is None else Holder(last.info.uid, last.path)
        if before is not None and before.uid != claim.info.uid:
            self._effects.append(Show(NamePassed(claim.path, claim.generation, claim.info, before)))

    def _note_answered(self, path: str, actor: _Actor) -> None:
        """Note that a call of Register was answered with success, which also holds for a successor of the actor."""
        entry = self._desired.get(path)
        if entry is not None and entry.call is not None and entry.generation == actor.sent.generation:
            self._desired[path] = actor.sent = attrs.evolve(entry, call=entry.call.as_answered())

    def _released(self, path: str, generation: int) -> None:
        claim, actor = self._claims.get(path), self._actors.get(path)
        if claim is None:
            if actor is not None:
                self._withdraw_claim(path, actor)
                self._end_turn(actor.key, path)
        elif claim.generation == generation:
            self._free(self._claims.pop(path), actor)

    def _free(self, claim: Claim, actor: _Actor | None) -> None:
        """Delete a claim, and admit the next plugin of its name."""
        self._show_displaced(self._endpoints.remove(claim.path))
        key = key_of(claim.info)
        name = self._names[key]
        self._serves_one_less(claim.handler)
        freed = name.release(claim)
        if claim.was_registered:
            self._keep_name(key, claim.info.uid)
            if claim.path == name.newest:
                self._former.add(key, Holder(claim.info.uid, claim.path))
        if freed.stood_by:
            # The view would count the instance as active again if it registered again in this generation.
            self._effects.append(Show(RoleChanged(claim.path, claim.generation, active=True)))
        if freed.was_taken:
            # This plugin may be the reason for refusals of others.
            self._show_roles(name, claim.info.type)
            self._freed(key, name)
        elif actor is not None and actor.key == key:
            # Admitted and then refused by its handler, perhaps because of another plugin: ``NameFreed`` when that one
            # goes.
            name.line.add(claim.path, claim.info.uid, privileged=claim.privileged)
        self._end_turn(key, claim.path)
        self._admit(key, name, name.next_to_answer())
        self._retire(claim.info.type)

    def _serves_one_less(self, handler: HandlerPort) -> None:
        self._served[id(handler)] -= 1
        if not self._served[id(handler)]:
            del self._served[id(handler)]

    def _show_roles(self, name: Name, plugin_type: str) -> None:
        """Decide which instances of the name are active, and show those whose role changed (behaviour 37)."""
        handler = self._handlers.get(plugin_type)
        if handler is None:
            return
        for claim in name.change_roles(handler.policy):
            active = claim.path not in name.standby
            self._effects.append(Show(RoleChanged(claim.path, claim.generation, active)))

    def _show_first_role(self, name: Name, claim: Claim) -> None:
        """Show the first role of a plugin. It is no change, but the plugin's link waits for it."""
        handler = self._handlers.get(claim.info.type)
        if handler is None or not handler.linked:
            return
        # Another plugin may have taken the endpoint before the link existed.
        displaced = self._endpoints.displacement_of(claim.path)
        if displaced is not None:
            self._effects.append(Show(displaced))
        if claim.path not in name.standby:
            self._effects.append(Show(RoleChanged(claim.path, claim.generation, active=True)))

    def _usable_changed(self, message: UsableChanged) -> None:
        """Rank a plugin by what its handler reports. A plugin that is leaving has no rank."""
        claim = self._claims.get(message.path)
        if claim is None or claim.generation != message.generation or claim.phase is ClaimPhase.LEAVING:
            return
        claim.usable, claim.rank = message.usable, rank_if(claim.rank, usable=message.usable)
        if claim.phase is ClaimPhase.REGISTERED:
            name = self._names[key_of(claim.info)]
            name.rank_anew(claim)
            self._show_roles(name, claim.info.type)

    def _gone(self, message: PluginGone) -> None:
        """Have the watcher look at a plugin that has left for good, or deregister it if it called Register."""
        entry = self._desired.get(message.path)
        if entry is None or entry.generation != message.generation:
            return
        if entry.call is None:
            self._effects.append(Look(entry.root, LookNow(message.path)))
            return
        del self._desired[message.path]
        self._end_life(message.path)
        self._reconcile(message.path, message.reason)

    # --- actors ---

    def _ended(self, message: RegistrationEnded, now: float) -> None:
        actor = self._actors.pop(message.path, None)
        if actor is None:
            return
        key = actor.key
        self._forget_attempt(message.path, actor)
        self._end_turn(key, message.path)
        claim = self._claims.get(message.path)
        crash = self._crash_of(actor, claim, message, now) if message.crashed else None
        if crash is not None and claim is not None and message.owed and crash.settles:
            self._resume(actor, claim, crash)
        else:
            if claim is not None:
                self._free(self._claims.pop(message.path), None)
            if crash is not None:
                self._start_again(message.path, actor, crash, now)
        self._reconcile(message.path)
        if self._leaving_roots and message.path not in self._actors:
            for paths in self._leaving_roots.values():
                paths.discard(message.path)
            self._note_roots_left()
        if self._stopping is not None and not self._actors:
            self._effects.append(Stopped())

    def _crash_of(self, actor: _Actor, claim: Claim | None, message: RegistrationEnded, now: float) -> Crash:
        """Count a crash, in a new series if the plugin was stable."""
        registered = claim is not None and claim.phase is ClaimPhase.REGISTERED
        was_stable = registered and self._lives.is_stable(now - actor.registered_at)
        actor.crashes = actor.crashes.add(now, was_stable=was_stable)
        # Count the crash as a refusal: the registration of the next socket at the path may crash alike.
        if not actor.sent_vanished:
            actor.life.notified(now)
        return Crash(actor.crashes.count, message.error)

    def _start_again(self, path: str, actor: _Actor, crash: Crash, now: float) -> None:
        """Start the successor of an actor that crashed and left nothing to deregister (fault 85)."""
        wanted = self._desired.get(path)
        if wanted is None:
            if path not in self._refused:
                self._show_gone(actor.sent, now)
        elif self._stopping is None:
            self._actors[path] = _Actor(wanted, crashes=actor.crashes, life=actor.life)
            self._effects.append(StartRegistration(wanted, crash=crash))

    def _resume(self, actor: _Actor, claim: Claim, crash: Crash) -> None:
        """Start the successor of a crashed actor that may have registered its plugin: deregister first (fault 85)."""
        self._leave(claim.path)
        self._actors[claim.path] = _Actor(actor.sent, crashes=actor.crashes, life=actor.life)
        pending = PendingDeregistration(claim.info, claim.generation, claim.handler, claim.was_registered)
        self._effects.append(StartRegistration(actor.sent, pending, crash))
        if self._stopping is not None:
            self._effects.append(Send(claim.path, self._stopping))

    # --- handlers ---

    def _handler_added(self, message: HandlerAdded) -> None:
        is_new = message.type not in self._handlers
        self._handlers[message.type] = _handler(message)
        if is_new:
            self._show_handlers()
        if message.away is not None:
            return
        for path, actor in self._actors.items():
            if actor.orphan_of == message.type:
                self._effects.append(Send(path, HandlerAvailable(message.type)))

    def _handler_removed(self, plugin_type: str) -> None:
        handler = self._handlers.pop(plugin_type, None)
        if handler is None:
            return
        self._retiring.setdefault(plugin_type, []).append(handler.address)
        self._show_handlers()
        for claim in [claim for claim in self._claims.values() if claim.handler is handler.address]:
            if claim.phase is not ClaimPhase.LEAVING:
                self._leave(claim.path)
                self._effects.append(Send(claim.path, HandlerWithdrawn(plugin_type)))
        self._retire(plugin_type)

    def _retire(self, plugin_type: str) -> None:
        """Let the removed handlers of this type end that have no plugins left."""
        retiring = self._retiring.get(plugin_type)
        if retiring is None:
            return
        for address in [address for address in retiring if not self._served[id(address)]]:
            retiring.remove(address)
            self._effects.append(HandlerRetired(plugin_type, address))
        if not retiring:
            del self._retiring[plugin_type]

    def _show_handlers(self) -> None:
        self._effects.append(Show(HandlersChanged(tuple(sorted(self._handlers)))))

    # --- retry, stop, report ---

    def _retry(self, message: RetryAsked) -> None:
        """Have the path's registration actor try and answer; answer here if there is none."""
        path, refused = message.path, self._refused.get(message.path)
        if refused is not None:
            answer = RetryAnswer(path, tried=False, why=f"not a plugin: {refused.reason}; retry does not help")
            self._effects.append(AnswerCaller(message.reply, RetryAnswered((answer,))))
        elif path in self._actors:
            self._actors[path].crashes = NO_CRASH
            self._forget_lives(path)
            self._effects.append(Send(path, TryNow(message.reply)))
        else:
            self._effects.append(AnswerCaller(message.reply, RetryAnswered(())))

    def _forget_lives(self, path: str) -> None:
        self._lives.forget(path)
        entry = self._desired.get(path)
        if entry is not None and entry.not_before is not None:
            self._desired[path] = attrs.evolve(entry, not_before=None, short_lives=0)

    def _stop(self, message: StopAsked | StopForced) -> None:
        self._stopping = message
        self._effects.extend(Send(path, message) for path in self._actors)
        if not self._actors:
            self._effects.append(Stopped())

    def _report_all(self, now: float) -> None:
        """Show again all that a status actor needs after its crash (fault 85)."""
        self._show_handlers()
        self._effects.extend(Show(_as_parked(entry, now)) for entry in self._refused.values())
        self._effects.extend(Send(path, ReportAsked()) for path in self._actors)
        self._show_displaced(self._endpoints.displaced)
        for name in self._names.values():
            for path in name.standby:
                generation = self._claims[path].generation
                self._effects.append(Show(RoleChanged(path, generation, active=False)))


def _as_parked(entry: EntryRefused, now: float) -> StateChanged:
    return StateChanged(
        entry.path,
        entry.root,
        entry.generation,
        StateName.PARKED,
        now,
        entry.reason,
        deprecated=entry.deprecated,
        cause=entry.reason,
    )

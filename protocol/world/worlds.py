"""The desired world, the actual world, and what to do about their difference.

This module makes all decisions of the reconciler and waits for nothing. The *desired* world is what the watchers found:
the generation of the socket at each path. The *actual* world is the plugins that are registered. :meth:`World.handle`
takes one message and returns effects, which the reconciler carries out.

Sockets are level-triggered. A message changes what is desired at one path; :meth:`World._reconcile` then compares that
with the socket that the registration actor of the path was last sent, whatever the message was. Only the actor has its
own state, and it deregisters before it continues. The world infers the progress of an actor from its :class:`Claim`,
which is made when the plugin is admitted and deleted when the actor sends ``ClaimReleased`` or ends. Handlers and stops
are not levels: their messages are sent on as they come.

A plugin's (type, name) is claimed before the plugin is validated, and none is admitted to a name while another one of
that name is admitted and not registered yet, or is leaving. So no plugin is validated while another of its name is
being deregistered, and of two that appear at once the second is validated against the first (behaviours 20, 21 and
37).

When a plugin leaves its name, those that were refused the name may try again, one after the other: the next in line is
sent ``NameFreed``, and the one after it when that one is registered, fails or is refused, after a second at the latest.
Plugins of root and of the user that runs plugind go first (``plugind.protocol.world.line``). If all were told at once,
the removal of one socket would have thousands of others dialed. :attr:`World.next_turn` is the only time that the world
has; the reconciler calls :meth:`World.pass_turns` then.

"What happens when a registered plugin's socket is replaced" in ``docs/design.md`` follows one path through all of this.
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

    #: The last ``SocketAppeared`` that it was started with or sent.
    sent: SocketAppeared
    #: Whether the actor was sent, after that, that its socket vanished.
    sent_vanished: bool = False
    #: The (type, name) that its plugin last claimed.
    key: tuple[str, str] | None = None
    #: The user whose plugin last claimed a name here.
    uid: int | None = None
    #: The generation of which it was reported that it claims the name of another user's plugin.
    reported: int | None = None
    #: The plugin type for which there was no handler.
    orphan_of: str | None = None
    #: The crashes in a row of this actor's predecessors, for the same socket.
    crashes: CrashSeries = NO_CRASH
    #: ``trio.current_time()`` when the handler registered the plugin, in seconds.
    registered_at: float = math.inf
    #: The life of this socket.
    life: Life = attrs.Factory(Life)


@value
class _Handler:
    address: HandlerPort
    policy: InstancePolicy
    #: Whether it has links, to which each role is reported.
    linked: bool


class World:
    """Desired and actual. Only the reconciler has one."""

    def __init__(
        self,
        handlers: Iterable[HandlerAdded] = (),
        *,
        users: Users = AS_ROOT,
        max_instances: int = MAX_INSTANCES,
        lives: Lives | None = None,
    ) -> None:
        """Begin with these ``handlers`` and without a socket.

        ``max_instances`` may register under one name, and ``users`` says who may share the name of another user.
        ``lives`` are those that ended before; without them no life counts as short.
        """
        self._lives = Lives(Backoff(), stable_after=0.0) if lives is None else lives
        self._users = users
        #: The names that are kept for the user whose plugin left.
        self._kept = KeptNames()
        self._former = FormerHolders()
        self._max_instances = max_instances
        #: The socket at each path that has one.
        self._desired: dict[str, SocketAppeared] = {}
        #: Refused directory entries by path: they are not plugin sockets and have no actor.
        self._refused: dict[str, EntryRefused] = {}
        #: The registration actors by path, from their start until they ended.
        self._actors: dict[str, _Actor] = {}
        #: The claims by path, from their admission until they are released.
        self._claims: dict[str, Claim] = {}
        #: How many claims each handler serves, by the identity of its address. A claim keeps that address alive.
        self._served: collections.Counter[int] = collections.Counter()
        #: The names that a plugin has or wants.
        self._names: dict[tuple[str, str], Name] = {}
        #: The endpoints of the plugins that have a claim.
        self._endpoints = EndpointOwners()
        #: The handlers that take plugins, by type.
        self._handlers = {added.type: _Handler(added.handler, added.policy, added.linked) for added in handlers}
        #: Removed handlers that still have plugins, by type.
        self._retiring: dict[str, list[HandlerPort]] = {}
        #: The roots that were removed, each with the paths whose registration actors have not ended since.
        self._leaving_roots: dict[str, set[str]] = {}
        #: The last request to stop.
        self._stopping: StopAsked | StopForced | None = None
        #: The turns of plugins that were told that their names are free.
        self._turns = TurnEnds()
        #: The time of the message that is being handled.
        self._now = 0.0
        self._effects: list[Effect] = []

    # --- to inspect ---

    @property
    def next_turn(self) -> float:
        """When :meth:`pass_turns` has something to do; infinity if no plugin has a turn or waits for a kept name."""
        return min(self._turns.next_end, self._kept.next_end)

    def desired(self) -> dict[str, int]:
        """Return the generation of each socket, by path."""
        return {path: appeared.generation for path, appeared in self._desired.items()}

    def actual(self) -> dict[str, int]:
        """Return the generation of each registered plugin, by path; one that is leaving counts no more."""
        return {claim.path: claim.generation for claim in self._claims.values() if claim.phase is ClaimPhase.REGISTERED}

    def difference(self) -> tuple[set[str], set[str]]:
        """Return the paths to unregister and the paths to register: the two passes of the kubelet (behaviour 19)."""
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
        """End the turns whose time is over, and free the names that are kept no more; return what to do, in order."""
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
        """Go by other limits. Plugins over a lower one stay; those for which a higher one has room may try."""
        self._lives.reconfigure(message.backoff, message.stable_after)
        more, self._max_instances = message.max_instances > self._max_instances, message.max_instances
        if more:
            for key, name in self._names.items():
                if name.line:
                    self._freed(key, name)

    def _root_removed(self, root: str, now: float) -> None:
        """Desire nothing of this root any more, as if all of its sockets had gone."""
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
        """Take a call of Register for a new plugin at its path, unless the plugin is registered already.

        Plugins call more than once, whenever they see a reason to. A call has no short lives: the caller decides when
        to call, and is answered within seconds.
        """
        if entry is not None and call.reply is not None and self._is_registered(entry, message):
            self._effects.append(AnswerCall(call.reply, CallAnswered(generation=entry.generation)))
            return
        self._desired[message.path] = message
        self._reconcile(message.path)

    def _is_registered(self, entry: SocketAppeared, message: SocketAppeared) -> bool:
        """Whether the plugin of ``entry`` is registered, and a call says nothing new of it."""
        claim = self._claims.get(entry.path)
        return (
            entry.call is not None
            and message.call is not None
            and entry.call.info == message.call.info
            and entry.identity.is_same(message.identity)
            and claim is not None
            and claim.generation == entry.generation
            and claim.phase is ClaimPhase.REGISTERED
            and claim.usable is not False  # Whatever it was used by is lost, and this call may be the plugin's return.
        )

    def _seen_again(self, entry: SocketAppeared, message: SocketAppeared) -> None:
        """Handle the repeated report of a restarted watcher; the socket may have been touched in the meantime."""
        if entry.identity != message.identity:
            self._touched(SocketTouched(entry.path, entry.generation, message.identity))

    def _vanished(self, path: str, generation: int, now: float) -> None:
        refused = self._refused.get(path)
        if refused is not None and generation >= refused.generation:
            self._forget_refused(path, now)
        entry = self._desired.get(path)
        # Not equality: a watcher that was restarted gives a new generation to a socket that is known already.
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
            # The report comes late: this life is over, and so far it has not counted.
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
        """Show the refused entry at ``path`` as gone, if there is one."""
        entry = self._refused.pop(path, None)
        if entry is not None:
            self._show_gone(entry, now)

    def _show_gone(self, entry: SocketAppeared | EntryRefused, now: float) -> None:
        """Show as gone what has no registration actor to report it."""
        gone = StateChanged(entry.path, entry.root, entry.generation, StateName.GONE, now)
        self._effects.append(Show(gone))

    def _replaced(self, message: SocketReplaced) -> None:
        """Make the watcher look, unless it has already reported a newer socket, or none."""
        entry = self._desired.get(message.path)
        if entry is not None and entry.generation == message.generation:
            self._effects.append(Look(entry.root, LookNow(message.path)))

    def _touched(self, message: SocketTouched) -> None:
        entry = self._desired.get(message.path)
        if entry is not None and entry.generation == message.generation and message.identity is not None:
            # A watcher that is restarted reports it once more, and it is not touched again by that.
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
        """Start the registration actor of ``path``, or send it what is desired if that is not what it was sent last.

        ``reason`` is why nothing is desired, if that is so.
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
        """Send the actor that its generation has ended; it deregisters first if Register was asked."""
        key = actor.key
        self._forget_attempt(path, actor)
        self._end_turn(key, path)
        self._leave(path)
        self._effects.append(Send(path, message))

    def _leave(self, path: str) -> None:
        """Count the plugin of ``path`` as unregistered from here on, and reserve its name until it is released."""
        claim = self._claims.get(path)
        if claim is not None:
            claim.phase = ClaimPhase.LEAVING
            name = self._names[key_of(claim.info)]
            if name.leave(path):
                self._show_roles(name, claim.info.type)
            # Its Deregister waits for the Register of the one that is admitted.
            if name.admitted is not None and name.admitted.info.endpoint != claim.info.endpoint:
                self._tell_wanted(name.admitted)

    def _forget_attempt(self, path: str, actor: _Actor) -> None:
        """Forget the pending claim of the actor's last attempt and its refusal; the next attempt claims anew."""
        actor.orphan_of = None
        self._withdraw_claim(path, actor)
        key, actor.key = actor.key, None
        name = None if key is None else self._names.get(key)
        if key is not None and name is not None:
            name.line.remove(path)
            if name.empty:
                del self._names[key]

    def _withdraw_claim(self, path: str, actor: _Actor) -> None:
        """Forget a claim that was not answered. If it were admitted later, it would block the name for all others."""
        name = None if actor.key is None else self._names.get(actor.key)
        if name is not None:
            name.withdraw(path)

    # --- claims ---

    def _claimed(self, message: Claimed) -> None:
        if message.dialed is not None:
            self._dialed(message.path, message.generation, message.dialed)
        actor = self._actors.get(message.path)
        if actor is None or actor.sent_vanished or actor.sent.generation != message.generation:
            return  # Superseded: a message that its actor has not read yet ends the attempt.
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
        """Answer ``claimed`` and then the queued claims to the name, in order, until one is admitted."""
        while claimed is not None:
            handler, privileged = self._handlers.get(claimed.info.type), self._users.is_privileged(claimed.info.uid)
            if handler is None:
                self._refuse_orphan(claimed)
            # The rule for other users admits a privileged one whoever the holders are.
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
        """Tell the plugin that is admitted to a name, once, that another one waits for it."""
        if not claim.wanted:
            claim.wanted = True
            self._effects.append(Send(claim.path, NameWanted()))

    def _report_claim(self, claimed: Claimed, reason: str) -> None:
        """Report once for each socket that it claims the name of another user's plugin."""
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
        """Keep a name whose plugin left for its user; nobody's plugin ends what is kept for a privileged user."""
        keep = self._kept.get(key, self._now)
        if keep is None or self._users.is_privileged(uid) or not self._users.is_privileged(keep.uid):
            self._kept.keep(key, uid, self._now)

    def _next_in_line(self, key: tuple[str, str], name: Name) -> str | None:
        """Give the turn to the next plugin in line; while the name is kept, to the next one for which it is kept."""
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
        """Return the plugin of another name that has the endpoint, or None and note the claim to it (fault 79)."""
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

    def _refuse_orphan(self, claimed: Claimed) -> None:
        self._actors[claimed.path].orphan_of = claimed.info.type
        cause = f"no handler registered for plugin type: {claimed.info.type}"
        reason = f"RegisterPlugin error -- {cause} at socket {claimed.path}"
        self._effects.append(Send(claimed.path, NoHandler(claimed, reason, cause)))

    def _freed(self, key: tuple[str, str], name: Name) -> None:
        """Let those that were refused the name try again, from the next in line on."""
        name.line.releases += 1
        if name.line.turn is None:
            self._give_turn(key, name)

    def _give_turn(self, key: tuple[str, str], name: Name) -> None:
        """Tell the next plugin in line that it may try for the name, unless it would certainly be refused."""
        self._turns.end(key)
        handler, first = self._handlers.get(key[0]), name.line.first()
        privileged = first is not None and self._users.is_privileged(self._actors[first].uid)
        if handler is not None and self._is_full(name, handler.policy, privileged=privileged):
            name.line.turn = None
        elif (path := self._next_in_line(key, name)) is not None:
            self._turns.begin(key, self._now)
            self._effects.append(Send(path, NameFreed()))

    def _end_turn(self, key: tuple[str, str] | None, path: str) -> None:
        """Let the next plugin in line try for the name, if the one at ``path`` had its turn."""
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
        """Report that the name passes to another user, if a plugin of one was the last that registered (fault 80)."""
        last = name.registered.get(name.newest) if name.newest is not None else None
        before = self._former.get(key_of(claim.info)) if last is None else Holder(last.info.uid, last.path)
        if before is not None and before.uid != claim.info.uid:
            self._effects.append(Show(NamePassed(claim.path, claim.generation, claim.info, before)))

    def _note_answered(self, path: str, actor: _Actor) -> None:
        """Note that a call is answered yes, which counts for a successor of the actor, too."""
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
            # The view counts the instance as active again, should it register again in this generation.
            self._effects.append(Show(RoleChanged(claim.path, claim.generation, active=True)))
        if freed.was_taken:
            # Other plugins may have been refused because of this one.
            self._show_roles(name, claim.info.type)
            self._freed(key, name)
        elif actor is not None and actor.key == key:
            # It was admitted and then refused by its handler, perhaps because of another plugin of that name. It is
            # sent ``NameFreed`` when that one goes.
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
        """Show the role that a plugin has from the start: it has not changed, but its link waits for it."""
        handler = self._handlers.get(claim.info.type)
        if handler is None or not handler.linked:
            return
        # Another plugin may have got its endpoint before it had a link.
        displaced = self._endpoints.displacement_of(claim.path)
        if displaced is not None:
            self._effects.append(Show(displaced))
        if claim.path not in name.standby:
            self._effects.append(Show(RoleChanged(claim.path, claim.generation, active=True)))

    def _usable_changed(self, message: UsableChanged) -> None:
        """Rank a plugin by what its handler reports; one that is being deregistered has no rank any more."""
        claim = self._claims.get(message.path)
        if claim is None or claim.generation != message.generation or claim.phase is ClaimPhase.LEAVING:
            return
        claim.usable, claim.rank = message.usable, rank_if(claim.rank, usable=message.usable)
        if claim.phase is ClaimPhase.REGISTERED:
            name = self._names[key_of(claim.info)]
            name.rank_anew(claim)
            self._show_roles(name, claim.info.type)

    def _gone(self, message: PluginGone) -> None:
        """Make the watcher look at the socket of a plugin that has left for good; deregister one that called."""
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
        """Count a crash; those before a plugin was registered for long do not count."""
        registered = claim is not None and claim.phase is ClaimPhase.REGISTERED
        was_stable = registered and self._lives.is_stable(now - actor.registered_at)
        actor.crashes = actor.crashes.add(now, was_stable=was_stable)
        # This counts as the answer no: the registration of the next socket at the path may crash in the same way.
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
        """Start the successor of an actor that crashed and may have registered: it deregisters first (fault 85)."""
        self._leave(claim.path)
        self._actors[claim.path] = _Actor(actor.sent, crashes=actor.crashes, life=actor.life)
        pending = PendingDeregistration(claim.info, claim.generation, claim.handler, claim.was_registered)
        self._effects.append(StartRegistration(actor.sent, pending, crash))
        if self._stopping is not None:
            self._effects.append(Send(claim.path, self._stopping))

    # --- handlers ---

    def _handler_added(self, message: HandlerAdded) -> None:
        self._handlers[message.type] = _Handler(message.handler, message.policy, message.linked)
        self._show_handlers()
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
        """Let the removed handlers of this type end that have no plugin left."""
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
        """Have the registration actor of the path try and answer; answer here if there is none."""
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
        """Show again all that a status actor needs after it lost its view in a crash (fault 85)."""
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

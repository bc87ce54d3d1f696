"""The reconciler: the only owner of the desired and of the actual world.

It takes each message from its inbox, and carries out the effects that ``plugind.protocol.world.worlds`` returns. It
waits only for its inbox and, if the inbox of the status actor is full, for the status actor, which waits for no other
actor. Its only timer is for names. While a plugin tries for a name that was released, the next in line waits for a
second at most; and a plugin of another user waits while a name is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import assert_never

import trio

from ...protocol.messages.addresses import Address
from ...protocol.messages.config import RootRemoved
from ...protocol.messages.discovery import WatcherMessage
from ...protocol.messages.reconciler import HandlerAdded, ReconcilerMessage, RegistrationEnded, ReportAsked, RootAdded
from ...protocol.messages.registration import RegistrationMessage
from ...protocol.messages.status import LinkMessage, StatusMessage
from ...protocol.plugins.info import MAX_INSTANCES
from ...protocol.registration.lives import Lives
from ...protocol.trust.users import AS_ROOT, Users
from ...protocol.world import worlds as world
from ..messaging.mailbox import Readable, report, send_answer

#: Asks the supervisor to start a registration actor, and returns the actor's address.
Spawn = Callable[[world.StartRegistration], Address[RegistrationMessage]]

#: The most messages that are taken before other tasks have their turn.
BATCH = 64


async def run(
    inbox: Readable[ReconcilerMessage],
    status: trio.MemorySendChannel[StatusMessage],
    spawn: Spawn,
    retire: Callable[[world.HandlerRetired], None],
    watchers: Mapping[str, Address[WatcherMessage]],
    handlers: Sequence[HandlerAdded] = (),
    *,
    users: Users = AS_ROOT,
    max_instances: int = MAX_INSTANCES,
    lives: Lives | None = None,
    end_handled: Callable[[str], object] = lambda _path: None,
    links: Address[LinkMessage] | None = None,
    root_left: Callable[[str], object] = lambda _root: None,
) -> None:
    """Reconcile until a stop was requested and the last registration actor has ended; begin with ``handlers``.

    ``watchers`` are the addresses of the watchers by root. ``users`` says who may take over another user's name, and
    ``max_instances`` limits the plugins of one name. ``lives`` are the short lives so far, which outlive a reconciler
    that crashes. ``end_handled`` is called with the path of each registration actor whose end was handled, and
    ``root_left`` with each removed root that has no registration actors left. Reports of roles are also sent to
    ``links``.
    """
    decisions = world.World(handlers, users=users, max_instances=max_instances, lives=lives)
    reconciler = _Reconciler(decisions, status, spawn, retire, watchers, end_handled, links, root_left)
    await reconciler.take(ReportAsked())
    while not reconciler.finished:
        if (message := await _receive_until(inbox, reconciler.next_turn)) is None:
            await reconciler.pass_turns()
            continue
        await reconciler.take(message)
        for _ in range(BATCH):
            try:
                message = inbox.receive_nowait()
            except trio.WouldBlock:
                break
            await reconciler.take(message)


async def _receive_until(inbox: Readable[ReconcilerMessage], deadline: float) -> ReconcilerMessage | None:
    if deadline == math.inf:
        return await inbox.receive()  # The usual case, without a scope.
    with trio.move_on_at(deadline):
        return await inbox.receive()
    return None


class _Reconciler:
    def __init__(
        self,
        decisions: world.World,
        status: trio.MemorySendChannel[StatusMessage],
        spawn: Spawn,
        retire: Callable[[world.HandlerRetired], None],
        watchers: Mapping[str, Address[WatcherMessage]],
        end_handled: Callable[[str], object] = lambda _path: None,
        links: Address[LinkMessage] | None = None,
        root_left: Callable[[str], object] = lambda _root: None,
    ) -> None:
        self.finished = False
        self._world = decisions
        self._status = status
        self._spawn = spawn
        self._retire = retire
        self._watchers = dict(watchers)
        self._root_left = root_left
        self._links = links
        self._end_handled = end_handled
        self._registrations: dict[str, Address[RegistrationMessage]] = {}

    async def take(self, message: ReconcilerMessage) -> None:
        if isinstance(message, RegistrationEnded):
            self._registrations.pop(message.path, None)
        elif isinstance(message, RootAdded):
            self._watchers[message.root] = message.watcher
        elif isinstance(message, RootRemoved):
            self._watchers.pop(message.root, None)
        if effects := self._world.handle(message, trio.current_time()):
            await self._carry_out_all(effects)
        if isinstance(message, RegistrationEnded):
            self._end_handled(message.path)

    @property
    def next_turn(self) -> float:
        return self._world.next_turn

    async def pass_turns(self) -> None:
        await self._carry_out_all(self._world.pass_turns(trio.current_time()))

    async def _carry_out_all(self, effects: Iterable[world.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, world.Show):
                await report(self._status, effect.message)
                if isinstance(effect.message, LinkMessage) and self._links is not None:
                    self._links.send_nowait(effect.message)
            else:
                self._carry_out(effect)

    def _carry_out(self, effect: world.Immediate) -> None:
        match effect:
            case world.Send():
                self._registrations[effect.path].send_nowait(effect.message)
            case world.StartRegistration():
                self._registrations[effect.appeared.path] = self._spawn(effect)
            case world.Look():
                # A message from before the removal of a root may be read by a later reconciler.
                if (watcher := self._watchers.get(effect.root)) is not None:
                    watcher.send_nowait(effect.message)
            case world.AnswerCaller():
                send_answer(effect.reply, effect.message)
            case world.AnswerCall():
                send_answer(effect.reply, effect.message)
            case world.HandlerRetired():
                self._retire(effect)
            case world.RootLeft():
                self._root_left(effect.root)
            case world.Stopped():
                self.finished = True
            case _:
                assert_never(effect)
